// SPDX-License-Identifier: Apache-2.0
// Driver API: functions by name, and those that programs may look for but that always refuse.
#include <dlfcn.h>

#include <string>

#include "tests/simulated_cuda/core/device.h"
#include "tests/simulated_cuda/core/entry.h"

using namespace commensal::simulated_cuda;

namespace {

void* library() {
  static void* const handle = [] {
    Dl_info here{};
    ::dladdr(reinterpret_cast<void*>(&library), &here);
    return ::dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return handle;
}

}  // namespace

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status) {
  COMMENSAL_DRIVER_CALL(kNothing, symbol, function, version, flags);
  if (symbol == nullptr || function == nullptr || version > kDriverVersion) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The newest one: this driver has one function for each name.
  *function = nullptr;
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    *function = ::dlsym(library(), (std::string{symbol} + suffix).c_str());
    if (*function != nullptr) break;
  }
  if (status != nullptr) {
    *status =
        *function == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return CUDA_SUCCESS;
}

// Libraries with a runtime of their own (cuBLAS, cuDNN, NCCL) ask for these and then give up.
CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  COMMENSAL_DRIVER_CALL(kNothing, table, id);
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*,
                                const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  COMMENSAL_DRIVER_CALL(kInit, map);
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuLinkCreate(unsigned count, CUjit_option*, void**, CUlinkState*) {
  COMMENSAL_DRIVER_CALL(kContext, count);
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuLinkAddData(CUlinkState, CUjitInputType type, void*, std::size_t, const char*, unsigned,
                       CUjit_option*, void**) {
  COMMENSAL_DRIVER_CALL(kContext, type);
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuLinkComplete(CUlinkState state, void**, std::size_t*) {
  COMMENSAL_DRIVER_CALL(kContext, state);
  return CUDA_ERROR_NOT_SUPPORTED;
}

// SPDX-License-Identifier: Apache-2.0
// Driver API: virtual memory management.
#include "tests/simulated_cuda/core/entry.h"

using namespace commensal::simulated_cuda;

namespace {

/// Whether these calls harm a capture is for the hardware to say; a test may choose.
CUresult check_capture() {
  return Process::get().settings.virtual_memory_while_capturing ? CUDA_SUCCESS : unsafe_call();
}

/// Unmapping under running work is legal and fatal to that work: tests can count it.
void note_busy(const char* what) {
  Process& process = Process::get();
  for (const auto& context : process.contexts) {
    if (context->busy()) {
      (void)process.log.enter(what, {}, process.captures.any());
      return;
    }
  }
}

}  // namespace

CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment,
                             CUdeviceptr hint, unsigned long long flags) {
  COMMENSAL_DRIVER_CALL(kInit, address, bytes, alignment, hint, flags);
  COMMENSAL_RETURN_IF_REFUSED(check_capture());
  if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return memory().reserve(address, bytes, alignment, hint);
}

CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
  COMMENSAL_DRIVER_CALL(kInit, address, bytes);
  COMMENSAL_RETURN_IF_REFUSED(check_capture());
  return memory().free_reservation(address, bytes);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  COMMENSAL_DRIVER_CALL(kInit, handle, bytes, properties, flags);
  COMMENSAL_RETURN_IF_REFUSED(check_capture());
  if (handle == nullptr || properties == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return memory().create(handle, bytes, *properties);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  COMMENSAL_DRIVER_CALL(kInit, handle);
  COMMENSAL_RETURN_IF_REFUSED(check_capture());
  return memory().release(handle);
}

CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  COMMENSAL_DRIVER_CALL(kInit, address, bytes, offset, handle, flags);
  COMMENSAL_RETURN_IF_REFUSED(check_capture());
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return memory().map(address, bytes, offset, handle);
}

CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
  COMMENSAL_DRIVER_CALL(kInit, address, bytes);
  COMMENSAL_RETURN_IF_REFUSED(check_capture());
  note_busy("cuMemUnmap while busy");
  return memory().unmap(address, bytes);
}

CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* rights,
                        std::size_t count) {
  COMMENSAL_DRIVER_CALL(kInit, address, bytes, rights, count);
  COMMENSAL_RETURN_IF_REFUSED(check_capture());
  return memory().set_access(address, bytes, rights, count);
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr address) {
  COMMENSAL_DRIVER_CALL(kInit, flags, location, address);
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return memory().access(flags, *location, address);
}

CUresult cuMemGetAllocationGranularity(std::size_t* granularity,
                                       const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  COMMENSAL_DRIVER_CALL(kInit, granularity, properties, option);
  const bool known_option =
      option == CU_MEM_ALLOC_GRANULARITY_MINIMUM || option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
  if (granularity == nullptr || properties == nullptr || !known_option) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  COMMENSAL_RETURN_IF_REFUSED(memory().check_properties(*properties));
  *granularity = Process::get().settings.granularity;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  COMMENSAL_DRIVER_CALL(kInit, properties, handle);
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return memory().properties(properties, handle);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  COMMENSAL_DRIVER_CALL(kInit, handle, address);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return memory().retain(handle, reinterpret_cast<CUdeviceptr>(address));
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  COMMENSAL_DRIVER_CALL(kInit, shareable, handle, type, flags);
  if (shareable == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return memory().export_handle(static_cast<int*>(shareable), handle, type);
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  COMMENSAL_DRIVER_CALL(kInit, handle, shareable, type);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  return memory().import_handle(handle,
                                static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)));
}

// SPDX-License-Identifier: Apache-2.0
// Finds the CUDA driver's functions.
#include "allocator/cuda/driver.h"

#include <dlfcn.h>

#include "allocator/memory_source.h"

namespace commensal {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

template <typename Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr) {
    throw SourceError(std::string("the CUDA driver has no ") + name +
                      ": elastic memory on a GPU needs a driver of CUDA 12.5 or later");
  }
}

CudaDriver load() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw SourceError(std::string("no CUDA driver: ") + (why == nullptr ? kLibrary : why));
  }
  CudaDriver driver;
#define COMMENSAL_CUDA_TEXT(name) #name
#define COMMENSAL_CUDA_FIND(name) find(library, COMMENSAL_CUDA_TEXT(name), driver.name);
  COMMENSAL_CUDA_FUNCTIONS(COMMENSAL_CUDA_FIND)
#undef COMMENSAL_CUDA_FIND
#undef COMMENSAL_CUDA_TEXT
  if (const CUresult result = driver.cuInit(0); result != CUDA_SUCCESS) {
    throw SourceError("the CUDA driver does not start: cuInit: " + driver.describe(result));
  }
  return driver;
}

}  // namespace

const CudaDriver& CudaDriver::get() {
  static const CudaDriver driver = load();
  return driver;
}

std::string CudaDriver::describe(CUresult result) const {
  const char* name = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
    return "CUDA error " + std::to_string(static_cast<int>(result));
  }
  const char* sentence = nullptr;
  if (cuGetErrorString(result, &sentence) != CUDA_SUCCESS || sentence == nullptr) return name;
  return std::string(name) + " (" + sentence + ")";
}

void check_cuda(CUresult result, const std::string& call) {
  if (result == CUDA_SUCCESS) return;
  const std::string message = call + ": " + CudaDriver::get().describe(result);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) throw OutOfMemory(message);
  throw SourceError(message);
}

}  // namespace commensal

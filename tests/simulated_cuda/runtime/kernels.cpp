// SPDX-License-Identifier: Apache-2.0
// Runtime API: compiled-in kernels and variables, launches.
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/simulated_cuda/core/kernel.h"
#include "tests/simulated_cuda/core/transfer.h"
#include "tests/simulated_cuda/runtime/entry.h"

using namespace commensal::simulated_cuda;
using commensal::Mutex;
using commensal::MutexLock;

namespace {

/// What compiled-in code says about itself when its library is loaded.
struct Registry {
  struct Variable {
    std::size_t bytes = 0;
    CUdeviceptr address = 0;  // given at the first use
  };
  Mutex mutex;
  std::unordered_map<const void*, const char*> kernels COMMENSAL_GUARDED_BY(mutex);
  std::unordered_map<const void*, Variable> variables COMMENSAL_GUARDED_BY(mutex);

  static Registry& get() {
    static Registry* const registry = new Registry;
    return *registry;
  }
};

struct Configuration {
  dim3 grid;
  dim3 block;
  std::size_t shared;
  cudaStream_t stream;
};

std::vector<Configuration>& configurations() {
  thread_local std::vector<Configuration> pushed;
  return pushed;
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, cudaStream_t handle,
                   void** arguments) {
  std::string name = "unregistered";
  {
    Registry& registry = Registry::get();
    const MutexLock lock(registry.mutex);
    const auto found = registry.kernels.find(function);
    if (found != registry.kernels.end()) name = found->second;
  }
  std::shared_ptr<Stream> stream;
  const CUresult error = Process::get().find_stream(handle, &stream);
  if (error != CUDA_SUCCESS) return runtime_result(error);
  const LaunchShape shape{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}};
  return runtime_result(Kernels::get().launch(stream, name, shape, arguments));
}

CUresult symbol(const void* variable, CUdeviceptr* address) {
  Registry& registry = Registry::get();
  const MutexLock lock(registry.mutex);
  const auto found = registry.variables.find(variable);
  if (found == registry.variables.end()) return CUDA_ERROR_NOT_FOUND;
  if (found->second.address == 0) {
    Process& process = Process::get();
    const CUresult error = process.memory.allocate(&found->second.address, found->second.bytes,
                                                   process.current()->device());
    if (error != CUDA_SUCCESS) return error;
  }
  *address = found->second.address;
  return CUDA_SUCCESS;
}

}  // namespace

// Compilers generate calls of these; no public header declares them all for a host compiler.
extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void**) {}

char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  Registry& registry = Registry::get();
  const MutexLock lock(registry.mutex);
  registry.kernels[host] = name;
}

void __cudaRegisterVar(void**, char* host, char*, const char*, int, std::size_t bytes, int, int) {
  Registry& registry = Registry::get();
  const MutexLock lock(registry.mutex);
  registry.variables[host] = {bytes, 0};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, void* stream) {
  configurations().push_back({grid, block, shared, static_cast<cudaStream_t>(stream)});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  auto& pushed = configurations();
  if (pushed.empty()) return cudaErrorMissingConfiguration;
  *grid = pushed.back().grid;
  *block = pushed.back().block;
  *shared = pushed.back().shared;
  std::memcpy(stream, &pushed.back().stream, sizeof(cudaStream_t));
  pushed.pop_back();
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  const CallLog::Arguments given{reinterpret_cast<std::uint64_t>(kernel),
                                 grid.x,
                                 grid.y,
                                 grid.z,
                                 block.x,
                                 block.y,
                                 block.z,
                                 shared};
  const CUresult refused = enter_runtime("cudaLaunchKernel", given, Needs::kContext);
  if (refused != CUDA_SUCCESS) return runtime_result(refused);
  return launch(kernel, grid, block, stream, arguments);
}

}  // extern "C"

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared, cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                         shared);
  return launch(function, grid, block, stream, arguments);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block,
                                        void** arguments, std::size_t shared, cudaStream_t stream) {
  COMMENSAL_RUNTIME_CALL(kContext, function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                         shared);
  return launch(function, grid, block, stream, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** arguments) {
  COMMENSAL_RUNTIME_CALL(kContext, config, function, arguments);
  return launch(function, config->gridDim, config->blockDim, config->stream, arguments);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  COMMENSAL_RUNTIME_CALL(kContext, attributes, function);
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = 90;
  attributes->ptxVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  COMMENSAL_RUNTIME_CALL(kContext, function, attribute, value);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int block_size, std::size_t shared) {
  COMMENSAL_RUNTIME_CALL(kContext, blocks, function, block_size, shared);
  if (block_size <= 0) return runtime_result(CUDA_ERROR_INVALID_VALUE);
  *blocks = 2048 / block_size;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* function, int block_size, std::size_t shared, unsigned flags) {
  COMMENSAL_RUNTIME_CALL(kContext, blocks, function, block_size, shared, flags);
  if (block_size <= 0) return runtime_result(CUDA_ERROR_INVALID_VALUE);
  *blocks = 2048 / block_size;
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void** address, const void* variable) {
  COMMENSAL_RUNTIME_CALL(kContext, address, variable);
  CUdeviceptr found = 0;
  const CUresult result = symbol(variable, &found);
  *address = reinterpret_cast<void*>(found);
  return runtime_result(result);
}

cudaError_t cudaMemcpyToSymbol(const void* variable, const void* from, std::size_t bytes,
                               std::size_t offset, cudaMemcpyKind kind) {
  COMMENSAL_RUNTIME_CALL(kContext, variable, from, bytes, offset, kind);
  CUdeviceptr to = 0;
  if (const CUresult error = symbol(variable, &to); error != CUDA_SUCCESS) {
    return runtime_result(error);
  }
  std::shared_ptr<Stream> stream = Process::get().current()->legacy();
  return runtime_result(
      copy(stream, to + offset, reinterpret_cast<CUdeviceptr>(from), bytes, Wait::kYes));
}

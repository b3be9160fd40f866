// SPDX-License-Identifier: Apache-2.0
// Driver API: modules, functions, launches. Modules hold any function that is asked for.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulated_cuda/core/entry.h"
#include "tests/simulated_cuda/core/kernel.h"

using namespace commensal::simulated_cuda;
using commensal::Mutex;
using commensal::MutexLock;

namespace {

/// `CUfunction` is the address of one of these.
struct Function {
  std::string name;
  int shared_memory = 0;  // dynamic, as a program asked for
};

/// `CUmodule` is the address of one of these.
struct Module {
  Mutex mutex;
  std::map<std::string, std::unique_ptr<Function>> functions COMMENSAL_GUARDED_BY(mutex);
};

HandleTable<Module, CUmodule>& modules() {
  static auto* const table = new HandleTable<Module, CUmodule>;
  return *table;
}

CUresult launch(CUfunction function, const LaunchShape& shape, CUstream handle, void** arguments,
                void** extra) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (arguments != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Stream> stream;
  COMMENSAL_RETURN_IF_REFUSED(Process::get().find_stream(handle, &stream));
  const auto& name = reinterpret_cast<const Function*>(function)->name;
  return Kernels::get().launch(stream, name, shape, arguments);
}

CUresult load(CUmodule* module, const void* image) {
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *module = modules().add(std::make_shared<Module>());
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  COMMENSAL_DRIVER_CALL(kContext, module, path);
  return load(module, path);
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  COMMENSAL_DRIVER_CALL(kContext, module, image);
  return load(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count,
                            CUjit_option* options, void** values) {
  COMMENSAL_DRIVER_CALL(kContext, module, image, count, options, values);
  return load(module, image);
}

CUresult cuModuleUnload(CUmodule module) {
  COMMENSAL_DRIVER_CALL(kContext, module);
  return modules().remove(module) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  COMMENSAL_DRIVER_CALL(kContext, function, handle, name);
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::shared_ptr<Module> module = modules().find(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const MutexLock lock(module->mutex);
  auto& found = module->functions[name];
  if (found == nullptr) found = std::make_unique<Function>(Function{name});
  *function = reinterpret_cast<CUfunction>(found.get());
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  COMMENSAL_DRIVER_CALL(kContext, value, attribute, function);
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = reinterpret_cast<const Function*>(function)->shared_memory;
      break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  COMMENSAL_DRIVER_CALL(kContext, function, attribute, value);
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    reinterpret_cast<Function*>(function)->shared_memory = value;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  COMMENSAL_DRIVER_CALL(kContext, function, config);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  COMMENSAL_DRIVER_CALL(kContext, name, function);
  *name = reinterpret_cast<const Function*>(function)->name.c_str();
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                     int block_size, std::size_t shared) {
  COMMENSAL_DRIVER_CALL(kContext, blocks, function, block_size, shared);
  if (block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = 2048 / block_size;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function,
                                      const CUlaunchConfig* config) {
  COMMENSAL_DRIVER_CALL(kContext, clusters, function, config);
  *clusters = 1;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream, void** arguments, void** extra) {
  COMMENSAL_DRIVER_CALL(kContext, function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                        shared);
  const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}};
  return launch(function, shape, stream, arguments, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                          void** extra) {
  COMMENSAL_DRIVER_CALL(kContext, config, function, arguments, extra);
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const LaunchShape shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                          {config->blockDimX, config->blockDimY, config->blockDimZ}};
  return launch(function, shape, config->hStream, arguments, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared, CUstream stream,
                                   void** arguments) {
  COMMENSAL_DRIVER_CALL(kContext, function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                        shared);
  const LaunchShape shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}};
  return launch(function, shape, stream, arguments, nullptr);
}

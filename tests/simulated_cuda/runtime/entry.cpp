// SPDX-License-Identifier: Apache-2.0
#include "tests/simulated_cuda/runtime/entry.h"

namespace commensal::simulated_cuda {

cudaError_t& last_error() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}

int& thread_device() {
  thread_local int device = 0;
  return device;
}

cudaError_t runtime_result(CUresult result) {
  const auto error = static_cast<cudaError_t>(result);
  if (error != cudaSuccess) last_error() = error;
  return error;
}

CUresult enter_runtime(const char* function, const CallLog::Arguments& given, Needs needs) {
  const CUresult refused = enter(function, given, Needs::kNothing);
  if (refused != CUDA_SUCCESS || needs == Needs::kNothing) return refused;
  Process& process = Process::get();
  if (process.forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (process.contexts.empty()) return CUDA_ERROR_NO_DEVICE;
  process.initialized = true;
  if (const CUresult fate = process.fate; fate != CUDA_SUCCESS) return fate;
  if (needs == Needs::kInit) return CUDA_SUCCESS;
  Context* context = process.current();
  if (context != nullptr && context->retained > 0) return CUDA_SUCCESS;
  if (const CUresult error = process.retain(thread_device(), &context); error != CUDA_SUCCESS) {
    return error;
  }
  process.set_current(context);
  return CUDA_SUCCESS;
}

}  // namespace commensal::simulated_cuda

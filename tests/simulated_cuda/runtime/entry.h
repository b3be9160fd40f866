// SPDX-License-Identifier: Apache-2.0
// What every function of the simulated CUDA runtime does first and last.
#pragma once

#include <cuda_runtime_api.h>

#include "tests/simulated_cuda/core/entry.h"

namespace commensal::simulated_cuda {

/// The runtime's errors have the driver's numbers. Remembers a failure as the thread's last error.
cudaError_t runtime_result(CUresult result);

/// The calling thread's last error.
cudaError_t& last_error();

/// The calling thread's device.
int& thread_device();

/// Counts the call; starts the driver and makes the thread's device current if it `needs` that.
[[nodiscard]] CUresult enter_runtime(const char* function, const CallLog::Arguments& given,
                                     Needs needs);

}  // namespace commensal::simulated_cuda

/// Opens a runtime function: COMMENSAL_RUNTIME_CALL(what it needs, its arguments...).
#define COMMENSAL_RUNTIME_CALL(needs, ...)                                                      \
  do {                                                                                          \
    const CUresult refused_ = ::commensal::simulated_cuda::enter_runtime(                       \
        __func__, ::commensal::simulated_cuda::arguments(__VA_ARGS__),                          \
        ::commensal::simulated_cuda::Needs::needs);                                             \
    if (refused_ != CUDA_SUCCESS) return ::commensal::simulated_cuda::runtime_result(refused_); \
  } while (false)

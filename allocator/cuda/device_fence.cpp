// SPDX-License-Identifier: Apache-2.0
// Drains a CUDA context, with a deadline.
#include "allocator/cuda/device_fence.h"

#include <thread>

namespace commensal {
namespace {

// Short work is waited for by asking again at once; long work is given the core back.
constexpr int kAskAtOnce = 100;
constexpr Duration kPause = std::chrono::microseconds{20};

}  // namespace

DeviceFence::DeviceFence(const DeviceContext& context) : context_(context) {
  check_cuda(context_.driver().cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

DeviceFence::~DeviceFence() {
  if (event_ == nullptr) return;
  (void)insist([this] { return context_.driver().cuEventDestroy(event_); });
}

CUresult DeviceFence::drain(TimePoint deadline) noexcept {
  const CudaDriver& driver = context_.driver();
  if (context_.another_may_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CUresult result = driver.cuCtxRecordEvent(context_.handle(), event_);
  if (result != CUDA_SUCCESS) return result;
  for (int asked = 0;; ++asked) {
    result = driver.cuEventQuery(event_);
    if (result != CUDA_ERROR_NOT_READY) return result;
    if (std::chrono::steady_clock::now() >= deadline) return result;
    if (asked < kAskAtOnce) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// The primary context of a device.
#include "allocator/cuda/device_context.h"

#include <array>
#include <cstdio>
#include <string>

#include "allocator/cuda/capturing_library.h"

namespace commensal {
DeviceContext::DeviceContext(int device) : driver_(CudaDriver::get()) {
  const std::string name = "CUDA device " + std::to_string(device);
  check_cuda(driver_.cuDeviceGet(&device_, device), name + ": cuDeviceGet");
  check_cuda(driver_.cuDevicePrimaryCtxRetain(&context_, device_),
             name + ": cuDevicePrimaryCtxRetain");
}

DeviceContext::~DeviceContext() {
  if (context_ == nullptr) return;
  (void)insist([this] { return driver_.cuDevicePrimaryCtxRelease(device_); });
}

std::string DeviceContext::id() const {
  CUuuid uuid{};
  check_cuda(driver_.cuDeviceGetUuid(&uuid, device_), "cuDeviceGetUuid");
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits.data();
  }
  return text;
}

int DeviceContext::attribute(CUdevice_attribute which) const {
  int value = 0;
  check_cuda(driver_.cuDeviceGetAttribute(&value, which, device_),
             "cuDeviceGetAttribute " + std::to_string(static_cast<int>(which)));
  return value;
}

bool DeviceContext::another_may_capture() const noexcept {
  if (!capturing_library().empty()) return true;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver_.cuStreamIsCapturing(CU_STREAM_LEGACY, &status);
  return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
         (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}

DeviceContext::Scope::Scope(const DeviceContext& context) noexcept : driver_(context.driver_) {
  result_ = driver_.cuCtxGetCurrent(&before_);
  if (result_ != CUDA_SUCCESS) return;
  if (before_ != context.context_) {
    result_ = driver_.cuCtxSetCurrent(context.context_);
    if (result_ != CUDA_SUCCESS) return;
    changed_ = true;
  }
  result_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  relaxed_ = result_ == CUDA_SUCCESS;
}

DeviceContext::Scope::~Scope() {
  if (relaxed_) {
    (void)insist([this] {
      CUstreamCaptureMode mode = mode_;
      return driver_.cuThreadExchangeStreamCaptureMode(&mode);
    });
  }
  if (changed_) {
    (void)insist([this] { return driver_.cuCtxSetCurrent(before_); });
  }
}

}  // namespace commensal

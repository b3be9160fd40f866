// SPDX-License-Identifier: Apache-2.0
// Waits, with a deadline, until the device has done everything that was asked of it.
#pragma once

#include <cuda.h>

#include "allocator/base/clock.h"
#include "allocator/cuda/device_context.h"

namespace commensal {

/// Drains a context: every stream of it, also those that no one here knows (NCCL, DLPack).
/// Thread safety: none; the caller holds a DeviceContext::Scope.
class DeviceFence {
 public:
  /// @throws OutOfMemory, SourceError.
  explicit DeviceFence(const DeviceContext& context);
  ~DeviceFence();
  DeviceFence(const DeviceFence&) = delete;
  DeviceFence& operator=(const DeviceFence&) = delete;

  /// Waits until all work that was submitted before is done. Nothing is left behind when the
  /// deadline passes. Must not be called while PyTorch captures a graph: that would break the
  /// capture.
  /// @return CUDA_ERROR_NOT_READY if the deadline passed; CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
  /// and nothing was done, if another library may be capturing one (`another_may_capture`).
  [[nodiscard]] CUresult drain(TimePoint deadline) noexcept;

  /// Forgets everything without a call, in a forked child.
  void abandon() noexcept { event_ = nullptr; }

 private:
  const DeviceContext& context_;
  CUevent event_ = nullptr;
};

}  // namespace commensal

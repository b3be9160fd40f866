// SPDX-License-Identifier: Apache-2.0
// The device's primary context, and what a thread does before it calls the driver.
#pragma once

#include <cuda.h>

#include <string>

#include "allocator/cuda/driver.h"

namespace commensal {

/// Holds a reference to the primary context of a device: the one that PyTorch uses too.
/// Thread safety: immutable; any member may be called from any thread.
class DeviceContext {
 public:
  /// @param device  ordinal among the visible devices. @throws SourceError.
  explicit DeviceContext(int device);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  [[nodiscard]] const CudaDriver& driver() const noexcept { return driver_; }
  [[nodiscard]] CUdevice device() const noexcept { return device_; }
  [[nodiscard]] CUcontext handle() const noexcept { return context_; }
  /// Returns the name by which programs of all kinds know the device: "GPU-" and its UUID, also for
  /// a MIG instance. @throws SourceError.
  [[nodiscard]] std::string id() const;
  /// Returns an attribute of the device. @throws SourceError.
  [[nodiscard]] int attribute(CUdevice_attribute which) const;

  /// Tells whether a library may be capturing a graph in this context, so that a call for the whole
  /// context could end that. The driver tells of streams that wait for the legacy one and it for
  /// them (blocking streams, as CuPy and Warp make them). Of others it tells nothing: true as soon
  /// as a library is loaded that captures in such (`capturing_library`); captures of PyTorch's
  /// streams are PyTorch's to tell. Breaks no capture. The caller holds a Scope.
  [[nodiscard]] bool another_may_capture() const noexcept;

  /// Forgets the context without a call: a forked child has none.
  void abandon() noexcept { context_ = nullptr; }

  /// Makes the context current for a scope, and lets calls pass that another thread's capture would
  /// otherwise take for a mistake of its own.
  ///
  /// What was there before comes back at the end. Where the driver refuses that, the thread is left
  /// with the primary context current, as after any call of the CUDA runtime.
  class Scope {
   public:
    explicit Scope(const DeviceContext& context) noexcept;
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    /// Returns what entering came to. Nothing else may be called after an error.
    [[nodiscard]] CUresult result() const noexcept { return result_; }
    /// Throws SourceError unless entering succeeded.
    void check() const { check_cuda(result_, "entering the CUDA context"); }

   private:
    const CudaDriver& driver_;
    CUcontext before_ = nullptr;
    bool changed_ = false;
    bool relaxed_ = false;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result_ = CUDA_SUCCESS;
  };

 private:
  const CudaDriver& driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

}  // namespace commensal

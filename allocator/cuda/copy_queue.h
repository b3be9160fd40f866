// SPDX-License-Identifier: Apache-2.0
// Copies between tiers while the job runs: a stream for each direction, an event for each copy.
#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/mutex.h"
#include "allocator/cuda/device_context.h"
#include "allocator/cuda/fingerprint.h"
#include "allocator/memory_source.h"

namespace commensal {

/// One copy. Who shares it may ask `CopyQueue::poll`; everything else is the queue's caller's.
struct DeviceCopy {
  CUdeviceptr from = 0;
  CUdeviceptr to = 0;
  Bytes size;
  Tier target = Tier::kFree;  ///< chooses the stream

  std::shared_ptr<CUevent_st> done;  ///< null: nothing was put into a stream
  Fingerprinter::Slot copied = Fingerprinter::kNoSlot;
  Fingerprinter::Slot now = Fingerprinter::kNoSlot;
  std::atomic<CopyState> state{CopyState::kRunning};
  std::atomic<CUresult> error{CUDA_SUCCESS};  ///< why it is kFailed
};

/// Puts copies into streams of lowest priority that wait for no other, and fingerprints what
/// arrived: not the source, which the job may change before, while and after it is read.
///
/// Thread safety: `poll` may be called from any thread; all else is serialised by the caller. The
/// caller holds a DeviceContext::Scope.
class CopyQueue {
 public:
  /// @throws OutOfMemory, SourceError.
  explicit CopyQueue(const DeviceContext& context);
  /// Waits for all copies.
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  /// Says why changes cannot be told; empty: they can.
  [[nodiscard]] const std::string& fingerprint_reason() const noexcept {
    return fingerprints_->reason();
  }

  /// Starts a copy, once. Both addresses must stay mapped until `end`.
  /// @throws SourceError; nothing is under way then.
  void start(DeviceCopy& copy);
  /// Tells how far a copy is.
  CopyState poll(DeviceCopy& copy) noexcept;
  /// Waits until it is done or failed.
  CopyState wait(DeviceCopy& copy) noexcept;
  /// Waits until nothing of the copy is under way.
  void end(DeviceCopy& copy) noexcept;

  // While nobody writes to the sources.
  /// Starts to fingerprint the source as it is now.
  [[nodiscard]] CUresult begin_compare(DeviceCopy& copy) noexcept;
  /// Starts to copy once more.
  [[nodiscard]] CUresult begin_renew(DeviceCopy& copy) noexcept;
  /// Waits for what was started by the two above.
  [[nodiscard]] CUresult finish() noexcept;
  /// Tells, after `finish`, whether the source still holds the bytes that were copied.
  [[nodiscard]] bool unchanged(const DeviceCopy& copy) const noexcept {
    return fingerprints_->value(copy.copied) == fingerprints_->value(copy.now);
  }

  /// Forgets everything without a call, in a forked child.
  void abandon() noexcept;

 private:
  [[nodiscard]] CUstream stream(Tier target) const noexcept {
    return target == Tier::kDevice ? in_ : out_;
  }
  [[nodiscard]] CUresult enqueue(DeviceCopy& copy) noexcept;
  [[nodiscard]] std::shared_ptr<CUevent_st> take_event();
  void give_event(CUevent event) noexcept;
  void close() noexcept;
  void drain() noexcept;

  const DeviceContext& context_;
  const CudaDriver& driver_;
  CUstream out_ = nullptr;  // to the host
  CUstream in_ = nullptr;   // to the device
  std::unique_ptr<Fingerprinter> fingerprints_;
  bool abandoned_ = false;

  Mutex mutex_;  // who polls may be the last to let an event go
  std::vector<CUevent> events_ COMMENSAL_GUARDED_BY(mutex_);  // free ones
  std::size_t events_made_ COMMENSAL_GUARDED_BY(mutex_) = 0;
};

}  // namespace commensal

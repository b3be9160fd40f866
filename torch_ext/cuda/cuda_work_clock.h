// SPDX-License-Identifier: Apache-2.0
// How long a GPU worked on what a process gave it, by events in its streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"
#include "torch_ext/cuda/cuda_calls.h"
#include "torch_ext/gate/device_time.h"

namespace commensal {

/// Marks are timed events in the calling thread's current stream, behind what it issued and, where
/// a chunk of work begins, before it: an event tells the time, not whether the device worked. The
/// time between two of one thread counts also across streams, not across devices; what ran at the
/// same time in another one counts twice.
///
/// While a graph may be captured nothing is asked of the runtime, which would break the capture: no
/// mark can be put then, and none is seen to be passed. Thread safety: all.
class CudaWorkClock final : public WorkClock {
 public:
  /// @param calls      not owned; must outlive this.
  /// @param capturing  whether a graph may be captured now.
  CudaWorkClock(CudaCalls& calls, bool (*capturing)());
  ~CudaWorkClock() override;

  /// Work of this device, too, is measured from now on; before nothing is asked of the runtime.
  void watch(int device) noexcept {
    if (device >= 0 && device < kMaxDevices) devices_.fetch_or(std::uint64_t{1} << device);
  }

  [[nodiscard]] bool done_on_return() const noexcept override { return false; }
  void begin() noexcept override;
  /// Without a beginning or another mark before it on the same thread: 0.
  [[nodiscard]] Marker mark() noexcept override;
  [[nodiscard]] std::optional<Duration> passed(Marker marker) noexcept override;

  /// Events that exist.
  [[nodiscard]] std::size_t events() const;

 private:
  static constexpr int kMaxDevices = 64;
  struct Pool;
  struct Event;
  struct Mark {
    std::shared_ptr<Event> from;
    std::shared_ptr<Event> to;
  };
  [[nodiscard]] std::shared_ptr<Event> record(int device);
  /// Puts an event behind what the calling thread has issued, and returns it with the one before
  /// it. Both null: it cannot.
  [[nodiscard]] Mark put();
  [[nodiscard]] Mark try_put() noexcept;

  CudaCalls& calls_;
  bool (*const capturing_)();
  const std::uint64_t number_;  // tells clocks apart
  const std::shared_ptr<Pool> pool_;
  std::atomic<std::uint64_t> devices_{0};  // that are watched: a bit for each

  mutable Mutex mutex_;
  std::unordered_map<Marker, Mark> marks_ COMMENSAL_GUARDED_BY(mutex_);
  Marker last_ COMMENSAL_GUARDED_BY(mutex_) = 0;
};

}  // namespace commensal

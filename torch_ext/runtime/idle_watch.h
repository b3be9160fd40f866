// SPDX-License-Identifier: Apache-2.0
// Tells since when a job does nothing: what parking an idle job is decided on.
#pragma once

#include <cstdint>

#include "allocator/base/clock.h"

namespace commensal {

/// What shows that a job works.
struct SignsOfWork {
  std::uint64_t counted = 0;  ///< grows with allocations, ops, steps, waits: whatever is counted
  Duration cpu{};             ///< time of the process's threads, those of ours left out
};

/// Watches those signs. An op that neither allocates nor is counted shows by the time it uses: a
/// window of a second in which a twentieth of one core was busy counts as work, while an idle
/// interpreter with its heartbeats stays far below. Not thread-safe.
class IdleWatch {
 public:
  static constexpr Duration kWindow = std::chrono::seconds{1};
  static constexpr int kBusyPart = 20;

  /// Looks at the signs; returns since when there have been none.
  TimePoint look(const SignsOfWork& signs, TimePoint now) noexcept {
    if (signs.counted != counted_ || window_begin_ == TimePoint{}) {
      counted_ = signs.counted;
      begin_window(signs, now);
      since_ = now;
    } else if (now - window_begin_ >= kWindow) {
      if ((signs.cpu - window_cpu_) * kBusyPart >= now - window_begin_) since_ = now;
      begin_window(signs, now);
    }
    return since_;
  }
  /// Counts from now on, whatever was seen before.
  void start_over(TimePoint now) noexcept {
    window_begin_ = TimePoint{};
    since_ = now;
  }

 private:
  void begin_window(const SignsOfWork& signs, TimePoint now) noexcept {
    window_begin_ = now;
    window_cpu_ = signs.cpu;
  }

  std::uint64_t counted_ = 0;
  TimePoint since_;
  TimePoint window_begin_;
  Duration window_cpu_{};
};

}  // namespace commensal

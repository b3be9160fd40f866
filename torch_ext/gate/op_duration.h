// SPDX-License-Identifier: Apache-2.0
// Remembers how long a kind of op takes, so that a gap can be judged before the op starts.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/base/clock.h"

namespace commensal {

/// A decayed duration. It rises quickly and falls slowly (the same op comes in many sizes, and too
/// short a guess costs the neighbour).
///
/// Thread safety: any member from any thread, without locks; of two updates at once one may get
/// lost.
class OpDuration {
 public:
  /// Returns the predicted duration; zero if the op was never seen.
  [[nodiscard]] Duration predicted() const noexcept {
    return Duration{nanoseconds_.load(std::memory_order_relaxed)};
  }

  [[nodiscard]] bool is_known() const noexcept { return predicted() != Duration::zero(); }

  void record(Duration took) noexcept {
    const std::int64_t old = nanoseconds_.load(std::memory_order_relaxed);
    std::int64_t now = took.count() > 0 ? took.count() : 1;
    if (old != 0) {
      // One op that was preempted must not keep its kind out of every gap that follows.
      if (now > old * kMostRise) now = old * kMostRise;
      now = old + (now > old ? (now - old + 1) / 2 : (now - old) / 8);
    }
    nanoseconds_.store(now, std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t kMostRise = 8;
  std::atomic<std::int64_t> nanoseconds_{0};
};

}  // namespace commensal

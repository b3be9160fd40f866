// SPDX-License-Identifier: Apache-2.0
// When the ops of a guaranteed job are looked at: short windows, so that nobody notices.
#pragma once

#include <algorithm>
#include <cstdint>

#include "allocator/base/clock.h"

namespace commensal {

/// Plans windows in which an op callback is on: 50 ms every 5 s or more, and never more than 1 % of
/// the time. A window that ended late (its process was stopped, the machine busy) is followed by a
/// rest that makes up for it, so that it and its rest together keep the share.
///
/// Not thread-safe. Has no clock.
class SampleWindows {
 public:
  static constexpr Duration kLength = std::chrono::milliseconds{50};
  static constexpr Duration kEvery = std::chrono::seconds{5};
  static constexpr int kRestForEach = 99;  ///< time without, for the time with a callback

  /// Begins counting: the first window is `kEvery` from now.
  explicit SampleWindows(TimePoint now) : next_(now + kEvery) {}

  /// Tells whether the callback is to be on from now on.
  /// @param wanted  false ends a window, and none begins.
  [[nodiscard]] bool advance(TimePoint now, bool wanted) noexcept {
    if (open_ && (!wanted || now - began_ >= kLength)) {
      const Duration was_open = elapsed(began_, now);
      total_ += was_open;
      open_ = false;
      next_ = std::max(began_ + kEvery, now + was_open * kRestForEach);
    } else if (!open_ && wanted && now >= next_) {
      began_ = now;
      open_ = true;
      ++windows_;
    }
    return open_;
  }

  [[nodiscard]] bool is_open() const noexcept { return open_; }
  /// When `advance` has something to change, if windows are wanted.
  [[nodiscard]] TimePoint due() const noexcept { return open_ ? began_ + kLength : next_; }
  [[nodiscard]] std::uint64_t windows() const noexcept { return windows_; }
  /// Time in windows that have ended.
  [[nodiscard]] Duration total() const noexcept { return total_; }

 private:
  TimePoint next_;
  TimePoint began_;
  Duration total_{};
  std::uint64_t windows_ = 0;
  bool open_ = false;
};

}  // namespace commensal

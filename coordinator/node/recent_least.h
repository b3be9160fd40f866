// SPDX-License-Identifier: Apache-2.0
// A measured amount that is believed when it lasts.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"

namespace commensal::node {

/// Keeps the least of an amount's recent samples: two numbers that are read one after the other
/// (what a job says that it holds, what the kernel shows) make their difference look too large for
/// a moment. It moves in whole steps, so that noise moves nobody's limit. Zero until samples span
/// the window. Not thread safe.
class RecentLeast {
 public:
  static constexpr Duration kWindow = std::chrono::seconds(2);
  static constexpr Bytes kStep{32U << 20U};

  void note(TimePoint now, Bytes sample) {
    if (!begun_) begun_ = now;
    while (!samples_.empty() && samples_.front().first < now - kWindow) samples_.pop_front();
    while (!samples_.empty() && samples_.back().second >= sample) samples_.pop_back();
    samples_.emplace_back(now, sample);
    known_ = known_ || now - *begun_ >= kWindow;
    const Bytes least = known_ ? samples_.front().second : Bytes{};
    if (least > value_ || least + kStep + kStep < value_) value_ = round_up(least, kStep);
    if (least.is_zero()) value_ = Bytes{};
  }
  [[nodiscard]] Bytes value() const noexcept { return value_; }
  /// Whether samples have spanned the window.
  [[nodiscard]] bool known() const noexcept { return known_; }

 private:
  std::deque<std::pair<TimePoint, Bytes>> samples_;  // rising
  std::optional<TimePoint> begun_;
  Bytes value_;
  bool known_ = false;
};

}  // namespace commensal::node

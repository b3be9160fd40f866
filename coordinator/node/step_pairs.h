// SPDX-License-Identifier: Apache-2.0
// Shared steps against the quiet ones between them: what slows both sides down cancels out.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/node/slowdown_estimate.h"

namespace commensal::node {

/// Makes a pair of each quiet window: the median of its steps, and the median of the newest shared
/// steps before it and of the first ones after it, of which the mean is taken. A machine that gets
/// slower for everybody, for a second or for an hour, changes both, and is not taken for a cost of
/// sharing (8.2 of the protocol asks for paired medians). A side counts only next to its window:
/// within two seconds, or five steps if those are longer. Not thread-safe.
class StepPairs {
 public:
  static constexpr std::size_t kLeast = 4;  ///< pairs for an estimate
  static constexpr std::size_t kMost = 8;   ///< that are kept
  static constexpr std::size_t kSide = 8;   ///< shared steps on each side of a window
  static constexpr std::size_t kQuiet = 8;  ///< newest steps of a window

  void begin_quiet();
  void add_quiet(TimePoint end, double seconds);
  void add_shared(TimePoint end, double seconds);
  /// Drops everything: the job has changed.
  void forget() { *this = StepPairs{}; }
  /// Drops what was shared, and the pairs: the shares have changed. A window that was just now
  /// makes a pair with the steps that follow.
  void forget_shared();
  /// Slowdown of the newest pair, be it still in the making; nothing before the first.
  [[nodiscard]] std::optional<double> newest() const;
  /// Median ratio minus 1, and its standard error; nothing before there are enough pairs.
  [[nodiscard]] std::optional<SlowdownEstimate> slowdown() const;

 private:
  struct Pair {
    double ratio;
    std::size_t shared_steps;
  };
  void finish();
  [[nodiscard]] std::optional<Pair> in_the_making() const;

  std::deque<double> newest_;  // shared steps
  TimePoint newest_end_;
  // The pair in the making: of the window that began last.
  std::vector<double> before_;
  std::deque<double> quiet_;
  TimePoint quiet_end_;
  std::vector<double> after_;
  std::deque<Pair> pairs_;
};

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// A guaranteed job's step times, apart by whether opportunistic work could run beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "allocator/base/clock.h"

namespace commensal::node {

/// A job's page may show a step this late; ops that were let in before a gate closed end within it.
inline constexpr Duration kStepAge = std::chrono::milliseconds(60);

/// A median, or another quantile, and how sure it is (its standard error), in seconds.
struct MedianEstimate {
  double seconds = 0.0;
  double error = 0.0;
  std::size_t steps = 0;
};

/// Slowdown = shared / baseline - 1, with its standard error.
struct SlowdownEstimate {
  double value = 0.0;
  double error = 0.0;
  std::size_t steps = 0;  ///< shared ones that it is made of
};

/// What is compared: of training the median step, of a server the 99th percentile of requests.
enum class StepSignal : std::uint8_t { kMedian, kTail };

/// Collects step times while the device is *quiet* (no opportunistic op may run) and *shared*.
///
/// The baseline is made of quiet steps alone, so no loss that lasts can become the reference. When
/// the job itself changes (a larger batch), the newest quiet steps disagree with the older ones,
/// which are then dropped. A step that saw both states counts for neither. Not thread safe.
class StepHistory {
 public:
  /// Says what is compared; a change drops all steps.
  void follow(StepSignal signal);
  [[nodiscard]] StepSignal signal() const noexcept { return signal_; }
  /// Says from when on the device is quiet or shared.
  void begin_quiet(TimePoint now);
  void begin_shared(TimePoint now);
  /// Drops the shared steps: under other shares they say nothing about the present ones.
  void forget_shared() { shared_steps_.clear(); }

  /// Adds a step that ended at `end`.
  void add(TimePoint end, Duration duration);

  [[nodiscard]] MedianEstimate baseline() const;
  [[nodiscard]] MedianEstimate shared() const;
  /// Nothing until there are at least 3 quiet and 5 shared steps; of requests 50 each.
  [[nodiscard]] std::optional<SlowdownEstimate> slowdown() const;
  /// Quiet steps ever seen: tells how many a window has brought.
  [[nodiscard]] std::size_t quiet_steps_total() const noexcept { return quiet_total_; }
  /// Steps that the baseline is made of.
  [[nodiscard]] std::size_t baseline_steps() const noexcept { return quiet_steps_.size(); }
  [[nodiscard]] bool is_quiet() const noexcept { return quiet_; }

 private:
  struct Step {
    TimePoint end;
    double seconds;
  };
  void drop_outdated_baseline();
  [[nodiscard]] MedianEstimate estimate(const std::deque<Step>& steps) const;

  StepSignal signal_ = StepSignal::kMedian;
  bool quiet_ = true;
  TimePoint since_;
  std::deque<Step> quiet_steps_;
  std::deque<Step> shared_steps_;
  std::size_t quiet_total_ = 0;
};

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// A guaranteed job's step times, apart by whether opportunistic work could run beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "allocator/base/clock.h"
#include "coordinator/node/slowdown_estimate.h"
#include "coordinator/node/step_pairs.h"

namespace commensal::node {

/// A job's page may show a step this late; ops that were let in before a gate closed end within it.
inline constexpr Duration kStepAge = std::chrono::milliseconds(60);

/// What is compared: of training the median step, of a server the 99th percentile of requests, and
/// of a job whose steps are not known the median time that a piece of its work takes (CorePace).
enum class StepSignal : std::uint8_t { kMedian, kTail, kCores };
/// "steps", "requests" or "cores".
[[nodiscard]] const char* to_string(StepSignal signal) noexcept;

/// Collects step times while the device is *quiet* (no opportunistic op may run) and *shared*.
///
/// The baseline is made of quiet steps alone, so no loss that lasts can become the reference. When
/// the job itself changes (a larger batch), the newest quiet steps disagree with the older ones,
/// which are then dropped. A step that saw both states counts for neither.
///
/// A slowdown is found in two ways, and the surer one counts: by pairs (StepPairs), which need
/// time, and from the newest shared steps against all of the baseline, at once. There the spread
/// between quiet windows, beyond that within them, counts as uncertainty: by so much a machine
/// changes by itself. Not thread safe.
class StepHistory {
 public:
  /// Says what is compared; a change drops all steps.
  void follow(StepSignal signal);
  [[nodiscard]] StepSignal signal() const noexcept { return signal_; }
  /// Says from when on the device is quiet or shared.
  void begin_quiet(TimePoint now);
  void begin_shared(TimePoint now);
  /// Whether the job itself seems to have changed (its batch, a stall that was switched on or off):
  /// the newest shared steps are beyond doubt shorter than those alone, or have left the range of
  /// the shared steps before them at a jump that no share makes. Quiet steps must confirm it.
  [[nodiscard]] bool change_suspected() const;
  /// Begins a look at that: from the next `begin_quiet` on, fewer quiet steps can overrule the
  /// older ones, as long as they agree with each other. @param steps  at least 2.
  void expect_change(std::size_t steps) { confirming_ = steps; }
  /// Ends it. What has not been confirmed was no change of the job: from now on the newest shared
  /// steps are what the shares cost.
  void settle_change();
  /// Drops the shared steps: under other shares they say nothing about the present ones.
  void forget_shared();
  /// Drops all steps: those that follow are of other work.
  void forget();

  /// Adds a step that ended at `end`.
  void add(TimePoint end, Duration duration);

  [[nodiscard]] MedianEstimate baseline() const;
  [[nodiscard]] MedianEstimate shared() const;
  /// Nothing until there are at least 3 quiet and 5 shared steps, or 2 of each that are far apart;
  /// of requests 50 each.
  [[nodiscard]] std::optional<SlowdownEstimate> slowdown() const;
  /// The same against a step time alone that needs no measuring; nothing until there are at least 5
  /// shared steps (50 requests).
  [[nodiscard]] std::optional<SlowdownEstimate> slowdown_over(Duration alone) const;
  /// Whether the newest quiet window shows a slowdown above this, too, compared with steps under
  /// the present shares next to it. A single window cannot measure it; but without one, a machine
  /// that has become slower for everybody looks the same. Of requests always: a window has too few
  /// of them to show a percentile.
  [[nodiscard]] bool confirmed(double slo) const {
    if (signal_ == StepSignal::kTail) return true;
    const auto newest = pairs_.newest();
    return newest && *newest > slo;
  }
  /// Quiet steps ever seen: tells how many a window has brought.
  [[nodiscard]] std::size_t quiet_steps_total() const noexcept { return quiet_total_; }
  /// Steps that the baseline is made of.
  [[nodiscard]] std::size_t baseline_steps() const noexcept { return quiet_steps_.size(); }
  [[nodiscard]] bool is_quiet() const noexcept { return quiet_; }
  /// When the newest step of the baseline ended; zero: there is none.
  [[nodiscard]] TimePoint newest_quiet() const noexcept {
    return quiet_steps_.empty() ? TimePoint{} : quiet_steps_.back().end;
  }

 private:
  struct Step {
    TimePoint end;
    double seconds;
    std::size_t window = 0;  // of a quiet step: which
  };
  /// By how much the job's speed changes from one quiet window to another, beyond what chance
  /// within them explains, in seconds: half of the range of their means.
  [[nodiscard]] double drift() const;
  void drop_outdated_baseline();
  void rebase(std::size_t newest);
  [[nodiscard]] MedianEstimate estimate(const std::deque<Step>& steps) const;

  StepSignal signal_ = StepSignal::kMedian;
  bool quiet_ = true;
  TimePoint since_;
  std::deque<Step> quiet_steps_;
  std::deque<Step> shared_steps_;
  TimePoint shared_since_;   // whatever the shares were
  std::deque<Step> recent_;  // the newest shared steps, whatever the shares were
  StepPairs pairs_;
  std::size_t window_ = 0;
  std::size_t quiet_total_ = 0;
  std::size_t quiet_at_begin_ = 0;  // of `quiet_total_`, when the device became quiet
  std::size_t confirming_ = 0;      // quiet steps that confirm a change; 0: none is looked at
};

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// What pacing laws are made of. Internal to torch_ext/gate and its tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "torch_ext/gate/pacing_law.h"

namespace commensal {

inline constexpr Duration kForever = std::chrono::hours{24};
/// Nobody to disturb: ask again after this.
inline constexpr Duration kFreeDecision = std::chrono::microseconds{50};
/// In a gap: how late a burst may be noticed.
inline constexpr Duration kGapDecision = std::chrono::microseconds{20};
inline constexpr Duration kPollMin = std::chrono::microseconds{100};
inline constexpr Duration kPollMax = std::chrono::milliseconds{1};

/// Time until a debt is paid at a rate; bounded so that changes are noticed.
[[nodiscard]] inline Duration time_to_pay(Duration debt, double share) noexcept {
  if (share <= 0.0) return kPollMax;
  const double nanoseconds = static_cast<double>(debt.count()) / share;
  if (nanoseconds >= static_cast<double>(kPollMax.count()) * 10) return kPollMax * 10;
  return std::max(kPollMin / 2, Duration{static_cast<Duration::rep>(nanoseconds)});
}

[[nodiscard]] inline PacingDecision free_to_run(const char* reason) noexcept {
  return {.open = true,
          .trickle = false,
          .recheck = {},
          .valid_for = kFreeDecision,
          .fits = kForever,
          .reason = reason};
}

/// Open for one op: the next one asks again.
[[nodiscard]] inline PacingDecision one_op(const char* reason) noexcept {
  return {
      .open = true, .trickle = false, .recheck = {}, .valid_for = {}, .fits = {}, .reason = reason};
}

[[nodiscard]] inline PacingDecision closed(Duration recheck, const char* reason) noexcept {
  return {.open = false,
          .trickle = false,
          .recheck = recheck,
          .valid_for = {},
          .fits = {},
          .reason = reason};
}

/// Applies the bound on the job's share; `inner` decides below it.
template <typename Inner>
[[nodiscard]] PacingDecision bounded(const PacingInput& input, Inner inner) noexcept {
  const double share = std::min(input.share_max, input.device.share_max);
  if (share <= 0.0) return closed(kPollMax, "share is 0");
  if (share < 1.0 && input.cap_debt > Duration::zero()) {
    return closed(time_to_pay(input.cap_debt, share), "resting for its share of device time");
  }
  return inner();
}

/// Whether the job has as much work in flight as it may, so that a closed gate stops the device
/// within the bound and one op.
[[nodiscard]] inline bool flight_is_full(const PacingInput& input) noexcept {
  const Duration bound = input.device.gap_rules.in_flight;
  return bound > Duration::zero() && input.in_flight >= bound;
}

/// The same where only a device's queues count: on a device without them nothing is left running
/// that an op's end did not end.
[[nodiscard]] inline bool queue_is_full(const PacingInput& input) noexcept {
  return input.queued > Duration::zero() && flight_is_full(input);
}

/// The guaranteed job must not be disturbed: only the trickle passes.
[[nodiscard]] PacingDecision beside(const PacingInput& input, Duration recheck,
                                    const char* reason) noexcept;

/// The speed of the guaranteed processes over a stretch of time, from the steps that they ended.
class StepSpeed {
 public:
  /// Begins a stretch with what is seen now.
  void begin(const DeviceObservation& device) noexcept {
    processes_ = device.processes;
    first_steps_ = steps_ = device.steps;
    first_end_ = end_ = device.step_end;
  }
  /// Takes what is seen. Returns false if other processes are seen than when the stretch began, or
  /// they began anew: then nothing can be compared.
  [[nodiscard]] bool note(const DeviceObservation& device) noexcept {
    if (device.processes != processes_ || device.steps < steps_) return false;
    if (first_end_ == TimePoint{}) {  // counted from the end of the first step that was seen
      first_steps_ = device.steps;
      first_end_ = device.step_end;
    }
    steps_ = device.steps;
    end_ = device.step_end;
    return true;
  }
  /// Steps that ended in this stretch, all processes together.
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_ - first_steps_; }
  /// Steps a second; nothing before a step ended in it whose beginning was seen.
  [[nodiscard]] std::optional<double> rate() const noexcept {
    if (steps() == 0 || first_end_ == TimePoint{} || end_ <= first_end_) return std::nullopt;
    return static_cast<double>(steps()) / std::chrono::duration<double>(end_ - first_end_).count();
  }

 private:
  std::size_t processes_ = 0;
  std::uint64_t first_steps_ = 0;
  std::uint64_t steps_ = 0;
  TimePoint first_end_;
  TimePoint end_;
};

}  // namespace commensal

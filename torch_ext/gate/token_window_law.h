// SPDX-License-Identifier: Apache-2.0
// Gemini's law: a job runs while it has the turn, which the node coordinator gives.
#pragma once

#include <array>
#include <cstddef>

#include "torch_ext/gate/law_parts.h"
#include "torch_ext/gate/pacing_law.h"

namespace commensal {

/// Constants of Gemini's client (NTHU-LSALAB/Gemini of March 2024).
inline constexpr Duration kBurstMerge =
    std::chrono::milliseconds{2};  ///< shorter pauses: one burst
inline constexpr Duration kBurstMemory = std::chrono::seconds{3};

/// Estimates how long the job's bursts are: the longest of the last three seconds. A burst is a run
/// of ops with pauses below 2 ms. Not thread-safe.
class BurstEstimator {
 public:
  /// Called at an op's entry.
  /// @param run_total  run time of all ops that ended so far.
  void note(TimePoint now, Duration run_total) noexcept;
  /// Zero before the first burst was seen to end. @return also the running one, if it is longer.
  [[nodiscard]] Duration longest(TimePoint now) const noexcept;

 private:
  struct Burst {
    TimePoint end;
    Duration length;
  };
  static constexpr std::size_t kKept = 32;
  std::array<Burst, kKept> bursts_{};
  std::size_t next_ = 0;
  TimePoint began_;  // the running one; zero: none
  TimePoint last_;
  Duration run_at_last_{};
};

class TokenWindowLaw final : public PacingLaw {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "token_window"; }
  [[nodiscard]] bool throttles(const DeviceObservation& device,
                               double share_max) const noexcept override {
    return device.guaranteed_present || device.turn_until != TimePoint{} || share_max < 1.0;
  }
  [[nodiscard]] PacingDecision decide(const PacingInput& input) noexcept override;
  [[nodiscard]] Duration burst() const noexcept override { return longest_burst_; }

 private:
  BurstEstimator bursts_;
  Duration longest_burst_{};
};

}  // namespace commensal

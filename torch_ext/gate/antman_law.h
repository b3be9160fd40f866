// SPDX-License-Identifier: Apache-2.0
// AntMan's closed loop: more in steps while the guaranteed job's mini-batch time stays flat.
#pragma once

#include "torch_ext/gate/law_parts.h"
#include "torch_ext/gate/pacing_law.h"

namespace commensal {

/// AntMan (Xiao et al., OSDI '20, 4.2) says what its coordinator does (clamp the opportunistic job
/// when a guaranteed one arrives until that is stable, then give in steps while its mini-batch time
/// stays flat, clamp pessimistically when it does not), not with which numbers. `interval` is the
/// one at which its published executor reports; the others are ours.
struct AntmanConstants {
  Duration interval = std::chrono::seconds{10};  ///< between two changes of the share
  std::uint64_t reference_steps = 10;            ///< mini-batches alone that make the reference
  Duration least_reference = std::chrono::seconds{1};
  double step = 0.1;  ///< share that is given at once
  int patience = 6;   ///< flat intervals at the most until more than that is tried
};

class AntmanLaw final : public PacingLaw {
 public:
  explicit AntmanLaw(const AntmanConstants& constants = {}) : constants_(constants) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "antman"; }
  [[nodiscard]] bool throttles(const DeviceObservation& device,
                               double share_max) const noexcept override {
    return device.guaranteed_present || share_max < 1.0;
  }
  [[nodiscard]] PacingDecision decide(const PacingInput& input) noexcept override;

  [[nodiscard]] double share() const noexcept { return share_; }

 private:
  void clamp(const DeviceObservation& device) noexcept;
  void control(const DeviceObservation& device) noexcept;

  const AntmanConstants constants_;
  double share_ = 0.0;
  double most_ = 1.0;       // tried again after some patience
  int held_ = 0;            // intervals at the most
  bool clamped_ = false;    // the reference is being measured
  double reference_ = 0.0;  // steps a second
  StepSpeed speed_;
  TimePoint began_;  // the interval, or the clamp; zero: no guaranteed job yet
  RunTimeMeter meter_;
  Duration run_seen_{};
};

}  // namespace commensal

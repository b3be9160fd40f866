// SPDX-License-Identifier: Apache-2.0
// Clamp, measure alone, give in steps, clamp again.
#include "torch_ext/gate/antman_law.h"

#include <utility>

namespace commensal {

void AntmanLaw::clamp(const DeviceObservation& device) noexcept {
  clamped_ = true;
  share_ = 0.0;
  held_ = 0;
  began_ = device.now;
  speed_.begin(device);
}

void AntmanLaw::control(const DeviceObservation& device) noexcept {
  if (began_ == TimePoint{} || device.now < began_ || !speed_.note(device)) {
    most_ = 1.0;
    return clamp(device);
  }
  const Duration passed = device.now - began_;
  const std::optional<double> speed = speed_.rate();
  if (clamped_) {
    if (passed < constants_.least_reference || speed_.steps() < constants_.reference_steps ||
        !speed) {
      return;
    }
    clamped_ = false;
    reference_ = *speed;
    share_ = std::min(constants_.step, most_);
  } else {
    if (passed < constants_.interval || !speed) return;
    const bool flat = reference_ / *speed - 1.0 <= device.slo;
    if (!flat) {
      most_ = std::max(constants_.step, share_ - constants_.step);
      return clamp(device);
    }
    if (share_ >= most_ && ++held_ >= constants_.patience) {
      most_ = std::min(1.0, most_ + constants_.step);
      held_ = 0;
    }
    share_ = std::min(share_ + constants_.step, most_);
  }
  began_ = device.now;
  speed_.begin(device);
}

PacingDecision AntmanLaw::decide(const PacingInput& input) noexcept {
  return bounded(input, [&]() -> PacingDecision {
    const DeviceObservation& device = input.device;
    if (!device.guaranteed_present) {
      began_ = TimePoint{};
      return free_to_run("no guaranteed job on the device");
    }
    if (began_ == TimePoint{}) {  // what ran before is not charged
      meter_ = RunTimeMeter{};
      run_seen_ = input.run_total;
    }
    control(device);
    const double share = std::max(share_, input.share_min);
    meter_.advance(device.now, share);
    meter_.charge(input.run_total - std::exchange(run_seen_, input.run_total));
    if (share >= 1.0) return free_to_run("mini-batches flat: all of the device's time");
    if (share <= 0.0) return closed(kPollMax, "clamped: measuring the guaranteed job alone");
    if (meter_.debt() <= Duration::zero()) return one_op("within its share");
    return closed(time_to_pay(meter_.debt(), share), "resting for its share");
  });
}

}  // namespace commensal

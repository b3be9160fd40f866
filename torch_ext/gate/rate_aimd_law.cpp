// SPDX-License-Identifier: Apache-2.0
// TGS's control loop in windows of five seconds, and its enforcement in slices of 50 ms.
#include "torch_ext/gate/rate_aimd_law.h"

namespace commensal {

AimdState next_rate(const AimdState& state, double loss, double slo,
                    const RateAimdConstants& constants) noexcept {
  const double tolerance = constants.tolerance_of_slo * slo;
  AimdState next = state;
  if (loss > constants.collapse_of_slo * slo) {
    next = {state.rate * constants.collapse, true};
  } else if (loss <= tolerance) {
    next.rate =
        state.slow_start ? state.rate * constants.slow_start : state.rate + constants.increase;
  } else if (state.slow_start) {
    next = {state.rate / constants.slow_start, false};
  } else {
    next.rate = state.rate * (1.0 - constants.decrease);
  }
  // From nothing no factor leads back.
  next.rate = std::clamp(next.rate, constants.increase, 1.0);
  return next;
}

void RateAimdLaw::start_anew(const DeviceObservation& device) noexcept {
  window_began_ = device.now;
  speed_.begin(device);
  state_ = {constants_.first_rate, true};
  learned_ = 0.0;
  learned_windows_ = 0;
  lossy_windows_ = 0;
}

void RateAimdLaw::end_window(const DeviceObservation& device) noexcept {
  const std::optional<double> speed = speed_.rate();
  window_began_ = device.now;
  speed_.begin(device);
  if (!speed) return;  // no step in all of the window: says nothing
  if (reference_ <= 0.0 || *speed > reference_ * constants_.relearn) {
    if (reference_ > 0.0) {  // another phase of the job, and faster
      reference_ = 0.0;
      start_anew(device);
    }
    learned_ += *speed;
    if (++learned_windows_ >= constants_.learning_windows) reference_ = learned_ / learned_windows_;
    return;
  }
  const double loss = 1.0 - *speed / reference_;
  state_ = next_rate(state_, loss, device.slo, constants_);
  lossy_windows_ = loss >= constants_.lasting_loss ? lossy_windows_ + 1 : 0;
  if (lossy_windows_ < constants_.patience) return;
  reference_ *= constants_.forget;
  lossy_windows_ = 0;
}

void RateAimdLaw::control(const DeviceObservation& device) noexcept {
  if (window_began_ == TimePoint{} || device.now < window_began_) {
    start_anew(device);
  } else if (!speed_.note(device)) {
    reference_ *= constants_.forget;  // as TGS does when its production side connects again
    start_anew(device);
  } else if (device.now - window_began_ >= constants_.window) {
    end_window(device);
  }
}

PacingDecision RateAimdLaw::decide(const PacingInput& input) noexcept {
  return bounded(input, [&]() -> PacingDecision {
    const DeviceObservation& device = input.device;
    if (!device.guaranteed_present) return free_to_run("no guaranteed job on the device");
    control(device);
    const double rate = std::max(state_.rate, input.share_min);
    if (rate >= 1.0) return free_to_run("rate: all of the device's time");
    if (device.now - slice_began_ >= constants_.slice || device.now < slice_began_) {
      slice_began_ = device.now;
      run_at_slice_ = input.run_total;
    }
    const double ran = static_cast<double>((input.run_total - run_at_slice_).count());
    if (ran < rate * static_cast<double>(constants_.slice.count())) {
      return one_op(reference_ > 0.0 ? "within its rate" : "within its first rate: learning");
    }
    return closed(constants_.nap, "above its rate in this slice");
  });
}

}  // namespace commensal

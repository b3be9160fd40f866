// SPDX-License-Identifier: Apache-2.0
// A model of two jobs on one device, in simulated time, for laws that learn from step times.
#pragma once

#include <cmath>

#include "torch_ext/gate/pacing_law.h"

namespace commensal::testing {

/// A guaranteed job whose steps take longer while an op of the opportunistic one runs beside them,
/// and an opportunistic job that always has an op for the law.
class SharedDevice {
 public:
  struct Model {
    Duration step = std::chrono::milliseconds{50};
    double cost = 0.0;  ///< slowdown of the guaranteed job while an op runs
    Duration op = std::chrono::milliseconds{1};
  };

  explicit SharedDevice(PacingLaw& law) : SharedDevice(law, Model{}) {}
  SharedDevice(PacingLaw& law, const Model& model) : law_(law), model_(model) {
    input_.device.guaranteed_present = input_.device.coordinator_alive = true;
    input_.device.processes = 1;
  }

  PacingInput& input() { return input_; }
  Model& model() { return model_; }
  DeviceObservation& device() { return input_.device; }
  [[nodiscard]] const char* reason() const { return reason_; }

  /// Passes time. @return the share of it in which ops ran.
  double run(Duration time) {
    const TimePoint begin = now_;
    const Duration ran = input_.run_total;
    while (now_ - begin < time) {
      input_.device.now = now_;
      cap_.advance(now_, input_.share_max);
      trickle_.advance(now_, input_.device.trickle);
      input_.cap_debt = cap_.debt();
      input_.trickle_debt = trickle_.debt();
      const PacingDecision decision = law_.decide(input_);
      reason_ = decision.reason;
      if (decision.open) {
        pass(model_.op, model_.cost);
        input_.run_total += model_.op;
        cap_.charge(model_.op);
        if (decision.trickle) trickle_.charge(model_.op);
      } else {
        pass(decision.recheck + std::chrono::microseconds{60}, 0.0);  // a timer is always late
      }
    }
    return std::chrono::duration<double>(input_.run_total - ran) / (now_ - begin);
  }
  /// The guaranteed job's slowdown since the last call.
  double take_slowdown() {
    const double slowdown = alone_ == 0.0 ? 0.0 : passed_ / alone_ - 1.0;
    alone_ = passed_ = 0.0;
    return slowdown;
  }

 private:
  void pass(Duration time, double cost) {
    const double seconds = std::chrono::duration<double>(time).count();
    const double step = std::chrono::duration<double>(model_.step).count();
    passed_ += seconds;
    alone_ += seconds / (1.0 + cost);
    double left = (1.0 - progress_) * step * (1.0 + cost);  // until this step ends
    double at = 0.0;
    while (at + left <= seconds) {
      at += left;
      ++input_.device.steps;
      input_.device.step_end =
          now_ + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(at));
      progress_ = 0.0;
      left = step * (1.0 + cost);
    }
    progress_ += (seconds - at) / (step * (1.0 + cost));
    now_ += time;
  }

  PacingLaw& law_;
  Model model_;
  PacingInput input_;
  RunTimeMeter cap_;
  RunTimeMeter trickle_;
  TimePoint now_{std::chrono::hours{1}};
  double progress_ = 0.0;
  double passed_ = 0.0;
  double alone_ = 0.0;
  const char* reason_ = "";
};

}  // namespace commensal::testing

// SPDX-License-Identifier: Apache-2.0
// TGS's law: a rate for the opportunistic job, raised and cut by what the guaranteed job loses.
#pragma once

#include <cstdint>

#include "torch_ext/gate/law_parts.h"
#include "torch_ext/gate/pacing_law.h"

namespace commensal {

/// Constants of TGS (Wu et al., NSDI '23; pkusys/TGS of June 2023). Where it counts the thread
/// blocks of both jobs, this law takes the guaranteed job's steps a second and the opportunistic
/// job's run time.
struct RateAimdConstants {
  Duration window = std::chrono::seconds{5};  ///< between two changes of the rate
  int learning_windows = 5;                   ///< from which the reference is taken
  /// Loss that is no loss, TGS's 3 % at an SLO of 1 %: it scales with the SLO, as does the next.
  double tolerance_of_slo = 3.0;
  double collapse_of_slo = 9.0;  ///< loss beyond which the rate falls to a tenth, 9 %
  double slow_start = 1.5;       ///< factor a window until the first loss; then divided by it
  double increase = 0.00025;     ///< a window, of the device's time; TGS: of the reference
  double decrease = 0.08;        ///< of the rate
  double collapse = 0.1;
  int patience = 20;  ///< windows with more than `lasting_loss` until ...
  double lasting_loss = 0.12;
  double forget = 0.8;   ///< ... the reference falls to this part. C18 is a test of it.
  double relearn = 1.2;  ///< faster than so many times the reference: it is taken anew
  Duration slice = std::chrono::milliseconds{50};  ///< in which the rate holds
  Duration nap = std::chrono::milliseconds{10};    ///< between two looks above the rate
  double first_rate = 0.01;  ///< not published; also holds while the reference is learned
};

/// One control step: what a window's loss does to the rate. Pure.
struct AimdState {
  double rate = 0.01;  ///< of the device's time
  bool slow_start = true;
  bool operator==(const AimdState&) const = default;
};
[[nodiscard]] AimdState next_rate(const AimdState& state, double loss, double slo,
                                  const RateAimdConstants& constants) noexcept;

class RateAimdLaw final : public PacingLaw {
 public:
  explicit RateAimdLaw(const RateAimdConstants& constants = {}) : constants_(constants) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "rate_aimd"; }
  [[nodiscard]] bool throttles(const DeviceObservation& device,
                               double share_max) const noexcept override {
    return device.guaranteed_present || share_max < 1.0;
  }
  [[nodiscard]] PacingDecision decide(const PacingInput& input) noexcept override;

  [[nodiscard]] double rate() const noexcept { return state_.rate; }
  /// The guaranteed job's speed that losses are counted from, steps a second; zero: not known yet.
  [[nodiscard]] double reference() const noexcept { return reference_; }

 private:
  void control(const DeviceObservation& device) noexcept;
  void start_anew(const DeviceObservation& device) noexcept;
  void end_window(const DeviceObservation& device) noexcept;

  const RateAimdConstants constants_;
  AimdState state_{constants_.first_rate, true};
  StepSpeed speed_;
  TimePoint window_began_;  // zero: no guaranteed job yet
  double learned_ = 0.0;    // sum of the speeds seen while learning
  int learned_windows_ = 0;
  double reference_ = 0.0;
  int lossy_windows_ = 0;
  TimePoint slice_began_;
  Duration run_at_slice_{};
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Turns and bursts.
#include "torch_ext/gate/token_window_law.h"

namespace commensal {

void BurstEstimator::note(TimePoint now, Duration run_total) noexcept {
  const Duration paused = (now - last_) - (run_total - run_at_last_);
  if (began_ == TimePoint{}) {
    began_ = now;
  } else if (paused >= kBurstMerge) {
    bursts_[next_++ % kKept] = {last_, last_ - began_};
    began_ = now;
  }
  last_ = now;
  run_at_last_ = run_total;
}

Duration BurstEstimator::longest(TimePoint now) const noexcept {
  Duration longest = began_ == TimePoint{} ? Duration::zero() : last_ - began_;
  for (const Burst& burst : bursts_) {
    if (burst.end != TimePoint{} && now - burst.end <= kBurstMemory) {
      longest = std::max(longest, burst.length);
    }
  }
  return longest;
}

PacingDecision TokenWindowLaw::decide(const PacingInput& input) noexcept {
  const DeviceObservation& device = input.device;
  if (std::min(input.share_max, device.share_max) <= 0.0) return closed(kPollMax, "share is 0");
  if (!device.coordinator_alive || device.turn_until == TimePoint{}) {
    return bounded(input, [&] {
      if (!device.guaranteed_present) return free_to_run("nobody gives turns");
      return beside(input, kPollMax, "nobody gives turns, guaranteed job present");
    });
  }
  if (device.now >= device.turn_until) return closed(kPollMax, "it is another's turn");
  // What is queued when the turn goes on runs in that of another.
  if (queue_is_full(input)) return closed(kPollMin, "work in flight is at its bound");
  bursts_.note(device.now, input.run_total);
  longest_burst_ = bursts_.longest(device.now);
  PacingDecision open = free_to_run("has the turn");
  open.valid_for = std::min(kFreeDecision, device.turn_until - device.now);
  return open;
}

}  // namespace commensal

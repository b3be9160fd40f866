// SPDX-License-Identifier: Apache-2.0
// The simple pacing laws, ours among them, and the meter that laws share.
#include "torch_ext/gate/pacing_law.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <stdexcept>

#include "torch_ext/gate/antman_law.h"
#include "torch_ext/gate/law_parts.h"
#include "torch_ext/gate/long_ops.h"
#include "torch_ext/gate/rate_aimd_law.h"
#include "torch_ext/gate/token_window_law.h"

namespace commensal {

PacingDecision beside(const PacingInput& input, Duration recheck, const char* reason) noexcept {
  const double share = std::max(input.share_min, input.device.trickle);
  if (share >= 1.0) {  // measured to do no harm
    return {.open = true,
            .trickle = true,
            .recheck = {},
            .valid_for = kGapDecision,
            .fits = kForever,
            .reason = "beside the guaranteed job, unbounded"};
  }
  if (share > 0.0 && input.trickle_debt <= Duration::zero()) {
    return {.open = true,
            .trickle = true,
            .recheck = {},
            .valid_for = {},
            .fits = {},
            .reason = "trickle beside the guaranteed job"};
  }
  if (share > 0.0) recheck = std::min(recheck, time_to_pay(input.trickle_debt, share));
  return closed(recheck, reason);
}

namespace {

using std::chrono::milliseconds;

class OpenLaw final : public PacingLaw {
 public:
  std::string_view name() const noexcept override { return "open"; }
  bool throttles(const DeviceObservation&, double) const noexcept override { return false; }
  PacingDecision decide(const PacingInput&) noexcept override { return free_to_run("law open"); }
};

class DutyCycleLaw final : public PacingLaw {
 public:
  std::string_view name() const noexcept override { return "duty_cycle"; }
  bool throttles(const DeviceObservation&, double share_max) const noexcept override {
    return share_max < 1.0;
  }
  PacingDecision decide(const PacingInput& input) noexcept override {
    return bounded(input, [] { return free_to_run("within its share of device time"); });
  }
};

/// Between two looks of a thread that waits for a gap. A look takes some ten microseconds of a
/// core.
constexpr Duration kOften = kPollMax / 2;
constexpr Duration kRarely = milliseconds{5};

/// Enters gaps at a bounded rate: every entry costs the guaranteed job something when it comes back
/// (compute_sharing: s = R * (Q / 2 + c)).
class HandOvers {
 public:
  /// Whether the gap that began then may be entered. @param rate  a second; zero: no bound.
  [[nodiscard]] bool allow(TimePoint now, TimePoint gap, double rate) noexcept {
    if (rate <= 0.0) {
      tokens_ = 1.0;
      last_ = now;
      return true;
    }
    const double most = std::max(1.0, rate * kHandOverCredit);
    if (now > last_) tokens_ += std::chrono::duration<double>(now - last_).count() * rate;
    last_ = std::max(last_, now);
    tokens_ = std::min(tokens_, most);
    return gap == entered_ || tokens_ >= 1.0;
  }
  /// An op was let into the gap that began then.
  void enter(TimePoint gap) noexcept {
    if (gap == entered_) return;
    entered_ = gap;
    tokens_ = std::max(0.0, tokens_ - 1.0);
    ++total_;
  }
  /// How long it takes until another one may be.
  [[nodiscard]] Duration until_next(double rate) const noexcept {
    const Duration most = kLongestSleep;
    if (rate <= 0.0) return most;
    const double left = std::max(0.0, 1.0 - tokens_) / rate;
    if (left >= std::chrono::duration<double>(most).count()) return most;
    return std::max(kPollMin, std::chrono::ceil<Duration>(std::chrono::duration<double>(left)));
  }
  [[nodiscard]] std::uint64_t total() const noexcept { return total_; }

 private:
  double tokens_ = 1.0;
  TimePoint last_;
  TimePoint entered_;  // when the gap began that was entered last
  std::uint64_t total_ = 0;
};

/// When to look again at a busy guaranteed job that does not ring when it begins to wait. Each look
/// takes a core for microseconds, which that job may be using: so rarely at first, and more often
/// towards the end of the shortest of its busy stretches of late.
class BusyStretches {
 public:
  void note(const DeviceObservation& device) noexcept {
    if (!device.all_waiting) {
      if (device.busy_since > TimePoint{}) since_ = device.busy_since;
    } else if (since_ > TimePoint{} && device.idle_since > since_) {
      lengths_[known_++ % lengths_.size()] = device.idle_since - since_;
      since_ = TimePoint{};
    }
  }
  [[nodiscard]] Duration until_next_look(TimePoint now) const noexcept {
    if (known_ < lengths_.size() || since_ == TimePoint{}) return kOften;
    const Duration shortest = *std::min_element(lengths_.begin(), lengths_.end());
    return std::clamp((shortest - (now - since_)) / 2, kOften, kRarely);
  }

 private:
  std::array<Duration, 8> lengths_{};
  std::size_t known_ = 0;
  TimePoint since_;  // zero: it is not busy
};

class GapLaw final : public PacingLaw {
 public:
  std::string_view name() const noexcept override { return "gap"; }
  bool throttles(const DeviceObservation& device, double share_max) const noexcept override {
    return device.guaranteed_present || share_max < 1.0;
  }
  PacingDecision decide(const PacingInput& input) noexcept override {
    return bounded(input, [this, &input] {
      if (!input.device.guaranteed_present) return free_to_run("no guaranteed job on the device");
      if (flight_is_full(input)) return closed(kPollMin, "work in flight is at its bound");
      if (!input.device.coordinator_alive) {
        if (is_held(input)) return closed(kPollMax, kGraphHeld);
        return beside(input, kPollMax, "coordinator silent, guaranteed job present");
      }
      return in_gap(input);
    });
  }
  std::uint64_t hand_overs() const noexcept override { return hand_overs_.total(); }

 private:
  PacingDecision in_gap(const PacingInput& input) noexcept {
    const DeviceObservation& device = input.device;
    const wire::GapRules& rules = device.gap_rules;
    const Duration needs = input.predicted > Duration::zero() ? input.predicted : kUnknownOp;
    stretches_.note(device);
    if (device.draining) {
      return not_now(input, needs, kPollMin, "guaranteed job waits, its device still works");
    }
    if (!device.all_waiting) {
      PacingDecision decision = not_now(
          input, needs, device.bell ? kLongestSleep : stretches_.until_next_look(device.now),
          "guaranteed job busy");
      decision.bell = device.bell;
      return decision;
    }
    const Duration waited = device.now - device.idle_since;
    const Duration quiet = device.now - std::max(device.idle_since, device.last_touch);
    const bool pause = (device.gap_phases & wire::kPauses) != 0;
    const Duration quiet_first = device.surely_idle ? Duration::zero()
                                 : pause            ? kQuietBeforeBoundary
                                                    : kQuietBeforeGap;
    if (quiet < quiet_first) {
      return not_now(input, needs, std::max(kPollMin, quiet_first - quiet),
                     "guaranteed job may be working on its batch");
    }
    if ((device.gap_phases & ~rules.phases) != 0) {
      return not_now(input, needs, until_it_ends(device),
                     "gaps of this phase are closed: they were found to cost");
    }
    const Duration length = std::max(waited, device.idle_expected_end == TimePoint{}
                                                 ? Duration::zero()
                                                 : device.idle_expected_end - device.idle_since);
    if (length < rules.smallest) {
      return not_now(input, needs, until_it_ends(device),
                     "gap is shorter than those that may be used");
    }
    const Duration fits = room(device, waited, rules.guard);
    long_ops_.note_room(device.idle_since, fits);
    if (input.queued + needs > fits) {
      return not_now(input, needs, until_it_ends(device),
                     "op does not fit in what is left of the gap");
    }
    if (!hand_overs_.allow(device.now, device.idle_since, rules.hand_overs)) {
      return not_now(input, needs, hand_overs_.until_next(rules.hand_overs),
                     "hand-overs of this second are used up");
    }
    if (!input.peek) hand_overs_.enter(device.idle_since);
    return {.open = true,
            .trickle = false,
            .recheck = {},
            .valid_for = kGapDecision,
            .fits = fits - std::min(fits, kGapDecision),
            .reason = "in a gap"};
  }

  PacingDecision not_now(const PacingInput& input, Duration needs, Duration recheck,
                         const char* reason) {
    if (is_held(input)) return closed(recheck, kGraphHeld);
    if (long_ops_.is_long(needs)) return long_ops_.hold(input, needs, recheck);
    return beside(input, recheck, reason);
  }

  /// Whether the op is a graph that does not go beside a busy guaranteed job at all. Of ops, what
  /// is in flight when that job comes back is bounded; a whole step that is one op is a collision
  /// of its full length, and the trickle would pay for it again and again. A job that runs without
  /// graphs has short ops, so nobody has to starve. What the job asked for as its own minimum holds
  /// for graphs, too.
  static bool is_held(const PacingInput& input) noexcept {
    const double share = std::max(input.share_min, input.device.trickle);
    const Duration bound = input.device.gap_rules.in_flight;
    return input.graph && input.share_min <= 0.0 && share < 1.0 &&
           input.predicted > std::max<Duration>(bound, kUnknownOp);
  }

  /// When to look again in a gap that is of no use as far as is known.
  static Duration until_it_ends(const DeviceObservation& device) noexcept {
    return std::clamp(device.idle_expected_end - device.now, kOften, kRarely);
  }

  /// The longest op that may start now.
  static Duration room(const DeviceObservation& device, Duration waited, Duration guard) {
    // Without a prediction: a wait that has lasted for t is likely to last about as long again.
    if (device.idle_expected_end == TimePoint{}) return std::max<Duration>(milliseconds{2}, waited);
    if (device.now < device.idle_expected_end) {
      const Duration left = device.idle_expected_end - device.now;
      return left - std::min(left, guard);
    }
    // Later than expected: only little, and more the longer this unusual wait lasts.
    return (device.now - device.idle_expected_end) / 4;
  }

  LongOps long_ops_;
  HandOvers hand_overs_;
  BusyStretches stretches_;
};

}  // namespace

std::unique_ptr<PacingLaw> make_pacing_law(std::string_view name) {
  if (name == "open") return std::make_unique<OpenLaw>();
  if (name == "duty_cycle") return std::make_unique<DutyCycleLaw>();
  if (name == "gap") return std::make_unique<GapLaw>();
  if (name == "antman") return std::make_unique<AntmanLaw>();
  if (name == "rate_aimd") return std::make_unique<RateAimdLaw>();
  if (name == "token_window") return std::make_unique<TokenWindowLaw>();
  throw std::invalid_argument("unknown pacing law: '" + std::string(name) +
                              "' (gap, duty_cycle, antman, rate_aimd, token_window, open)");
}

void RunTimeMeter::advance(TimePoint now, double share, Duration credit) noexcept {
  if (!started_) {
    started_ = true;
    last_ = now;
    return;
  }
  if (now <= last_) {
    // Threads come a little out of order; a clock that was set back begins anew.
    if (last_ - now > std::chrono::seconds{1}) last_ = now;
    return;
  }
  const double paid = static_cast<double>((now - last_).count()) * share;
  debt_ = std::max(debt_ - Duration{static_cast<Duration::rep>(paid)}, -credit);
  last_ = now;
}

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Levels of restraint in gaps.
#include "coordinator/node/gap_control.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "allocator/base/clock.h"

namespace commensal::node {
namespace {

using std::chrono::microseconds;

struct Level {
  microseconds guard;
  microseconds in_flight;  // zero: not bounded
  double of_budget;        // part of the hand-overs that the SLO allows; zero: not bounded
};
constexpr std::array<Level, GapState::kMostLevel + 1> kLevels{{
    {microseconds{0}, microseconds{0}, 0.0},
    {microseconds{100}, microseconds{5000}, 0.0},
    {microseconds{200}, microseconds{2000}, 1.0},
    {microseconds{500}, microseconds{1000}, 0.5},
    {microseconds{1000}, microseconds{1000}, 0.25},
    {microseconds{2000}, microseconds{500}, 0.1},
}};
constexpr int kWithoutBoundaries = 3;
/// A gap that is worth a guard is longer than it by this.
constexpr int kGuardsAGap = 4;

std::string text(const char* format, double value) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

/// What gaps of at least some length there are.
struct Supply {
  double rate = 0.0;  // a second
  double time = 0.0;  // in them, of each second, at the least
};
/// A phase without a histogram counts by its quantiles.
Supply supply_of(const std::vector<GapClass>& gaps, double length) {
  Supply supply;
  for (const GapClass& gap : gaps) {
    const double rate = gap.per_minute / 60.0;
    const auto add = [&](double at, double part) {
      if (at < length) return;
      supply.rate += rate * part;
      supply.time += rate * part * at;
    };
    for (const auto& [floor, fraction] : gap.lengths) add(floor, fraction);
    if (!gap.lengths.empty()) continue;
    add(gap.median_seconds, 0.5);
    add(gap.p90_seconds, 0.5);
  }
  return supply;
}

/// The length from which on so many gaps a second give the most time: short ones must not use up
/// what long ones could have, and of gaps that are all alike none is too short.
double best_length(const std::vector<GapClass>& gaps, double rate) {
  double best = 0.0;
  double most = 0.0;
  for (const GapClass& gap : gaps) {
    for (const auto& [floor, fraction] : gap.lengths) {
      const Supply supply = supply_of(gaps, floor);
      const double time = supply.time * std::min(1.0, rate / supply.rate);
      if (fraction <= 0.0 || time < most || (time == most && floor < best)) continue;
      most = time;
      best = floor;
    }
  }
  return best;
}

std::string describe(const wire::GapRules& rules) {
  std::string all;
  const auto add = [&all](const std::string& part) { all += (all.empty() ? "" : ", ") + part; };
  if (rules.smallest == Duration::zero()) add("every gap may be used");
  if (rules.guard > Duration::zero()) {
    add("ops end " + text("%.1f ms", 1e3 * in_seconds(rules.guard)) +
        " before a gap is expected to");
  }
  if (rules.in_flight > Duration::zero()) {
    add(text("%.1f ms", 1e3 * in_seconds(rules.in_flight)) + " of work at once");
  }
  if (rules.smallest > Duration::zero()) {
    add("gaps from " + text("%.1f ms", 1e3 * in_seconds(rules.smallest)) + " on");
  }
  if (rules.hand_overs > 0.0) add(text("%.1f gaps a second", rules.hand_overs));
  std::string closed;
  for (std::size_t i = 0; i < wire::kGapPhases; ++i) {
    const auto phase = static_cast<wire::GapPhase>(i);
    if ((rules.phases & wire::phase_bit(phase)) != 0) continue;
    closed += (closed.empty() ? "" : " and ") + std::string{wire::to_string(phase)};
  }
  return closed.empty() ? all : all + ", none in " + closed;
}

}  // namespace

double hand_over_budget(double slowdown, double in_flight_seconds, Duration change) {
  const double cost = change > Duration::zero() ? in_seconds(change) / 2 : kHandOverSeconds;
  return slowdown / (in_flight_seconds / 2 + cost);
}

wire::GapRules with_queues(wire::GapRules rules, std::size_t jobs) {
  const auto number = static_cast<Duration::rep>(std::max<std::size_t>(1, jobs));
  const Duration each = std::max(kLeastQueued, kMostQueued / number);
  rules.known = true;
  rules.change = kDeviceChange;
  if (rules.in_flight == Duration::zero() || rules.in_flight > each) rules.in_flight = each;
  return rules;
}

wire::GapRules gap_rules_at(int level, double slo, const std::vector<GapClass>& gaps,
                            const GapUsers& users) {
  const int index = std::clamp(level, 0, GapState::kMostLevel);
  const Level& of = kLevels[static_cast<std::size_t>(index)];
  wire::GapRules rules;
  rules.known = true;
  rules.guard = users.idle_class ? of.guard : std::max<Duration>(of.guard, kWakeGuard);
  rules.in_flight = of.in_flight;
  if (users.queues) rules = with_queues(rules, users.jobs);
  if (index == 0) return rules;
  rules.smallest = kGuardsAGap * rules.guard;
  if (index >= kWithoutBoundaries) rules.phases &= ~wire::kPauses;
  if (of.of_budget > 0.0) {
    // All that may still be queued when a gap ends; on a device without queues the kernel's idle
    // class makes way.
    const double jobs =
        users.queues ? static_cast<double>(std::max<std::size_t>(1, users.jobs)) : 1;
    rules.hand_overs =
        of.of_budget * hand_over_budget(slo, jobs * in_seconds(rules.in_flight), rules.change);
    const double best = best_length(gaps, rules.hand_overs);
    rules.smallest = std::max(rules.smallest, Duration{static_cast<Duration::rep>(best * 1e9)});
  }
  for (const GapClass& gap : gaps) {  // whole phases that are too short say so by name
    if (!gap.lengths.empty() && gap.lengths.back().first * 1.25 < in_seconds(rules.smallest)) {
      rules.phases &= ~wire::phase_bit(gap.phase);
    }
  }
  return rules;
}

GapDecision decide_gaps(const GapInput& input) {
  GapState state = input.state;
  std::string why;
  bool wants_look = false;
  if (!input.slowdown) {
    why = "no slowdown measured yet";
  } else {
    const SlowdownEstimate& slowdown = *input.slowdown;
    why = "guaranteed step " + text("%.1f %%", 100 * slowdown.value) + " over baseline (+-" +
          text("%.1f %%", 100 * slowdown.error) + ", n = " + std::to_string(slowdown.steps) + ", " +
          text("%.1f gaps a second entered)", input.hand_overs);
    if (slowdown.certain() > input.slo) {
      state.periods_held = 0;
      if (!input.shares_at_least) {
        why += ": what runs beside it is cut first";
      } else if (!input.confirmed && state.level < GapState::kMostLevel) {
        why += ": held until a look at it alone confirms it";
        wants_look = true;
      } else if (state.level < GapState::kMostLevel) {
        if (std::exchange(state.relaxed, false)) {
          state.patience = std::min(GapState::kMostPatience, 2 * state.patience);
        }
        ++state.level;
        why += ": restricted";
      } else {
        why += ": as restricted as can be";
      }
    } else if (slowdown.value > input.slo) {
      why += ": not certain, held";
    } else if (++state.periods_held < state.patience) {
      why += ": held";
    } else if (state.level == 0) {  // it has held for long: forget what there was
      state = GapState{};
      why += ": held";
    } else {
      --state.level;
      state.periods_held = 0;
      state.relaxed = true;
      why += ": relaxed";
    }
  }
  const wire::GapRules rules = gap_rules_at(state.level, input.slo, input.gaps, input.users);
  return {state, rules, describe(rules) + "; " + why, wants_look};
}

}  // namespace commensal::node

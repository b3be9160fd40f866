// SPDX-License-Identifier: Apache-2.0
// Which of a guaranteed job's gaps opportunistic jobs may use, and how: a decision with its reason.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/node/step_history.h"
#include "coordinator/wire/gaps.h"

namespace commensal::node {

/// The gaps of one phase that a guaranteed job left of late.
struct GapClass {
  wire::GapPhase phase = wire::GapPhase::kUnknown;
  double per_minute = 0.0;
  double share = 0.0;  ///< of the time
  double median_seconds = 0.0;
  double p90_seconds = 0.0;
  /// Shortest length of a bucket in seconds, and the part of the phase's gaps in it.
  std::vector<std::pair<double, double>> lengths;
  bool operator==(const GapClass&) const = default;
};

/// Where the control of gaps stands.
struct GapState {
  static constexpr int kMostLevel = 5;
  static constexpr int kLeastPatience = 10;
  static constexpr int kMostPatience = 160;
  int level = 0;  ///< 0: every gap may be used; each level restricts more
  int periods_held = 0;
  int patience = kLeastPatience;  ///< periods without trouble before a level is given back
  bool relaxed = false;           ///< a level was given back since the last restriction
  bool operator==(const GapState&) const = default;
};

/// Who uses the gaps.
struct GapUsers {
  bool idle_class = true;  ///< the kernel takes a core from them at once
  bool queues = false;     ///< the device has queues
  std::size_t jobs = 1;    ///< that may have work in these at the same time
  bool operator==(const GapUsers&) const = default;
};

struct GapInput {
  GapState state;
  std::optional<SlowdownEstimate> slowdown;  ///< of the guaranteed job that suffers most
  double slo = 0.01;                         ///< which that one may see
  bool shares_at_least = false;  ///< what runs beside the guaranteed job is at its least already
  std::vector<GapClass> gaps{};  ///< of the same job
  double hand_overs = 0.0;       ///< gaps a second that were entered of late
  GapUsers users{};
  bool confirmed = true;  ///< a look at the job alone under the present rules showed it, too
};

struct GapDecision {
  GapState state;
  wire::GapRules rules;
  std::string reason;
  bool wants_look = false;  ///< at the guaranteed job alone, for it would restrict otherwise
  bool operator==(const GapDecision&) const = default;
};

/// c: what a hand-over costs besides the work in flight. On a CPU 0.1 ms, for a switch and its
/// caches (section 7.4 of compute_sharing).
inline constexpr double kHandOverSeconds = 1e-4;
/// What a GPU needs to change from one process to another and back, as it was measured on an H200
/// (tests/data/cards/h200-probes.json, compute-9.2: switch_there_and_back, 318 us). The half
/// of it, in which the guaranteed job's work waits, is c there.
inline constexpr Duration kDeviceChange = std::chrono::microseconds{318};

/// Returns how many hand-overs a second a slowdown allows: s = R * (Q / 2 + c).
/// @param in_flight_seconds  Q: what may still run when a gap ends.
/// @param change  of a device with queues, from one process to another and back; zero: a CPU's.
[[nodiscard]] double hand_over_budget(double slowdown, double in_flight_seconds,
                                      Duration change = {});

/// Returns the rules of a level. From the first on, ops end before the gap is expected to, and less
/// may run at once; from the second on, only as many gaps a second are entered as the slowdown
/// allows, from the length on from which these give the most time; from the third on, no
/// boundaries, whose end is the least certain. An op that still runs of users who are not in the
/// idle class holds a guaranteed thread up, so their guard is at least `kWakeGuard`. On a device
/// with queues the work at once is that of `with_queues` at every level, and the hand-overs are
/// what the slowdown allows for just that work. Pure.
[[nodiscard]] wire::GapRules gap_rules_at(int level, double slo, const std::vector<GapClass>& gaps,
                                          const GapUsers& users = {});
/// An op takes longer than foreseen, or a wait ends a little early, by about so much (traces of
/// context switches: 0.2 to 0.5 ms after most gaps).
inline constexpr Duration kWakeGuard = std::chrono::microseconds{300};

/// Work in flight on a device with queues, at every level: an op returns long before it has run
/// there, and a gate that closes stops nothing that is queued already (C1). Two chunks of the
/// gate's (C2): 0.5 ms at the end of each gap costs 1 % at 29 gaps a second. That is of all jobs
/// together: whose gates close at once leave the sum of their queues, and jobs that take turns on
/// the device by its time slices need no more for being busy.
inline constexpr Duration kMostQueued = std::chrono::microseconds{500};
/// Of one job at the least: below it marking the chunks would cost more than a per cent.
inline constexpr Duration kLeastQueued = std::chrono::microseconds{100};
/// Returns the rules of a device with queues for each of so many jobs. Pure.
[[nodiscard]] wire::GapRules with_queues(wire::GapRules rules, std::size_t jobs = 1);

/// Takes one control step. Above the SLO beyond doubt: one level up, but only once the shares are
/// at their least, for what runs beside a busy job is the first suspect, and only if a look at the
/// job alone confirmed it; within it for as long as
/// the patience lasts: one level down. Between the two, without an estimate and at either end it
/// stays where it is, so nothing winds up. A level that had to be taken back soon is given back
/// later the next time. Pure.
[[nodiscard]] GapDecision decide_gaps(const GapInput& input);

}  // namespace commensal::node

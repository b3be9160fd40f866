// SPDX-License-Identifier: Apache-2.0
// Which cores opportunistic jobs keep to: those that the guaranteed ones leave, while it matters.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/node/cpu_meter.h"
#include "coordinator/node/host_device.h"
#include "coordinator/node/step_history.h"
#include "coordinator/wire/core_set.h"

namespace commensal::node {

/// The usable CPUs by physical core, in rising order; CPUs that share one (SMT) stand together.
using CoreTopology = std::vector<wire::CoreSet>;

/// Reads which CPUs this process may use, and which of them share a physical core. Where the kernel
/// does not tell, each CPU is a core. Empty where a CPU has a number above `wire::CoreSet::kMost`.
[[nodiscard]] CoreTopology read_topology(const HostRoots& roots = {});
/// The CPUs that a process may use; nothing if that cannot be read.
[[nodiscard]] std::optional<wire::CoreSet> read_allowed(std::int64_t pid,
                                                        const HostRoots& roots = {});

/// How many cores a job's threads may be on at the same moment, from their clocks: a mean over
/// time cannot tell one core that is always busy from two that are half of the time, so each thread
/// that runs at all counts as a core. Not thread safe.
class CoreNeed {
 public:
  static constexpr Duration kWindow = std::chrono::seconds(10);
  static constexpr Duration kShortestLook = std::chrono::milliseconds(800);
  static constexpr double kRuns = 0.02;  ///< of the time: a thread that runs less is no core

  /// Takes the clocks of all its threads; looks that come sooner than `kShortestLook` are left out.
  void note(TimePoint now, const ThreadTimes& threads);

  struct Seen {
    unsigned newest = 0;  ///< in the newest look
    unsigned most = 0;    ///< within `kWindow`
    bool whole = false;   ///< the looks cover all of `kWindow`
    bool operator==(const Seen&) const = default;
  };
  /// Nothing before the second look.
  [[nodiscard]] std::optional<Seen> seen() const;

 private:
  struct Look {
    TimePoint at;
    unsigned cores = 0;
  };
  ThreadTimes before_;
  TimePoint last_;
  TimePoint began_;
  std::deque<Look> looks_;
};

struct CoreShareInput {
  struct Guaranteed {
    std::string name;
    std::optional<CoreNeed::Seen> need;
    wire::CoreSet allowed;  ///< by its owner; empty: not known
    std::optional<SlowdownEstimate> slowdown;
    double slo = 0.01;
    /// `slowdown` is what it loses to waiting for cores: nothing looks at it alone.
    bool by_waiting = false;
  };
  TimePoint now;
  double cores = 0.0;  ///< of the device; fewer than CPUs: a quota
  std::vector<Guaranteed> guaranteed;
  bool opportunistic = false;  ///< there is one
};

/// What is remembered from one decision to the next.
struct CoreShareState {
  wire::CoreSet cores;    ///< that opportunistic jobs keep to; empty: all
  TimePoint since;        ///< when they were confined
  TimePoint in_way;       ///< when a guaranteed job suffered last while they were not; zero: never
  std::string who;        ///< its name
  double suffered = 0.0;  ///< and its slowdown
  bool by_waiting = false;  ///< ... which is what it lost to waiting for cores
  TimePoint not_before;     ///< confining them did not help: not again before
  bool operator==(const CoreShareState&) const = default;
};

struct CoreShareDecision {
  CoreShareState state;
  std::string reason;
};

/// For how long after a guaranteed job suffered cores may be taken away.
inline constexpr Duration kStillInWay = std::chrono::seconds(30);
/// Confining that has not helped by then is given up, for `kGivenUp`.
inline constexpr Duration kTrial = std::chrono::seconds(15);
inline constexpr Duration kGivenUp = std::chrono::minutes(10);
inline constexpr double kHelped = 0.75;  ///< of the slowdown before: above, it did not help

/// Confines opportunistic jobs to the physical cores that guaranteed ones left for all of
/// `CoreNeed::kWindow`, at least one, if one of these suffered beyond doubt a moment ago; all cores
/// again when nothing is left, nobody is there to yield to, or it did not help. Pure.
[[nodiscard]] CoreShareDecision decide_cores(const CoreShareInput& input,
                                             const CoreShareState& state,
                                             const CoreTopology& machine);

}  // namespace commensal::node

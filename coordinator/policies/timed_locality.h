// SPDX-License-Identifier: Apache-2.0
// How long a job insists on GPUs that are close together: Philly's timeouts, back-offs and levels.
#pragma once

#include "coordinator/policies/cluster_policy.h"
#include "coordinator/policies/free_gpus.h"

namespace commensal::policies {

/// The clock of each waiting job, in the notes (`level`, `numbers`): a try lasts until the timeout,
/// then a back-off begins, then the next try; after some tries the locality is relaxed by one
/// level. Levels that the cluster can never serve are passed over.
class TimedLocality {
 public:
  struct Rules {
    double timeout = 150;  ///< seconds
    double back_off = 120;
    double tries = 3;  ///< at each level
  };

  /// @throws std::invalid_argument for rules that make no sense.
  static void check(const Rules& rules);

  TimedLocality(const ClusterView& view, const Rules& rules, Notes& notes);

  /// A job that is to wait again begins with the closest level.
  void forget(JobIndex job) { entry(job, kUntil) = kNotTried; }

  /// A job that is not being tried goes on with its level when it is; a back-off passes meanwhile.
  void pause(JobIndex job) {
    if (entry(job, kBacksOff) == 0 && entry(job, kUntil) != kNotTried) {
      entry(job, kUntil) = kPaused;
    }
  }

  /// Whether a job is being tried now: not while it backs off.
  [[nodiscard]] bool due(JobIndex job);
  [[nodiscard]] Locality level(JobIndex job) const {
    return static_cast<Locality>(notes_.level[job]);
  }

  /// Notes that a try did not succeed so far. Returns whether its time is over: it backs off.
  bool failed(JobIndex job);

  /// When the try or the back-off of a job ends.
  [[nodiscard]] Time until(JobIndex job) { return entry(job, kUntil); }

 private:
  enum Entry : std::size_t { kUntil, kTries, kBacksOff, kEntries };  // of each job
  static constexpr double kNotTried = -1;
  static constexpr double kPaused = -2;

  double& entry(JobIndex job, Entry which) { return notes_.numbers[job * kEntries + which]; }

  const ClusterView& view_;
  const Rules& rules_;
  Notes& notes_;
};

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// Runs a trace through a policy: one event after the other, nothing is random.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "coordinator/engines/simulator/failures.h"
#include "coordinator/engines/simulator/predicted_durations.h"
#include "coordinator/engines/simulator/semantics.h"
#include "coordinator/engines/simulator/trace.h"
#include "coordinator/policies/cluster_policy.h"
#include "coordinator/policies/cluster_state.h"

namespace commensal::simulator {

/// What became of a job; seconds on the clock of the trace.
struct JobOutcome {
  std::size_t row = 0;  ///< in the trace
  Time submit = 0;
  Time first_start = 0;
  Time end = 0;
  double waited = 0;                                      ///< in all
  std::optional<double> waited_for_quota = std::nullopt;  ///< of these; where tenants have quotas
  std::int32_t gpus = 0;
  std::uint32_t preemptions = 0;
  std::uint32_t restarts = 0;  ///< starts after the first, and moves
  bool completed = true;       ///< false: it failed and was given up
};

struct Outcome {
  std::vector<JobOutcome> jobs;  ///< in the order of arrival
  std::uint64_t events = 0;
  std::uint64_t decisions = 0;
};

/// Told about progress every thousand events; may throw to end the run.
using Progress = std::function<void(std::size_t ended, std::size_t jobs)>;

/// Shown the state after every decision, with how many jobs wait; it changes nothing.
using Observer = std::function<void(policies::ClusterState& state, Time now, std::size_t waiting)>;

/// What else holds for a run.
struct Conditions {
  /// With their quotas; empty: those of the trace, without quotas. A job without a tenant is
  /// charged to nobody.
  std::vector<policies::Tenant> tenants;
  Failures* failures = nullptr;             ///< null: nothing fails
  PredictedDurations* predicted = nullptr;  ///< what policies see as durations; null: the truth
  bool until_settled = false;  ///< policies are asked again at once until they change nothing, as
                               ///< the live coordinator asks them; not in rounds
};

/// @throws std::invalid_argument for a job that can never run on the cluster or within its tenant's
/// quota, for a job of a tenant that `conditions` do not name, for unequal nodes under a profile
/// that knows equal ones only, and for failures under one with rounds or without ends;
/// std::logic_error if the policy's plan breaks a rule, or leaves jobs waiting for ever.
[[nodiscard]] Outcome simulate(const Trace& trace, const policies::Cluster& cluster,
                               Semantics& semantics, std::string_view policy_name,
                               const policies::ClusterPolicy& policy, const Progress& progress,
                               const Observer& observer = {}, const Conditions& conditions = {});

}  // namespace commensal::simulator

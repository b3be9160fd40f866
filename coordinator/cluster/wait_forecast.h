// SPDX-License-Identifier: Apache-2.0
// When jobs that wait are likely to start: the policy itself, asked about a future in which jobs
// run as long as expected.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/job.h"
#include "coordinator/cluster/run_times.h"
#include "coordinator/cluster/store.h"
#include "coordinator/policies/cluster_policy.h"

namespace commensal::cluster {

/// A job as the forecast sees it.
struct ForecastJob {
  const JobRecord* record = nullptr;                    ///< placed, waits, or parked
  std::optional<ExpectedTime> expected = std::nullopt;  ///< from its start
  double elapsed = 0;     ///< seconds since its start; zero if it waits
  double waited = 0;      ///< seconds since its submission
  double not_before = 0;  ///< seconds from now until it may be started at all
};

struct ForecastWorld {
  std::vector<ForecastJob> jobs;  ///< in the order of their submission
  std::vector<EngineNode> nodes;  ///< that may be given jobs
  std::vector<TenantRecord> tenants;
};

/// What it may cost: the work is about the product of both.
struct ForecastBounds {
  std::size_t waiting = 1000;   ///< jobs that are looked at, the first ones
  std::size_t decisions = 500;  ///< of the policy
};

struct WaitEstimate {
  std::optional<double> seconds;  ///< from now until it starts; absent: nobody can say
  std::string words;              ///< "in about 12 min, if ..."; else why there is none
  bool operator==(const WaitEstimate&) const = default;
};

/// Returns an estimate for every job that waits. Later submissions are not foreseen. A job that
/// runs longer than expected is taken to run a tenth longer than it has. Pure.
[[nodiscard]] std::map<JobId, WaitEstimate> forecast_waits(const policies::ClusterPolicy& policy,
                                                           const ForecastWorld& world,
                                                           const ForecastBounds& bounds = {});

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// Small clusters and jobs for tests of policies.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/policies/cluster.h"
#include "coordinator/policies/cluster_plan.h"
#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// Whether a policy decides by models of the jobs, which made-up jobs do not have.
inline bool needs_models(std::string_view policy) {
  return policy == "gandiva" || policy == "gavel" || policy == "optimus" ||
         policy == "optimus+oracle";
}

/// A job of whole GPUs that asks for nothing else.
inline ClusterJob job_of(std::int32_t gpus, double seconds, Time submit = 0) {
  ClusterJob job;
  job.submit = submit;
  job.gpus = job.min_gpus = job.max_gpus = gpus;
  job.duration = job.remaining = seconds;
  return job;
}

/// Jobs that arrive in bunches, some with more GPUs than a node has, some opportunistic.
inline std::vector<ClusterJob> random_jobs(std::mt19937& random, std::size_t count,
                                           std::int32_t most_gpus) {
  std::uniform_int_distribution<std::int32_t> gpus(1, most_gpus);
  std::uniform_int_distribution<std::int32_t> seconds(1, 5000);
  std::uniform_int_distribution<std::int32_t> gap(0, 3);
  std::vector<ClusterJob> jobs;
  Time submit = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (gap(random) == 0) submit += seconds(random) / 4;
    ClusterJob job = job_of(gpus(random), seconds(random), submit);
    if (gap(random) == 0) job = job_of(1, seconds(random), submit);
    if (gap(random) == 0) {
      job.asked = AskedClass::kOpportunistic;
      job.priority = 1;
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace commensal::policies

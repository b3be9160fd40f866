// SPDX-License-Identifier: Apache-2.0
// Makes up jobs that recur, for policies that predict durations: no public trace has the keys.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/engines/simulator/trace.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator {

/// What they are like; docs/policies.md describes the model.
struct RecurrentJobs {
  std::int32_t jobs = 10'000;
  double recurrence = 0.65;  ///< share of jobs whose group runs five times or more; others run once
  double noise = 0.2;        ///< standard deviation of the logarithm of a run's duration in a group
  double group_spread = 1.5;  ///< the same of the groups of a user
  double user_spread = 1.0;   ///< the same of users
  double median_seconds = 1200;
  std::int32_t users = 100;
  std::int32_t gpus = 64;  ///< of the cluster for which the load is meant
  double load = 1.0;       ///< GPU-seconds asked for by those there are until the last arrival

  /// Takes all of these by name (`group-spread`).
  /// @throws std::invalid_argument for a value that makes no sense.
  static RecurrentJobs from(policies::Options& options);
};

/// Draws jobs in the order of their arrival: equal seed, equal jobs.
[[nodiscard]] Trace make_recurrent_jobs(const RecurrentJobs& like, std::uint64_t seed);

/// Writes our own format, beside its place and renamed.
/// @throws std::system_error if it cannot be written.
void write_trace(const std::string& file, const Trace& trace);

}  // namespace commensal::simulator

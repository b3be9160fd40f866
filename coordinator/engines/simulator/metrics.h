// SPDX-License-Identifier: Apache-2.0
// What a run was like, in the terms of those who publish such runs.
#pragma once

#include <map>
#include <string>

#include "coordinator/engines/simulator/simulation.h"

namespace commensal::simulator {

/// Returns metrics by name: jobs, avg_jct, median_jct, p95_jct, p99_jct, makespan, avg_queue and
/// avg_pending (seconds waited in all, the same figure under two names), preemptions, restarts. JCT
/// is end - submit; with n sorted values the median is number n/2 and pXX number 0.XX n, from 0,
/// rounded down; makespan is the last end on the clock of the trace (docs/policies.md).
[[nodiscard]] std::map<std::string, double> metrics_of(const Outcome& outcome);

}  // namespace commensal::simulator

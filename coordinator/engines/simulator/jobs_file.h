// SPDX-License-Identifier: Apache-2.0
// What became of each job, as a CSV file.
#pragma once

#include <string>

#include "coordinator/engines/simulator/simulation.h"

namespace commensal::simulator {

/// Writes a row a job, in the order of arrival: policy, job, tenant, class, gpus, submit, start,
/// end, jct, waited, preemptions. The file is written beside and renamed: it is whole, or not
/// there.
/// @throws std::system_error if it cannot be written.
void write_jobs(const std::string& file, const std::string& policy, const Trace& trace,
                const Outcome& outcome);

}  // namespace commensal::simulator

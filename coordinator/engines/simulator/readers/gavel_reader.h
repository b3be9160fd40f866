// SPDX-License-Identifier: Apache-2.0
// Traces of Gavel, and of Shockwave in the same columns.
#pragma once

#include <string>

#include "coordinator/engines/simulator/readers/trace_reader.h"

namespace commensal::simulator {

/// Reads jobs by model and steps; how long they take follows from the table of throughputs
/// (`find_throughputs`). A job is named after its row, from zero. Shockwave's changes of batch
/// sizes (column `extra`) are passed over: a job keeps the batch size that it begins with.
[[nodiscard]] Trace read_gavel(const std::string& file, const ReadOptions& options);

}  // namespace commensal::simulator

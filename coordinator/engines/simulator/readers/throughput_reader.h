// SPDX-License-Identifier: Apache-2.0
// Gavel's measured throughputs, from JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "coordinator/policies/throughput_table.h"

namespace commensal::simulator {

/// Name of a model on so many GPUs, as the tables have it: ('ResNet-18 (batch size 64)', 2).
[[nodiscard]] std::string profile_key(std::string_view model, std::int32_t gpus);

/// Reads {type: {profile: {"null": rate, other profile: [rate, rate of the other]}}}. Types whose
/// name ends in "_unconsolidated" are read too.
/// @throws BadTrace, naming file, key and value.
[[nodiscard]] policies::ThroughputTable read_throughputs(const std::string& file);

/// Finds the table of a trace: `given` if it is a file; else physical_cluster_throughputs.json (for
/// a trace in a folder `physical`), simulation_throughputs.json or tacc_throughputs.json in
/// `given`, or, if that is empty, beside the trace or in the folder above.
/// @throws BadTrace if there is none.
[[nodiscard]] std::string find_throughputs(const std::string& trace, const std::string& given);

}  // namespace commensal::simulator

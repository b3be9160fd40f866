// SPDX-License-Identifier: Apache-2.0
// Finds and reads profiles of training applications: a folder each, with placements.csv,
// scalability.csv and a validation-BATCH.csv a batch size (petuum/adaptdl, osdi21-artifact).
#pragma once

#include <string>

#include "coordinator/engines/simulator/readers/rows.h"
#include "coordinator/engines/simulator/training_profile.h"

namespace commensal::simulator {

/// Returns the folder of profiles: `given`, or else `profiles` beside a trace or beside its folder.
/// @throws BadTrace if there is none.
[[nodiscard]] std::string find_profiles(const std::string& trace, const std::string& given);

/// Reads all profiles of a folder.
/// @throws BadTrace, naming file, line, column and value, or what is missing.
[[nodiscard]] TrainingProfiles read_profiles(const std::string& folder);

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// What the engine for Slurm writes beside an attempt, and what follows from its placement.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/engines/local/attempt_folder.h"

namespace commensal::cluster::slurm {

/// The id that Slurm gave to an attempt, once that is written down.
[[nodiscard]] std::optional<std::uint64_t> noted_job(const local::AttemptFolder& folder);
void note_job(const local::AttemptFolder& folder, std::uint64_t job);

/// INSTANCE and a number that was drawn when the state folder was made: two coordinators of one
/// name and user do not take each other's jobs for their own. @throws std::system_error.
[[nodiscard]] std::string name_of_jobs(const std::filesystem::path& state,
                                       const std::string& instance);

/// The most devices that a placement has on one of its nodes.
[[nodiscard]] std::int64_t most_on_a_node(const local::Placed& placed);

/// In file names Slurm replaces %j and others: returns one of which it replaces nothing.
[[nodiscard]] std::string without_patterns(std::string path);

}  // namespace commensal::cluster::slurm

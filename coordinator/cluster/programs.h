// SPDX-License-Identifier: Apache-2.0
// Programs that options name, as they are found from anywhere.
#pragma once

#include <filesystem>
#include <string>

#include "coordinator/cluster/daemon.h"

namespace commensal::cluster {

/// Says why a file cannot be started as a program; empty: it can.
[[nodiscard]] std::string obstacle_to_running(const std::filesystem::path& program);

/// Makes every path of the options absolute, as it was meant where the command was typed: the
/// daemon and its keepers work elsewhere. Fills in the keeper if none was named. A `commensal`
/// without a slash stays a name, to be looked for in the PATH.
/// @param here    the folder that relative paths are meant from.
/// @param beside  the folder of this program, where the others are installed.
/// @throws std::invalid_argument naming a program that was given and cannot be started.
void resolve_paths(ClusterOptions& options, const std::filesystem::path& here,
                   const std::filesystem::path& beside);

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// What a coordinator can say of the machine that it is on: files, disk, programs, limits.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "coordinator/cluster/daemon.h"

namespace commensal::cluster {

/// Returns facts for `commensal doctor --cluster`, which judges them (docs/cluster.md, "health").
/// Nothing here waits for another program. To find out whether limits of jobs are kept, an empty
/// control group is made and removed again, as for a job. What cannot be looked at is null.
[[nodiscard]] nlohmann::json describe_surroundings(const ClusterOptions& options);

/// Its part about a store: sizes of file and log, the disk, and copies in the folder `backups`.
[[nodiscard]] nlohmann::json describe_store(const std::filesystem::path& state_dir);

/// Returns the folder of what jobs of this coordinator have printed.
[[nodiscard]] std::filesystem::path logs_folder(const ClusterOptions& options);

}  // namespace commensal::cluster

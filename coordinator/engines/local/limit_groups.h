// SPDX-License-Identifier: Apache-2.0
// Control groups that hold an attempt to the cores and the memory it asked for, where they can be
// made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/node/group_weight.h"

namespace commensal::cluster::local {

struct GroupLimits {
  std::int64_t cpu_milli = 0;   ///< zero: none
  std::int64_t memory_mib = 0;  ///< zero: none
};

struct LimitGroups {
  std::vector<std::filesystem::path> folders;
  std::vector<std::string> problems;  ///< a sentence for each limit that is not kept
};

/// Makes groups called `name` with these limits, of either version: below this process's own group
/// or, in version 2, where that one may not have any (it has processes), beside it if its parent
/// is delegated to us. Best effort: what cannot be made is a problem, never an error.
[[nodiscard]] LimitGroups make_limit_groups(const node::HostRoots& roots, node::GroupFiles& files,
                                            const std::string& name, const GroupLimits& limits);

/// How many processes of these groups were killed because memory was at its limit.
[[nodiscard]] std::uint64_t killed_for_memory(node::GroupFiles& files,
                                              const std::vector<std::filesystem::path>& folders);

/// Kills every process in these groups, and removes the groups once they are empty.
void kill_in_groups(node::GroupFiles& files, const std::vector<std::filesystem::path>& folders);
void remove_groups(node::GroupFiles& files, const std::vector<std::filesystem::path>& folders);

}  // namespace commensal::cluster::local

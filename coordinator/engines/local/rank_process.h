// SPDX-License-Identifier: Apache-2.0
// Starting the process of a rank.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "coordinator/engines/local/rank_environment.h"
#include "coordinator/wire/handover.h"

namespace commensal::cluster::local {

struct RankStart {
  std::vector<std::string> command;
  Environment environment;
  std::string directory;
  pid_t group = 0;                  ///< process group to join; zero: makes its own
  std::vector<std::string> groups;  ///< control groups to enter
};

struct StartedRank {
  pid_t pid = 0;          ///< a child, to be waited for whether or not it was started
  wire::UniqueFd output;  ///< what it prints, both streams; does not block
  /// Why it was not started; its exit code as a shell has it.
  struct Failure {
    int exit_code = 0;
    std::string reason;
  };
  std::optional<Failure> failure;
  std::vector<std::string> problems;  ///< what did not hold it up
};

/// Starts one rank and waits until it executes its command: as it is given, by no shell, looked for
/// in the PATH of its own environment. It is killed when this process dies, has no signal blocked,
/// and reads nothing. @throws std::system_error if there can be no process.
[[nodiscard]] StartedRank start_rank(const RankStart& start);

}  // namespace commensal::cluster::local

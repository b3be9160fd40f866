// SPDX-License-Identifier: Apache-2.0
// What `commensal-coordinator` is told: options and configuration file, or one sentence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/cluster/daemon.h"

namespace commensal::cluster {

/// What became of a command line: options to run with, or a text to print and leave.
struct CommandLine {
  std::optional<ClusterOptions> options;      ///< absent: leave with `code`
  bool check_config = false;                  ///< the options are good; that was all
  node::ExitCode code = node::ExitCode::kOk;  ///< kOk without options: --help or --version
  std::string text;                           ///< the help or the version, or what is wrong
};

/// Reads arguments (without the program's name) and the configuration file that they may name.
/// Never throws for what a user can write.
[[nodiscard]] CommandLine parse_command_line(std::vector<std::string> arguments,
                                             const std::string& version);

}  // namespace commensal::cluster

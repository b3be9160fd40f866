// SPDX-License-Identifier: Apache-2.0
// What `commensald` is told: options and configuration file to DaemonOptions, or one sentence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/node/daemon.h"

namespace commensal::node {

/// What became of a command line: options to run with, or a text to print and leave.
struct CommandLine {
  std::optional<DaemonOptions> options;  ///< absent: leave with `code`
  bool check_config = false;             ///< the options are good, and that was all that was asked
  ExitCode code = ExitCode::kOk;         ///< kOk without options: --help or --version
  std::string text;                      ///< the help or the version, or what is wrong
};

/// Reads arguments (without the program's name) and the configuration file that they may name.
/// Looks at nothing else: folders stay as they were given, empty where none was. Never throws for
/// what a user can write.
[[nodiscard]] CommandLine parse_command_line(std::vector<std::string> arguments,
                                             const std::string& version);

}  // namespace commensal::node

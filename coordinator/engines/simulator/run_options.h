// SPDX-License-Identifier: Apache-2.0
// The command line of commensal-simulate as values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace commensal::simulator {

struct RunOptions {
  std::string trace;
  std::string state;   ///< instead of a trace: one decision about it
  std::string format;  ///< empty: told by the columns
  std::string semantics;
  std::string sharing;  ///< of GPUs, under semantics commensal; empty: its default
  std::string cluster;  ///< a file; empty: `nodes` equal ones
  std::int32_t nodes = 0;
  std::int32_t gpus_per_node = 0;
  std::string policy;
  std::map<std::string, std::string> policy_options;
  std::optional<std::uint64_t> seed;
  std::string failures;      ///< as `failure_options` reads them; empty: nothing fails
  std::string predict;       ///< by which predictor; empty: the one of the policy
  std::string generate;      ///< which jobs to make up instead of a run
  std::string out;           ///< the file for these
  std::string profiles;      ///< a folder; empty: looked for beside the trace
  std::string jobs_out;      ///< a file; empty: none
  std::uint32_t series = 0;  ///< points of each curve; zero: no curves
  bool skip_bad_rows = false;
  bool progress = false;
  bool list_policies = false;
  bool list_formats = false;
};

/// Reads a command line by CLI11.
/// @throws CLI::Error, and std::invalid_argument where options do not go together.
[[nodiscard]] RunOptions parse_run_options(int argc, const char* const* argv);

/// Says on stdout or stderr what a CLI::Error that is being handled says; returns the exit code:
/// 0 for help, otherwise 2.
[[nodiscard]] int explain_usage();

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// The node coordinator as a running process: sockets, pages and time around NodeCoordinator.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "coordinator/node/host_device.h"
#include "coordinator/node/node_coordinator.h"

namespace commensal::node {

/// What `commensald` was told (README.md, and `commensald --help`).
struct DaemonOptions {
  std::string instance = "default";
  std::filesystem::path runtime_dir;
  MemoryBudget memory_budget;
  /// Whether the budget covers all that jobs hold, or what they manage only. Absent: all for a
  /// fraction of what is available, what they manage for a number of bytes.
  std::optional<bool> covers_all;
  std::optional<double> cores;
  MemoryBudget gpu_budget{std::nullopt, 1.0};  ///< of each GPU
  double trickle = 0.01;
  double slo = 0.01;
  double headroom = 0.05;
  bool may_end = false;  ///< opportunistic jobs, as the last resort for a guaranteed minimum
  std::string law = "gap";
  double idle_exit_seconds = 300.0;  ///< 0: never
  double control_period_seconds = 0.5;
  double silence_seconds = 10.0;  ///< a process that cannot be watched is gone after so long
  bool foreground = false;
  std::filesystem::path log_file;  ///< empty: INSTANCE.log in the runtime folder
  std::string log_level = "info";
  std::string version;
  std::string cluster;             ///< "tcp://HOST:PORT" to report to; empty: to nobody
  std::filesystem::path keys_dir;  ///< empty: keys::default_key_folder
  std::string key = "node";        ///< its name in that folder
};

/// How `commensald` ends.
enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,        ///< something that should not happen; the log says what
  kUsage = 2,           ///< wrong option or configuration file
  kAlreadyRunning = 3,  ///< another coordinator has this instance name here
  kNoSockets = 4        ///< runtime folder or sockets cannot be used
};

/// The outcome of a start: `kOk` once the sockets are bound, else why not, in one sentence.
struct StartReport {
  ExitCode code = ExitCode::kOk;
  std::string text;
};

/// Runs a coordinator until SIGTERM, SIGINT or `idle_exit_seconds` without a job.
/// @param started  called exactly once, as soon as it is known whether the start worked.
/// @return the exit code of the process. Changes the signal mask and the umask of the process.
ExitCode run_daemon(const DaemonOptions& options,
                    const std::function<void(const StartReport&)>& started);

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// The cluster coordinator as a running process: socket, store, engine and time around it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "coordinator/cluster/page_service.h"
#include "coordinator/node/background.h"

namespace commensal::cluster {

/// What `commensal-coordinator` was told (`commensal-coordinator --help`).
struct ClusterOptions {
  std::string instance = "default";
  std::filesystem::path runtime_dir;  ///< socket, lock, log
  std::filesystem::path state_dir;    ///< store, and what the engine keeps
  std::string engine = "local";       ///< "local", "slurm"
  struct Slurm {
    std::filesystem::path programs;  ///< folder of Slurm's programs; empty: they are in the PATH
    std::string guaranteed_partition = "guaranteed";
    std::string opportunistic_partition = "opportunistic";
    std::vector<std::string> submit_options;  ///< more words for sbatch
  } slurm;
  std::string policy = "antman";
  std::map<std::string, std::string> policy_options;
  std::uint32_t retries = 3;             ///< after failures of nodes, devices, networks
  std::uint32_t semantic_retries = 1;    ///< after ranks waited for each other in vain
  std::uint32_t user_retries = 0;        ///< after any other failure
  std::uint32_t node_failures = 3;       ///< within an hour: the node is avoided; 0: never
  std::uint32_t bad_input_failures = 2;  ///< attempts that failed at a record: it is listed
  double first_retry_seconds = 10;
  bool begin_anew = false;  ///< jobs that the store does not know are ended (store_owner.h)
  double grace_seconds = 10;
  std::chrono::days keep_logs{90};  ///< output of jobs that have ended; 0: for ever
  std::filesystem::path keeper;     ///< the program commensal-keeper
  std::string commensal;     ///< the program that runs a job under commensal; empty: jobs run as is
  std::int32_t devices = 0;  ///< of this machine; 0: its GPUs, or its cores as one
  /// A part of this machine that stands for a node: the folder of a node coordinator's sockets.
  struct LocalNode {
    std::string name;
    std::filesystem::path folder;
  };
  std::vector<LocalNode> nodes;  ///< empty: this machine as one, named as its host is
  PageOptions page;
  bool foreground = false;
  std::filesystem::path log_file;  ///< empty: cluster-INSTANCE.log in the runtime folder
  std::string log_level = "info";
  std::string version;
  std::string listen;              ///< "tcp://ADDRESS:PORT"; empty: this machine's user alone
  std::filesystem::path keys_dir;  ///< empty: keys::default_key_folder
};

/// Returns the socket of an instance. @throws wire::BadPath.
[[nodiscard]] std::filesystem::path cluster_socket_path(const std::filesystem::path& dir,
                                                        const std::string& instance);

/// Returns where state is kept if nobody says: COMMENSAL_STATE_DIR, else $XDG_STATE_HOME/commensal,
/// else ~/.local/state/commensal. Touches no file. @throws wire::BadPath without a home.
[[nodiscard]] std::filesystem::path default_state_dir();

/// Runs a coordinator until SIGTERM or SIGINT; jobs run on.
/// @param started  called exactly once, as soon as it is known whether the start worked.
/// @return the exit code of the process. Changes the signal mask and the umask of the process.
node::ExitCode run_daemon(const ClusterOptions& options,
                          const std::function<void(const node::StartReport&)>& started);

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// A real Slurm cluster on this machine for the tests of one process (tests/slurm/cluster.sh).
#pragma once

#include <stdlib.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

#include "coordinator/engines/slurm/command_runner.h"

namespace commensal::cluster {

class SlurmCluster {
 public:
  SlurmCluster() = default;
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;
  ~SlurmCluster() {
    if (folder_.empty()) return;
    try {
      (void)call("stop", {});
    } catch (const std::exception&) {  // what is left of it ends with the machine
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  /// What this machine lacks to run one; empty: nothing.
  [[nodiscard]] static std::string lacks() {
    for (const char* program : {"slurmctld", "slurmd", "munged", "sbatch", "cc"}) {
      bool found = false;
      for (const char* folder : {"/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/bin"}) {
        found = found || std::filesystem::exists(std::filesystem::path{folder} / program);
      }
      if (!found) return std::string{program} + " is not installed: there can be no Slurm here";
    }
    if (!std::filesystem::exists("/usr/include/slurm/spank.h")) {
      return "the headers of Slurm are not installed (libslurm-dev)";
    }
    return "";
  }

  /// Starts it unless it runs, and lets Slurm's commands of this process find it.
  void use() {
    if (!folder_.empty()) return;
    std::string name = (std::filesystem::temp_directory_path() / "csl-XXXXXX").native();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp");
    }
    folder_ = name;
    const auto started = call("start", {"-n", "4", "-g", "2", "-c", "4", "-t", "60"});
    if (started.exit_code != 0) throw std::runtime_error(started.output + started.errors);
    ::setenv("SLURM_CONF", (folder_ / "etc" / "slurm.conf").c_str(), 1);
  }

 private:
  slurm::CommandResult call(const std::string& verb, const std::vector<std::string>& options) {
    std::vector<std::string> words{"bash", COMMENSAL_SLURM_CLUSTER, verb, folder_.native()};
    words.insert(words.end(), options.begin(), options.end());
    // Its daemons go on, and keep no pipe of ours open.
    slurm::ProcessRunner runner;
    return runner.run(words, std::chrono::minutes{2});
  }

  std::filesystem::path folder_;
};

inline SlurmCluster& slurm_cluster() {
  static SlurmCluster cluster;
  return cluster;
}

}  // namespace commensal::cluster

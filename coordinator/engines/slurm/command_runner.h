// SPDX-License-Identifier: Apache-2.0
// Running a short program and reading what it says.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace commensal::cluster::slurm {

/// What became of a program that ended.
struct CommandResult {
  int exit_code = 0;  ///< 128 + number for a signal
  std::string output;
  std::string errors;
};

/// Runs programs. Thread safety: none.
class CommandRunner {
 public:
  virtual ~CommandRunner() = default;

  /// Runs the first word with the others as its arguments; no shell sees them. It reads nothing.
  /// @throws EngineFailed, one sentence with the command, if it cannot be started, does not end in
  /// time or says too much.
  [[nodiscard]] virtual CommandResult run(const std::vector<std::string>& words) = 0;
};

/// Runs real ones.
class ProcessRunner : public CommandRunner {
 public:
  struct Limits {
    std::chrono::milliseconds deadline{10'000};  ///< then it and what it started are killed
    std::size_t output_bytes = 64U << 20U;       ///< of each stream
  };

  ProcessRunner() = default;
  explicit ProcessRunner(Limits limits) : limits_(limits) {}

  [[nodiscard]] CommandResult run(const std::vector<std::string>& words) override;

 private:
  Limits limits_;
};

/// Whether a variable of this process is kept from Slurm's commands: those that would change what
/// they do (SLURM_*, SBATCH_*, SQUEUE_*, ...; SLURM_CONF says where Slurm is, and stays). Pure.
[[nodiscard]] bool steers_slurm(const std::string& name);

}  // namespace commensal::cluster::slurm

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
  /// @param deadline  then it is ended, with all that it started.
  /// @throws EngineFailed, one sentence with the command, if it cannot be started, does not end in
  /// time or says too much.
  [[nodiscard]] virtual CommandResult run(const std::vector<std::string>& words,
                                          std::chrono::milliseconds deadline) = 0;
};

/// Runs real ones.
class ProcessRunner : public CommandRunner {
 public:
  ProcessRunner() = default;
  /// @param output_bytes  most of each stream.
  explicit ProcessRunner(std::size_t output_bytes) : output_bytes_(output_bytes) {}

  [[nodiscard]] CommandResult run(const std::vector<std::string>& words,
                                  std::chrono::milliseconds deadline) override;

 private:
  std::size_t output_bytes_ = 64U << 20U;
};

/// Whether a variable of this process is kept from Slurm's commands: those that would change what
/// they do (SLURM_*, SBATCH_*, SQUEUE_*, ...; SLURM_CONF says where Slurm is, and stays). Pure.
[[nodiscard]] bool steers_slurm(const std::string& name);

}  // namespace commensal::cluster::slurm

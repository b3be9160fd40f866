// SPDX-License-Identifier: Apache-2.0
// Slurm by its commands: sbatch, squeue, sinfo, scontrol, scancel.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engines/slurm/command_runner.h"
#include "coordinator/engines/slurm/slurm_texts.h"

namespace commensal::cluster::slurm {

/// A job as sbatch is told of it. Zero or empty: nothing is said of that.
struct Submission {
  std::string name;
  std::string comment;  ///< for people
  std::string partition;
  std::string gres;  ///< on each node: "gpu:2"
  std::size_t nodes = 1;
  std::int64_t cpus = 0;         ///< on each node
  std::int64_t memory_mib = 0;   ///< on each node
  std::string time_limit;        ///< as Slurm writes it: minutes, "1-00:00:00", "UNLIMITED"
  std::filesystem::path output;  ///< of the script itself
  std::filesystem::path script;
  std::vector<std::string> words;  ///< the script's arguments; no shell reads them
};

/// Says each command as a list of words, and reads what it answers. Everything throws EngineFailed
/// with the command and what it said, if it fails or cannot be understood; then nothing has changed
/// as far as is known. Thread safety: none.
class SlurmCommands {
 public:
  struct Options {
    std::filesystem::path programs;  ///< folder of Slurm's programs; empty: they are in the PATH
    std::vector<std::string> submit_options;    ///< more words for sbatch: "--account=vision"
    std::chrono::milliseconds question{4'000};  ///< longest wait for squeue and sinfo
    std::chrono::milliseconds order{8'000};     ///< and for the others
  };
  /// `runner` must outlive this object.
  SlurmCommands(CommandRunner& runner, Options options);

  [[nodiscard]] std::vector<NodeLine> nodes();
  /// Jobs of this user, those included that have ended a short while ago (Slurm's MinJobAge).
  [[nodiscard]] std::vector<JobLine> jobs();
  /// Submits a job that waits until it is released, and is never started again by Slurm itself.
  /// @return its id.
  std::uint64_t submit_held(const Submission& submission);
  /// Words that start a program, which follows, on each of a job's nodes from within it: what they
  /// read goes to all, what those print they print. All are ended when one fails.
  [[nodiscard]] std::vector<std::string> on_each_node(std::size_t nodes) const;
  /// Runs a program on a node of a running job, within what that has, and waits for its end.
  [[nodiscard]] CommandResult run_within(std::uint64_t job, const std::string& node,
                                         const std::vector<std::string>& words,
                                         std::chrono::milliseconds deadline);
  /// Numbers of a running job's devices of kind `gpu`, by the names of its nodes; none where they
  /// are not known for sure.
  [[nodiscard]] DevicesByNodes devices_of(const std::string& job);
  /// Ids of the jobs that run on one of these nodes, whoever's, as far as Slurm shows them to this
  /// user; "12_3" of an array.
  [[nodiscard]] std::vector<std::string> running_on(const std::vector<std::string>& nodes);
  /// The time limit of a job, in words for another one's; empty: that of its partition.
  [[nodiscard]] std::string time_limit_of(std::uint64_t job);
  /// Says on which nodes a job that waits is to run.
  void set_nodes(std::uint64_t job, const std::vector<std::string>& nodes);
  void release(std::uint64_t job);
  /// Ends a job, whether it waits or runs. One that is over is left as it is.
  void cancel(std::uint64_t job);
  /// Sends SIGTERM to a running job's script alone.
  void ask_to_end(std::uint64_t job);

 private:
  std::string run(std::vector<std::string> words, std::chrono::milliseconds deadline);
  void tell(std::vector<std::string> words) { (void)run(std::move(words), options_.order); }
  Options options_;
  CommandRunner& runner_;
};

}  // namespace commensal::cluster::slurm

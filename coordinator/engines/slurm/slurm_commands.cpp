// SPDX-License-Identifier: Apache-2.0
// Words for Slurm's programs.
#include "coordinator/engines/slurm/slurm_commands.h"

#include <fmt/format.h>

#include <sstream>
#include <utility>

namespace commensal::cluster::slurm {

SlurmCommands::SlurmCommands(CommandRunner& runner, Options options)
    : options_(std::move(options)), runner_(runner) {}

std::string SlurmCommands::run(std::vector<std::string> words, std::chrono::milliseconds deadline) {
  const std::string name = words.front();
  if (!options_.programs.empty()) words.front() = (options_.programs / name).native();
  CommandResult result = runner_.run(words, deadline);
  if (result.exit_code == 0) return std::move(result.output);
  const std::string said = first_line(result.errors.empty() ? result.output : result.errors);
  throw EngineFailed(said.empty()
                         ? fmt::format("{} failed with {}", name, result.exit_code)
                         : fmt::format("{} failed with {}: {}", name, result.exit_code, said));
}

std::vector<NodeLine> SlurmCommands::nodes() {
  auto nodes = nodes_from_sinfo(
      run({"sinfo", "--noheader", "--Node", std::string{"--format="} + kNodeFormat},
          options_.question));
  if (nodes.empty()) throw EngineFailed("sinfo shows no node");
  return nodes;
}

std::vector<JobLine> SlurmCommands::jobs() {
  return jobs_from_squeue(
      run({"squeue", "--noheader", "--me", "--states=all", std::string{"--format="} + kJobFormat},
          options_.question));
}

std::uint64_t SlurmCommands::submit_held(const Submission& job) {
  std::vector<std::string> words{"sbatch",
                                 "--parsable",
                                 "--hold",
                                 "--no-requeue",
                                 "--export=ALL",
                                 "--input=/dev/null",
                                 "--open-mode=append",
                                 "--chdir=" + job.script.parent_path().native(),
                                 "--job-name=" + job.name,
                                 "--output=" + job.output.native(),
                                 fmt::format("--nodes={}", job.nodes),
                                 "--ntasks-per-node=1"};
  const auto add = [&](bool there, std::string word) {
    if (there) words.push_back(std::move(word));
  };
  add(!job.comment.empty(), "--comment=" + job.comment);
  add(!job.partition.empty(), "--partition=" + job.partition);
  add(!job.gres.empty(), "--gres=" + job.gres);
  add(job.cpus > 0, fmt::format("--cpus-per-task={}", job.cpus));
  add(job.memory_mib > 0, fmt::format("--mem={}", job.memory_mib));
  add(!job.time_limit.empty(), "--time=" + job.time_limit);
  words.insert(words.end(), options_.submit_options.begin(), options_.submit_options.end());
  words.push_back(job.script.native());
  words.insert(words.end(), job.words.begin(), job.words.end());
  return id_from_sbatch(run(std::move(words), options_.order));
}

std::vector<std::string> SlurmCommands::on_each_node(std::size_t nodes) const {
  return {options_.programs.empty() ? "srun" : (options_.programs / "srun").native(),
          fmt::format("--nodes={}", nodes),
          fmt::format("--ntasks={}", nodes),
          "--ntasks-per-node=1",
          "--cpu-bind=none",  // all cores of the job are the ranks'
          "--mpi=none",
          "--export=ALL",
          "--input=all",
          "--wait=0",
          "--kill-on-bad-exit=1"};
}

CommandResult SlurmCommands::run_within(std::uint64_t job, const std::string& node,
                                        const std::vector<std::string>& words,
                                        std::chrono::milliseconds deadline) {
  std::vector<std::string> all{
      options_.programs.empty() ? "srun" : (options_.programs / "srun").native(),
      fmt::format("--jobid={}", job),
      "--overlap",
      "--nodes=1",
      "--ntasks=1",
      "--nodelist=" + node,
      "--gres=none",
      "--mpi=none",
      "--quiet",
      "--export=ALL"};
  all.insert(all.end(), words.begin(), words.end());
  return runner_.run(all, deadline);
}

DevicesByNodes SlurmCommands::devices_of(const std::string& job) {
  const DevicesByNodes found = devices_from_scontrol(
      run({"scontrol", "--oneliner", "show", "job", "-d", job}, options_.question));
  DevicesByNodes devices;
  for (const auto& [nodes, numbers] : found) {
    if (nodes.find('[') == std::string::npos) {
      devices[nodes].insert(numbers.begin(), numbers.end());
      continue;
    }
    std::istringstream names{run({"scontrol", "show", "hostnames", nodes}, options_.question)};
    for (std::string name; std::getline(names, name);) {
      devices[name].insert(numbers.begin(), numbers.end());
    }
  }
  return devices;
}

std::vector<std::string> SlurmCommands::running_on(const std::vector<std::string>& nodes) {
  return ids_from_squeue(run(
      {"squeue", "--noheader", "--states=RUNNING",
       fmt::format("--nodelist={}", fmt::join(nodes, ",")), std::string{"--format="} + kIdFormat},
      options_.question));
}

std::string SlurmCommands::time_limit_of(std::uint64_t job) {
  return time_limit_from_squeue(
      run({"squeue", "--noheader", "--states=all", fmt::format("--jobs={}", job),
           std::string{"--format="} + kLimitFormat},
          options_.question));
}

void SlurmCommands::set_nodes(std::uint64_t job, const std::vector<std::string>& nodes) {
  tell({"scontrol", "update", fmt::format("JobId={}", job),
        fmt::format("ReqNodeList={}", fmt::join(nodes, ","))});
}

void SlurmCommands::release(std::uint64_t job) {
  tell({"scontrol", "release", std::to_string(job)});
}

void SlurmCommands::cancel(std::uint64_t job) { tell({"scancel", "--quiet", std::to_string(job)}); }

void SlurmCommands::ask_to_end(std::uint64_t job) {
  tell({"scancel", "--quiet", "--batch", "--signal=TERM", std::to_string(job)});
}

}  // namespace commensal::cluster::slurm

// SPDX-License-Identifier: Apache-2.0
// What the local engine is told about this machine.
#include "coordinator/cluster/local_cluster.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/cluster/node_classes.h"
#include "coordinator/engines/local/local_engine.h"
#include "coordinator/wire/control_client.h"
#include "coordinator/wire/paths.h"

namespace commensal::cluster {
namespace {

/// Starts this machine's node coordinator unless one runs. If it cannot be started, `commensal run`
/// tries it once more, and the job runs in any case; but a daemon that a job has started ends with
/// that job, as all that it started does.
void ensure_node_coordinator(const ClusterOptions& options) {
  std::vector<std::string> words{(options.keeper.parent_path() / "commensald").native(),
                                 "--instance", options.instance, "--runtime-dir",
                                 options.runtime_dir.native()};
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> variables;  // its own are options of another program
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view{*variable}.starts_with("COMMENSAL_")) variables.push_back(*variable);
  }
  variables.push_back(nullptr);
  pid_t pid = 0;
  if (posix_spawn(&pid, words.front().c_str(), nullptr, nullptr, arguments.data(),
                  variables.data()) != 0) {
    return;
  }
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {  // it detaches, or one runs already
  }
}

}  // namespace

EngineNode machine_node(node::GpuMonitor& gpus, std::int32_t devices) {
  std::vector<std::string> ids;
  if (devices > 0) {
    for (std::int32_t i = 0; i < devices; ++i) ids.emplace_back("host");
    return this_machine(std::move(ids));
  }
  std::string type = "cpu";
  Bytes memory;
  for (const node::GpuFacts& gpu : gpus.all()) {
    if (ids.empty()) type = gpu.name;
    if (ids.empty()) memory = gpu.total;
    if (gpu.total != memory) memory = Bytes{};
    ids.push_back(gpu.id);
  }
  EngineNode node = this_machine(std::move(ids), type);
  node.device_memory = memory;
  return node;
}

std::vector<EngineNode> local_nodes(const ClusterOptions& options, const EngineNode& machine) {
  if (options.nodes.empty()) return {machine};
  std::vector<EngineNode> nodes;
  for (const ClusterOptions::LocalNode& node : options.nodes) {
    EngineNode& added = nodes.emplace_back(machine);
    added.name = node.name;
    try {
      wire::check_listener(wire::control_socket_path(node.folder, options.instance));
    } catch (const std::runtime_error& error) {
      added.up = false;
      added.reason = error.what();
    }
  }
  return nodes;
}

std::map<std::string, std::string> node_variables(const ClusterOptions& options,
                                                  const std::string& node) {
  if (options.nodes.empty()) return {};
  return {{"COMMENSAL_RUNTIME_DIR", node_folder(options, node).native()},
          {"COMMENSAL_INSTANCE", options.instance}};
}

std::filesystem::path node_folder(const ClusterOptions& options, const std::string& node) {
  for (const ClusterOptions::LocalNode& one : options.nodes) {
    if (one.name == node) return one.folder;
  }
  return options.runtime_dir;
}

std::vector<std::string> run_prefix(const ClusterOptions& options, const Attempt& attempt,
                                    JobClass job_class, const JobSpec& spec) {
  if (options.commensal.empty()) return {};
  std::vector<std::string> words{options.commensal};
  if (options.nodes.empty()) {
    words.insert(words.end(),
                 {"--instance", options.instance, "--runtime-dir", options.runtime_dir.native()});
  }
  const std::vector<std::string> run{"run",
                                     "--quiet",
                                     fmt::format("--{}", to_string(job_class)),
                                     "--tenant",
                                     spec.tenant,
                                     "--name",
                                     spec.name.empty() ? "job-" + attempt.job.str() : spec.name,
                                     "--job-id",
                                     node_job_id(attempt)};
  words.insert(words.end(), run.begin(), run.end());
  for (std::string& word : wire::as_options(spec.terms, job_class)) {
    words.push_back(std::move(word));
  }
  words.emplace_back("--");
  return words;
}

std::unique_ptr<Engine> make_local_engine(const ClusterOptions& options) {
  LocalEngine::Options engine;
  engine.state = options.state_dir / "local";
  engine.keeper = options.keeper;
  engine.nodes = [gpus = std::shared_ptr<node::GpuMonitor>(node::nvml_monitor()), options] {
    return local_nodes(options, machine_node(*gpus, options.devices));
  };
  engine.node_environment = [options](const std::string& node) {
    return node_variables(options, node);
  };
  engine.prefix = [options](const Attempt& attempt, JobClass job_class, const JobSpec& spec) {
    // Those of several nodes are started by who has set them up: one that is gone is a dead node.
    if (!options.commensal.empty() && options.nodes.empty()) ensure_node_coordinator(options);
    return run_prefix(options, attempt, job_class, spec);
  };
  return std::make_unique<LocalEngine>(std::move(engine));
}

}  // namespace commensal::cluster

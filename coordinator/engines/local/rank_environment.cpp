// SPDX-License-Identifier: Apache-2.0
// torchrun's variables and ours.
#include "coordinator/engines/local/rank_environment.h"

#include <algorithm>

namespace commensal::cluster::local {
namespace {

constexpr const char* kMark = "COMMENSAL_CLUSTER_KEEPER";

// What the starter of the coordinator or of its own job said to it, and not to the jobs that it
// starts: places in a group of ranks, devices, sockets and watchdogs of systemd.
constexpr const char* kNotInherited[] = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "CUDA_VISIBLE_DEVICES",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "MAINPID",
    "MANAGERPID",
    "SYSTEMD_EXEC_PID",
};

// Our own say as what the coordinator's starter runs, if that is a job itself; where the machine's
// coordinators are is true for all.
bool is_of_another_job(const std::string& name) {
  return name.starts_with("COMMENSAL_") && name != "COMMENSAL_RUNTIME_DIR" &&
         name != "COMMENSAL_INSTANCE";
}

void add_torchrun(Environment& variables, const RankContext& context, const RankNumbers& numbers) {
  variables["RANK"] = std::to_string(numbers.rank);
  variables["WORLD_SIZE"] = std::to_string(numbers.world);
  variables["LOCAL_RANK"] = std::to_string(numbers.local_rank);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(numbers.local_world);
  variables["NODE_RANK"] = std::to_string(numbers.group);
  variables["GROUP_RANK"] = std::to_string(numbers.group);
  variables["GROUP_WORLD_SIZE"] = std::to_string(numbers.groups);
  variables["MASTER_ADDR"] = context.placed.meeting.empty() ? "127.0.0.1" : context.placed.meeting;
  variables["MASTER_PORT"] = std::to_string(context.port);
  variables["TORCHELASTIC_RUN_ID"] = context.attempt.job.str();
}

void add_own(Environment& variables, const RankContext& context, const std::string& node) {
  const JobSpec& job = context.held.job;
  variables["COMMENSAL_JOB_ID"] = context.attempt.job.str();
  variables["COMMENSAL_JOB_NAME"] = job.name.empty() ? context.attempt.job.str() : job.name;
  if (!job.tenant.empty()) variables["COMMENSAL_TENANT"] = job.tenant;
  variables["COMMENSAL_CLUSTER_JOB"] = context.attempt.job.str();
  variables["COMMENSAL_CLUSTER_ATTEMPT"] = std::to_string(context.attempt.number);
  variables["COMMENSAL_CLUSTER_NODE"] = node;
  variables[kMark] = context.keeper;
}

}  // namespace

std::vector<RankNumbers> number_ranks(const std::vector<DevicePlace>& devices) {
  std::vector<std::string> nodes;
  std::map<std::string, std::size_t> sizes;
  std::vector<RankNumbers> ranks;
  for (const DevicePlace& place : devices) {
    if (sizes[place.node] == 0) nodes.push_back(place.node);
    RankNumbers numbers;
    numbers.rank = ranks.size();
    numbers.world = devices.size();
    numbers.local_rank = sizes[place.node]++;
    numbers.group =
        static_cast<std::size_t>(std::find(nodes.begin(), nodes.end(), place.node) - nodes.begin());
    ranks.push_back(numbers);
  }
  for (RankNumbers& numbers : ranks) {
    numbers.local_world = sizes[devices[numbers.rank].node];
    numbers.groups = nodes.size();
  }
  return ranks;
}

std::string keeper_mark(const std::string& keeper) { return std::string{kMark} + '=' + keeper; }

Environment rank_environment(Environment base, const RankContext& context,
                             const RankNumbers& numbers) {
  Environment variables = std::move(base);
  for (const char* name : kNotInherited) variables.erase(name);
  std::erase_if(variables, [](const auto& entry) { return is_of_another_job(entry.first); });
  const std::string& node = context.placed.devices.at(numbers.rank).node;
  if (const auto own = context.placed.node_environment.find(node);
      own != context.placed.node_environment.end()) {
    for (const auto& [name, value] : own->second) variables[name] = value;
  }
  for (const auto& [name, value] : context.held.job.environment) variables[name] = value;
  if (numbers.world > 1 || context.held.job.pre_run) add_torchrun(variables, context, numbers);
  const std::string& device = context.placed.uuids.at(numbers.rank);
  if (device != "host") variables["CUDA_VISIBLE_DEVICES"] = device;
  add_own(variables, context, node);
  return variables;
}

}  // namespace commensal::cluster::local

// SPDX-License-Identifier: Apache-2.0
// One machine as a cluster: its devices, and the engine that starts jobs on it.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/cluster/daemon.h"
#include "coordinator/cluster/engine.h"
#include "coordinator/node/gpu_monitor.h"

namespace commensal::cluster {

/// Returns this machine as a node: its GPUs, or, without one, its cores as one device.
/// @param devices  so many devices that share the cores, in place of what there is; 0: none said.
[[nodiscard]] EngineNode machine_node(node::GpuMonitor& gpus, std::int32_t devices);

/// Returns the parts of this machine that stand for nodes, each like `machine`. One is up while its
/// node coordinator runs.
[[nodiscard]] std::vector<EngineNode> local_nodes(const ClusterOptions& options,
                                                  const EngineNode& machine);

/// Returns the words before a job's command: `commensal run` as what it was placed. Where it runs
/// on one of several nodes, its environment says by which coordinator (`node_variables`).
[[nodiscard]] std::vector<std::string> run_prefix(const ClusterOptions& options,
                                                  const Attempt& attempt, JobClass job_class,
                                                  const JobSpec& spec);

/// Returns the folder of a node's coordinator; of one that `options` do not name, that of this
/// machine's.
[[nodiscard]] std::filesystem::path node_folder(const ClusterOptions& options,
                                                const std::string& node);

/// Returns what tells a job on a node of its coordinator; nothing if the machine is one node.
[[nodiscard]] std::map<std::string, std::string> node_variables(const ClusterOptions& options,
                                                                const std::string& node);

/// @throws EngineFailed.
[[nodiscard]] std::unique_ptr<Engine> make_local_engine(const ClusterOptions& options);

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// One machine as a cluster: its devices, and the engine that starts jobs on it.
#pragma once

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

/// Returns the words before a job's command: `commensal run` as what it was placed.
[[nodiscard]] std::vector<std::string> run_prefix(const ClusterOptions& options,
                                                  const Attempt& attempt, JobClass job_class,
                                                  const JobSpec& spec);

/// @throws EngineFailed.
[[nodiscard]] std::unique_ptr<Engine> make_local_engine(const ClusterOptions& options);

}  // namespace commensal::cluster

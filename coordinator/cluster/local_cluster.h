// SPDX-License-Identifier: Apache-2.0
// One machine as a cluster: its devices, the engine that starts jobs on it, and its coordinator.
#pragma once

#include <memory>
#include <vector>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/daemon.h"
#include "coordinator/cluster/engine.h"

namespace commensal::cluster {

/// This machine as a node: its GPUs, or, without one, its cores as one device.
/// @param devices  so many devices that share the cores, in place of what there is; 0: none said.
[[nodiscard]] EngineNode this_machine(std::int32_t devices);

[[nodiscard]] std::unique_ptr<Engine> make_local_engine(const ClusterOptions& options,
                                                        std::shared_ptr<spdlog::logger> log);

/// Asks this machine's node coordinator, which `commensal run` starts with the first job.
[[nodiscard]] std::unique_ptr<ClassChanger> make_class_changer(const ClusterOptions& options);

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// The engine that a coordinator was told to use.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/cluster/daemon.h"
#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/node_classes.h"

namespace commensal::cluster {

/// Returns the engine that `options.engine` names. @throws EngineFailed.
[[nodiscard]] std::unique_ptr<Engine> make_engine(const ClusterOptions& options);

/// Asks a node that reports a job (NodeOrders); nothing: it does not, ask it another way.
using AskByHeartbeat =
    std::function<std::optional<wire::Message>(const std::string& node, const wire::Message&)>;

/// Returns who is asked for a running job's class. Slurm gave an opportunistic job a seat and not a
/// device: under it Slurm is asked for the devices first (SlurmGuarantee), then the node, by its
/// heartbeats if it reports the job, else by `srun`. The engine must have been made.
/// @throws EngineFailed.
[[nodiscard]] NodeClasses::Ask class_asker(const ClusterOptions& options, NodeClasses::Ask local,
                                           AskByHeartbeat by_heartbeat = {});

}  // namespace commensal::cluster

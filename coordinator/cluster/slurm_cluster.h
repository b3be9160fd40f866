// SPDX-License-Identifier: Apache-2.0
// The engine that a coordinator was told to use.
#pragma once

#include <memory>

#include "coordinator/cluster/daemon.h"
#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/node_classes.h"

namespace commensal::cluster {

/// Returns the engine that `options.engine` names. @throws EngineFailed.
[[nodiscard]] std::unique_ptr<Engine> make_engine(const ClusterOptions& options);

/// Returns who is asked for a running job's class. Slurm gave an opportunistic job a seat and not a
/// device: under it Slurm is asked for the devices first (SlurmGuarantee). The engine must have
/// been made. @throws EngineFailed.
[[nodiscard]] NodeClasses::Ask class_asker(const ClusterOptions& options, NodeClasses::Ask local);

}  // namespace commensal::cluster

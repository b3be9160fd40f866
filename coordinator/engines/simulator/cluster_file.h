// SPDX-License-Identifier: Apache-2.0
// A cluster from a JSON file.
#pragma once

#include <string>
#include <vector>

#include "coordinator/engines/simulator/json_section.h"
#include "coordinator/policies/cluster.h"

namespace commensal::simulator {

/// Reads the nodes of a cluster (docs/policies.md has the keys):
///
///     {"gpu_types": ["v100", "t4"],
///      "nodes": [{"count": 2, "gpus": 8, "gpu_type": "v100", "rack": 0, "cores": 96,
///                 "memory_gib": 512}]}
///
/// @throws BadCluster, naming file, key and value: for what is no JSON, for keys that do not exist,
/// for types that `gpu_types` does not name, for a cluster without a GPU.
[[nodiscard]] std::vector<policies::NodeSpec> read_cluster(const std::string& file);

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// A cluster from a JSON file.
#pragma once

#include <string>
#include <vector>

#include "coordinator/engines/simulator/json_section.h"
#include "coordinator/policies/cluster.h"
#include "coordinator/policies/cluster_view.h"

namespace commensal::simulator {

struct ClusterFile {
  std::vector<policies::NodeSpec> nodes;
  std::vector<policies::Tenant> tenants;  ///< empty: those of the trace, without quotas
};

/// Reads the nodes and tenants of a cluster (docs/policies.md has the keys):
///
///     {"gpu_types": ["v100", "t4"],
///      "nodes": [{"count": 2, "gpus": 8, "gpu_type": "v100", "rack": 0, "cores": 96,
///                 "memory_gib": 512}],
///      "tenants": [{"name": "vision", "quota": 12}, {"name": "speech"}]}
///
/// @throws BadCluster, naming file, key and value: for what is no JSON, for keys that do not exist,
/// for types that `gpu_types` does not name, for a cluster without a GPU, for a tenant without a
/// name or named twice.
[[nodiscard]] ClusterFile read_cluster(const std::string& file);

}  // namespace commensal::simulator

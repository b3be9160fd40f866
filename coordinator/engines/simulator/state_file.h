// SPDX-License-Identifier: Apache-2.0
// What a coordinator answers about itself, as jobs and nodes that a policy of the cluster can see.
#pragma once

#include <string>
#include <vector>

#include "coordinator/engines/simulator/json_section.h"
#include "coordinator/policies/cluster_state.h"

namespace commensal::simulator {

/// One moment of a cluster, or of one node.
struct RecordedState {
  std::string kind;  ///< `cluster` or `node`
  policies::Time now = 0;
  policies::ClusterState state;
  std::vector<std::string> jobs;                  ///< names, by job
  std::vector<std::vector<std::string>> devices;  ///< names, by node
  std::vector<std::string> assumed;               ///< what was not stated, one sentence each
};

/// Reads a cluster's state (docs/policies.md has the keys), or the answer of a node's coordinator
/// to `commensal status --json`: its devices are GPUs of one node a kind, its jobs that live run on
/// them. Jobs are numbered by their submissions; equal ones keep the order of the file.
/// @throws BadCluster, naming file, place, key and value: also for a job that is on a device twice,
/// or on one that is not there, and for devices that hold more than there is.
[[nodiscard]] RecordedState read_state(const std::string& file);

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// Cores and memory of nodes, less what a plan that is being made takes of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// Lives for one decision. A node whose cores or memory are not stated has enough of them.
class HostDraft {
 public:
  explicit HostDraft(const Cluster& cluster) : cluster_(cluster) {}

  [[nodiscard]] bool has(const ClusterJob& job, NodeIndex node) const {
    const NodeSpec& spec = cluster_.nodes()[node];
    const auto found = taken_.find(node);
    const Taken taken = found == taken_.end() ? Taken{} : found->second;
    return (spec.cpu_milli == 0 || job.cpu_milli + taken.cpu_milli <= cluster_.free_cpu(node)) &&
           (spec.memory_mib == 0 ||
            job.memory_mib + taken.memory_mib <= cluster_.free_memory(node));
  }

  /// Whether all nodes of a placement have enough.
  [[nodiscard]] bool has(const ClusterJob& job, const Placement& parts) const {
    return std::all_of(parts.begin(), parts.end(),
                       [&](const GpuPart& part) { return has(job, part.node); });
  }

  /// Takes once of each node; parts of one node stand together.
  void take(const ClusterJob& job, const Placement& parts) {
    if (job.cpu_milli == 0 && job.memory_mib == 0) return;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0 && parts[i].node == parts[i - 1].node) continue;
      Taken& taken = taken_[parts[i].node];
      taken.cpu_milli += job.cpu_milli;
      taken.memory_mib += job.memory_mib;
    }
  }

  /// Returns a place for a job without GPUs, on the first node that has enough; empty if none has.
  [[nodiscard]] Placement place(const ClusterJob& job) const {
    for (NodeIndex node = 0; node < cluster_.nodes().size(); ++node) {
      if (has(job, node)) return {{.node = node, .gpu = kHostOnly}};
    }
    return {};
  }

 private:
  struct Taken {
    std::int64_t cpu_milli = 0;
    std::int64_t memory_mib = 0;
  };

  const Cluster& cluster_;
  std::unordered_map<NodeIndex, Taken> taken_;
};

}  // namespace commensal::policies

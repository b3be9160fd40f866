// SPDX-License-Identifier: Apache-2.0
// What guaranteed jobs that wait could use, while a plan is made: nothing of it becomes an `auto`
// job's own.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>

#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// Nodes on which guaranteed jobs that wait could have GPUs once these are free. An `auto` job that
/// became guaranteed there would keep them waiting until it ends. Lives for one decision. Thread
/// safety: none.
class GuaranteedDemand {
 public:
  explicit GuaranteedDemand(const Cluster& cluster) : cluster_(&cluster) {}

  /// Adds a job that waits, and could start but for what others hold.
  /// @param least  GPUs that a node must have for the job to be there.
  void add(const ClusterJob& job, std::int32_t least);

  [[nodiscard]] bool wants(NodeIndex node) const;
  /// Whether a job that takes these types of GPUs (zero: any) could be on a node that is wanted.
  [[nodiscard]] bool wants_any(std::uint32_t gpu_types) const;

 private:
  using Shape = std::tuple<std::int32_t, std::uint32_t, std::int64_t, std::int64_t>;

  const Cluster* cluster_;
  std::set<Shape> shapes_;  // least GPUs of a node, types, cores and memory
};

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// Finds nodes and GPUs of a large cluster without looking at all of them.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/policies/cluster.h"

namespace commensal::policies {

/// Nodes by the number of their open GPUs, and GPUs by their load. Follows from a cluster and the
/// jobs on it; `ClusterState` keeps it. Thread safety: none.
class ClusterIndex {
 public:
  /// Load in thousandths, then the number of the GPU among all.
  using LoadedGpu = std::pair<std::int32_t, std::uint32_t>;

  explicit ClusterIndex(const Cluster& cluster);

  /// Nodes with so many GPUs that no guaranteed job holds or has reserved, lowest first.
  [[nodiscard]] const std::set<NodeIndex>& nodes_with_open(std::int32_t gpus) const {
    return by_open_[static_cast<std::size_t>(gpus)];
  }
  [[nodiscard]] std::int32_t open_on(NodeIndex node) const { return open_[node]; }
  [[nodiscard]] std::int32_t open_gpus() const noexcept { return open_total_; }
  [[nodiscard]] std::int32_t most_on_a_node() const noexcept {
    return static_cast<std::int32_t>(by_open_.size()) - 1;
  }
  /// Every GPU, least loaded first; equal ones by their number.
  [[nodiscard]] const std::set<LoadedGpu>& by_load() const noexcept { return by_load_; }
  [[nodiscard]] NodeIndex node_of(std::uint32_t gpu) const { return node_of_[gpu]; }
  [[nodiscard]] std::uint16_t number_on_node(std::uint32_t gpu) const { return number_[gpu]; }
  [[nodiscard]] std::int32_t load_milli(std::uint32_t gpu) const { return load_[gpu]; }

  /// Brings one node's count in line with the cluster.
  void refresh(const Cluster& cluster, NodeIndex node);
  void add_load(std::uint32_t gpu, std::int32_t milli);

 private:
  std::vector<std::set<NodeIndex>> by_open_;
  std::vector<std::int32_t> open_;
  std::int32_t open_total_ = 0;
  std::set<LoadedGpu> by_load_;
  std::vector<std::int32_t> load_;
  std::vector<NodeIndex> node_of_;
  std::vector<std::uint16_t> number_;
};

}  // namespace commensal::policies

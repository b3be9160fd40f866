// SPDX-License-Identifier: Apache-2.0
// Keeps nodes by open GPUs and GPUs by load.
#include "coordinator/policies/cluster_index.h"

#include <algorithm>

namespace commensal::policies {

ClusterIndex::ClusterIndex(const Cluster& cluster) {
  std::int32_t most = 0;
  for (const NodeSpec& node : cluster.nodes()) most = std::max(most, node.gpus);
  by_open_.resize(static_cast<std::size_t>(most) + 1);
  open_.resize(cluster.nodes().size(), 0);
  for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
    by_open_[0].insert(by_open_[0].end(), node);
    for (std::int32_t gpu = 0; gpu < cluster.nodes()[node].gpus; ++gpu) {
      by_load_.insert(by_load_.end(), {0, static_cast<std::uint32_t>(node_of_.size())});
      node_of_.push_back(node);
      number_.push_back(static_cast<std::uint16_t>(gpu));
      load_.push_back(0);
    }
    refresh(cluster, node);
  }
}

void ClusterIndex::refresh(const Cluster& cluster, NodeIndex node) {
  std::int32_t open = 0;
  for (std::int32_t gpu = 0; gpu < cluster.nodes()[node].gpus; ++gpu) {
    open += cluster.open(node, gpu) ? 1 : 0;
  }
  if (open == open_[node]) return;
  by_open_[static_cast<std::size_t>(open_[node])].erase(node);
  by_open_[static_cast<std::size_t>(open)].insert(node);
  open_total_ += open - open_[node];
  open_[node] = open;
}

void ClusterIndex::add_load(std::uint32_t gpu, std::int32_t milli) {
  by_load_.erase({load_[gpu], gpu});
  load_[gpu] += milli;
  by_load_.insert({load_[gpu], gpu});
}

}  // namespace commensal::policies

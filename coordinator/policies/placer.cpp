// SPDX-License-Identifier: Apache-2.0
// Places by counting, by consolidating, on the first node that fits, and from the freest node.
#include "coordinator/policies/placer.h"

#include <algorithm>
#include <numeric>

#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {
namespace {

/// Adds `count` free GPUs of a node, lowest first.
void add_free(const Cluster& cluster, NodeIndex node, std::int32_t count, Placement& placement) {
  for (std::int32_t gpu = 0; count > 0; ++gpu) {
    if (cluster.gpu(node, gpu).free_milli < kWholeGpu) continue;
    placement.push_back({.node = node, .gpu = static_cast<std::uint16_t>(gpu)});
    --count;
  }
}

std::vector<NodeIndex> wholly_free(const Cluster& cluster) {
  std::vector<NodeIndex> nodes;
  for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
    if (cluster.free_gpus(node) == cluster.nodes()[node].gpus) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace

bool takes(const Cluster& cluster, const ClusterJob& job, NodeIndex node) {
  const NodeSpec& spec = cluster.nodes()[node];
  if (job.gpus > 0 && job.gpu_types != 0 && (job.gpu_types >> spec.type & 1U) == 0) return false;
  return (spec.cpu_milli == 0 || job.cpu_milli <= cluster.free_cpu(node)) &&
         (spec.memory_mib == 0 || job.memory_mib <= cluster.free_memory(node));
}

std::optional<Placement> CountedPlacer::place(const Cluster& cluster, const ClusterJob& job) const {
  if (job.gpus > cluster.free_gpus()) return std::nullopt;
  return Placement{};
}

std::optional<Placement> ConsolidatingPlacer::place(const Cluster& cluster,
                                                    const ClusterJob& job) const {
  if (job.gpus > cluster.free_gpus()) return std::nullopt;
  const std::int32_t per_node = cluster.nodes().front().gpus;
  Placement placement;
  if (job.gpus <= per_node) {
    NodeIndex best = kAnyNode;
    for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
      if (cluster.free_gpus(node) < job.gpus) continue;
      if (best == kAnyNode || cluster.free_gpus(node) < cluster.free_gpus(best)) best = node;
    }
    if (best == kAnyNode) return std::nullopt;
    add_free(cluster, best, job.gpus, placement);
    return placement;
  }
  const std::vector<NodeIndex> empty = wholly_free(cluster);
  const auto whole = static_cast<std::size_t>(job.gpus / per_node);
  const std::int32_t rest = job.gpus % per_node;
  if (empty.size() < whole) return std::nullopt;
  for (std::size_t i = 0; i < whole; ++i) add_free(cluster, empty[i], per_node, placement);
  if (rest == 0) return placement;
  // The remainder goes to the next node with most free GPUs.
  std::vector<NodeIndex> others(cluster.nodes().size());
  std::iota(others.begin(), others.end(), NodeIndex{0});
  std::stable_sort(others.begin(), others.end(), [&](NodeIndex a, NodeIndex b) {
    return cluster.free_gpus(a) > cluster.free_gpus(b);
  });
  for (const NodeIndex node : others) {
    const bool used = std::find(empty.begin(), empty.begin() + static_cast<std::ptrdiff_t>(whole),
                                node) != empty.begin() + static_cast<std::ptrdiff_t>(whole);
    if (used || cluster.free_gpus(node) < rest) continue;
    add_free(cluster, node, rest, placement);
    return placement;
  }
  return std::nullopt;
}

std::optional<Placement> FirstNodePlacer::place(const Cluster& cluster,
                                                const ClusterJob& job) const {
  Placement placement;
  const auto largest =
      std::max_element(cluster.nodes().begin(), cluster.nodes().end(),
                       [](const NodeSpec& a, const NodeSpec& b) { return a.gpus < b.gpus; });
  if (job.gpus <= largest->gpus) {
    for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
      if (cluster.free_gpus(node) < job.gpus || !takes(cluster, job, node)) continue;
      if (job.gpus == 0) return Placement{{.node = node, .gpu = kHostOnly}};
      add_free(cluster, node, job.gpus, placement);
      return placement;
    }
    return std::nullopt;
  }
  std::int32_t missing = job.gpus;
  for (const NodeIndex node : wholly_free(cluster)) {
    if (!takes(cluster, job, node)) continue;
    const std::int32_t here = std::min(missing, cluster.nodes()[node].gpus);
    add_free(cluster, node, here, placement);
    missing -= here;
    if (missing == 0) return placement;
  }
  return std::nullopt;
}

std::optional<Placement> MostFreePlacer::place(const Cluster& cluster,
                                               const ClusterJob& job) const {
  std::vector<NodeIndex> nodes;
  for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
    if (takes(cluster, job, node) && cluster.free_gpus(node) > 0) nodes.push_back(node);
  }
  std::stable_sort(nodes.begin(), nodes.end(), [&](NodeIndex a, NodeIndex b) {
    return cluster.free_gpus(a) > cluster.free_gpus(b);
  });
  Placement placement;
  std::int32_t missing = job.gpus;
  for (const NodeIndex node : nodes) {
    if (missing == 0) break;
    const std::int32_t here = std::min(missing, cluster.free_gpus(node));
    add_free(cluster, node, here, placement);
    missing -= here;
  }
  if (missing > 0) return std::nullopt;
  return placement;
}

}  // namespace commensal::policies

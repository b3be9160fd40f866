// SPDX-License-Identifier: Apache-2.0
// Places by skew, and lends that to policies that hand out GPUs in an order of their own.
#include "coordinator/policies/skew_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "coordinator/policies/cluster_view.h"
#include "coordinator/policies/placer.h"

namespace commensal::policies {
namespace {

constexpr double kThreshold = 0.5;

/// Hands its own placer to a policy.
class WithSkewPlacer final : public ClusterPolicy {
 public:
  WithSkewPlacer(double threshold, std::unique_ptr<ClusterPolicy> policy)
      : placer_(threshold), policy_(std::move(policy)) {}

  [[nodiscard]] bool reads_progress() const noexcept override { return policy_->reads_progress(); }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    ClusterView placed = view;
    placed.placer = &placer_;
    policy_->decide(placed, notes, plan);
  }

 private:
  SkewPlacer placer_;
  std::unique_ptr<ClusterPolicy> policy_;
};

/// How many machines would do if all were free.
std::size_t fewest_machines(const Cluster& cluster, const ClusterJob& job) {
  std::vector<std::int32_t> sizes;
  for (const NodeSpec& node : cluster.nodes()) {
    if (job.gpu_types == 0 || (job.gpu_types >> node.type & 1U) != 0) sizes.push_back(node.gpus);
  }
  std::sort(sizes.rbegin(), sizes.rend());
  std::size_t machines = 0;
  for (std::int32_t missing = job.gpus; missing > 0 && machines < sizes.size(); ++machines) {
    missing -= sizes[machines];
  }
  return machines;
}

}  // namespace

std::optional<Placement> SkewPlacer::place(const Cluster& cluster, const ClusterJob& job) const {
  std::vector<NodeIndex> nodes;
  for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
    if (cluster.free_gpus(node) > 0 && takes(cluster, job, node)) nodes.push_back(node);
  }
  const bool close = job.skew > threshold_;
  const auto free = [&](NodeIndex node) { return cluster.free_gpus(node); };
  // The fullest first; or (close) the emptiest, and of several that can take what is left the
  // fullest.
  std::stable_sort(nodes.begin(), nodes.end(), [&](NodeIndex a, NodeIndex b) {
    return close ? free(a) > free(b) : free(a) < free(b);
  });
  const std::size_t most = close ? fewest_machines(cluster, job) : nodes.size();
  Placement placement;
  std::int32_t missing = job.gpus;
  for (std::size_t used = 0; missing > 0 && used < most && !nodes.empty(); ++used) {
    auto next = nodes.begin();
    for (auto node = next; close && node != nodes.end() && free(*node) >= missing; ++node) {
      if (free(*node) < free(*next)) next = node;
    }
    const std::int32_t here = std::min(missing, free(*next));
    std::int32_t left = here;
    for (std::int32_t gpu = 0; left > 0; ++gpu) {
      if (cluster.gpu(*next, gpu).free_milli < kWholeGpu) continue;
      placement.push_back({.node = *next, .gpu = static_cast<std::uint16_t>(gpu)});
      --left;
    }
    missing -= here;
    nodes.erase(next);
  }
  if (missing > 0) return std::nullopt;
  return placement;
}

std::unique_ptr<ClusterPolicy> with_placement(Options& options,
                                              std::unique_ptr<ClusterPolicy> policy) {
  const bool skew = options.choice("placement", "given", {"given", "skew"}) == "skew";
  const double threshold = options.number("skew-above", kThreshold);
  if (!(threshold >= 0 && threshold <= 1)) {
    throw std::invalid_argument(fmt::format("option skew-above is not from 0 to 1: {}", threshold));
  }
  if (!skew) return policy;
  return std::make_unique<WithSkewPlacer>(threshold, std::move(policy));
}

}  // namespace commensal::policies

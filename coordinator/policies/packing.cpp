// SPDX-License-Identifier: Apache-2.0
// Filter, score, choose GPUs: the scheduling cycle of Kubernetes for jobs on one node each, as in
// hkust-adsl/kubernetes-scheduler-simulator.
#include "coordinator/policies/packing.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace commensal::policies {
namespace {

/// What is free of all nodes, less what the plan takes.
class Room {
 public:
  Room(const ClusterView& view, bool kinds) : cluster_(*view.cluster) {
    const auto nodes = cluster_.nodes().size();
    for (NodeIndex node = 0; node < nodes; ++node) {
      const NodeSpec& spec = cluster_.nodes()[node];
      cpu_.push_back(spec.cpu_milli > 0 ? cluster_.free_cpu(node) : kUncounted);
      memory_.push_back(spec.memory_mib > 0 ? cluster_.free_memory(node) : kUncounted);
      first_.push_back(gpus_.size());
      most_gpus_ = std::max(most_gpus_, spec.gpus);
      for (std::int32_t gpu = 0; gpu < spec.gpus; ++gpu) {
        const Cluster::Gpu& state = cluster_.gpu(node, gpu);
        gpus_.push_back(state.reserved_for == kNoJob ? state.free_milli : 0);
      }
    }
    kinds_.resize(nodes, 0);
    if (!kinds) return;
    for (const JobIndex job : view.running) add_kind(view.jobs[job], view.jobs[job].placement);
  }

  [[nodiscard]] std::size_t nodes() const noexcept { return cpu_.size(); }
  [[nodiscard]] std::int32_t most_gpus() const noexcept { return most_gpus_; }

  [[nodiscard]] NodeRoom node(NodeIndex node) const {
    const NodeSpec& spec = cluster_.nodes()[node];
    return {.node = node,
            .type = spec.type,
            .cpu_milli = cpu_[node],
            .memory_mib = memory_[node],
            .gpus = std::span(gpus_).subspan(first_[node], static_cast<std::size_t>(spec.gpus)),
            .kinds = kinds_[node]};
  }

  void take(const ClusterJob& job, const Placement& placement) {
    for (std::size_t i = 0; i < placement.size(); ++i) {
      const GpuPart& part = placement[i];
      if (part.gpu != kHostOnly) gpus_[first_[part.node] + part.gpu] -= part.milli;
      if (i > 0 && placement[i - 1].node == part.node) continue;
      if (cpu_[part.node] != kUncounted) cpu_[part.node] -= job.cpu_milli;
      if (memory_[part.node] != kUncounted) memory_[part.node] -= job.memory_mib;
    }
    add_kind(job, placement);
  }

 private:
  void add_kind(const ClusterJob& job, const Placement& placement) {
    for (const GpuPart& part : placement) kinds_[part.node] |= kind_of(job);
  }

  const Cluster& cluster_;
  std::vector<std::int64_t> cpu_;
  std::vector<std::int64_t> memory_;
  std::vector<std::size_t> first_;  // of a node's GPUs
  std::vector<std::int32_t> gpus_;
  std::vector<std::uint32_t> kinds_;
  std::int32_t most_gpus_ = 0;
};

bool fits_host(const NodeRoom& node, const ClusterJob& job) {
  return node.cpu_milli >= job.cpu_milli && node.memory_mib >= job.memory_mib &&
         (job.gpus == 0 || job.gpu_types == 0 || (job.gpu_types >> node.type & 1U) != 0);
}

bool fits(const NodeRoom& node, const ClusterJob& job) {
  if (!fits_host(node, job)) return false;
  std::int32_t missing = job.gpus;
  for (std::size_t gpu = 0; missing > 0 && gpu < node.gpus.size(); ++gpu) {
    if (node.gpus[gpu] >= job.gpu_milli) --missing;
  }
  return missing == 0;
}

/// Adds the lowest `gpus` with enough left of each.
void add_lowest(const NodeRoom& node, const ClusterJob& job, std::int32_t gpus,
                Placement& placement) {
  for (std::size_t gpu = 0; gpus > 0 && gpu < node.gpus.size(); ++gpu) {
    if (node.gpus[gpu] < job.gpu_milli) continue;
    placement.push_back(
        {node.node, static_cast<std::uint16_t>(gpu), static_cast<std::uint16_t>(job.gpu_milli)});
    --gpus;
  }
}

/// What a job asks for; who asks alike is refused alike while nothing is given back.
auto asked_of(const ClusterJob& job) {
  return std::tuple(job.gpus, job.gpu_milli, job.gpu_types, job.cpu_milli, job.memory_mib,
                    job.tenant);
}

class Packing {
 public:
  Packing(const ClusterView& view, PackingRule& rule, ClusterPlan& plan)
      : view_(view), rule_(rule), plan_(plan), room_(view, rule.reads_kinds()) {
    for (const Tenant& tenant : view.tenants) charged_.push_back(tenant.charged_milli);
  }

  /// Starts a job, or says that it has to wait.
  bool offer(JobIndex index) {
    const ClusterJob& job = view_.jobs[index];
    if (refused_.contains(asked_of(job))) return false;
    const bool started = within_quota(job) && (job.gpus > room_.most_gpus() ? on_nodes(index, job)
                                                                            : on_node(index, job));
    if (!started) refused_.insert(asked_of(job));
    return started;
  }

 private:
  [[nodiscard]] static std::int64_t milli_of(const ClusterJob& job) {
    return std::int64_t{job.gpus} * job.gpu_milli;
  }

  [[nodiscard]] bool within_quota(const ClusterJob& job) const {
    if (job.tenant >= view_.tenants.size() || !view_.tenants[job.tenant].quota) return true;
    return charged_[job.tenant] + milli_of(job) <=
           std::int64_t{*view_.tenants[job.tenant].quota} * kWholeGpu;
  }

  bool on_node(JobIndex index, const ClusterJob& job) {
    std::optional<NodeIndex> best;
    std::int64_t most = 0;
    std::int32_t candidates = 0;
    for (NodeIndex number = 0; number < room_.nodes(); ++number) {
      const NodeRoom node = room_.node(number);
      if (!fits(node, job)) continue;
      ++candidates;
      const std::int64_t score = rule_.score(node, index, job);
      if (best && score <= most) continue;
      best = number;
      most = score;
    }
    if (!best) return false;
    const NodeRoom node = room_.node(*best);
    Placement placement;
    if (job.gpus == 0) {
      placement.push_back({*best, kHostOnly, 0});
    } else if (asks_for_part(job)) {
      placement.push_back(
          {*best, rule_.part_of(node, index, job), static_cast<std::uint16_t>(job.gpu_milli)});
    } else {
      add_lowest(node, job, job.gpus, placement);
    }
    start(index, job, std::move(placement),
          {rule_.why(), {static_cast<double>(most), static_cast<double>(candidates)}});
    return true;
  }

  bool on_nodes(JobIndex index, const ClusterJob& job) {
    Placement placement;
    for (NodeIndex number = 0; number < room_.nodes(); ++number) {
      const std::int32_t missing = job.gpus - static_cast<std::int32_t>(placement.size());
      const NodeRoom node = room_.node(number);
      if (missing == 0) break;
      if (!fits_host(node, job) || node.gpu_milli() < kWholeGpu * std::ssize(node.gpus)) continue;
      add_lowest(node, job, missing, placement);
    }
    if (std::ssize(placement) < job.gpus) return false;
    start(index, job, std::move(placement),
          {"{:.0f} GPUs, more than a node has: on free nodes", {static_cast<double>(job.gpus), 0}});
    return true;
  }

  void start(JobIndex index, const ClusterJob& job, Placement placement, const Reason& reason) {
    room_.take(job, placement);
    if (job.tenant < charged_.size()) charged_[job.tenant] += milli_of(job);
    plan_.decisions.push_back({index, Action::kStart, std::move(placement), reason});
  }

  const ClusterView& view_;
  PackingRule& rule_;
  ClusterPlan& plan_;
  Room room_;
  std::vector<std::int64_t> charged_;  // to tenants
  std::set<decltype(asked_of(std::declval<ClusterJob>()))> refused_;
};

}  // namespace

std::int64_t NodeRoom::gpu_milli() const noexcept {
  return std::accumulate(gpus.begin(), gpus.end(), std::int64_t{0});
}

std::uint32_t kind_of(const ClusterJob& job) noexcept {
  if (job.gpus == 0) return 0;
  return 1U << (asks_for_part(job) ? 0 : std::min(job.gpus, 31));
}

std::uint16_t PackingRule::part_of(const NodeRoom& node, JobIndex /*index*/,
                                   const ClusterJob& job) {
  std::size_t best = node.gpus.size();
  for (std::size_t gpu = 0; gpu < node.gpus.size(); ++gpu) {
    if (node.gpus[gpu] < job.gpu_milli) continue;
    if (best == node.gpus.size() || node.gpus[gpu] < node.gpus[best]) best = gpu;
  }
  return static_cast<std::uint16_t>(best);
}

LargestNode largest_node(const Cluster& cluster) {
  LargestNode largest;
  for (const NodeSpec& node : cluster.nodes()) {
    largest.cpu_milli = std::max(largest.cpu_milli, node.cpu_milli);
    largest.gpu_milli = std::max(largest.gpu_milli, std::int64_t{node.gpus} * kWholeGpu);
  }
  return largest;
}

void pack(const ClusterView& view, Notes& notes, PackingRule& rule, ClusterPlan& plan) {
  notes.lists.resize(std::max<std::size_t>(1, notes.lists.size()));
  std::vector<JobIndex>& waiting = notes.lists[0];
  // Who was refused is refused again while nothing was given back.
  if (view.arrived.empty() && view.ended.empty()) return;
  std::size_t first = view.ended.empty() ? waiting.size() : 0;
  waiting.insert(waiting.end(), view.arrived.begin(), view.arrived.end());
  Packing packing(view, rule, plan);
  const auto kept = std::remove_if(waiting.begin() + static_cast<std::ptrdiff_t>(first),
                                   waiting.end(), [&](JobIndex job) { return packing.offer(job); });
  waiting.erase(kept, waiting.end());
}

}  // namespace commensal::policies

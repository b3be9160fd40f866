// SPDX-License-Identifier: Apache-2.0
// The rules that hold for the plans of all policies, checked on a sum of what changes.
#include "coordinator/policies/plan_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "coordinator/policies/beside.h"

namespace commensal::policies {
namespace {

using GpuKey = std::pair<NodeIndex, std::uint16_t>;

struct HostUse {
  std::int64_t cpu_milli = 0;
  std::int64_t memory_mib = 0;
};

struct MinimaChange {
  std::int32_t share_milli = 0;
  std::int64_t memory_mib = 0;
  std::vector<JobIndex> beside;  // opportunistic jobs that are put there
};

/// What a plan would leave free, of what it touches.
class Sums {
 public:
  explicit Sums(const ClusterView& view) : view_(view), counted_(view.cluster->free_gpus()) {}

  /// @param put  the job was not there before.
  void change(JobIndex index, const Placement& placement, JobClass job_class, std::int32_t sign,
              bool put = false) {
    const ClusterJob& job = view_.jobs[index];
    const auto gpus = placement.empty() ? job.gpus : static_cast<std::int32_t>(placement.size());
    if (job_class == JobClass::kGuaranteed) {
      charged_[job.tenant] += std::int64_t{sign} * gpus * job.gpu_milli;
    }
    if (placement.empty()) counted_ -= sign * job.gpus;
    change_minima(index, placement, job_class, sign, put);
    for (std::size_t i = 0; i < placement.size(); ++i) {
      const GpuPart& part = placement[i];
      if (part.gpu != kHostOnly && job_class == JobClass::kGuaranteed) {
        taken_[{part.node, part.gpu}] += sign * part.milli;
      }
      if (i > 0 && placement[i - 1].node == part.node) continue;
      hosts_[part.node].cpu_milli += sign * job.cpu_milli;
      hosts_[part.node].memory_mib += sign * job.memory_mib;
    }
  }

  [[nodiscard]] std::string broken() const {
    if (counted_ < 0) return fmt::format("{} GPUs over the capacity of the cluster", -counted_);
    for (const auto& [gpu, milli] : taken_) {
      const std::int32_t left = view_.cluster->gpu(gpu.first, gpu.second).free_milli - milli;
      if (left < 0) {
        return fmt::format("GPU {} of node {} is over its capacity by {} milli", gpu.second,
                           gpu.first, -left);
      }
    }
    for (const auto& [node, use] : hosts_) {
      const NodeSpec& spec = view_.cluster->nodes()[node];
      if (spec.cpu_milli > 0 && use.cpu_milli > view_.cluster->free_cpu(node)) {
        return fmt::format("node {} has {} milli-CPU free, and the plan takes {}", node,
                           view_.cluster->free_cpu(node), use.cpu_milli);
      }
      if (spec.memory_mib > 0 && use.memory_mib > view_.cluster->free_memory(node)) {
        return fmt::format("node {} has {} MiB free, and the plan takes {}", node,
                           view_.cluster->free_memory(node), use.memory_mib);
      }
    }
    if (auto broken = over_minima(); !broken.empty()) return broken;
    return over_quota();
  }

 private:
  void change_minima(JobIndex index, const Placement& placement, JobClass job_class,
                     std::int32_t sign, bool put) {
    const Minima own = minima_of(view_.jobs[index], job_class);
    if (own == Minima{}) return;
    for (const GpuPart& part : placement) {
      if (part.gpu == kHostOnly) continue;
      MinimaChange& change = minima_[{part.node, part.gpu}];
      change.share_milli += sign * own.share_milli;
      change.memory_mib += sign * own.memory_mib;
      if (put && job_class == JobClass::kOpportunistic) change.beside.push_back(index);
    }
  }

  [[nodiscard]] std::string over_minima() const {
    for (const auto& [gpu, change] : minima_) {
      const Minima& before = view_.cluster->gpu(gpu.first, gpu.second).minima;
      for (const JobIndex job : change.beside) {
        const Minima own = minima_of(view_.jobs[job], JobClass::kOpportunistic);
        const Minima others{before.share_milli + change.share_milli - own.share_milli,
                            before.memory_mib + change.memory_mib - own.memory_mib};
        const auto lack = lacks(others, own, view_.cluster->nodes()[gpu.first].gpu_memory_mib);
        if (!lack) continue;
        return fmt::format("job {} is placed beside others on GPU {} of node {}: {}", job,
                           gpu.second, gpu.first, to_string(*lack));
      }
    }
    return {};
  }

  [[nodiscard]] std::string over_quota() const {
    for (const auto& [index, more] : charged_) {
      if (index >= view_.tenants.size() || !view_.tenants[index].quota || more <= 0) continue;
      const Tenant& tenant = view_.tenants[index];
      const std::int64_t milli = tenant.charged_milli + more;
      if (milli > std::int64_t{*tenant.quota} * kWholeGpu) {
        return fmt::format("tenant {} has a quota of {} GPUs, and the plan gives it {}",
                           tenant.name, *tenant.quota, static_cast<double>(milli) / kWholeGpu);
      }
    }
    return {};
  }

  const ClusterView& view_;
  std::int32_t counted_;
  std::map<GpuKey, std::int32_t> taken_;
  std::map<NodeIndex, HostUse> hosts_;
  std::map<GpuKey, MinimaChange> minima_;
  std::map<TenantIndex, std::int64_t> charged_;
};

std::string about_phase(const ClusterView& view, const Decision& decision) {
  if (decision.job >= view.jobs.size()) return fmt::format("there is no job {}", decision.job);
  const JobPhase phase = view.jobs[decision.job].phase;
  const bool waits = decision.action == Action::kStart || decision.action == Action::kReserve;
  if (phase == (waits ? JobPhase::kWaiting : JobPhase::kRunning)) return {};
  return fmt::format("job {} cannot {}: it {}", decision.job, to_string(decision.action),
                     phase == JobPhase::kWaiting   ? "waits"
                     : phase == JobPhase::kRunning ? "runs"
                                                   : "has ended");
}

/// Jobs whose reservations a plan changes: what was kept for them is free.
std::set<JobIndex> released_by(const ClusterView& view, const ClusterPlan& plan) {
  std::set<JobIndex> released;
  for (const Decision& decision : plan.decisions) {
    const bool changes = decision.action == Action::kStart || decision.action == Action::kReserve;
    if (changes && decision.job < view.jobs.size() && !view.jobs[decision.job].reserved.empty()) {
      released.insert(decision.job);
    }
  }
  return released;
}

/// Whether a GPU may be held by a job that starts or moves, or reserved.
std::string about_part(const ClusterView& view, const std::set<JobIndex>& released,
                       const Decision& decision, const GpuPart& part) {
  const ClusterJob& job = view.jobs[decision.job];
  if (part.node >= view.cluster->nodes().size()) {
    return fmt::format("job {} is placed on node {}, which does not exist", decision.job,
                       part.node);
  }
  const NodeSpec& node = view.cluster->nodes()[part.node];
  if (part.gpu == kHostOnly) return {};
  if (part.gpu >= node.gpus) {
    return fmt::format("job {} is placed on GPU {} of node {}, which has {}", decision.job,
                       part.gpu, part.node, node.gpus);
  }
  if (job.gpu_types != 0 && (job.gpu_types >> node.type & 1U) == 0) {
    return fmt::format("job {} does not take GPUs of type {}", decision.job, node.gpu_type);
  }
  const JobIndex keeper = view.cluster->gpu(part.node, part.gpu).reserved_for;
  if (keeper != kNoJob && keeper != decision.job && !released.contains(keeper) &&
      decision.job_class == JobClass::kGuaranteed) {
    return fmt::format("GPU {} of node {} is reserved for job {}, not for job {}", part.gpu,
                       part.node, keeper, decision.job);
  }
  return {};
}

std::string about_places(const ClusterView& view, const std::set<JobIndex>& released,
                         const Decision& decision) {
  const ClusterJob& job = view.jobs[decision.job];
  std::set<GpuKey> named;
  for (const GpuPart& part : decision.placement) {
    if (auto broken = about_part(view, released, decision, part); !broken.empty()) return broken;
    if (!named.insert({part.node, part.gpu}).second) {
      return fmt::format("GPU {} of node {} is named twice for job {}", part.gpu, part.node,
                         decision.job);
    }
  }
  if (decision.action == Action::kReserve || decision.placement.empty()) return {};
  const auto gpus = static_cast<std::int32_t>(decision.placement.size());
  const std::int32_t least = job.gpus == 0 ? 1 : std::min(job.gpus, job.min_gpus);
  const std::int32_t most = job.gpus == 0 ? 1 : std::max(job.gpus, job.max_gpus);
  if (gpus >= least && gpus <= most) return {};
  return fmt::format("job {} gets {} GPUs and asks for {} to {}", decision.job, gpus, least, most);
}

}  // namespace

std::string broken_rule(const ClusterView& view, const ClusterPlan& plan) {
  if (plan.wake < view.now) {
    return fmt::format("the plan asks to be woken at {}, and it is {}", plan.wake, view.now);
  }
  Sums sums(view);
  const std::set<JobIndex> released = released_by(view, plan);
  std::set<JobIndex> named;
  for (const Decision& decision : plan.decisions) {
    if (auto broken = about_phase(view, decision); !broken.empty()) return broken;
    if (decision.reason.text.empty()) return fmt::format("no reason for job {}", decision.job);
    if (!named.insert(decision.job).second) {
      return fmt::format("two decisions about job {}", decision.job);
    }
    if (auto broken = about_places(view, released, decision); !broken.empty()) return broken;
    const ClusterJob& job = view.jobs[decision.job];
    switch (decision.action) {
      case Action::kStop: sums.change(decision.job, job.placement, job.job_class, -1); break;
      case Action::kStart:
        sums.change(decision.job, decision.placement, decision.job_class, 1, true);
        break;
      case Action::kMove:
        sums.change(decision.job, job.placement, job.job_class, -1);
        sums.change(decision.job, decision.placement, job.job_class, 1, true);
        break;
      case Action::kUpgrade:
        sums.change(decision.job, job.placement, job.job_class, -1);
        sums.change(decision.job, job.placement, JobClass::kGuaranteed, 1);
        break;
      case Action::kReserve: break;
    }
  }
  return sums.broken();
}

}  // namespace commensal::policies

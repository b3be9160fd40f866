// SPDX-License-Identifier: Apache-2.0
// Hands GPUs to jobs: by count, with who runs staying, or all placed anew.
#include "coordinator/policies/hand_out.h"

#include <algorithm>
#include <span>

namespace commensal::policies {
namespace {

/// Calls `each` with every node of a placement.
template <typename Each>
void for_nodes(const Placement& placement, const Each& each) {
  for (std::size_t i = 0; i < placement.size(); ++i) {
    if (i == 0 || placement[i].node != placement[i - 1].node) each(placement[i].node);
  }
}

void give_all(Cluster& cluster, const ClusterJob& job) {
  for_nodes(job.placement,
            [&](NodeIndex node) { cluster.give_host(node, job.cpu_milli, job.memory_mib); });
  if (job.job_class != JobClass::kGuaranteed) return;  // beside others, it holds no GPU
  for (const GpuPart& part : job.placement) cluster.give(part);
}

void take_all(Cluster& cluster, const ClusterJob& job, const Placement& placement) {
  for (const GpuPart& part : placement) cluster.take(part);
  for_nodes(placement,
            [&](NodeIndex node) { cluster.take_host(node, job.cpu_milli, job.memory_mib); });
}

}  // namespace

HandOut::HandOut(const ClusterView& view, Notes& notes, Mode mode)
    : view_(view),
      notes_(notes),
      mode_(mode),
      scope_(view.placer->scope()),
      budget_(mode == Mode::kAnew ? view.cluster->total_gpus() : view.cluster->free_gpus()) {
  notes_.mark.resize(view.jobs.size(), 0);
  ++notes_.decisions;
  const bool quotas = std::any_of(view.tenants.begin(), view.tenants.end(),
                                  [](const Tenant& tenant) { return tenant.quota.has_value(); });
  for (const Tenant& tenant : quotas ? view.tenants : std::span<const Tenant>{}) {
    charged_.push_back(mode == Mode::kAnew ? 0 : tenant.charged_milli);
  }
  if (mode == Mode::kAnew && scope_ == Placer::Scope::kMove) {
    for (const JobIndex job : view.running) give_all(scratch(), view.jobs[job]);
  }
}

Cluster& HandOut::scratch() {
  if (!scratch_) scratch_.emplace(*view_.cluster);
  return *scratch_;
}

bool HandOut::within_quota(const ClusterJob& job) const {
  if (job.tenant >= charged_.size() || !view_.tenants[job.tenant].quota) return true;
  return charged_[job.tenant] + std::int64_t{job.gpus} * job.gpu_milli <=
         std::int64_t{*view_.tenants[job.tenant].quota} * kWholeGpu;
}

bool HandOut::offer(JobIndex job, const Reason& reason) {
  const ClusterJob& offered = view_.jobs[job];
  if (offered.gpus > budget_ || (!charged_.empty() && !within_quota(offered))) return false;
  const bool runs = offered.phase == JobPhase::kRunning;
  // With an order of its own for places, only those that find one count.
  const bool place_now =
      scope_ == Placer::Scope::kMove || (scope_ == Placer::Scope::kStay && mode_ == Mode::kFree);
  std::optional<Placement> placement;
  if (place_now) {
    placement = view_.placer->place(scratch(), offered);
    if (!placement) return false;
    take_all(scratch(), offered, *placement);
  }
  budget_ -= offered.gpus;
  if (!charged_.empty() && offered.tenant < charged_.size()) {
    charged_[offered.tenant] += std::int64_t{offered.gpus} * offered.gpu_milli;
  }
  notes_.mark[job] = notes_.decisions;
  if (!runs || (placement && *placement != offered.placement)) {
    chosen_.push_back({job, reason, std::move(placement)});
  }
  return true;
}

void HandOut::finish(const Reason& stop_reason, ClusterPlan& plan) {
  if (mode_ == Mode::kAnew) {
    for (const JobIndex job : view_.running) {
      if (notes_.mark[job] == notes_.decisions) continue;
      plan.decisions.push_back({job, Action::kStop, {}, stop_reason});
      if (scope_ == Placer::Scope::kStay) give_all(scratch(), view_.jobs[job]);
    }
  }
  for (Chosen& chosen : chosen_) {
    const ClusterJob& job = view_.jobs[chosen.job];
    if (scope_ == Placer::Scope::kCounted) {
      chosen.placement.emplace();
    } else if (!chosen.placement) {
      chosen.placement = view_.placer->place(scratch(), job);
      if (!chosen.placement) continue;
      take_all(scratch(), job, *chosen.placement);
    }
    const Action action = job.phase == JobPhase::kRunning ? Action::kMove : Action::kStart;
    plan.decisions.push_back({chosen.job, action, std::move(*chosen.placement), chosen.reason});
  }
}

}  // namespace commensal::policies

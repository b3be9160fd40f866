// SPDX-License-Identifier: Apache-2.0
// Changes jobs and cluster by plans.
#include "coordinator/policies/cluster_state.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "coordinator/policies/beside.h"
#include "coordinator/policies/plan_rules.h"

namespace commensal::policies {

JobIndex ClusterState::arrive(ClusterJob job) {
  const auto index = static_cast<JobIndex>(jobs_.size());
  job.turn = ++turns_;
  jobs_.push_back(std::move(job));
  arrived_.push_back(index);
  return index;
}

JobIndex ClusterState::adopt(ClusterJob job) {
  const Placement placement = std::exchange(job.placement, {});
  const JobIndex index = arrive(std::move(job));
  ClusterJob& adopted = jobs_[index];
  if (adopted.phase == JobPhase::kRunning) {
    running_.push_back(index);
    take(adopted, placement);
  }
  for (const GpuPart& part : adopted.reserved) {
    cluster_.reserve(part.node, part.gpu, index);
    index_.refresh(cluster_, part.node);
  }
  return index;
}

void ClusterState::end(JobIndex index) {
  ClusterJob& job = jobs_[index];
  Placement held = job.placement;
  give(job);
  job.placement = std::move(held);  // the next decision may want to know
  job.phase = JobPhase::kEnded;
  // They stand in the order of their turns.
  running_.erase(
      std::lower_bound(running_.begin(), running_.end(), index,
                       [&](JobIndex a, JobIndex b) { return jobs_[a].turn < jobs_[b].turn; }));
  ended_.push_back(index);
}

ClusterPlan ClusterState::decide(const ClusterPolicy& policy, const Placer& placer,
                                 const JobModels& models, Time now) {
  if (!policy.adopts_running()) {
    std::erase_if(arrived_, [&](JobIndex job) { return jobs_[job].phase == JobPhase::kRunning; });
  }
  const ClusterView view{.now = now,
                         .jobs = jobs_,
                         .arrived = arrived_,
                         .ended = ended_,
                         .running = running_,
                         .tenants = tenants_,
                         .cluster = &cluster_,
                         .index = &index_,
                         .placer = &placer,
                         .models = models};
  ClusterPlan plan;
  policy.decide(view, notes_, plan);
  if (const std::string broken = broken_rule(view, plan); !broken.empty()) {
    throw std::logic_error("a plan breaks a rule: " + broken);
  }
  arrived_.clear();
  ended_.clear();
  return plan;
}

void ClusterState::commit(const ClusterPlan& plan) {
  bool stops = false;
  for (const Decision& decision : plan.decisions) {
    ClusterJob& job = jobs_[decision.job];
    if (decision.action == Action::kStop || decision.action == Action::kMove) give(job);
    if (decision.action == Action::kStart || decision.action == Action::kReserve) {
      for (const GpuPart& part : job.reserved) {
        cluster_.unreserve(part.node, part.gpu);
        index_.refresh(cluster_, part.node);
      }
      job.reserved.clear();
    }
    if (decision.action != Action::kStop) continue;
    job.phase = JobPhase::kWaiting;
    job.turn = ++turns_;
    stops = true;
  }
  if (stops) {
    std::erase_if(running_, [&](JobIndex job) { return jobs_[job].phase != JobPhase::kRunning; });
  }
  for (const Decision& decision : plan.decisions) make(decision);
}

void ClusterState::make(const Decision& decision) {
  ClusterJob& job = jobs_[decision.job];
  switch (decision.action) {
    case Action::kStop: break;
    case Action::kStart:
      job.phase = JobPhase::kRunning;
      job.turn = ++turns_;
      job.job_class = decision.job_class;
      running_.push_back(decision.job);
      take(job, decision.placement);
      break;
    case Action::kMove: take(job, decision.placement); break;
    case Action::kUpgrade: {
      const Placement placement = job.placement;
      give(job);
      job.job_class = JobClass::kGuaranteed;
      take(job, placement);
      break;
    }
    case Action::kReserve:
      for (const GpuPart& part : decision.placement) {
        cluster_.reserve(part.node, part.gpu, decision.job);
        index_.refresh(cluster_, part.node);
      }
      job.reserved = decision.placement;
      break;
  }
}

void ClusterState::take(ClusterJob& job, const Placement& placement) {
  job.placement = placement;
  charge(job, 1);
  if (placement.empty()) {
    cluster_.take_counted(job.gpus);
  } else {
    hold(job, placement, 1);
  }
}

void ClusterState::give(ClusterJob& job) {
  charge(job, -1);
  if (job.placement.empty()) {
    cluster_.give_counted(job.gpus);
  } else {
    hold(job, job.placement, -1);
  }
  job.placement.clear();
}

/// Takes (or gives, with -1) each GPU of a placement, and of each node its part of the host.
void ClusterState::hold(const ClusterJob& job, const Placement& placement, std::int32_t sign) {
  const bool guaranteed = job.job_class == JobClass::kGuaranteed;
  const Minima minima = minima_of(job, job.job_class);
  for (std::size_t i = 0; i < placement.size(); ++i) {
    const GpuPart& part = placement[i];
    if (part.gpu != kHostOnly) {
      if (guaranteed) {
        sign > 0 ? cluster_.take(part) : cluster_.give(part);
      } else {
        sign > 0 ? cluster_.take_beside(part) : cluster_.give_beside(part);
      }
      sign > 0 ? cluster_.take_minima(part, minima) : cluster_.give_minima(part, minima);
      index_.add_load(static_cast<std::uint32_t>(cluster_.index(part.node, part.gpu)),
                      sign * job.load_milli);
    }
    if (i + 1 < placement.size() && placement[i + 1].node == part.node) continue;
    index_.refresh(cluster_, part.node);
    if (sign > 0) {
      cluster_.take_host(part.node, job.cpu_milli, job.memory_mib);
    } else {
      cluster_.give_host(part.node, job.cpu_milli, job.memory_mib);
    }
  }
}

void ClusterState::charge(const ClusterJob& job, std::int32_t sign) {
  if (job.job_class != JobClass::kGuaranteed || job.tenant >= tenants_.size()) return;
  const auto gpus =
      job.placement.empty() ? job.gpus : static_cast<std::int32_t>(job.placement.size());
  tenants_[job.tenant].charged_milli += sign * gpus * job.gpu_milli;
}

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// Records to a view, decisions to events.
#include "coordinator/cluster/scheduler.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace commensal::cluster {
namespace {

using policies::Action;
using policies::ClusterJob;
using policies::JobIndex;
using policies::JobPhase;

/// Of a device's time, until it is measured: a guaranteed job leaves room for others, and of two
/// devices the one with fewer jobs is the less loaded one.
constexpr std::int32_t kAssumedLoad = 300;

policies::NodeSpec spec_of(const EngineNode& node) {
  return {.name = node.name,
          .gpu_type = node.device_type,
          .gpus = static_cast<std::int32_t>(node.devices.size()),
          .cpu_milli = node.cpu_milli,
          .memory_mib = node.memory_mib};
}

}  // namespace

void Scheduler::begin(const std::vector<const JobRecord*>& jobs,
                      const std::vector<EngineNode>& nodes,
                      const std::vector<TenantRecord>& tenants) {
  nodes_.clear();
  numbers_.clear();
  tenants_.clear();
  index_.clear();
  jobs_.clear();
  outside_.clear();
  open_.reset();
  wake_ = policies::kNever;
  std::vector<policies::NodeSpec> specs;
  for (const EngineNode& node : nodes) {
    numbers_.emplace(node.name, static_cast<policies::NodeIndex>(nodes_.size()));
    nodes_.push_back(node.name);
    specs.push_back(spec_of(node));
  }
  std::vector<policies::Tenant> shown_tenants;
  for (const TenantRecord& tenant : tenants) {
    tenants_.emplace(tenant.name, static_cast<policies::TenantIndex>(shown_tenants.size()));
    shown_tenants.push_back({.name = tenant.name, .quota = tenant.quota});
  }
  for (const JobRecord* job : jobs) {
    if (is_placed(job->state) && !parts_of(*job)) charge_outside(*job, shown_tenants);
  }
  state_ = std::make_unique<policies::ClusterState>(policies::Cluster(std::move(specs)),
                                                    std::move(shown_tenants));
  for (const JobRecord* job : jobs) {
    if (!outside_.contains(job->id)) arrive(*job);
  }
}

void Scheduler::charge_outside(const JobRecord& job, std::vector<policies::Tenant>& tenants) {
  outside_.insert(job.id);
  if (job.job_class != JobClass::kGuaranteed) return;
  const auto tenant = tenants_.find(job.spec.tenant);
  if (tenant == tenants_.end()) return;
  tenants[tenant->second].charged_milli += job.spec.gpus * policies::kWholeGpu;
}

void Scheduler::arrive(const JobRecord& job) {
  ClusterJob shown = this->shown(job);
  const bool found = is_placed(job.state) || job.state == JobState::kReserved;
  const JobIndex index = found ? state_->adopt(std::move(shown)) : state_->arrive(std::move(shown));
  index_[job.id] = index;
  jobs_.emplace_back(job.id, job.attempt);
}

bool Scheduler::leave(const JobId& job) {
  if (outside_.erase(job) > 0) return false;  // its charge is part of what the view began with
  const auto found = index_.find(job);
  if (found == index_.end()) return true;
  const JobIndex index = found->second;
  index_.erase(found);
  if (state_->job(index).phase != JobPhase::kRunning) return false;
  state_->end(index);
  open_.reset();
  return true;
}

std::vector<Wanted> Scheduler::decide(double now) {
  std::vector<Wanted> changes;
  if (state_->cluster().nodes().empty()) return changes;
  const policies::ClusterPlan plan = state_->decide(policy_, placer_, {}, now);
  for (const policies::Decision& decision : plan.decisions) {
    changes.push_back(wanted(decision));
    if (decision.action == Action::kStart) ++jobs_[decision.job].second;
  }
  state_->commit(plan);
  open_.reset();
  wake_ = plan.wake;
  return changes;
}

Wanted Scheduler::wanted(const policies::Decision& decision) const {
  const auto& [id, attempt] = jobs_[decision.job];
  Wanted wanted{id, JobEvent{}, to_string(decision.reason)};
  JobEvent& event = *wanted.event;
  event.reason = wanted.reason;
  event.attempt = attempt;
  switch (decision.action) {
    case Action::kStart:
      event.kind = EventKind::kStart;
      event.attempt = attempt + 1;
      event.job_class = decision.job_class;
      event.placement = places_of(decision.placement);
      break;
    case Action::kReserve:
      event.kind = decision.placement.empty() ? EventKind::kUnreserve : EventKind::kReserve;
      event.placement = places_of(decision.placement);
      break;
    case Action::kUpgrade:
      event.kind = EventKind::kUpgrade;
      event.attempt = attempt;
      break;
    case Action::kStop: wanted.event.reset(); break;
    case Action::kMove:
      throw std::logic_error(fmt::format(
          "job {} cannot be moved while it runs: take a policy that does not move jobs", id.str()));
  }
  return wanted;
}

ClusterJob Scheduler::shown(const JobRecord& job) const {
  const JobSpec& spec = job.spec;
  ClusterJob shown;
  shown.submit = submitted_(job);
  shown.gpus = shown.min_gpus = shown.max_gpus = spec.gpus;
  shown.cpu_milli = spec.cpu_milli;
  shown.memory_mib = spec.host_memory_mib;
  shown.tenant = tenants_.at(spec.tenant);
  shown.asked = spec.asked;
  shown.load_milli = kAssumedLoad;
  if (spec.time_limit) {
    shown.duration = shown.remaining = static_cast<double>(spec.time_limit->count());
  }
  shown.job_class = job.job_class;
  if (is_placed(job.state)) {
    shown.phase = JobPhase::kRunning;
    shown.placement = *parts_of(job);
  } else if (job.state == JobState::kReserved) {
    // Of nodes that are gone nothing is kept.
    if (auto parts = parts_of(job)) shown.reserved = *std::move(parts);
  }
  return shown;
}

std::optional<policies::Placement> Scheduler::parts_of(const JobRecord& job) const {
  policies::Placement parts;
  for (const DevicePlace& place : job.placement) {
    const auto node = numbers_.find(place.node);
    if (node == numbers_.end()) return std::nullopt;
    parts.push_back(
        {.node = node->second,
         .gpu = place.device < 0 ? policies::kHostOnly : static_cast<std::uint16_t>(place.device)});
  }
  return parts;
}

std::vector<DevicePlace> Scheduler::places_of(const policies::Placement& parts) const {
  std::vector<DevicePlace> places;
  places.reserve(parts.size());
  for (const policies::GpuPart& part : parts) {
    const std::int32_t device = part.gpu == policies::kHostOnly ? -1 : part.gpu;
    places.push_back({nodes_[part.node], device});
  }
  return places;
}

std::string Scheduler::why_waiting(const JobRecord& job) const {
  if (nodes_.empty()) return "no node can be given jobs";
  const JobSpec& spec = job.spec;
  const auto tenant = tenants_.find(spec.tenant);
  if (tenant != tenants_.end() && spec.asked == policies::AskedClass::kGuaranteed) {
    const policies::Tenant& t = state_->tenants()[tenant->second];
    const std::int32_t used = t.charged_milli / policies::kWholeGpu;
    if (t.quota && used + spec.gpus > *t.quota) {
      return fmt::format("waits for its tenant's quota: {} of {} in use, it asks for {}", used,
                         *t.quota, spec.gpus);
    }
  }
  if (job.state == JobState::kReserved) {
    return fmt::format("waits for devices: {} of {} are kept for it", job.placement.size(),
                       spec.gpus);
  }
  if (spec.asked == policies::AskedClass::kOpportunistic) {
    return fmt::format("waits for {} that others leave enough of",
                       spec.gpus == 1 ? "a device" : "devices");
  }
  return fmt::format("waits for devices: it asks for {}, {} are free of guaranteed jobs", spec.gpus,
                     open_devices());
}

std::int32_t Scheduler::open_devices() const {
  if (!open_) {
    open_ = 0;
    for (policies::NodeIndex node = 0; node < nodes_.size(); ++node) {
      *open_ += state_->cluster().free_gpus(node);
    }
  }
  return *open_;
}

double Scheduler::charged(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return 0;
  return state_->tenants()[found->second].charged_milli / static_cast<double>(policies::kWholeGpu);
}

}  // namespace commensal::cluster

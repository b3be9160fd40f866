// SPDX-License-Identifier: Apache-2.0
// Records to a view, decisions to events.
#include "coordinator/cluster/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "allocator/base/bytes.h"
#include "coordinator/policies/beside.h"
#include "coordinator/policies/one_kind.h"

namespace commensal::cluster {
namespace {

using policies::Action;
using policies::AskedClass;
using policies::ClusterJob;
using policies::JobIndex;
using policies::JobPhase;

constexpr std::int32_t kAssumedLoad = 300;

std::int32_t milli_of(double share) {
  return static_cast<std::int32_t>(std::lround(share * policies::kWholeGpu));
}

Bytes of_mib(std::int64_t mib) { return Bytes{static_cast<std::uint64_t>(mib) << 20U}; }

double in_cores(std::int64_t cpu_milli) { return static_cast<double>(cpu_milli) / 1000; }

policies::Minima minima_of(const JobSpec& spec) {
  return {.share_milli = spec.terms.share ? milli_of(spec.terms.share->min) : 0,
          .memory_mib = spec.terms.memory ? in_mib(spec.terms.memory->min) : 0};
}

policies::NodeSpec spec_of(const EngineNode& node) {
  return {.name = node.name,
          .gpu_type = node.device_type,
          .gpus = static_cast<std::int32_t>(node.devices.size()),
          .cpu_milli = node.cpu_milli,
          .memory_mib = node.memory_mib,
          .gpu_memory_mib = in_mib(node.device_memory)};
}

}  // namespace

std::int32_t assumed_load_milli(const std::optional<ShareRange>& share) noexcept {
  if (!share) return kAssumedLoad;
  return std::clamp(kAssumedLoad, milli_of(share->min), milli_of(share->max));
}

std::string lack_of_memory(const JobSpec& spec, const std::vector<EngineNode>& nodes) {
  if (!spec.terms.memory || spec.gpus == 0) return {};
  const Bytes min = spec.terms.memory->min;
  Bytes most;
  std::int32_t large = 0;
  for (const EngineNode& node : nodes) {
    most = std::max(most, node.device_memory);
    const bool enough = node.device_memory.is_zero() || node.device_memory >= min;
    if (enough) large += static_cast<std::int32_t>(node.devices.size());
  }
  if (large >= spec.gpus) return {};
  if (large == 0) {
    return fmt::format("the job needs at least {} of device memory, and no device has more than {}",
                       to_string(min), to_string(most));
  }
  return fmt::format(
      "the job needs at least {} of memory on each of {} devices, and {} have as "
      "much",
      to_string(min), spec.gpus, large);
}

std::string lack_of_host(const JobSpec& spec, const std::vector<EngineNode>& nodes) {
  // What a node does not count, it may have any of.
  const auto enough = [](std::int64_t asked, std::int64_t has) { return has == 0 || has >= asked; };
  std::int32_t large = 0;
  std::int64_t most_cpu = 0;
  std::int64_t most_memory = 0;
  bool any_cpu = false;
  bool any_memory = false;
  for (const EngineNode& node : nodes) {
    most_cpu = std::max(most_cpu, node.cpu_milli);
    most_memory = std::max(most_memory, node.memory_mib);
    const bool cpu = enough(spec.cpu_milli, node.cpu_milli);
    const bool memory = enough(spec.host_memory_mib, node.memory_mib);
    any_cpu |= cpu;
    any_memory |= memory;
    if (cpu && memory) large += static_cast<std::int32_t>(node.devices.size());
  }
  if (nodes.empty() || large >= spec.gpus) return {};
  if (!any_cpu) {
    return fmt::format("the job asks for {:g} cores on each node, and no node has more than {:g}",
                       in_cores(spec.cpu_milli), in_cores(most_cpu));
  }
  if (!any_memory) {
    return fmt::format(
        "the job asks for {} of host memory on each node, and no node has more than {}",
        to_string(of_mib(spec.host_memory_mib)), to_string(of_mib(most_memory)));
  }
  return fmt::format(
      "the job asks for {}, and the nodes with the cores and the host memory that it asks for on "
      "each have {}",
      counted(spec.gpus), large);
}

std::string counted(std::int64_t devices) {
  return fmt::format("{} {}", devices, devices == 1 ? "device" : "devices");
}

void Scheduler::begin(const std::vector<const JobRecord*>& jobs,
                      const std::vector<EngineNode>& nodes,
                      const std::vector<TenantRecord>& tenants) {
  nodes_.clear();
  numbers_.clear();
  tenants_.clear();
  index_.clear();
  jobs_.clear();
  outside_.clear();
  forget_reasons();
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
  forget_reasons();
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
  forget_reasons();
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
  shown.load_milli = assumed_load_milli(spec.terms.share);
  shown.minima = minima_of(spec);
  const policies::Cluster& cluster = state_->cluster();
  shown.gpu_types = policies::types_of_one_kind(cluster, spec.gpus,
                                                cluster.types_with_memory(shown.minima.memory_mib));
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
  std::string quota = quota_lacking(spec);
  if (!quota.empty() && spec.asked == AskedClass::kGuaranteed) return quota;
  if (std::string lack = lacking(spec); !lack.empty()) return lack;
  if (std::string lack = host_lacking(spec); !lack.empty()) return lack;
  if (job.state == JobState::kReserved) {
    return fmt::format("waits for devices: {} of {} are kept for it", job.placement.size(),
                       spec.gpus);
  }
  const auto below = policy_.beside_below();
  if (spec.asked == AskedClass::kGuaranteed || (spec.asked == AskedClass::kAuto && !below)) {
    return quota.empty() ? waits_for_own(job) : quota + who_is_before(job);
  }
  const std::string beside = waits_beside(job, below.value_or(0));
  return quota.empty() ? "waits for " + beside : quota + ", or for " + beside;
}

std::string Scheduler::waits_beside(const JobRecord& job, std::int32_t below) const {
  const std::int32_t gpus = job.spec.gpus;
  std::string devices =
      fmt::format("{} that others leave enough of", gpus == 1 ? "a device" : "devices");
  if (below == 0) return devices;
  std::int32_t open = 0;
  const auto& by_load = state_->index().by_load();
  for (auto at = by_load.begin(); at != by_load.end() && at->first < below && open < gpus; ++at) {
    ++open;
  }
  if (open >= gpus) return devices + who_is_before(job);
  return fmt::format("{}: {} of {} have less than {:g} % of their time taken", devices, open,
                     by_load.size(), below / 10.0);
}

std::string Scheduler::waits_for_own(const JobRecord& job) const {
  const std::int32_t gpus = job.spec.gpus;
  const policies::DeviceKinds kinds = policies::kinds_of(state_->cluster());
  const bool mixed = gpus > 1 && kinds.gpus > 0 && kinds.cores > 0;
  const FreeDevices& free = free_devices();
  std::string before = free.all >= gpus ? who_is_before(job) : "";
  const auto own = index_.find(job.id);
  const bool for_others = own != index_.end() && free.kept_for != own->second;
  if (before.empty() && free.kept > 0 && for_others && free.all - free.kept < gpus) {
    before = fmt::format("; {} of them {} kept for job {}", free.kept,
                         free.kept == 1 ? "is" : "are", jobs_[free.kept_for].first.str());
  }
  return fmt::format("waits for devices: it asks for {},{} {} {} free of guaranteed jobs{}", gpus,
                     mixed ? " all GPUs or none, and" : "", free.all, free.all == 1 ? "is" : "are",
                     before);
}

std::string Scheduler::host_lacking(const JobSpec& spec) const {
  if (spec.cpu_milli == 0 && spec.host_memory_mib == 0) return {};
  const HostAsked asked{spec.gpus, spec.cpu_milli, spec.host_memory_mib};
  const auto [found, is_new] = host_lacking_.try_emplace(asked);
  if (!is_new) return found->second;
  const policies::Cluster& cluster = state_->cluster();
  std::int32_t nodes = 0;
  std::int32_t devices = 0;
  std::int32_t all = 0;
  for (policies::NodeIndex node = 0; node < nodes_.size(); ++node) {
    const policies::NodeSpec& has = cluster.nodes()[node];
    all += has.gpus;
    const bool cpu = has.cpu_milli == 0 || spec.cpu_milli <= cluster.free_cpu(node);
    const bool memory = has.memory_mib == 0 || spec.host_memory_mib <= cluster.free_memory(node);
    if (!cpu || !memory) continue;
    ++nodes;
    devices += has.gpus;
  }
  const bool enough = spec.gpus == 0 ? nodes > 0 : devices >= std::min(all, spec.gpus);
  if (enough) return {};
  const std::string cpu = fmt::format("{:g} cores", in_cores(spec.cpu_milli));
  const std::string memory = to_string(of_mib(spec.host_memory_mib)) + " of host memory";
  found->second =
      fmt::format("waits for {}: {}",
                  spec.host_memory_mib == 0 ? cpu
                  : spec.cpu_milli == 0     ? memory
                                            : cpu + " and " + memory,
                  spec.gpus == 0 ? "no node has as much free"
                                 : fmt::format("nodes with as much free have {}, it asks for {}",
                                               counted(devices), spec.gpus));
  return found->second;
}

std::string Scheduler::quota_lacking(const JobSpec& spec) const {
  const auto tenant = tenants_.find(spec.tenant);
  if (tenant == tenants_.end()) return {};
  const policies::Tenant& t = state_->tenants()[tenant->second];
  const std::int32_t used = t.charged_milli / policies::kWholeGpu;
  if (!t.quota || used + spec.gpus <= *t.quota) return {};
  return fmt::format("waits for its tenant's quota: {} of {} in use, it asks for {}", used,
                     *t.quota, spec.gpus);
}

std::string Scheduler::who_is_before(const JobRecord& job) const {
  // Opportunistic jobs of all tenants stand in one queue.
  const auto queue = [](AskedClass asked, policies::TenantIndex tenant) {
    return Queue{asked, asked == AskedClass::kOpportunistic ? 0 : tenant};
  };
  if (!first_) {
    first_.emplace();
    for (const auto& [id, index] : index_) {
      const ClusterJob& shown = state_->job(index);
      if (shown.phase != JobPhase::kWaiting) continue;
      const auto [first, is_new] = first_->emplace(queue(shown.asked, shown.tenant), index);
      if (!is_new) first->second = std::min(first->second, index);
    }
  }
  const auto tenant = tenants_.find(job.spec.tenant);
  const auto own = index_.find(job.id);
  if (tenant == tenants_.end() || own == index_.end()) return {};
  std::vector<AskedClass> served{job.spec.asked};
  if (!policy_.beside_below()) {
    served = {AskedClass::kGuaranteed, AskedClass::kAuto};
  } else if (job.spec.asked == AskedClass::kAuto) {
    served = {AskedClass::kOpportunistic, AskedClass::kAuto};
  }
  for (const AskedClass asked : served) {
    const auto first = first_->find(queue(asked, tenant->second));
    if (first == first_->end() || first->second == own->second) continue;
    const std::string& id = jobs_[first->second].first.str();
    if (asked == AskedClass::kOpportunistic) return fmt::format("; job {} is before it", id);
    if (first->second > own->second) continue;
    return fmt::format("; job {} of its tenant is before it", id);
  }
  return {};
}

std::string Scheduler::lacking(const JobSpec& spec) const {
  const policies::Minima minima = minima_of(spec);
  if (spec.gpus == 0 || minima == policies::Minima{}) return {};
  const MinimaAsked asked{.gpus = spec.gpus,
                          .share_milli = minima.share_milli,
                          .memory_mib = minima.memory_mib,
                          .beside = spec.asked != AskedClass::kGuaranteed};
  const auto found = lacking_.find(asked);
  return found != lacking_.end() ? found->second
                                 : lacking_.emplace(asked, lacking(asked)).first->second;
}

std::string Scheduler::lacking(const MinimaAsked& asked) const {
  const policies::Cluster& cluster = state_->cluster();
  const policies::Minima share{.share_milli = asked.share_milli};
  const policies::Minima memory{.memory_mib = asked.memory_mib};
  std::int32_t all = 0;
  std::int32_t with_share = 0;
  std::int32_t large = 0;  // with enough memory, if they were empty
  std::int32_t with_memory = 0;
  for (policies::NodeIndex node = 0; node < nodes_.size(); ++node) {
    const policies::NodeSpec& spec = cluster.nodes()[node];
    for (std::int32_t gpu = 0; gpu < spec.gpus; ++gpu) {
      const policies::Minima& others = cluster.gpu(node, gpu).minima;
      ++all;
      with_share += policies::lacks(others, share, spec.gpu_memory_mib) ? 0 : 1;
      large += policies::lacks({}, memory, spec.gpu_memory_mib) ? 0 : 1;
      with_memory += policies::lacks(others, memory, spec.gpu_memory_mib) ? 0 : 1;
    }
  }
  const std::string mib = to_string(Bytes{static_cast<std::uint64_t>(asked.memory_mib) << 20U});
  if (large < asked.gpus) {
    return fmt::format(
        "waits for device memory: {} of {} devices have its minimum of {}, it asks "
        "for {}",
        large, all, mib, asked.gpus);
  }
  if (!asked.beside) return {};
  if (with_share < asked.gpus) {
    return fmt::format(
        "its minimum share of {} fits beside those of others on {} of {} devices, "
        "it asks for {}",
        asked.share_milli / static_cast<double>(policies::kWholeGpu), with_share, all, asked.gpus);
  }
  if (with_memory < asked.gpus) {
    return fmt::format(
        "its minimum of {} of device memory fits beside those of others on {} of {} "
        "devices, it asks for {}",
        mib, with_memory, all, asked.gpus);
  }
  return {};
}

void Scheduler::forget_reasons() noexcept {
  free_.reset();
  lacking_.clear();
  host_lacking_.clear();
  first_.reset();
}

const Scheduler::FreeDevices& Scheduler::free_devices() const {
  if (free_) return *free_;
  free_ = FreeDevices{};
  const policies::Cluster& cluster = state_->cluster();
  for (policies::NodeIndex node = 0; node < nodes_.size(); ++node) {
    free_->all += cluster.free_gpus(node);
    for (std::int32_t gpu = 0; gpu < cluster.nodes()[node].gpus; ++gpu) {
      const JobIndex keeper = cluster.gpu(node, gpu).reserved_for;
      if (keeper == policies::kNoJob) continue;
      ++free_->kept;
      free_->kept_for = std::min(free_->kept_for, keeper);
    }
  }
  return *free_;
}

double Scheduler::charged(const std::string& tenant) const {
  const auto found = tenants_.find(tenant);
  if (found == tenants_.end()) return 0;
  return state_->tenants()[found->second].charged_milli / static_cast<double>(policies::kWholeGpu);
}

}  // namespace commensal::cluster

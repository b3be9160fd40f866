// SPDX-License-Identifier: Apache-2.0
// What nodes are told of the jobs that are placed on them.
#include <algorithm>
#include <set>
#include <utility>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/node_job.h"

namespace commensal::cluster {
namespace {

wire::PlacementState state_of(const JobRecord& job) {
  switch (job.state) {
    case JobState::kReserved: return wire::PlacementState::kReserved;
    case JobState::kRunning: return wire::PlacementState::kRunning;
    case JobState::kUpgrading: return wire::PlacementState::kUpgrading;
    default: return wire::PlacementState::kStarting;
  }
}

/// Ids of a job's devices on a node; of one without devices none.
std::vector<std::string> devices_on(const JobRecord& job, const EngineNode& node) {
  std::vector<std::string> devices;
  for (const DevicePlace& place : job.placement) {
    if (place.node != node.name || place.device < 0) continue;
    const auto number = static_cast<std::size_t>(place.device);
    if (number >= node.devices.size()) continue;  // the engine has fewer of them by now
    const std::string& id = node.devices[number];
    if (std::ranges::find(devices, id) == devices.end()) devices.push_back(id);
  }
  return devices;
}

wire::Placement placement_on(const JobRecord& job, const EngineNode& node) {
  const bool reserved = job.state == JobState::kReserved;
  // What is kept for it is for its next start.
  const Attempt attempt{job.id, job.attempt + (reserved ? 1 : 0)};
  wire::Placement placement;
  placement.id = node_job_id(attempt);
  placement.job = job.id.str();
  placement.attempt = attempt.number;
  placement.name = job.spec.name;
  placement.tenant = job.spec.tenant;
  placement.job_class = job.job_class;
  if (reserved) {
    placement.job_class = job.spec.asked == policies::AskedClass::kOpportunistic
                              ? JobClass::kOpportunistic
                              : JobClass::kGuaranteed;
  }
  placement.state = state_of(job);
  placement.devices = devices_on(job, node);
  placement.cpu_milli = job.spec.cpu_milli;
  placement.memory = job.spec.terms.memory;
  placement.share = job.spec.terms.share;
  return placement;
}

}  // namespace

std::uint64_t ClusterCoordinator::placement_revision(const std::string& node) const {
  return placements_.revision(node);
}

std::optional<std::vector<wire::Placement>> ClusterCoordinator::placements_on(
    const std::string& name) const {
  if (nodes_.empty() && !engine_problem_.empty()) return std::nullopt;
  std::vector<wire::Placement> placements;
  const auto node = std::ranges::find(nodes_, name, &EngineNode::name);
  if (node == nodes_.end()) return placements;
  for (const Number number : placements_.on(name)) {
    const auto job = jobs_.find(number);
    if (job != jobs_.end()) placements.push_back(placement_on(job->second, *node));
  }
  return placements;
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// The cluster as a policy sees it, for a decision elsewhere: the state that docs/policies.md
// describes, under "Replay".
#include <algorithm>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/job_number.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;

/// Several devices of a machine may be its cores, which have one name: they get their numbers.
std::string device_name(const EngineNode& node, std::size_t number) {
  const std::string& id = node.devices[number];
  const bool unique = std::count(node.devices.begin(), node.devices.end(), id) == 1;
  return unique ? id : id + "-" + std::to_string(number);
}

/// Whole units that a node has for certain, or that a job needs at most; nothing of nothing.
void count(json& of, const char* key, std::int64_t value, std::int64_t unit, bool up) {
  const std::int64_t whole = up ? (value + unit - 1) / unit : value / unit;
  if (whole > 0) of[key] = whole;
}

}  // namespace

json ClusterCoordinator::state() const {
  json nodes = json::array();
  std::map<std::string, const EngineNode*> known;
  const std::vector<EngineNode> usable = usable_nodes();
  for (const EngineNode& node : usable) {
    known.emplace(node.name, &node);
    json devices = json::array();
    for (std::size_t i = 0; i < node.devices.size(); ++i) {
      devices.push_back({{"id", device_name(node, i)}, {"type", node.device_type}});
    }
    json shown{{"name", node.name}, {"devices", std::move(devices)}};
    count(shown, "cores", node.cpu_milli, 1000, false);
    count(shown, "memory_gib", node.memory_mib, 1024, false);
    count(shown, "gpu_memory_mib", in_mib(node.device_memory), 1, false);
    nodes.push_back(std::move(shown));
  }
  json tenants = json::array();
  for (const auto& [name, tenant] : tenants_) {
    json shown{{"name", name}};
    if (tenant.quota) shown["quota"] = *tenant.quota;
    tenants.push_back(std::move(shown));
  }
  json jobs = json::array();
  const double now = in_seconds(wall_().time_since_epoch());
  for (const auto& [number, job] : jobs_) {
    const bool placed = is_placed(job.state);
    if (!placed && !may_start(job)) continue;
    json places = json::array();
    for (const DevicePlace& place : job.placement) {
      const auto node = known.find(place.node);
      const auto device = static_cast<std::size_t>(place.device);
      if (node == known.end() || place.device < 0 || device >= node->second->devices.size()) break;
      places.push_back({{"node", place.node}, {"device", device_name(*node->second, device)}});
    }
    // On nodes that are given no jobs a policy has nothing to decide.
    if (placed && std::cmp_not_equal(places.size(), job.spec.gpus)) continue;
    json shown{{"id", job.id.str()},
               {"tenant", job.spec.tenant},
               {"phase", placed ? "running" : "queued"},
               {"class", to_string(job.spec.asked)},
               {"submit", now - in_seconds(elapsed(submitted_.at(number), now_))},
               {"gpus", job.spec.gpus}};
    if (placed) shown["runs_as"] = to_string(job.job_class);
    if (!places.empty()) shown[placed ? "placement" : "reserved"] = std::move(places);
    count(shown, "cores", job.spec.cpu_milli, 1000, true);
    count(shown, "memory_gib", job.spec.host_memory_mib, 1024, true);
    if (job.spec.terms.memory)
      count(shown, "min_gpu_memory_mib", in_mib(job.spec.terms.memory->min), 1, true);
    if (job.spec.terms.share && job.spec.terms.share->min > 0)
      shown["min_share"] = job.spec.terms.share->min;
    if (const auto began = began_.find(number); began != began_.end()) {
      shown["attained"] = in_seconds(elapsed(began->second, now_));
    }
    if (const auto expected = run_times_.expect(job.spec)) shown["duration"] = expected->seconds;
    jobs.push_back(std::move(shown));
  }
  return {{"state",
           {{"now", now},
            {"nodes", std::move(nodes)},
            {"tenants", std::move(tenants)},
            {"jobs", std::move(jobs)}}}};
}

}  // namespace commensal::cluster

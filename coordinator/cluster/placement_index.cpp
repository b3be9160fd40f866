// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/placement_index.h"

namespace commensal::cluster {

std::set<std::string> nodes_of(const JobRecord& job) {
  std::set<std::string> nodes;
  if (!is_placed(job.state) && job.state != JobState::kReserved) return nodes;
  for (const DevicePlace& place : job.placement) nodes.insert(place.node);
  return nodes;
}

void PlacementIndex::begin(const std::map<Number, JobRecord>& jobs) {
  nodes_.clear();
  for (const auto& [number, job] : jobs) {
    for (const std::string& name : nodes_of(job)) nodes_[name].jobs.insert(number);
  }
  touch_all();
}

void PlacementIndex::touch_all() noexcept {
  none_ = ++last_;
  for (auto& [name, node] : nodes_) node.changed = ++last_;
}

void PlacementIndex::moved(Number job, const JobRecord& before, const JobRecord& after) {
  const std::set<std::string> now = nodes_of(after);
  for (const std::string& name : nodes_of(before)) {
    if (now.contains(name)) continue;
    const auto left = nodes_.find(name);
    if (left == nodes_.end()) continue;
    left->second.jobs.erase(job);
    left->second.changed = ++last_;
    if (left->second.jobs.empty()) nodes_.erase(left);  // no entry: no jobs, as ever
  }
  for (const std::string& name : now) {
    Node& node = nodes_[name];
    node.jobs.insert(job);
    node.changed = ++last_;
  }
}

const std::set<PlacementIndex::Number>& PlacementIndex::on(const std::string& node) const {
  static const std::set<Number> nobody;
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? nobody : found->second.jobs;
}

std::uint64_t PlacementIndex::revision(const std::string& node) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() ? none_ : found->second.changed;
}

}  // namespace commensal::cluster

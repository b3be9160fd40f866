// SPDX-License-Identifier: Apache-2.0
// Gives servers to a round's units on paper, then writes what has changed into the plan.
#include "coordinator/policies/gandiva_places.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace commensal::policies {
namespace {

struct PlacedUnit {
  RoundBook::Unit unit;
  std::uint32_t type = 0;
  std::int32_t gpus = 1;
  Placement parts;
  std::string_view why;
};

class Places {
 public:
  Places(const ClusterView& view, const std::vector<RoundBook::Turn>& turns)
      : view_(view), free_(view.cluster->nodes().size()), used_(free_.size(), 0) {
    for (NodeIndex node = 0; node < free_.size(); ++node) {
      for (std::int32_t gpu = 0; gpu < view.cluster->nodes()[node].gpus; ++gpu) {
        free_[node].insert(static_cast<std::uint16_t>(gpu));
      }
    }
    for (const RoundBook::Turn& turn : turns) {
      units_.push_back({turn.unit, turn.type, view.jobs[turn.unit.first].gpus, {}, {}});
    }
    std::stable_sort(units_.begin(), units_.end(),
                     [](const PlacedUnit& a, const PlacedUnit& b) { return a.gpus > b.gpus; });
    for (PlacedUnit& unit : units_) keep(unit);
    for (PlacedUnit& unit : units_) {
      if (unit.parts.empty()) start(unit);
    }
  }

  void restore_locality() {
    for (PlacedUnit& unit : units_) {
      if (servers_of(unit).size() < 2) continue;
      release(unit);
      const auto server = server_for(unit);
      if (server) put(unit, *server, "migrates: one server holds it again");
      hold(unit);
    }
  }

  void defragment() {
    std::optional<NodeIndex> richest;
    for (NodeIndex node = 0; node < free_.size(); ++node) {
      if (used_[node] == 0 || free_[node].empty()) continue;
      if (!richest || free_[node].size() > free_[*richest].size()) richest = node;
    }
    if (!richest) return;
    for (PlacedUnit& unit : units_) {
      if (servers_of(unit) != std::set<NodeIndex>{*richest}) continue;
      std::optional<NodeIndex> fullest;
      for (NodeIndex node = 0; node < free_.size(); ++node) {
        if (node == *richest || used_[node] == 0 || !holds(unit, node)) continue;
        if (free_[node].size() >= free_[*richest].size()) continue;
        if (!fullest || free_[node].size() < free_[*fullest].size()) fullest = node;
      }
      if (!fullest) continue;
      release(unit);
      put(unit, *fullest, "migrates: the server that it was on is being emptied");
      hold(unit);
    }
  }

  void grow() {
    for (PlacedUnit& unit : units_) {
      const std::int32_t most = view_.jobs[unit.unit.first].max_gpus;
      if (unit.unit.is_pair()) continue;
      for (const NodeIndex node : servers_of(unit)) {
        while (std::ssize(unit.parts) < most && !free_[node].empty()) {
          unit.parts.push_back({.node = node, .gpu = *free_[node].begin()});
          free_[node].erase(free_[node].begin());
          unit.why = "grows into idle GPUs of its servers";
        }
      }
      sort(unit.parts);
    }
  }

  /// Writes who is stopped, then what changes.
  void write(ClusterPlan& plan) const {
    std::set<JobIndex> chosen;
    for (const PlacedUnit& unit : units_) chosen.insert({unit.unit.first, unit.unit.second});
    for (const JobIndex job : view_.running) {
      if (chosen.contains(job)) continue;
      plan.decisions.push_back(
          {job, Action::kStop, {}, {"others are further behind their shares in this round"}});
    }
    for (const PlacedUnit& unit : units_) {
      for (const JobIndex index : {unit.unit.first, unit.unit.second}) {
        if (index == kNoJob) continue;
        const ClusterJob& job = view_.jobs[index];
        const bool runs = job.phase == JobPhase::kRunning;
        if (runs && job.placement == unit.parts) continue;
        plan.decisions.push_back(
            {index, runs ? Action::kMove : Action::kStart, unit.parts, {unit.why}});
      }
    }
  }

 private:
  /// Who runs on the type of its turn, with the same partner, stays: on as many GPUs as it asks
  /// for.
  void keep(PlacedUnit& unit) {
    const ClusterJob& first = view_.jobs[unit.unit.first];
    const bool pair = unit.unit.is_pair();
    if (first.phase != JobPhase::kRunning || first.placement.front().milli != part_of(unit)) return;
    if (view_.cluster->nodes()[first.placement.front().node].type != unit.type) return;
    if (pair && (view_.jobs[unit.unit.second].phase != JobPhase::kRunning ||
                 view_.jobs[unit.unit.second].placement != first.placement)) {
      return;
    }
    unit.parts = first.placement;
    unit.parts.resize(std::min(unit.parts.size(), static_cast<std::size_t>(unit.gpus)));
    unit.why = "keeps what it asks for";
    hold(unit);
  }

  /// On one server, or spread over those with most free GPUs.
  void start(PlacedUnit& unit) {
    if (const auto server = server_for(unit)) {
      put(unit, *server, "its turn: on a server with jobs of its size, an unused one, or any");
    }
    while (std::ssize(unit.parts) < unit.gpus) {
      std::optional<NodeIndex> most;
      for (NodeIndex node = 0; node < free_.size(); ++node) {
        const bool more = !most || free_[node].size() > free_[*most].size();
        if (view_.cluster->nodes()[node].type == unit.type && more) most = node;
      }
      const std::uint16_t gpu = *free_[*most].begin();
      free_[*most].erase(gpu);
      unit.parts.push_back({.node = *most, .gpu = gpu, .milli = part_of(unit)});
      unit.why = "its turn: spread over servers, as none holds it";
    }
    sort(unit.parts);
    hold(unit);
  }

  static std::uint16_t part_of(const PlacedUnit& unit) {
    return unit.unit.is_pair() ? kWholeGpu / 2 : kWholeGpu;
  }
  static void sort(Placement& parts) {
    std::sort(parts.begin(), parts.end(), [](const GpuPart& a, const GpuPart& b) {
      return std::pair(a.node, a.gpu) < std::pair(b.node, b.gpu);
    });
  }

  void hold(const PlacedUnit& unit) {
    for (const GpuPart& part : unit.parts) free_[part.node].erase(part.gpu);
    for (const NodeIndex node : servers_of(unit)) ++used_[node];
  }
  void release(const PlacedUnit& unit) {
    for (const GpuPart& part : unit.parts) free_[part.node].insert(part.gpu);
    for (const NodeIndex node : servers_of(unit)) --used_[node];
  }

  static std::set<NodeIndex> servers_of(const PlacedUnit& unit) {
    std::set<NodeIndex> servers;
    for (const GpuPart& part : unit.parts) servers.insert(part.node);
    return servers;
  }

  [[nodiscard]] bool holds(const PlacedUnit& unit, NodeIndex node) const {
    return view_.cluster->nodes()[node].type == unit.type && std::ssize(free_[node]) >= unit.gpus;
  }

  /// Same affinity and least load, then unused, then any.
  [[nodiscard]] std::optional<NodeIndex> server_for(const PlacedUnit& unit) const {
    std::set<NodeIndex> others;  // with a job of another size
    for (const PlacedUnit& other : units_) {
      if (&other == &unit || other.gpus == unit.gpus) continue;
      for (const NodeIndex node : servers_of(other)) others.insert(node);
    }
    std::optional<NodeIndex> best;
    const auto rank = [&](NodeIndex node) {
      return others.contains(node) ? 2 : used_[node] > 0 ? 0 : 1;
    };
    for (NodeIndex node = 0; node < free_.size(); ++node) {
      if (!holds(unit, node)) continue;
      if (!best || std::pair(rank(node), -std::ssize(free_[node])) <
                       std::pair(rank(*best), -std::ssize(free_[*best]))) {
        best = node;
      }
    }
    return best;
  }

  void put(PlacedUnit& unit, NodeIndex node, std::string_view why) {
    unit.parts.clear();
    for (auto gpu = free_[node].begin(); std::ssize(unit.parts) < unit.gpus; ++gpu) {
      unit.parts.push_back({.node = node, .gpu = *gpu, .milli = part_of(unit)});
    }
    unit.why = why;
  }

  const ClusterView& view_;
  std::vector<PlacedUnit> units_;
  std::vector<std::set<std::uint16_t>> free_;  // by node
  std::vector<std::int32_t> used_;             // units on each node
};

}  // namespace

void plan_on_servers(const ClusterView& view, const std::vector<RoundBook::Turn>& turns,
                     const GandivaRules& rules, ClusterPlan& plan) {
  Places places(view, turns);
  if (rules.migrates && !view.ended.empty()) {
    places.restore_locality();
    places.defragment();
  }
  if (rules.grows) places.grow();
  places.write(plan);
}

}  // namespace commensal::policies

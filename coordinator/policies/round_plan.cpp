// SPDX-License-Identifier: Apache-2.0
// Gives GPUs to a round's units. Source: stanford-futuredata/gavel, scheduler/scheduler.py.
#include "coordinator/policies/round_plan.h"

#include <algorithm>
#include <set>
#include <utility>

namespace commensal::policies {
namespace {

constexpr std::uint16_t kHalf = kWholeGpu / 2;
constexpr std::string_view kTurn = "furthest behind its share of this type of GPU";
constexpr std::string_view kTogether = "shares its GPUs with job {:.0f}";

class GpusOfType {
 public:
  GpusOfType(const Cluster& cluster, std::uint32_t type) {
    for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
      if (cluster.nodes()[node].type != type) continue;
      for (std::int32_t gpu = 0; gpu < cluster.nodes()[node].gpus; ++gpu) {
        free_.insert({node, static_cast<std::uint16_t>(gpu)});
      }
    }
  }

  /// Takes all GPUs of a placement if all are free.
  bool keep(const Placement& placement) {
    for (const GpuPart& part : placement) {
      if (!free_.contains({part.node, part.gpu})) return false;
    }
    for (const GpuPart& part : placement) free_.erase({part.node, part.gpu});
    return true;
  }

  Placement take(std::int32_t gpus, std::uint16_t milli) {
    Placement placement;
    for (; gpus > 0; --gpus) {
      const auto [node, gpu] = *free_.begin();
      free_.erase(free_.begin());
      placement.push_back({.node = node, .gpu = gpu, .milli = milli});
    }
    return placement;
  }

 private:
  std::set<std::pair<NodeIndex, std::uint16_t>> free_;
};

/// Whether a unit runs as it is.
bool runs(const ClusterView& view, const RoundBook::Unit& unit) {
  const ClusterJob& first = view.jobs[unit.first];
  if (first.phase != JobPhase::kRunning) return false;
  if (!unit.is_pair()) return first.placement.front().milli == kWholeGpu;
  const ClusterJob& second = view.jobs[unit.second];
  return second.phase == JobPhase::kRunning && second.placement == first.placement;
}

void place(const ClusterView& view, JobIndex job, const Placement& placement, Reason reason,
           ClusterPlan& plan) {
  const bool running = view.jobs[job].phase == JobPhase::kRunning;
  if (running && view.jobs[job].placement == placement) return;
  plan.decisions.push_back({.job = job,
                            .action = running ? Action::kMove : Action::kStart,
                            .placement = placement,
                            .reason = reason});
}

void place(const ClusterView& view, const RoundBook::Unit& unit, const Placement& placement,
           ClusterPlan& plan) {
  if (!unit.is_pair()) {
    place(view, unit.first, placement, {kTurn}, plan);
    return;
  }
  place(view, unit.first, placement, {kTogether, {static_cast<double>(unit.second)}}, plan);
  place(view, unit.second, placement, {kTogether, {static_cast<double>(unit.first)}}, plan);
}

}  // namespace

void plan_round(const ClusterView& view, const std::vector<RoundBook::Turn>& turns,
                ClusterPlan& plan) {
  std::set<JobIndex> chosen;
  for (const RoundBook::Turn& turn : turns) chosen.insert({turn.unit.first, turn.unit.second});
  for (const JobIndex job : view.running) {
    if (chosen.contains(job)) continue;
    plan.decisions.push_back({.job = job,
                              .action = Action::kStop,
                              .placement = {},
                              .reason = {"others are further behind their shares in this round"}});
  }
  std::vector<RoundBook::Turn> by_size = turns;
  const auto gpus = [&](const RoundBook::Turn& turn) { return view.jobs[turn.unit.first].gpus; };
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](const auto& a, const auto& b) { return gpus(a) > gpus(b); });
  std::vector<GpusOfType> free;
  free.reserve(view.cluster->types().size());
  for (std::uint32_t type = 0; type < view.cluster->types().size(); ++type) {
    free.emplace_back(*view.cluster, type);
  }
  for (auto begin = by_size.begin(); begin != by_size.end();) {
    const auto end = std::find_if(begin, by_size.end(),
                                  [&](const auto& turn) { return gpus(turn) != gpus(*begin); });
    std::vector<const RoundBook::Turn*> others;
    for (auto turn = begin; turn != end; ++turn) {
      const Placement& now = view.jobs[turn->unit.first].placement;
      if (!runs(view, turn->unit) || !free[turn->type].keep(now)) {
        others.push_back(&*turn);
      } else {
        place(view, turn->unit, now, plan);
      }
    }
    for (const RoundBook::Turn* turn : others) {
      const std::uint16_t milli = turn->unit.is_pair() ? kHalf : kWholeGpu;
      place(view, turn->unit, free[turn->type].take(gpus(*turn), milli), plan);
    }
    begin = end;
  }
}

}  // namespace commensal::policies

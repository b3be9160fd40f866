// SPDX-License-Identifier: Apache-2.0
// dragon: jobs have a least and a most number of workers, a GPU each. In each round: (1) If a job
// of higher priority than all that run waits, or the one that has waited longest has for 30 s,
// workers are taken from running jobs, in the order of their starts, one by one: never below the
// least, never the first (its parameter servers are there), those on other servers than the first
// one's before those beside it. Before each it is tried whether the least of the waiting job fits,
// and nothing more is taken then; if it never fits, nothing is. (2) If nothing was urgent, or (1)
// made room: the first waiting job (the urgent one before others) that fits with its least starts
// with as many workers as fit, on one server if one holds all; one job a round. (3) If nothing was
// done for 60 s, running jobs get workers up to their most where they fit. Rounds are at each event
// and one second after one that did something. Source: DRAGON (NTHU), successor of
// Elastic-KubeFlow, its public scheduler; a priority is what its pods of high priority are, and
// quotas are kept as by every policy here.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "coordinator/policies/free_gpus.h"
#include "coordinator/policies/makers.h"
#include "coordinator/policies/tenant_use.h"

namespace commensal::policies {
namespace {

constexpr std::size_t kLastAction = 0;  // of the notes' numbers
constexpr double kBetweenRounds = 1;

struct DragonRules {
  double urgent_after = 30;
  double grow_after = 60;
};

class Round {
 public:
  Round(const ClusterView& view, const DragonRules& rules, Notes& notes, ClusterPlan& plan)
      : view_(view),
        rules_(rules),
        queue_(notes.lists[0]),
        last_action_(notes.numbers[kLastAction]),
        plan_(plan),
        free_(*view.cluster),
        use_(view, TenantUse::tenants(view, queue_)) {}

  void run() {
    const auto urgent = urgent_job();
    const bool room = !urgent || make_room(view_.jobs[*urgent]);
    if (room) start_first(urgent);
    if (plan_.decisions.empty() && view_.now - last_action_ >= rules_.grow_after) grow();
    if (!plan_.decisions.empty()) {
      last_action_ = view_.now;
      plan_.wake = view_.now + kBetweenRounds;
    } else {
      plan_.wake = next_look();
    }
  }

 private:
  static std::int32_t least(const ClusterJob& job) { return std::min(job.gpus, job.min_gpus); }
  static std::int32_t most(const ClusterJob& job) { return std::max(job.gpus, job.max_gpus); }

  [[nodiscard]] std::optional<JobIndex> urgent_job() const {
    std::int32_t highest = std::numeric_limits<std::int32_t>::min();
    for (const JobIndex job : view_.running) {
      const std::int32_t priority = view_.jobs[job].priority;
      highest = job == view_.running.front() ? priority : std::min(highest, priority);
    }
    std::optional<JobIndex> first;
    for (const JobIndex job : queue_) {
      if (view_.jobs[job].priority >= highest) continue;
      if (!first || view_.jobs[job].priority < view_.jobs[*first].priority) first = job;
    }
    if (first || queue_.empty()) return first;
    const JobIndex oldest = queue_.front();
    if (view_.now - view_.jobs[oldest].submit < rules_.urgent_after) return std::nullopt;
    return oldest;
  }

  /// How many workers fit, up to `enough`.
  [[nodiscard]] std::int32_t fit(const ClusterJob& job, const FreeGpus& free,
                                 std::int32_t enough) const {
    std::int32_t gpus = 0;
    for (NodeIndex node = 0; node < view_.cluster->nodes().size() && gpus < enough; ++node) {
      if (free.on(node) > 0 && free.takes(job, node)) gpus += free.on(node);
    }
    gpus = std::min(gpus, enough);
    while (gpus > 0 && !use_.has_room(job, gpus)) --gpus;
    return gpus;
  }

  /// Shrinks running jobs until the least of `job` fits; returns whether it does.
  bool make_room(const ClusterJob& job) {
    FreeGpus free = free_;
    std::vector<std::pair<JobIndex, Placement>> shrunk;
    const auto fits = [&] { return fit(job, free, least(job)) == least(job); };
    bool enough = fits();
    for (auto index = view_.running.begin(); !enough && index != view_.running.end(); ++index) {
      const ClusterJob& running = view_.jobs[*index];
      Placement kept = running.placement;
      for (std::int32_t held = running.held(); !enough && held > least(running); --held) {
        if (kept.empty()) break;
        const auto other = std::find_if(kept.rbegin(), kept.rend(), [&](const GpuPart& part) {
          return part.node != kept.front().node;
        });
        const auto worker = other != kept.rend() ? std::prev(other.base()) : std::prev(kept.end());
        free.unreserve({*worker});
        kept.erase(worker);
        enough = fits();
      }
      if (kept.size() != running.placement.size()) shrunk.emplace_back(*index, std::move(kept));
    }
    if (!enough) return false;
    for (auto& [index, kept] : shrunk) {
      const auto fewer = static_cast<std::int32_t>(kept.size());
      use_.charge(view_.jobs[index], fewer - view_.jobs[index].held());
      plan_.decisions.push_back({index,
                                 Action::kMove,
                                 std::move(kept),
                                 {"shrinks to {:.0f} workers: a waiting job needs the others",
                                  {static_cast<double>(fewer)}}});
    }
    free_ = std::move(free);
    return true;
  }

  void start_first(std::optional<JobIndex> urgent) {
    std::vector<JobIndex> order;
    if (urgent) order.push_back(*urgent);
    order.insert(order.end(), queue_.begin(), queue_.end());
    for (const JobIndex index : order) {
      const ClusterJob& job = view_.jobs[index];
      const std::int32_t gpus = fit(job, free_, most(job));
      if (gpus < least(job)) continue;
      Placement parts;
      add(job, gpus, parts);
      use_.charge(job, gpus);
      std::erase(queue_, index);
      plan_.decisions.push_back({index,
                                 Action::kStart,
                                 std::move(parts),
                                 {"the first that fits: {:.0f} workers of at least {:.0f}",
                                  {static_cast<double>(gpus), static_cast<double>(least(job))}}});
      return;
    }
  }

  /// Takes workers on the fullest server that holds all, else from the emptiest on.
  void add(const ClusterJob& job, std::int32_t gpus, Placement& parts) {
    std::vector<NodeIndex> nodes;
    for (NodeIndex node = 0; node < view_.cluster->nodes().size(); ++node) {
      if (free_.on(node) > 0 && free_.takes(job, node)) nodes.push_back(node);
    }
    std::stable_sort(nodes.begin(), nodes.end(), [&](NodeIndex a, NodeIndex b) {
      const bool all_a = free_.on(a) >= gpus;
      const bool all_b = free_.on(b) >= gpus;
      if (all_a != all_b) return all_a;
      return all_a ? free_.on(a) < free_.on(b) : free_.on(a) > free_.on(b);
    });
    for (const NodeIndex node : nodes) {
      const std::int32_t here = std::min(gpus, free_.on(node));
      if (here == 0) return;
      free_.take(job, node, here, parts);
      gpus -= here;
    }
  }

  void grow() {
    for (const JobIndex index : view_.running) {
      const ClusterJob& job = view_.jobs[index];
      if (job.placement.empty()) continue;
      const std::int32_t gpus = fit(job, free_, most(job) - job.held());
      if (gpus <= 0) continue;
      Placement parts = job.placement;
      add(job, gpus, parts);
      // By servers, the first one's in front: what a job holds of a host is counted by server.
      const NodeIndex first = parts.front().node;
      std::stable_sort(parts.begin(), parts.end(), [&](const GpuPart& a, const GpuPart& b) {
        return std::pair(a.node != first, a.node) < std::pair(b.node != first, b.node);
      });
      use_.charge(job, gpus);
      plan_.decisions.push_back({index,
                                 Action::kMove,
                                 std::move(parts),
                                 {"grows by {:.0f} workers: nothing else was done for {:.0f} s",
                                  {static_cast<double>(gpus), rules_.grow_after}}});
    }
  }

  /// When the one that has waited longest is urgent, or running jobs may grow.
  [[nodiscard]] Time next_look() const {
    Time next = kNever;
    const auto look = [&](Time at) {
      if (at > view_.now) next = std::min(next, at);
    };
    if (!queue_.empty()) look(view_.jobs[queue_.front()].submit + rules_.urgent_after);
    const bool elastic = std::any_of(view_.running.begin(), view_.running.end(), [&](JobIndex job) {
      return view_.jobs[job].held() < most(view_.jobs[job]);
    });
    if (elastic) look(last_action_ + rules_.grow_after);
    return next;
  }

  const ClusterView& view_;
  const DragonRules& rules_;
  std::vector<JobIndex>& queue_;
  double& last_action_;
  ClusterPlan& plan_;
  FreeGpus free_;
  TenantUse use_;
};

class Dragon final : public ClusterPolicy {
 public:
  explicit Dragon(const DragonRules& rules) : rules_(rules) {}

  [[nodiscard]] bool reads_progress() const noexcept override { return false; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(1);
    if (notes.numbers.empty()) notes.numbers.assign(1, view.now);
    notes.lists[0].insert(notes.lists[0].end(), view.arrived.begin(), view.arrived.end());
    Round(view, rules_, notes, plan).run();
  }

 private:
  DragonRules rules_;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_dragon(Options& options) {
  DragonRules rules;
  rules.urgent_after = options.number("urgent-after", rules.urgent_after);
  rules.grow_after = options.number("grow-after", rules.grow_after);
  return std::make_unique<Dragon>(rules);
}

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// philly: virtual clusters (tenants) share a cluster by quotas, each with a queue in the order of
// arrival; who does not fit is passed. Fair share: the tenant that uses least of its quota is
// served first; then idle GPUs are lent beyond quotas, in the same order. Who is lent GPUs runs
// alone on them as opportunistic, is charged once its tenant's quota has room, and is stopped only
// if more than 90 % of the GPUs are used and a job within its quota does not fit: of the tenant
// furthest above its quota, the last started first. Who asks for `auto`, which Philly does not
// know, is charged only what guaranteed jobs leave: none that waits within its quota could use its
// GPUs, and its tenant's quota has room for it beside all that wait. Locality: a job asks for s
// servers x g GPUs of one rack; racks are ranked by servers with g free GPUs, servers by packing.
// What is there is held; incomplete at the timeout (150 s), all is released, and after a back-off
// (120 s) tried again; after three tries a level is relaxed by one: same rack on more servers, then
// across racks. While too few GPUs are idle, the time of a job that holds none stands still. Nobody
// holds GPUs beyond its quota, nor if all who hold some could not be served one after the other.
// Cores and memory go with the GPUs and only have to be there. Retries of failed jobs: who runs
// them. Source: Jeon et al., Multi-Tenant GPU Clusters, ATC'19; the number of tries is chosen here.
#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "coordinator/policies/guaranteed_demand.h"
#include "coordinator/policies/makers.h"
#include "coordinator/policies/reclaim.h"
#include "coordinator/policies/tenant_use.h"
#include "coordinator/policies/timed_locality.h"

namespace commensal::policies {
namespace {

struct PhillyRules {
  TimedLocality::Rules locality;
  double stop_above = 0.90;  // of the GPUs
};

class PhillyDraft {
 public:
  PhillyDraft(const ClusterView& view, const PhillyRules& rules, Notes& notes, ClusterPlan& plan)
      : view_(view),
        rules_(rules),
        notes_(notes),
        plan_(plan),
        free_(*view.cluster),
        use_(view, notes.lists.size()),
        demand_(*view.cluster),
        tries_(view, rules.locality, notes) {}

  void run() {
    for (const auto& queue : notes_.lists) {
      for (const JobIndex index : queue) find_held(view_.jobs[index]);
    }
    charge_lent();
    serve(Pass::kGuaranteed);
    keep_for_waiting();
    charge_lent_auto();
    serve(Pass::kAuto);
    serve(Pass::kBeyond);
    for (auto& queue : notes_.lists) {
      std::erase_if(queue, [&](JobIndex job) { return started_.contains(job); });
    }
    for (const JobIndex job : stopped_) {
      std::vector<JobIndex>& queue = notes_.lists[view_.jobs[job].tenant];
      queue.insert(std::lower_bound(queue.begin(), queue.end(), job), job);
      tries_.forget(job);
    }
  }

 private:
  enum class Pass : std::uint8_t {
    kGuaranteed,  // within quotas, who asks for that
    kAuto,        // within what these leave of quotas
    kBeyond       // quotas
  };

  /// What an auto job holds guaranteed jobs may take.
  void find_held(const ClusterJob& job) {
    if (job.reserved.empty()) return;
    if (job.asked == AskedClass::kAuto) {
      free_.unreserve(job.reserved);
    } else {
      waited_for_ += job.gpus;
    }
  }

  /// Charges who runs on lent GPUs where the quota has room now, in the order of their starts.
  void charge_lent() {
    for (const JobIndex index : view_.running) {
      const ClusterJob& job = view_.jobs[index];
      if (!TenantUse::lent(job)) continue;
      if (job.asked != AskedClass::kGuaranteed || !use_.may_charge(job)) {
        lent_.push_back(index);
      } else {
        upgrade(index);
      }
    }
  }

  /// Likewise auto jobs, on GPUs that no guaranteed job waits for.
  void charge_lent_auto() {
    std::erase_if(lent_, [&](JobIndex index) {
      const ClusterJob& job = view_.jobs[index];
      const bool wanted =
          std::any_of(job.placement.begin(), job.placement.end(),
                      [&](const GpuPart& part) { return demand_.wants(part.node); });
      if (wanted || !use_.may_charge(job)) return false;
      upgrade(index);
      return true;
    });
  }

  void upgrade(JobIndex index) {
    use_.charge_lent(view_.jobs[index]);
    plan_.decisions.push_back(
        {index, Action::kUpgrade, {}, {"its tenant's quota has room for it now"}});
  }

  /// Keeps for guaranteed jobs that wait what they could use: GPUs, where their quotas have room
  /// for them, and the quotas.
  void keep_for_waiting() {
    for (const auto& queue : notes_.lists) {
      for (const JobIndex index : queue) {
        const ClusterJob& job = view_.jobs[index];
        if (job.asked != AskedClass::kGuaranteed || started_.contains(index)) continue;
        const bool counted = held_for_.contains(index);
        if (counted || use_.may_charge(job)) demand_.add(job, 1);
        if (!counted) use_.hold(job);
      }
    }
  }

  /// Offers GPUs to each waiting job once, the tenant that uses least of its quota first.
  void serve(Pass pass) {
    std::vector<std::size_t> next(notes_.lists.size(), 0);
    std::set<std::pair<double, std::size_t>> turns;
    for (std::size_t tenant = 0; tenant < next.size(); ++tenant) {
      if (!notes_.lists[tenant].empty()) turns.emplace(use_.part(tenant), tenant);
    }
    while (!turns.empty()) {
      const std::size_t tenant = turns.begin()->second;
      turns.erase(turns.begin());
      const std::vector<JobIndex>& queue = notes_.lists[tenant];
      while (next[tenant] < queue.size()) {
        if (!offer(queue[next[tenant]++], pass)) continue;
        turns.emplace(use_.part(tenant), tenant);
        break;
      }
    }
  }

  /// Returns whether the job starts.
  bool offer(JobIndex index, Pass pass) {
    const ClusterJob& job = view_.jobs[index];
    const bool beyond = pass == Pass::kBeyond;
    if (tried_.contains(index) || (!beyond && !within(job, pass))) return false;
    tried_.insert(index);
    if (!job.reserved.empty() && job.asked != AskedClass::kAuto) {
      free_.unreserve(job.reserved);
      waited_for_ -= job.gpus;
      refused_.clear();
    }
    if (beyond && free_.total() < job.gpus) {
      tries_.pause(index);
      return hold(index, {}, {"released: it waits for its tenant's quota"});
    }
    if (!tries_.due(index)) return wait(index, {}, "backs off: {:.0f} of {:.0f} GPUs are kept");
    Placement parts = take(job, tries_.level(index), beyond);
    if (std::ssize(parts) == job.gpus) return start(index, std::move(parts), beyond);
    const bool lacks = free_.total() + std::ssize(parts) < job.gpus;
    const bool holds =
        !beyond && !parts.empty() && waited_for_ + job.gpus <= view_.cluster->total_gpus();
    const bool late = (holds || !lacks) && tries_.failed(index);
    if (late || !holds) {
      free_.give(job, parts);
      parts.clear();
    }
    if (lacks && !holds) {
      tries_.pause(index);
      return hold(index, {}, {"released: too few GPUs are idle"});
    }
    if (!parts.empty()) {
      use_.hold(job);
      held_for_.insert(index);
      waited_for_ += job.gpus;
    }
    return wait(index, std::move(parts),
                late ? "timeout: {:.0f} of {:.0f} GPUs are kept, and it backs off"
                     : "{:.0f} of {:.0f} GPUs are kept for it until the timeout");
  }

  /// Whether a job is served within its tenant's quota in a pass.
  [[nodiscard]] bool within(const ClusterJob& job, Pass pass) const {
    const bool is_auto = job.asked == AskedClass::kAuto;
    if (is_auto != (pass == Pass::kAuto) || !use_.may_charge(job)) return false;
    return !is_auto || !demand_.wants_any(job.gpu_types);
  }

  /// Takes what is there, or all with what lent jobs have to give back.
  Placement take(const ClusterJob& job, Locality level, bool beyond) {
    const auto asked = std::tuple(job.gpus, job.gpu_types, job.cpu_milli, job.memory_mib, level);
    if (refused_.contains(asked)) return {};
    Placement parts = take_close(job, level, free_);
    if (std::ssize(parts) == job.gpus) return parts;
    if (!beyond && stop_for(job, level, parts)) {
      refused_.clear();
    } else if (parts.empty()) {
      refused_.insert(asked);
    }
    return parts;
  }

  bool wait(JobIndex index, Placement parts, std::string_view why) {
    plan_.wake = std::min(plan_.wake, tries_.until(index));
    const auto there = static_cast<double>(parts.size());
    return hold(index, std::move(parts),
                {why, {there, static_cast<double>(view_.jobs[index].gpus)}});
  }

  bool hold(JobIndex index, Placement parts, const Reason& reason) {
    if (parts != view_.jobs[index].reserved) {
      plan_.decisions.push_back({index, Action::kReserve, std::move(parts), reason});
    }
    return false;
  }

  bool start(JobIndex index, Placement parts, bool beyond) {
    use_.start(view_.jobs[index], beyond);
    started_.insert(index);
    const auto as = beyond ? JobClass::kOpportunistic : JobClass::kGuaranteed;
    const Reason reason{beyond ? "beyond its tenant's quota, locality relaxed {:.0f} times"
                               : "within its tenant's quota, locality relaxed {:.0f} times",
                        {static_cast<double>(tries_.level(index))}};
    tries_.forget(index);
    plan_.decisions.push_back({index, Action::kStart, std::move(parts), reason, as});
    return true;
  }

  /// Stops lent jobs so that `job` gets all that it asks for; `parts` are what it has so far.
  bool stop_for(const ClusterJob& job, Locality level, Placement& parts) {
    const double all = view_.cluster->total_gpus();
    const double unused = free_.total() + static_cast<double>(parts.size());
    if (lent_.empty() || (all - unused) / all <= rules_.stop_above) return false;
    free_.give(job, parts);
    auto reclaimed = reclaim(view_, job, level, free_, use_, lent_);
    if (!reclaimed) {
      free_.take(job, parts);
      return false;
    }
    for (const JobIndex index : reclaimed->stopped) {
      free_.give(view_.jobs[index], view_.jobs[index].placement);
      use_.stop_lent(view_.jobs[index]);
      std::erase(lent_, index);
      stopped_.insert(index);
      plan_.decisions.push_back(
          {index, Action::kStop, {}, {"beyond its quota; a job within its own needs these GPUs"}});
    }
    free_.take(job, reclaimed->parts);
    parts = std::move(reclaimed->parts);
    return true;
  }

  const ClusterView& view_;
  const PhillyRules& rules_;
  Notes& notes_;
  ClusterPlan& plan_;
  FreeGpus free_;
  TenantUse use_;
  GuaranteedDemand demand_;
  TimedLocality tries_;
  std::int32_t waited_for_ = 0;  // GPUs that all who hold some ask for
  std::vector<JobIndex> lent_;   // that run beyond their quotas, in the order of their starts
  std::unordered_set<JobIndex> tried_;
  std::unordered_set<JobIndex> held_for_;  // GPUs, and so part of their quotas
  std::unordered_set<JobIndex> started_;
  std::set<JobIndex> stopped_;
  std::set<std::tuple<std::int32_t, std::uint32_t, std::int64_t, std::int64_t, Locality>> refused_;
};

class Philly final : public ClusterPolicy {
 public:
  explicit Philly(const PhillyRules& rules) : rules_(rules) {}

  [[nodiscard]] bool reads_progress() const noexcept override { return false; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(std::max({std::size_t{1}, notes.lists.size(), view.tenants.size()}));
    for (const JobIndex job : view.arrived) {
      const std::size_t tenant = view.jobs[job].tenant;
      if (tenant >= notes.lists.size()) notes.lists.resize(tenant + 1);
      notes.lists[tenant].push_back(job);
    }
    PhillyDraft(view, rules_, notes, plan).run();
  }

 private:
  PhillyRules rules_;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_philly(Options& options) {
  PhillyRules rules;
  rules.locality.timeout = options.number("timeout", rules.locality.timeout);
  rules.locality.back_off = options.number("back-off", rules.locality.back_off);
  rules.locality.tries = options.number("tries", rules.locality.tries);
  rules.stop_above = options.number("stop-above", 100 * rules.stop_above) / 100;
  TimedLocality::check(rules.locality);
  return std::make_unique<Philly>(rules);
}

}  // namespace commensal::policies

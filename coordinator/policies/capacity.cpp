// SPDX-License-Identifier: Apache-2.0
// capacity: a queue a tenant, in the order of arrival; the tenant that uses least of its quota is
// served next, of equal ones that whose first job came first. Who is first in its queue and does
// not fit, into the quota or into the cluster, stops that queue and no other. Gangs start whole,
// nobody is stopped, and all jobs are charged: there are no classes. Source: Apache Hadoop YARN,
// CapacityScheduler, with maximum-capacity = capacity (idle quota is not lent) and without
// preemption: AntMan's baseline "YARN-CS".
#include <algorithm>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "coordinator/policies/hand_out.h"
#include "coordinator/policies/makers.h"

namespace commensal::policies {
namespace {

/// What a tenant may use and uses, in GPUs, what this decision starts included.
struct Use {
  std::int64_t quota = 0;
  std::int64_t gpus = 0;
  std::size_t started = 0;  // jobs, from the head of its queue on
};

Use use_of(const ClusterView& view, std::size_t tenant) {
  Use use{.quota = view.cluster->total_gpus()};
  if (tenant >= view.tenants.size()) return use;
  use.quota = view.tenants[tenant].quota.value_or(view.cluster->total_gpus());
  use.gpus = view.tenants[tenant].charged_milli / kWholeGpu;
  return use;
}

/// Least of the quota in use first, then the first job that came first: else a tenant whose use is
/// none after each of its jobs would come before another one again and again.
using Turn = std::tuple<double, JobIndex, std::size_t>;

Turn turn_of(const Use& use, JobIndex first, std::size_t tenant) {
  const auto quota = static_cast<double>(std::max<std::int64_t>(1, use.quota));
  return {static_cast<double>(use.gpus) / quota, first, tenant};
}

class Capacity final : public ClusterPolicy {
 public:
  [[nodiscard]] bool reads_progress() const noexcept override { return false; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(std::max(notes.lists.size(), view.tenants.size()));
    for (const JobIndex job : view.arrived) {
      const std::size_t tenant = view.jobs[job].tenant;
      if (tenant >= notes.lists.size()) notes.lists.resize(tenant + 1);
      notes.lists[tenant].push_back(job);
    }
    std::vector<Use> uses;
    std::set<Turn> turns;
    for (std::size_t tenant = 0; tenant < notes.lists.size(); ++tenant) {
      uses.push_back(use_of(view, tenant));
      const std::vector<JobIndex>& queue = notes.lists[tenant];
      if (!queue.empty()) turns.insert(turn_of(uses[tenant], queue.front(), tenant));
    }
    HandOut hand_out(view, notes, HandOut::Mode::kFree);
    while (!turns.empty() && !hand_out.exhausted()) {
      const std::size_t tenant = std::get<2>(turns.extract(turns.begin()).value());
      const std::vector<JobIndex>& queue = notes.lists[tenant];
      Use& use = uses[tenant];
      if (!start(view.jobs, queue[use.started], use, hand_out)) continue;
      if (++use.started < queue.size()) turns.insert(turn_of(use, queue[use.started], tenant));
    }
    for (std::size_t tenant = 0; tenant < notes.lists.size(); ++tenant) {
      std::vector<JobIndex>& queue = notes.lists[tenant];
      queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(uses[tenant].started));
    }
    hand_out.finish({}, plan);
  }

 private:
  static bool start(std::span<const ClusterJob> jobs, JobIndex job, Use& use, HandOut& hand_out) {
    const std::int32_t gpus = jobs[job].gpus;
    if (use.gpus + gpus > use.quota) return false;
    const Reason reason{"first of its tenant, which uses {:.0f} of {:.0f} GPUs",
                        {static_cast<double>(use.gpus), static_cast<double>(use.quota)}};
    if (!hand_out.offer(job, reason)) return false;
    use.gpus += gpus;
    return true;
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_capacity(Options& /*options*/) {
  return std::make_unique<Capacity>();
}

}  // namespace commensal::policies

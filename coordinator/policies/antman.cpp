// SPDX-License-Identifier: Apache-2.0
// antman, the default. A queue a tenant, first come first served; tenants with the least of their
// quota in use come first, of equal ones that whose first job came first. Guaranteed jobs get GPUs
// that are free of guaranteed jobs: one node, or whole nodes, of one rack where one has enough; who
// is first and does not fit reserves what is there. Opportunistic jobs cost no quota: they go to
// the least loaded GPUs below 80 %, beside guaranteed jobs and on reserved GPUs too, where their
// minima of share and memory fit. Who asks for `auto` begins as opportunistic if it cannot be
// guaranteed at once, and is upgraded where it runs. It becomes guaranteed, by either way, on what
// guaranteed jobs leave: its GPUs are free of them, none that waits within its tenant's quota could
// use them, and its tenant's quota has room for it beside all that wait. Nobody is stopped. Source:
// AntMan (OSDI '20), Algorithm 1, with M = 80 % as its public plugin has it; "auto" as its paper
// describes it.
#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "coordinator/policies/beside.h"
#include "coordinator/policies/makers.h"
#include "coordinator/policies/open_gpus.h"

namespace commensal::policies {
namespace {

constexpr std::size_t kBeside = 0;   // the list of opportunistic jobs that wait
constexpr std::size_t kUpgrade = 1;  // of auto jobs that run as opportunistic
constexpr std::size_t kFirstTenant = 2;

// Lists of jobs of a tenant that wait.
constexpr std::size_t guaranteed_of(std::size_t tenant) { return kFirstTenant + 2 * tenant; }
constexpr std::size_t auto_of(std::size_t tenant) { return guaranteed_of(tenant) + 1; }
std::size_t tenants_in(const Notes& notes) { return (notes.lists.size() - kFirstTenant) / 2; }

/// The cluster as the plan so far leaves it: what the view shows, less what was taken since.
class AntmanDraft {
 public:
  AntmanDraft(const ClusterView& view, std::int32_t open_below, ClusterPlan& plan)
      : view_(view),
        open_below_(open_below),
        plan_(plan),
        open_(view),
        minima_(*view.cluster),
        least_loaded_(view.index->by_load().begin()) {}

  [[nodiscard]] OpenGpus& open() noexcept { return open_; }

  [[nodiscard]] bool within_quota(const ClusterJob& job) const {
    if (job.tenant >= view_.tenants.size() || !view_.tenants[job.tenant].quota) return true;
    const Tenant& tenant = view_.tenants[job.tenant];
    const auto more = charged_.find(job.tenant);
    const std::int64_t charged = tenant.charged_milli + (more == charged_.end() ? 0 : more->second);
    return charged + std::int64_t{job.gpus} * job.gpu_milli <=
           std::int64_t{*tenant.quota} * kWholeGpu;
  }

  /// Starts a job on open GPUs, or reserves what there is; returns whether it starts.
  bool start_guaranteed(JobIndex index) {
    const ClusterJob& job = view_.jobs[index];
    if (!within_quota(job)) return false;
    Placement parts = job.reserved;
    open_.complete(job, parts);
    if (job.gpus == 0) parts = open_.hosts().place(job);
    const bool all = static_cast<std::int32_t>(parts.size()) >= std::max(1, job.gpus);
    if (all && open_.hosts().has(job, parts)) {
      charge(job);
      open_.close(parts);
      open_.hosts().take(job, parts);
      minima_.take(job, JobClass::kGuaranteed, parts);
      plan_.decisions.push_back({index,
                                 Action::kStart,
                                 std::move(parts),
                                 {"within the quota, on devices without a guaranteed job"}});
      return true;
    }
    // An auto job goes beside others rather than wait.
    const bool more = parts.size() > job.reserved.size();
    if (job.asked == AskedClass::kGuaranteed && more &&
        (!job.reserved.empty() || open_.may_reserve(job, parts))) {
      if (job.reserved.empty()) open_.wait_for(job, parts);
      open_.close(parts);
      reserves_.insert(index);
      const Reason reason{"first of its tenant: {:.0f} of {:.0f} GPUs are kept for it",
                          {static_cast<double>(parts.size()), static_cast<double>(job.gpus)}};
      plan_.decisions.push_back({index, Action::kReserve, std::move(parts), reason});
    }
    return false;
  }

  /// Keeps for a tenant's guaranteed jobs that wait what they could use from now on: GPUs, as far
  /// as the quota has room, and the quota.
  void keep_for(const std::vector<JobIndex>& queue) {
    std::int64_t kept = 0;
    for (const JobIndex index : queue) {
      const ClusterJob& job = view_.jobs[index];
      const bool within = within_quota(job);
      charge(job);
      if (!within) return;  // nor is any auto job of the tenant now
      // A job with GPUs of a node reserved has all that is open there, and goes nowhere else.
      const bool bound = job.gpus <= view_.index->most_on_a_node() &&
                         (!job.reserved.empty() || reserves_.contains(index));
      if (!bound) open_.keep_for(job);
      kept += job.gpus;
      if (kept > view_.cluster->total_gpus()) return;  // more could not start in any case
    }
  }

  bool start_beside(JobIndex index) {
    const ClusterJob& job = view_.jobs[index];
    Placement parts;
    if (job.gpus == 0) parts = open_.hosts().place(job);
    const auto& all = view_.index->by_load();
    while (least_loaded_ != all.end() && loaded_.contains(least_loaded_->second)) ++least_loaded_;
    for (auto at = least_loaded_; at != all.end(); ++at) {
      const auto& [load, gpu] = *at;
      if (load >= open_below_ || static_cast<std::int32_t>(parts.size()) >= job.gpus) break;
      const NodeIndex node = view_.index->node_of(gpu);
      const std::uint16_t number = view_.index->number_on_node(gpu);
      if (loaded_.contains(gpu) || !open_.takes(job, node)) continue;
      if (!minima_.fits(job, node, number)) continue;
      parts.push_back({.node = node, .gpu = number});
    }
    if (static_cast<std::int32_t>(parts.size()) < std::max(1, job.gpus)) return false;
    sort(parts);
    if (job.gpus > 0) {
      for (const GpuPart& part : parts) loaded_.insert(open_.number(part));
    }
    open_.hosts().take(job, parts);
    minima_.take(job, JobClass::kOpportunistic, parts);
    plan_.decisions.push_back(
        {index,
         Action::kStart,
         std::move(parts),
         {"beside others, on the least loaded devices below {:.0f} %", {open_below_ / 10.0}},
         JobClass::kOpportunistic});
    return true;
  }

  bool upgrade(JobIndex index) {
    const ClusterJob& job = view_.jobs[index];
    if (!within_quota(job)) return false;
    for (const GpuPart& part : job.placement) {
      if (part.gpu == kHostOnly) continue;
      const Cluster::Gpu& gpu = view_.cluster->gpu(part.node, part.gpu);
      if (gpu.free_milli < part.milli || gpu.reserved_for != kNoJob) return false;
      if (open_.closed(part)) return false;
    }
    charge(job);
    open_.close(job.placement);
    plan_.decisions.push_back(
        {index, Action::kUpgrade, {}, {"its tenant's quota has room for it now"}});
    return true;
  }

 private:
  void charge(const ClusterJob& job) {
    charged_[job.tenant] += std::int64_t{job.gpus} * job.gpu_milli;
  }

  static void sort(Placement& parts) {
    std::sort(parts.begin(), parts.end(), [](const GpuPart& a, const GpuPart& b) {
      return a.node != b.node ? a.node < b.node : a.gpu < b.gpu;
    });
  }

  const ClusterView& view_;
  std::int32_t open_below_;
  ClusterPlan& plan_;
  OpenGpus open_;
  MinimaDraft minima_;
  std::unordered_map<TenantIndex, std::int64_t> charged_;
  std::unordered_set<JobIndex> reserves_;                           // anew in this decision
  std::unordered_set<std::uint32_t> loaded_;                        // given to an opportunistic job
  std::set<ClusterIndex::LoadedGpu>::const_iterator least_loaded_;  // all before are in `loaded_`
};

class AntMan final : public ClusterPolicy {
 public:
  explicit AntMan(std::int32_t open_below) : open_below_(open_below) {}

  [[nodiscard]] bool reads_progress() const noexcept override { return false; }

  [[nodiscard]] bool adopts_running() const noexcept override { return true; }

  [[nodiscard]] std::optional<std::int32_t> beside_below() const noexcept override {
    return open_below_;
  }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(std::max(notes.lists.size(), guaranteed_of(view.tenants.size())));
    for (const JobIndex job : view.arrived) {
      if (view.jobs[job].phase == JobPhase::kWaiting) queue_of(view, notes, job).push_back(job);
      if (view.jobs[job].phase == JobPhase::kRunning) adopt(view, notes, job);
    }
    std::erase_if(notes.lists[kUpgrade],
                  [&](JobIndex job) { return view.jobs[job].phase != JobPhase::kRunning; });
    AntmanDraft draft(view, open_below_, plan);
    for (std::size_t tenant = 0; tenant < tenants_in(notes); ++tenant) {
      const std::vector<JobIndex>& queue = notes.lists[guaranteed_of(tenant)];
      if (queue.empty() || view.jobs[queue.front()].reserved.empty()) continue;
      draft.open().wait_for(view.jobs[queue.front()], view.jobs[queue.front()].reserved);
    }
    for (const std::size_t list : lists_in_turn(view, notes, guaranteed_of)) {
      serve(notes.lists[list], draft);
    }
    make_guaranteed(view, notes, draft);
    start_beside(notes, draft);
  }

 private:
  static std::vector<JobIndex>& queue_of(const ClusterView& view, Notes& notes, JobIndex job) {
    const ClusterJob& arrived = view.jobs[job];
    if (arrived.asked == AskedClass::kOpportunistic) return notes.lists[kBeside];
    if (arrived.tenant >= tenants_in(notes)) notes.lists.resize(guaranteed_of(arrived.tenant + 1));
    const bool guaranteed = arrived.asked == AskedClass::kGuaranteed;
    return notes.lists[guaranteed ? guaranteed_of(arrived.tenant) : auto_of(arrived.tenant)];
  }

  /// Of those that ran before a restart, auto jobs beside others want to be upgraded.
  static void adopt(const ClusterView& view, Notes& notes, JobIndex job) {
    const ClusterJob& runs = view.jobs[job];
    if (runs.asked == AskedClass::kAuto && runs.job_class == JobClass::kOpportunistic) {
      notes.lists[kUpgrade].push_back(job);
    }
  }

  /// Of one list a tenant, those with somebody waiting: least of the quota in use first, then whose
  /// first job came first.
  static std::vector<std::size_t> lists_in_turn(const ClusterView& view, const Notes& notes,
                                                std::size_t (*list_of)(std::size_t tenant)) {
    std::vector<std::tuple<double, JobIndex, std::size_t>> order;
    for (std::size_t tenant = 0; tenant < tenants_in(notes); ++tenant) {
      const std::size_t list = list_of(tenant);
      if (notes.lists[list].empty()) continue;
      double used = 0;
      if (tenant < view.tenants.size()) {
        const Tenant& t = view.tenants[tenant];
        used = t.charged_milli / static_cast<double>(std::max(1, t.quota.value_or(1)));
      }
      order.emplace_back(used, notes.lists[list].front(), list);
    }
    std::sort(order.begin(), order.end());
    std::vector<std::size_t> lists;
    lists.reserve(order.size());
    for (const auto& [used, first, list] : order) lists.push_back(list);
    return lists;
  }

  /// Starts guaranteed jobs of a queue until one does not fit: it reserves, and the rest waits.
  static void serve(std::vector<JobIndex>& queue, AntmanDraft& draft) {
    std::size_t next = 0;
    while (next < queue.size() && draft.start_guaranteed(queue[next])) ++next;
    queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(next));
  }

  /// Makes auto jobs guaranteed where no guaranteed job that waits could be: those that run first.
  static void make_guaranteed(const ClusterView& view, Notes& notes, AntmanDraft& draft) {
    const std::vector<std::size_t> waiting = lists_in_turn(view, notes, auto_of);
    if (notes.lists[kUpgrade].empty() && waiting.empty()) return;
    for (std::size_t tenant = 0; tenant < tenants_in(notes); ++tenant) {
      draft.keep_for(notes.lists[guaranteed_of(tenant)]);
    }
    std::erase_if(notes.lists[kUpgrade], [&](JobIndex job) { return draft.upgrade(job); });
    for (const std::size_t list : waiting) serve(notes.lists[list], draft);
  }

  /// Starts opportunistic jobs in the order of their arrival, then auto jobs that wait in that of
  /// their tenant, until one does not fit.
  static void start_beside(Notes& notes, AntmanDraft& draft) {
    (void)started_beside(notes.lists[kBeside], draft);
    if (!notes.lists[kBeside].empty()) return;
    for (std::size_t tenant = 0; tenant < tenants_in(notes); ++tenant) {
      for (const JobIndex job : started_beside(notes.lists[auto_of(tenant)], draft)) {
        notes.lists[kUpgrade].push_back(job);
      }
    }
  }

  /// Takes out of a queue whom it starts.
  static std::vector<JobIndex> started_beside(std::vector<JobIndex>& queue, AntmanDraft& draft) {
    std::size_t next = 0;
    while (next < queue.size() && draft.start_beside(queue[next])) ++next;
    const auto end = queue.begin() + static_cast<std::ptrdiff_t>(next);
    std::vector<JobIndex> started(queue.begin(), end);
    queue.erase(queue.begin(), end);
    return started;
  }

  std::int32_t open_below_;  // thousandths of a GPU's time
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_antman(Options& options) {
  const double open_below = options.number("open-below", 80);
  return std::make_unique<AntMan>(static_cast<std::int32_t>(open_below * 10));
}

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// antman, the default. A queue a tenant, first come first served; tenants with the least of their
// quota in use come first. Guaranteed jobs get GPUs that are free of guaranteed jobs: one node, or
// whole nodes, of one rack where one has enough; who is first and does not fit reserves what is
// there. Opportunistic jobs cost no quota: they go to the least loaded GPUs below 80 %, beside
// guaranteed jobs and on reserved GPUs too. Who asks for `auto` begins as opportunistic if it
// cannot be guaranteed at once, and is upgraded where it runs when its tenant's quota allows and
// its GPUs are free of guaranteed jobs. Nobody is stopped. Source: AntMan (OSDI '20), Algorithm 1,
// with M = 80 % as its public plugin has it; "auto" as its paper describes it.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "coordinator/policies/host_draft.h"
#include "coordinator/policies/makers.h"

namespace commensal::policies {
namespace {

constexpr std::size_t kBeside = 0;   // the list of opportunistic jobs that wait
constexpr std::size_t kUpgrade = 1;  // of auto jobs that run as opportunistic
constexpr std::size_t kFirstTenant = 2;

/// The cluster as the plan so far leaves it: what the view shows, less what was taken since.
class Draft {
 public:
  Draft(const ClusterView& view, std::int32_t open_below, ClusterPlan& plan)
      : view_(view),
        open_below_(open_below),
        plan_(plan),
        hosts_(*view.cluster),
        least_loaded_(view.index->by_load().begin()) {}

  /// Counts what a job with a reservation waits for.
  void wait_for(const ClusterJob& job, const Placement& reserved) {
    if (job.gpus > view_.index->most_on_a_node()) {
      waited_by_large_ += job.gpus;
    } else {
      waited_for_[reserved.front().node] += job.gpus;
    }
  }

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
    complete(job, parts);
    if (job.gpus == 0) parts = hosts_.place(job);
    const bool all = static_cast<std::int32_t>(parts.size()) >= std::max(1, job.gpus);
    if (all && hosts_.has(job, parts)) {
      charge(job);
      close(parts);
      hosts_.take(job, parts);
      plan_.decisions.push_back({index,
                                 Action::kStart,
                                 std::move(parts),
                                 {"within the quota, on GPUs without a guaranteed job"}});
      return true;
    }
    // An auto job goes beside others rather than wait.
    const bool more = parts.size() > job.reserved.size();
    if (job.asked == AskedClass::kGuaranteed && more &&
        (!job.reserved.empty() || may_reserve(job, parts))) {
      if (job.reserved.empty()) wait_for(job, parts);
      close(parts);
      const Reason reason{"first of its tenant: {:.0f} of {:.0f} GPUs are kept for it",
                          {static_cast<double>(parts.size()), static_cast<double>(job.gpus)}};
      plan_.decisions.push_back({index, Action::kReserve, std::move(parts), reason});
    }
    return false;
  }

  bool start_beside(JobIndex index) {
    const ClusterJob& job = view_.jobs[index];
    Placement parts;
    if (job.gpus == 0) parts = hosts_.place(job);
    const auto& all = view_.index->by_load();
    while (least_loaded_ != all.end() && loaded_.contains(least_loaded_->second)) ++least_loaded_;
    for (auto at = least_loaded_; at != all.end(); ++at) {
      const auto& [load, gpu] = *at;
      if (load >= open_below_ || static_cast<std::int32_t>(parts.size()) >= job.gpus) break;
      const NodeIndex node = view_.index->node_of(gpu);
      if (loaded_.contains(gpu) || !takes(job, node)) continue;
      parts.push_back({.node = node, .gpu = view_.index->number_on_node(gpu)});
    }
    if (static_cast<std::int32_t>(parts.size()) < std::max(1, job.gpus)) return false;
    sort(parts);
    if (job.gpus > 0) {
      for (const GpuPart& part : parts) loaded_.insert(number(part));
    }
    hosts_.take(job, parts);
    plan_.decisions.push_back(
        {index,
         Action::kStart,
         std::move(parts),
         {"beside others, on the least loaded GPUs below {:.0f} %", {open_below_ / 10.0}},
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
      if (closed_.contains(number(part))) return false;
    }
    charge(job);
    close(job.placement);
    plan_.decisions.push_back(
        {index, Action::kUpgrade, {}, {"its tenant's quota has room for it now"}});
    return true;
  }

 private:
  [[nodiscard]] std::uint32_t number(const GpuPart& part) const {
    return static_cast<std::uint32_t>(view_.cluster->index(part.node, part.gpu));
  }

  /// Whether a node has GPUs that will do, and now cores and memory for the job.
  [[nodiscard]] bool takes(const ClusterJob& job, NodeIndex node) const {
    const bool type =
        job.gpu_types == 0 || (job.gpu_types >> view_.cluster->nodes()[node].type & 1U) != 0;
    return (type || job.gpus == 0) && hosts_.has(job, node);
  }

  [[nodiscard]] std::int32_t open_on(NodeIndex node) const {
    const auto taken = taken_on_.find(node);
    return view_.index->open_on(node) - (taken == taken_on_.end() ? 0 : taken->second);
  }

  /// Whether all that waits with a reservation can be served one after the other: otherwise two
  /// gangs could keep from each other what they wait for.
  [[nodiscard]] bool may_reserve(const ClusterJob& job, const Placement& parts) const {
    if (job.gpus > view_.index->most_on_a_node()) {
      return waited_by_large_ + job.gpus <= view_.cluster->total_gpus();
    }
    return may_wait_on(job, parts.front().node);
  }

  void charge(const ClusterJob& job) {
    charged_[job.tenant] += std::int64_t{job.gpus} * job.gpu_milli;
  }

  void close(const Placement& parts) {
    for (const GpuPart& part : parts) {
      if (part.gpu == kHostOnly) continue;
      const bool fresh = closed_.insert(number(part)).second;
      if (fresh && view_.cluster->open(part.node, part.gpu)) ++taken_on_[part.node];
    }
  }

  static void sort(Placement& parts) {
    std::sort(parts.begin(), parts.end(), [](const GpuPart& a, const GpuPart& b) {
      return a.node != b.node ? a.node < b.node : a.gpu < b.gpu;
    });
  }

  void add_open(NodeIndex node, std::size_t enough, Placement& parts) const {
    for (std::int32_t gpu = 0; gpu < view_.cluster->nodes()[node].gpus; ++gpu) {
      if (parts.size() == enough) return;
      const GpuPart part{.node = node, .gpu = static_cast<std::uint16_t>(gpu)};
      if (!view_.cluster->open(node, gpu) || closed_.contains(number(part))) continue;
      parts.push_back(part);
    }
  }

  /// Adds open GPUs to those that are reserved, as far as they go.
  void complete(const ClusterJob& job, Placement& parts) {
    const auto enough = static_cast<std::size_t>(job.gpus);
    if (job.gpus > view_.index->most_on_a_node()) {
      add_whole_nodes(job, enough, parts);
    } else if (!parts.empty()) {
      add_open(parts.front().node, enough, parts);
    } else if (const NodeIndex node = best_node(job); node != kAnyNode) {
      add_open(node, enough, parts);
    }
  }

  /// The node with the fewest open GPUs that are enough; else the one with most.
  [[nodiscard]] NodeIndex best_node(const ClusterJob& job) {
    for (std::int32_t open = job.gpus; open <= view_.index->most_on_a_node(); ++open) {
      const auto& nodes = view_.index->nodes_with_open(open);
      // Within a decision GPUs are only taken: a node that is too full for so many stays so.
      auto& first = first_with_.try_emplace({open, job.gpus}, nodes.begin()).first->second;
      while (first != nodes.end() && open_on(*first) < job.gpus) ++first;
      for (auto at = first; at != nodes.end(); ++at) {
        if (takes(job, *at) && open_on(*at) >= job.gpus) return *at;
      }
    }
    return most_open(job);
  }

  /// A node to wait on: it must be able to hold this job beside all that wait there already.
  [[nodiscard]] bool may_wait_on(const ClusterJob& job, NodeIndex node) const {
    const auto waiting = waited_for_.find(node);
    const std::int32_t others = waiting == waited_for_.end() ? 0 : waiting->second;
    return takes(job, node) && others + job.gpus <= view_.cluster->nodes()[node].gpus;
  }

  [[nodiscard]] NodeIndex most_open(const ClusterJob& job) const {
    NodeIndex best = kAnyNode;
    std::int32_t most = 0;
    const auto look = [&](NodeIndex node) {
      const std::int32_t open = open_on(node);
      if (open < most || open == 0 || !may_wait_on(job, node)) return;
      if (open > most || node < best) best = node;
      most = open;
    };
    for (const auto& [node, taken] : taken_on_) look(node);
    for (std::int32_t open = job.gpus - 1; open > most; --open) {
      for (const NodeIndex node : view_.index->nodes_with_open(open)) {
        look(node);
        if (most == open) break;
      }
    }
    return best;
  }

  /// Wholly open nodes, those of the rack that has most of them first, larger ones before smaller.
  void add_whole_nodes(const ClusterJob& job, std::size_t enough, Placement& parts) const {
    std::vector<NodeIndex> nodes;
    std::unordered_map<std::int32_t, std::int32_t> in_rack;
    for (std::int32_t open = view_.index->most_on_a_node(); open > 0; --open) {
      for (const NodeIndex node : view_.index->nodes_with_open(open)) {
        const NodeSpec& spec = view_.cluster->nodes()[node];
        if (spec.gpus != open || open_on(node) != open || !takes(job, node)) continue;
        nodes.push_back(node);
        ++in_rack[spec.rack];
      }
    }
    std::stable_sort(nodes.begin(), nodes.end(), [&](NodeIndex a, NodeIndex b) {
      const std::int32_t rack_a = view_.cluster->nodes()[a].rack;
      const std::int32_t rack_b = view_.cluster->nodes()[b].rack;
      if (in_rack[rack_a] != in_rack[rack_b]) return in_rack[rack_a] > in_rack[rack_b];
      return rack_a < rack_b;
    });
    for (const NodeIndex node : nodes) add_open(node, enough, parts);
  }

  const ClusterView& view_;
  std::int32_t open_below_;
  ClusterPlan& plan_;
  HostDraft hosts_;
  std::unordered_map<TenantIndex, std::int64_t> charged_;
  std::unordered_set<std::uint32_t> closed_;  // taken or reserved by guaranteed jobs
  std::unordered_set<std::uint32_t> loaded_;  // given to an opportunistic job
  std::set<ClusterIndex::LoadedGpu>::const_iterator least_loaded_;  // all before are in `loaded_`
  /// By open GPUs, as the view has them, and GPUs asked for: the first node with so many left.
  std::map<std::pair<std::int32_t, std::int32_t>, std::set<NodeIndex>::const_iterator> first_with_;
  std::unordered_map<NodeIndex, std::int32_t> taken_on_;
  std::unordered_map<NodeIndex, std::int32_t> waited_for_;  // GPUs that jobs bound to it ask for
  std::int32_t waited_by_large_ = 0;                        // GPUs that larger gangs ask for
};

class AntMan final : public ClusterPolicy {
 public:
  explicit AntMan(std::int32_t open_below) : open_below_(open_below) {}

  [[nodiscard]] bool reads_progress() const noexcept override { return false; }

  [[nodiscard]] bool adopts_running() const noexcept override { return true; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(std::max(notes.lists.size(), kFirstTenant + view.tenants.size()));
    for (const JobIndex job : view.arrived) {
      if (view.jobs[job].phase == JobPhase::kWaiting) queue_of(view, notes, job).push_back(job);
      if (view.jobs[job].phase == JobPhase::kRunning) adopt(view, notes, job);
    }
    std::erase_if(notes.lists[kUpgrade],
                  [&](JobIndex job) { return view.jobs[job].phase != JobPhase::kRunning; });
    Draft draft(view, open_below_, plan);
    for (std::size_t list = kFirstTenant; list < notes.lists.size(); ++list) {
      if (notes.lists[list].empty()) continue;
      const ClusterJob& head = view.jobs[notes.lists[list].front()];
      if (!head.reserved.empty()) draft.wait_for(head, head.reserved);
    }
    std::erase_if(notes.lists[kUpgrade], [&](JobIndex job) { return draft.upgrade(job); });
    for (const std::size_t list : tenants_in_turn(view, notes)) serve(notes, list, draft);
    start_beside(view, notes, draft);
  }

 private:
  static std::vector<JobIndex>& queue_of(const ClusterView& view, Notes& notes, JobIndex job) {
    const ClusterJob& arrived = view.jobs[job];
    if (arrived.asked == AskedClass::kOpportunistic) return notes.lists[kBeside];
    const std::size_t list = kFirstTenant + arrived.tenant;
    if (list >= notes.lists.size()) notes.lists.resize(list + 1);
    return notes.lists[list];
  }

  /// Of those that ran before a restart, auto jobs beside others want to be upgraded.
  static void adopt(const ClusterView& view, Notes& notes, JobIndex job) {
    const ClusterJob& runs = view.jobs[job];
    if (runs.asked == AskedClass::kAuto && runs.job_class == JobClass::kOpportunistic) {
      notes.lists[kUpgrade].push_back(job);
    }
  }

  /// Lists of tenants with somebody waiting: least of the quota in use first.
  static std::vector<std::size_t> tenants_in_turn(const ClusterView& view, const Notes& notes) {
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t list = kFirstTenant; list < notes.lists.size(); ++list) {
      if (notes.lists[list].empty()) continue;
      const std::size_t tenant = list - kFirstTenant;
      double used = 0;
      if (tenant < view.tenants.size()) {
        const Tenant& t = view.tenants[tenant];
        used = t.charged_milli / static_cast<double>(std::max(1, t.quota.value_or(1)));
      }
      order.emplace_back(used, list);
    }
    std::sort(order.begin(), order.end());
    std::vector<std::size_t> lists;
    lists.reserve(order.size());
    for (const auto& [used, list] : order) lists.push_back(list);
    return lists;
  }

  /// Starts guaranteed jobs of a tenant until one does not fit: it reserves, and the rest waits.
  static void serve(Notes& notes, std::size_t list, Draft& draft) {
    std::vector<JobIndex>& queue = notes.lists[list];
    std::size_t next = 0;
    while (next < queue.size() && draft.start_guaranteed(queue[next])) ++next;
    queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(next));
  }

  /// Starts opportunistic jobs, and auto jobs that wait, in the order of their arrival, until one
  /// does not fit.
  static void start_beside(const ClusterView& view, Notes& notes, Draft& draft) {
    std::vector<JobIndex>& beside = notes.lists[kBeside];
    std::size_t next = 0;
    while (next < beside.size() && draft.start_beside(beside[next])) ++next;
    const bool all = next == beside.size();
    beside.erase(beside.begin(), beside.begin() + static_cast<std::ptrdiff_t>(next));
    if (!all) return;
    for (std::size_t list = kFirstTenant; list < notes.lists.size(); ++list) {
      std::vector<JobIndex>& queue = notes.lists[list];
      for (std::size_t i = 0; i < queue.size() && view.jobs[queue[i]].asked == AskedClass::kAuto;) {
        if (!draft.start_beside(queue[i])) break;
        notes.lists[kUpgrade].push_back(queue[i]);
        queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }

  std::int32_t open_below_;  // thousandths of a GPU's time
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_antman(Options& options) {
  const double open_below = options.number("open-below", 80);
  return std::make_unique<AntMan>(static_cast<std::int32_t>(open_below * 10));
}

}  // namespace commensal::policies

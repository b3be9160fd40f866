// SPDX-License-Identifier: Apache-2.0
// muri-antman: AntMan as Muri's simulator models it, a baseline that its authors call unfinished.
// Guaranteed jobs take GPUs that are free of guaranteed jobs and of reservations, and reserve what
// there is while they wait for the rest; opportunistic ones go to the least loaded GPUs below 0.8.
// Nobody is stopped. It goes beyond no tenant's quota and no node's cores, memory and types, of
// which the original knows nothing: where none are stated it does as that one does.
// Source: Rivendile/Muri (SIGCOMM '22), simulator, scheduler "antman".
#include <algorithm>
#include <optional>
#include <tuple>

#include "coordinator/policies/beside.h"
#include "coordinator/policies/host_draft.h"
#include "coordinator/policies/makers.h"
#include "coordinator/policies/tenant_use.h"

namespace commensal::policies {
namespace {

constexpr double kGuaranteedLoad = 0.1;
constexpr double kIncomplete = 0.01;  // less while its job waits for the rest
constexpr double kOpportunisticLoad = 0.9;
constexpr double kOpenBelow = 0.8;

class MuriAntMan final : public ClusterPolicy {
 public:
  [[nodiscard]] bool adopts_running() const noexcept override { return true; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(1);
    notes.numbers.resize(static_cast<std::size_t>(view.cluster->total_gpus()), 0.0);
    for (const JobIndex job : view.ended) unload(view, view.jobs[job], notes.numbers);
    std::vector<JobIndex>& queue = notes.lists[0];
    for (const JobIndex job : view.arrived) {
      load(view, view.jobs[job], notes.numbers);
      if (view.jobs[job].phase == JobPhase::kWaiting) insert(view, queue, job);
    }
    Draft draft{.view = view,
                .loads = notes.numbers,
                .plan = plan,
                .use = TenantUse{view, TenantUse::tenants(view, queue)}};
    std::erase_if(queue, [&](JobIndex job) { return draft.attempt(job); });
  }

 private:
  /// The cluster and the loads as the plan so far leaves them.
  struct Draft {
    const ClusterView& view;
    std::vector<double>& loads;
    ClusterPlan& plan;
    Cluster cluster{*view.cluster};
    MinimaDraft minima{*view.cluster};
    HostDraft hosts{*view.cluster};
    TenantUse use;

    /// Returns whether the job starts.
    bool attempt(JobIndex index) {
      const ClusterJob& job = view.jobs[index];
      if (job.gpus == 0) return without_gpus(index, job);
      return job.asked == AskedClass::kGuaranteed ? guaranteed(index, job)
                                                  : opportunistic(index, job);
    }

    [[nodiscard]] bool takes(const ClusterJob& job, NodeIndex node) const {
      const std::uint32_t type = cluster.nodes()[node].type;
      return (job.gpu_types == 0 || (job.gpu_types >> type & 1U) != 0) && hosts.has(job, node);
    }

    bool without_gpus(JobIndex index, const ClusterJob& job) {
      Placement parts = hosts.place(job);
      if (parts.empty()) return false;
      hosts.take(job, parts);
      const JobClass job_class =
          job.asked == AskedClass::kGuaranteed ? JobClass::kGuaranteed : JobClass::kOpportunistic;
      plan.decisions.push_back({index,
                                Action::kStart,
                                std::move(parts),
                                {"on the first node with its cores and memory"},
                                job_class});
      return true;
    }

    bool guaranteed(JobIndex index, const ClusterJob& job) {
      if (!use.has_room(job, job.gpus)) {
        give_up(index, job);
        return false;
      }
      Placement parts = job.reserved;
      const bool one_node = job.gpus <= view.cluster->nodes().front().gpus;
      if (one_node) {
        add_on_one_node(job, parts);
      } else {
        add_whole_nodes(job, parts);
      }
      const auto had = job.reserved.size();
      for (std::size_t i = had; i < parts.size(); ++i) {
        loads[cluster.index(parts[i].node, parts[i].gpu)] += kGuaranteedLoad - kIncomplete;
        cluster.reserve(parts[i].node, parts[i].gpu, index);
      }
      if (static_cast<std::int32_t>(parts.size()) < job.gpus) {
        if (parts.size() > had) {
          const Reason reason{"{:.0f} of {:.0f} GPUs are there",
                              {static_cast<double>(parts.size()), static_cast<double>(job.gpus)}};
          plan.decisions.push_back({index, Action::kReserve, std::move(parts), reason});
        }
        return false;
      }
      if (!hosts.has(job, parts)) return false;
      for (const GpuPart& part : parts) loads[cluster.index(part.node, part.gpu)] += kIncomplete;
      hosts.take(job, parts);
      use.start(job, false);
      minima.take(job, JobClass::kGuaranteed, parts);
      plan.decisions.push_back({index,
                                Action::kStart,
                                std::move(parts),
                                {"all of its GPUs are free of guaranteed jobs"}});
      return true;
    }

    /// What is reserved for it others may need to come within their quotas.
    void give_up(JobIndex index, const ClusterJob& job) {
      if (job.reserved.empty()) return;
      for (const GpuPart& part : job.reserved) {
        loads[cluster.index(part.node, part.gpu)] -= kGuaranteedLoad - kIncomplete;
        cluster.unreserve(part.node, part.gpu);
      }
      plan.decisions.push_back({index, Action::kReserve, {}, {"its tenant's quota is in use"}});
    }

    /// Adds open GPUs of a node, up to what the job asks for.
    void add_open(NodeIndex node, const ClusterJob& job, Placement& parts) const {
      if (!takes(job, node)) return;
      for (std::int32_t gpu = 0; gpu < cluster.nodes()[node].gpus; ++gpu) {
        if (static_cast<std::int32_t>(parts.size()) == job.gpus) return;
        if (!cluster.open(node, gpu)) continue;
        parts.push_back({.node = node, .gpu = static_cast<std::uint16_t>(gpu)});
      }
    }

    [[nodiscard]] std::int32_t open_on(NodeIndex node) const {
      std::int32_t open = 0;
      for (std::int32_t gpu = 0; gpu < cluster.nodes()[node].gpus; ++gpu) {
        open += cluster.open(node, gpu) ? 1 : 0;
      }
      return open;
    }

    /// The first node with enough, else the one with most: there it stays.
    void add_on_one_node(const ClusterJob& job, Placement& parts) const {
      if (!parts.empty()) {
        add_open(parts.front().node, job, parts);
        return;
      }
      NodeIndex best = kAnyNode;
      std::int32_t most = 0;
      for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
        const std::int32_t open = takes(job, node) ? open_on(node) : 0;
        if (open > most) {
          most = open;
          best = node;
        }
        if (open >= job.gpus) {
          best = node;
          break;
        }
      }
      if (best != kAnyNode) add_open(best, job, parts);
    }

    void add_whole_nodes(const ClusterJob& job, Placement& parts) const {
      for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
        if (static_cast<std::int32_t>(parts.size()) >= job.gpus) return;
        if (open_on(node) == cluster.nodes()[node].gpus) add_open(node, job, parts);
      }
    }

    bool opportunistic(JobIndex index, const ClusterJob& job) {
      std::vector<std::tuple<double, NodeIndex, std::uint16_t>> open;
      for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
        if (!takes(job, node)) continue;
        for (std::int32_t gpu = 0; gpu < cluster.nodes()[node].gpus; ++gpu) {
          const double load = loads[cluster.index(node, gpu)];
          const auto number = static_cast<std::uint16_t>(gpu);
          if (load >= kOpenBelow || !minima.fits(job, node, number)) continue;
          open.emplace_back(load, node, number);
        }
      }
      if (static_cast<std::int32_t>(open.size()) < job.gpus) return false;
      std::sort(open.begin(), open.end());
      Placement parts;
      for (std::int32_t i = 0; i < job.gpus; ++i) {
        const auto& [load, node, gpu] = open[static_cast<std::size_t>(i)];
        parts.push_back({.node = node, .gpu = gpu});
        loads[cluster.index(node, gpu)] += kOpportunisticLoad;
      }
      std::sort(parts.begin(), parts.end(),
                [](const GpuPart& a, const GpuPart& b) { return a.node < b.node; });
      hosts.take(job, parts);
      minima.take(job, JobClass::kOpportunistic, parts);
      plan.decisions.push_back({index,
                                Action::kStart,
                                std::move(parts),
                                {"on the least loaded GPUs, all below {:.1f}", {kOpenBelow}},
                                JobClass::kOpportunistic});
      return true;
    }
  };

  /// What a job that was there before a restart makes of the loads.
  static void load(const ClusterView& view, const ClusterJob& job, std::vector<double>& loads) {
    const double load =
        job.job_class == JobClass::kGuaranteed ? kGuaranteedLoad : kOpportunisticLoad;
    for (const GpuPart& part : job.placement) {
      loads[view.cluster->index(part.node, part.gpu)] += load;
    }
    for (const GpuPart& part : job.reserved) {
      loads[view.cluster->index(part.node, part.gpu)] += kGuaranteedLoad - kIncomplete;
    }
  }

  static void unload(const ClusterView& view, const ClusterJob& job, std::vector<double>& loads) {
    const double load =
        job.job_class == JobClass::kGuaranteed ? kGuaranteedLoad : kOpportunisticLoad;
    for (const GpuPart& part : job.placement) {
      loads[view.cluster->index(part.node, part.gpu)] -= load;
    }
  }

  /// Keeps the queue in the order of priority; equal ones as they came.
  static void insert(const ClusterView& view, std::vector<JobIndex>& queue, JobIndex job) {
    const auto at = std::upper_bound(queue.begin(), queue.end(), job, [&](JobIndex a, JobIndex b) {
      return view.jobs[a].priority < view.jobs[b].priority;
    });
    queue.insert(at, job);
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_muri_antman(Options& /*options*/) {
  return std::make_unique<MuriAntMan>();
}

}  // namespace commensal::policies

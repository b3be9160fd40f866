// SPDX-License-Identifier: Apache-2.0
// optimus+oracle: one GPU a job in the order of arrival; then one more, again and again, to the job
// whose remaining time it cuts most, while it cuts any. Who has as many GPUs as before stays; the
// others are placed anew, smallest first, from the freest node. Source: Optimus (EuroSys '18) as
// petuum/adaptdl, branch osdi21-artifact, simulates it for Pollux (simulator/optimus.py): step
// times and remaining steps are the true ones, and a job has no parameter servers.
#include <algorithm>
#include <queue>
#include <stdexcept>

#include "coordinator/policies/makers.h"
#include "coordinator/policies/scaling_model.h"

namespace commensal::policies {
namespace {

struct Share {
  JobIndex job;
  std::int32_t gpus;
  double gain;  ///< seconds that one more GPU would cut
};

/// The largest gain first; of equal ones, the first job.
struct LessUrgent {
  const std::vector<Share>& shares;
  bool operator()(std::size_t a, std::size_t b) const {
    return shares[a].gain < shares[b].gain || (shares[a].gain == shares[b].gain && a > b);
  }
};

double gain_of_one_more(const ClusterView& view, JobIndex index, std::int32_t gpus) {
  const ClusterJob& job = view.jobs[index];
  if (gpus >= job.max_gpus) return 0;
  const ScalingModel& scaling = *view.models.scaling;
  const auto now = scaling.step_seconds(job, gpus);
  const auto then = scaling.step_seconds(job, gpus + 1);
  if (!now || !then) return 0;
  return (*now - *then) * scaling.remaining_steps(job);
}

std::vector<Share> divide(const ClusterView& view, const std::vector<JobIndex>& jobs) {
  std::vector<Share> shares;
  std::int32_t left = view.cluster->total_gpus();
  for (const JobIndex job : jobs) {
    const std::int32_t first = std::min(left, 1);
    left -= first;
    shares.push_back({job, first, left > 0 ? gain_of_one_more(view, job, first) : 0});
  }
  std::priority_queue<std::size_t, std::vector<std::size_t>, LessUrgent> urgent(LessUrgent{shares});
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].gain > 0) urgent.push(i);
  }
  for (; left > 0 && !urgent.empty(); --left) {
    const std::size_t next = urgent.top();
    urgent.pop();
    Share& share = shares[next];
    ++share.gpus;
    share.gain = gain_of_one_more(view, share.job, share.gpus);
    if (share.gain > 0) urgent.push(next);
  }
  return shares;
}

class Optimus final : public ClusterPolicy {
 public:
  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    if (view.models.scaling == nullptr) {
      throw std::invalid_argument(
          "policy optimus+oracle needs step times by GPUs, which these jobs do not have");
    }
    notes.lists.resize(1);
    std::vector<JobIndex>& jobs = notes.lists[0];
    std::erase_if(jobs, [&](JobIndex job) { return view.jobs[job].phase == JobPhase::kEnded; });
    jobs.insert(jobs.end(), view.arrived.begin(), view.arrived.end());
    std::vector<Share> shares = divide(view, jobs);
    std::erase_if(shares,
                  [&](const Share& share) { return view.jobs[share.job].held() == share.gpus; });
    place(view, std::move(shares), plan);
  }

 private:
  void place(const ClusterView& view, std::vector<Share> shares, ClusterPlan& plan) const {
    Cluster free = *view.cluster;
    for (const Share& share : shares) {
      for (const GpuPart& part : held(view.jobs[share.job])) free.give(part);
    }
    std::stable_sort(shares.begin(), shares.end(),
                     [](const Share& a, const Share& b) { return a.gpus < b.gpus; });
    for (const Share& share : shares) {
      const bool runs = view.jobs[share.job].phase == JobPhase::kRunning;
      ClusterJob sized = view.jobs[share.job];
      sized.gpus = share.gpus;
      const auto placement = share.gpus > 0 ? placer_.place(free, sized) : std::nullopt;
      if (placement) {
        for (const GpuPart& part : *placement) free.take(part);
        plan.decisions.push_back({share.job,
                                  runs ? Action::kMove : Action::kStart,
                                  *placement,
                                  {"{:.0f} GPUs; one more would cut {:.0f} s",
                                   {static_cast<double>(share.gpus), share.gain}}});
      } else if (runs) {
        plan.decisions.push_back(
            {share.job, Action::kStop, {}, {"jobs that came before have taken all GPUs"}});
      }
    }
  }

  [[nodiscard]] static Placement held(const ClusterJob& job) {
    return job.phase == JobPhase::kRunning ? job.placement : Placement{};
  }

  MostFreePlacer placer_;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_optimus_oracle(Options& /*options*/) {
  return std::make_unique<Optimus>();
}

}  // namespace commensal::policies

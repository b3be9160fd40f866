// SPDX-License-Identifier: Apache-2.0
// optimus, optimus+oracle: one GPU a job in the order of arrival; then one more, again and again,
// to the job whose remaining time it cuts most, while it cuts any. Who has as many GPUs as before
// stays; the others are placed anew, smallest first, from the freest node. With the oracle, step
// times and remaining steps are the true ones and all is divided at each decision: as
// petuum/adaptdl, branch osdi21-artifact, simulates it for Pollux (simulator/optimus.py). Without,
// every ten minutes (but at once if nobody runs), by Optimus' own fits. Source: Optimus (EuroSys
// '18); a server stands beside each worker, so that all tasks to be added are alike and none takes
// more of the cluster than others.
#include <algorithm>
#include <queue>
#include <stdexcept>

#include "coordinator/policies/makers.h"
#include "coordinator/policies/optimus_estimates.h"

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

double gain_of_one_more(const ClusterView& view, const OptimusEstimates& estimates, JobIndex job,
                        std::int32_t gpus) {
  if (gpus >= view.jobs[job].max_gpus) return 0;
  const auto now = estimates.step_seconds(job, gpus);
  const auto then = estimates.step_seconds(job, gpus + 1);
  if (!now || !then) return 0;
  return (*now - *then) * estimates.remaining_steps(job) * estimates.trust(job);
}

std::vector<Share> divide(const ClusterView& view, const OptimusEstimates& estimates,
                          const std::vector<JobIndex>& jobs) {
  std::vector<Share> shares;
  std::int32_t left = view.cluster->total_gpus();
  for (const JobIndex job : jobs) {
    const std::int32_t first = std::min(left, 1);
    left -= first;
    shares.push_back({job, first, left > 0 ? gain_of_one_more(view, estimates, job, first) : 0});
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
    share.gain = gain_of_one_more(view, estimates, share.job, share.gpus);
    if (share.gain > 0) urgent.push(next);
  }
  return shares;
}

class Optimus final : public ClusterPolicy {
 public:
  struct Rule {
    bool oracle;
    double interval;   ///< seconds between two divisions; zero: at each decision
    double threshold;  ///< share of the largest loss; a job that gains less in an epoch is done
  };
  explicit Optimus(Rule rule) : rule_(rule) {}

  [[nodiscard]] bool adopts_running() const noexcept override { return true; }
  [[nodiscard]] std::string_view needs() const noexcept override {
    return "step times by numbers of GPUs";
  }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    if (view.models.scaling == nullptr) {
      throw std::invalid_argument(
          "policy optimus needs step times by GPUs, which these jobs do not have");
    }
    notes.lists.resize(1);
    std::vector<JobIndex>& jobs = notes.lists[0];
    std::erase_if(jobs, [&](JobIndex job) { return view.jobs[job].phase == JobPhase::kEnded; });
    jobs.insert(jobs.end(), view.arrived.begin(), view.arrived.end());
    if (waits(view, notes, plan)) return;
    const auto estimates =
        rule_.oracle ? true_estimates(view) : predicted_estimates(view, jobs, rule_.threshold);
    std::vector<Share> shares = divide(view, *estimates, jobs);
    std::erase_if(shares,
                  [&](const Share& share) { return view.jobs[share.job].held() == share.gpus; });
    place(view, std::move(shares), plan);
  }

 private:
  /// Whether it is not yet time to divide again; else notes down that it is.
  bool waits(const ClusterView& view, Notes& notes, ClusterPlan& plan) const {
    if (rule_.interval <= 0) return false;
    const bool first = notes.numbers.empty();
    notes.numbers.resize(1);
    const bool early = !first && view.now < notes.numbers[0] + rule_.interval;
    if (!early || view.running.empty()) notes.numbers[0] = view.now;
    plan.wake = notes.numbers[0] + rule_.interval;
    return early && !view.running.empty();
  }

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

  Rule rule_;
  MostFreePlacer placer_;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_optimus(Options& options) {
  const double interval = options.number("interval", 600);
  const double threshold = options.number("threshold", kOptimusThreshold);
  if (!(interval >= 0)) throw std::invalid_argument("option interval is negative");
  if (!(threshold > 0)) throw std::invalid_argument("option threshold is not above zero");
  return std::make_unique<Optimus>(
      Optimus::Rule{.oracle = false, .interval = interval, .threshold = threshold});
}

std::unique_ptr<ClusterPolicy> make_optimus_oracle(Options& /*options*/) {
  return std::make_unique<Optimus>(Optimus::Rule{.oracle = true, .interval = 0, .threshold = 0});
}

}  // namespace commensal::policies

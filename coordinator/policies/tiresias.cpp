// SPDX-License-Identifier: Apache-2.0
// tiresias: two queues by GPU-time so far, first come first served inside; a job falls to the
// second for good when it has had 57,600 GPU-seconds. All GPUs are handed out anew, queue by queue,
// by count; who does not fit is passed, who gets none is stopped, who is kept stays where it is.
// Source: Tiresias (NSDI '19) as petuum/adaptdl, branch osdi21-artifact, simulates it for Pollux
// (simulator/tiresias.py; starvation is not solved there, so nobody is promoted).
// Option `placement=skew`: skew_placement.h.
#include <algorithm>

#include "coordinator/policies/hand_out.h"
#include "coordinator/policies/makers.h"
#include "coordinator/policies/skew_placement.h"

namespace commensal::policies {
namespace {

constexpr double kLimitGpuSeconds = 16 * 3600;

class Tiresias final : public ClusterPolicy {
 public:
  explicit Tiresias(double limit) : limit_(limit) {}

  [[nodiscard]] bool adopts_running() const noexcept override { return true; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(2);
    notes.level.resize(view.jobs.size(), 0);
    for (auto& queue : notes.lists) {
      std::erase_if(queue, [&](JobIndex job) { return view.jobs[job].phase == JobPhase::kEnded; });
    }
    notes.lists[0].insert(notes.lists[0].end(), view.arrived.begin(), view.arrived.end());
    demote(view, notes);
    HandOut hand_out(view, notes, HandOut::Mode::kAnew);
    for (std::size_t level = 0; level < notes.lists.size(); ++level) {
      for (const JobIndex job : notes.lists[level]) {
        if (hand_out.exhausted()) break;
        const Reason reason{"in queue {:.0f} of two, with {:.0f} GPU-seconds so far",
                            {static_cast<double>(level), service(view.jobs[job])}};
        if (hand_out.offer(job, reason) && level == 0) {
          plan.wake = std::min(plan.wake, crossing(view, job));
        }
      }
    }
    hand_out.finish({"jobs with less service so far need all GPUs"}, plan);
  }

 private:
  [[nodiscard]] static double service(const ClusterJob& job) { return job.attained * job.gpus; }

  [[nodiscard]] Time crossing(const ClusterView& view, JobIndex index) const {
    const ClusterJob& job = view.jobs[index];
    return view.now + std::max(0.0, limit_ / std::max(1, job.gpus) - job.attained);
  }

  /// In the order of arrival, to the tail of the second queue.
  void demote(const ClusterView& view, Notes& notes) const {
    std::vector<JobIndex> due;
    std::erase_if(notes.lists[0], [&](JobIndex job) {
      if (service(view.jobs[job]) < limit_) return false;
      due.push_back(job);
      return true;
    });
    std::sort(due.begin(), due.end());
    notes.lists[1].insert(notes.lists[1].end(), due.begin(), due.end());
    for (const JobIndex job : due) notes.level[job] = 1;
  }

  double limit_;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_tiresias(Options& options) {
  return with_placement(options,
                        std::make_unique<Tiresias>(options.number("limit", kLimitGpuSeconds)));
}

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// las and 2d-las: least attained service first, in three queues with limits of 3250 and 7200
// (seconds for las, GPU-seconds for 2d-las), first come first served inside. All GPUs are handed
// out anew at each event, queue by queue; who does not fit is passed; who gets none is stopped.
// Source: Tiresias (NSDI '19), 2D-LAS; rules of SymbioticLab/Tiresias, simulator (`dlas`,
// `dlas-gpu`). Option `placement=skew`: skew_placement.h.
#include <algorithm>

#include "coordinator/policies/attained_service.h"
#include "coordinator/policies/hand_out.h"
#include "coordinator/policies/makers.h"
#include "coordinator/policies/skew_placement.h"

namespace commensal::policies {
namespace {

constexpr std::size_t kFallen = ServiceQueues::kQueues;  // the list of those that fell last time

void remove_from(std::vector<JobIndex>& list, JobIndex job) {
  list.erase(std::find(list.begin(), list.end(), job));
}

class LeastAttainedService final : public ClusterPolicy {
 public:
  explicit LeastAttainedService(ServiceQueues queues) : queues_(queues) {}

  [[nodiscard]] bool adopts_running() const noexcept override { return true; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(ServiceQueues::kQueues + 1);
    notes.level.resize(view.jobs.size(), 0);
    for (const JobIndex job : view.ended) remove_from(notes.lists[notes.level[job]], job);
    for (const JobIndex job : view.arrived) {
      notes.level[job] = queues_.level_of(view.jobs[job]);
      notes.lists[notes.level[job]].push_back(job);
    }
    queues_.demote(view, notes, kFallen, [&](JobIndex job, std::size_t from) {
      remove_from(notes.lists[from], job);
      notes.lists[from + 1].push_back(job);
    });

    HandOut hand_out(view, notes, HandOut::Mode::kAnew);
    std::vector<JobIndex> run;
    for (std::size_t level = 0; level < ServiceQueues::kQueues; ++level) {
      fill(view, notes, level, hand_out, run);
    }
    hand_out.finish({"jobs with less service so far need all GPUs"}, plan);
    plan.wake = queues_.next_crossing(view, notes, run);
  }

 private:
  /// Offers GPUs to a queue; then those that run stand before those that do not.
  void fill(const ClusterView& view, Notes& notes, std::size_t level, HandOut& hand_out,
            std::vector<JobIndex>& run) const {
    std::vector<JobIndex>& queue = notes.lists[level];
    std::vector<JobIndex> passed;
    std::size_t kept = 0;
    std::size_t next = 0;
    for (; next < queue.size() && !hand_out.exhausted(); ++next) {
      const JobIndex job = queue[next];
      const Reason reason{"in queue {:.0f} of three, with {:.0f} (GPU-)seconds so far",
                          {static_cast<double>(level), queues_.service(view.jobs[job])}};
      if (hand_out.offer(job, reason)) {
        queue[kept++] = job;
        run.push_back(job);
      } else {
        passed.push_back(job);
      }
    }
    std::copy(passed.begin(), passed.end(), queue.begin() + static_cast<std::ptrdiff_t>(kept));
  }

  ServiceQueues queues_;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_las(Options& options) {
  return with_placement(
      options, std::make_unique<LeastAttainedService>(read_service_queues(options, false)));
}

std::unique_ptr<ClusterPolicy> make_2d_las(Options& options) {
  return with_placement(options,
                        std::make_unique<LeastAttainedService>(read_service_queues(options, true)));
}

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// largest-first: of the jobs that wait, most GPUs first, equal ones in the order of arrival; who
// does not fit is passed, nobody is stopped. Source: first-fit decreasing, as for bins.
#include <algorithm>

#include "coordinator/policies/hand_out.h"
#include "coordinator/policies/makers.h"

namespace commensal::policies {
namespace {

class LargestFirst final : public ClusterPolicy {
 public:
  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(1);
    std::vector<JobIndex>& queue = notes.lists[0];
    queue.insert(queue.end(), view.arrived.begin(), view.arrived.end());
    std::stable_sort(queue.begin(), queue.end(),
                     [&](JobIndex a, JobIndex b) { return view.jobs[a].gpus > view.jobs[b].gpus; });
    HandOut hand_out(view, notes, HandOut::Mode::kFree);
    std::erase_if(queue, [&](JobIndex job) {
      const auto gpus = static_cast<double>(view.jobs[job].gpus);
      return hand_out.offer(job, {"of those that fit it asks for most GPUs: {:.0f}", {gpus}});
    });
    hand_out.finish({}, plan);
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_largest_first(Options& /*options*/) {
  return std::make_unique<LargestFirst>();
}

}  // namespace commensal::policies

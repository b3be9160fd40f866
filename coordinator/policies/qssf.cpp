// SPDX-License-Identifier: Apache-2.0
// qssf: quasi-shortest-service-first. Least predicted GPU-time first, head of line, nobody is
// stopped. A job is given its priority, predicted duration x GPUs, once: when it waits in a queue
// in which somebody waited before. Those who find the queue empty are served by GPUs, fewest first;
// who is left of them is estimated a second later. Jobs of equal priority come by GPUs, then in
// their order. Source: Helios (SC '21); S-Lab-System-Group/HeliosArtifact, QSSF Service, `qssf`.
#include <algorithm>
#include <utility>

#include "coordinator/policies/hand_out.h"
#include "coordinator/policies/makers.h"

namespace commensal::policies {
namespace {

constexpr double kNotYet = -1;  // before the priority of any job that is estimated

class QuasiShortestServiceFirst final : public ClusterPolicy {
 public:
  [[nodiscard]] bool reads_progress() const noexcept override { return false; }
  [[nodiscard]] std::string_view predictor() const noexcept override { return "qssf"; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(1);
    notes.numbers.resize(view.jobs.size(), kNotYet);
    std::vector<JobIndex>& queue = notes.lists[0];
    queue_up(view, notes, queue);
    HandOut hand_out(view, notes, HandOut::Mode::kFree);
    const auto placed = std::find_if_not(queue.begin(), queue.end(), [&](JobIndex job) {
      const double service = notes.numbers[job];
      const auto gpus = static_cast<double>(view.jobs[job].gpus);
      return hand_out.offer(job, service == kNotYet
                                     ? Reason{"nobody waited; fewest GPUs: {:.0f}", {gpus}}
                                     : Reason{"least predicted service: {:.0f} GPU-s", {service}});
    });
    queue.erase(queue.begin(), placed);
    hand_out.finish({}, plan);
    if (!queue.empty() && notes.numbers[queue.front()] == kNotYet) plan.wake = view.now + 1;
  }

 private:
  /// Puts who has arrived behind all that come before them or are equal.
  static void queue_up(const ClusterView& view, Notes& notes, std::vector<JobIndex>& queue) {
    const auto key = [&](JobIndex job) {
      return std::pair{notes.numbers[job], view.jobs[job].gpus};
    };
    const auto before = [&](JobIndex a, JobIndex b) { return key(a) < key(b); };
    const auto estimate = [&](JobIndex job) {
      notes.numbers[job] = view.jobs[job].duration * view.jobs[job].gpus;
    };
    const bool waited = !queue.empty();
    if (waited && notes.numbers[queue.front()] == kNotYet) {
      std::for_each(queue.begin(), queue.end(), estimate);
      std::stable_sort(queue.begin(), queue.end(), before);
    }
    for (const JobIndex job : view.arrived) {
      if (waited) estimate(job);
      queue.insert(std::upper_bound(queue.begin(), queue.end(), job, before), job);
    }
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_qssf(Options& /*options*/) {
  return std::make_unique<QuasiShortestServiceFirst>();
}

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// srtf, srsf, smallest-first: all GPUs are handed out anew at each event, to the jobs with the
// least remaining time, remaining GPU-time, or GPUs; who gets none is stopped. sjf: the shortest
// duration first, head of line, nobody is stopped. Sources: SymbioticLab/Tiresias, simulator
// (`shortest`, `shortest-gpu`, `sjf`); Helios' artifact (`srtf`, `sjf`); Muri's simulator. Option
// `placement=skew`: skew_placement.h.
#include <tuple>

#include "coordinator/policies/hand_out.h"
#include "coordinator/policies/kept_order.h"
#include "coordinator/policies/makers.h"
#include "coordinator/policies/skew_placement.h"

namespace commensal::policies {
namespace {

double remaining_time(const ClusterJob& job) { return job.remaining; }
double remaining_service(const ClusterJob& job) { return job.remaining * job.gpus; }
double size(const ClusterJob& job) { return job.gpus; }
double duration(const ClusterJob& job) { return job.duration; }

bool in_place(JobIndex /*job*/) { return false; }

struct Rule {
  double (*key)(const ClusterJob&);
  std::string_view reason;
};

/// Preemptive: sorted by a key that does not change while a job waits. Equal ones keep the order of
/// the last time; or (Helios) come in the order of the queue, and then in that of their starts.
class LeastFirst final : public ClusterPolicy {
 public:
  LeastFirst(Rule rule, Options& options)
      : rule_(rule), by_queue_(options.choice("ties", "kept", {"kept", "queue"}) == "queue") {}

  [[nodiscard]] bool adopts_running() const noexcept override { return true; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(3);
    KeptOrder<Key> order(notes.lists[0], notes.lists[1]);
    const auto key_of = [&](JobIndex index) {
      const ClusterJob& job = view.jobs[index];
      return by_queue_ ? Key{rule_.key(job), job.phase == JobPhase::kRunning, job.turn}
                       : Key{rule_.key(job), false, 0};
    };
    order.forget_ended(view);
    // Being stopped may have cost them time.
    for (const JobIndex job : notes.lists[kStopped]) {
      order.remove(job);
      order.append(job, key_of);
    }
    for (const JobIndex job : view.arrived) order.append(job, key_of);
    HandOut hand_out(view, notes, HandOut::Mode::kAnew);
    order.walk(key_of, in_place, [&](JobIndex job) {
      hand_out.offer(job, {rule_.reason, {rule_.key(view.jobs[job])}});
      return !hand_out.exhausted();
    });
    hand_out.finish({"others come first, and together they need all GPUs"}, plan);
    notes.lists[kStopped].clear();
    if (!by_queue_) return;
    for (const Decision& decision : plan.decisions) {
      if (decision.action == Action::kStop) notes.lists[kStopped].push_back(decision.job);
    }
  }

 private:
  static constexpr std::size_t kStopped = 2;
  using Key = std::tuple<double, bool, std::uint64_t>;

  Rule rule_;
  bool by_queue_;
};

class ShortestJobFirst final : public ClusterPolicy {
 public:
  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(2);
    KeptOrder<double> order(notes.lists[0], notes.lists[1]);
    const auto key_of = [&](JobIndex job) { return duration(view.jobs[job]); };
    for (const JobIndex job : view.arrived) order.append(job, key_of);
    HandOut hand_out(view, notes, HandOut::Mode::kFree);
    order.walk(key_of, in_place, [&](JobIndex job) {
      return hand_out.offer(job, {"shortest in the queue: {:.0f} s", {key_of(job)}});
    });
    std::erase_if(notes.lists[0], [&](JobIndex job) { return notes.mark[job] == notes.decisions; });
    hand_out.finish({}, plan);
  }
};

std::unique_ptr<ClusterPolicy> least_first(const Rule& rule, Options& options) {
  return with_placement(options, std::make_unique<LeastFirst>(rule, options));
}

}  // namespace

std::unique_ptr<ClusterPolicy> make_srtf(Options& options) {
  return least_first({remaining_time, "least remaining: {:.0f} s"}, options);
}

std::unique_ptr<ClusterPolicy> make_srsf(Options& options) {
  return least_first({remaining_service, "least remaining: {:.0f} GPU-s"}, options);
}

std::unique_ptr<ClusterPolicy> make_smallest_first(Options& options) {
  return least_first({size, "fewest GPUs: {:.0f}"}, options);
}

std::unique_ptr<ClusterPolicy> make_sjf(Options& /*options*/) {
  return std::make_unique<ShortestJobFirst>();
}

}  // namespace commensal::policies

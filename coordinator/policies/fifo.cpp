// SPDX-License-Identifier: Apache-2.0
// fifo and fit-first: in the order of arrival. Head of line: the first that does not fit stops the
// queue; fit-first passes it. Source: SymbioticLab/Tiresias, simulator (`fifo`, `fjf`); Helios'
// artifact (`fifo`). Option `types=agnostic|aware`: Gavel's, for GPUs of several types (gavel.cpp).
#include <algorithm>

#include "coordinator/policies/hand_out.h"
#include "coordinator/policies/makers.h"

namespace commensal::policies {
namespace {

class Fifo final : public ClusterPolicy {
 public:
  explicit Fifo(bool passes) : passes_(passes) {}

  [[nodiscard]] bool reads_progress() const noexcept override { return false; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(1);
    std::vector<JobIndex>& queue = notes.lists[0];
    queue.insert(queue.end(), view.arrived.begin(), view.arrived.end());
    HandOut hand_out(view, notes, HandOut::Mode::kFree);
    std::size_t next = 0;
    std::vector<JobIndex> passed;
    for (; next < queue.size() && !hand_out.exhausted(); ++next) {
      const Reason reason{passes_ ? "first in the queue that fits into {:.0f} GPUs"
                                  : "first in the queue, and fits into {:.0f} GPUs",
                          {static_cast<double>(hand_out.budget())}};
      if (hand_out.offer(queue[next], reason)) continue;
      if (!passes_) break;
      passed.push_back(queue[next]);
    }
    // Who was passed stays in front of those who were not reached.
    std::copy(passed.rbegin(), passed.rend(), queue.rend() - static_cast<std::ptrdiff_t>(next));
    queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(next - passed.size()));
    hand_out.finish({}, plan);
  }

 private:
  bool passes_;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_fifo(Options& options) {
  const std::string types = options.choice("types", "alike", {"alike", "agnostic", "aware"});
  if (types != "alike") return make_gavel_fifo(types == "aware", options);
  return std::make_unique<Fifo>(false);
}

std::unique_ptr<ClusterPolicy> make_fit_first(Options& /*options*/) {
  return std::make_unique<Fifo>(true);
}

}  // namespace commensal::policies

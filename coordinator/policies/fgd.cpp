// SPDX-License-Identifier: Apache-2.0
// fgd: fragmentation gradient descent. A job goes where, and to the GPU on which, the fragment of
// the node grows least for what jobs usually ask for. Points are the sigmoid of the decrease in
// GPUs, in whole hundredths; the lowest node, and the lowest GPU, among equals. Source: Weng et
// al., "Beware of Fragmentation", ATC'23, and hkust-adsl/kubernetes-scheduler-simulator
// (`FGDScore`). What jobs usually ask for is given, or counted from those that have arrived.
#include <algorithm>
#include <cmath>
#include <optional>

#include "coordinator/policies/makers.h"
#include "coordinator/policies/packing.h"
#include "coordinator/policies/typical_jobs.h"

namespace commensal::policies {
namespace {

constexpr double kMostScore = 100;

class Fgd final : public PackingRule {
 public:
  explicit Fgd(const TypicalJobs& typical) : typical_(typical) {}

  std::int64_t score(const NodeRoom& node, JobIndex /*index*/, const ClusterJob& job) override {
    return best(node, job).points;
  }

  std::uint16_t part_of(const NodeRoom& node, JobIndex /*index*/, const ClusterJob& job) override {
    return best(node, job).gpu;
  }

  [[nodiscard]] std::string_view why() const override {
    return "{:.0f} points for a small fragment left, the most of {:.0f} nodes";
  }

 private:
  struct Choice {
    std::int64_t points = -1;
    std::uint16_t gpu = kHostOnly;
  };

  Choice best(const NodeRoom& node, const ClusterJob& job) {
    typical_.weigh(node.type, node.cpu_milli, weights_);
    const std::int64_t before = typical_.fragment(node.gpus, weights_);
    if (node.cpu_milli != kUncounted) {
      typical_.weigh(node.type, node.cpu_milli - job.cpu_milli, weights_);
    }
    left_.assign(node.gpus.begin(), node.gpus.end());
    if (!asks_for_part(job)) {
      std::int32_t missing = job.gpus;
      for (std::size_t gpu = 0; missing > 0 && gpu < left_.size(); ++gpu) {
        if (left_[gpu] < job.gpu_milli) continue;
        left_[gpu] -= job.gpu_milli;
        --missing;
      }
      return {points(before - typical_.fragment(left_, weights_)), kHostOnly};
    }
    Choice choice;
    for (std::size_t gpu = 0; gpu < left_.size(); ++gpu) {
      if (left_[gpu] < job.gpu_milli || seen_before(gpu)) continue;
      left_[gpu] -= job.gpu_milli;
      const std::int64_t here = points(before - typical_.fragment(left_, weights_));
      left_[gpu] += job.gpu_milli;
      if (here > choice.points) choice = {here, static_cast<std::uint16_t>(gpu)};
    }
    return choice;
  }

  /// Whether a lower GPU has as much left: it would be chosen before this one.
  [[nodiscard]] bool seen_before(std::size_t gpu) const {
    for (std::size_t lower = 0; lower < gpu; ++lower) {
      if (left_[lower] == left_[gpu]) return true;
    }
    return false;
  }

  [[nodiscard]] std::int64_t points(std::int64_t decrease) const {
    const double gpus =
        static_cast<double>(decrease) /
        (static_cast<double>(std::max<std::int64_t>(1, typical_.weight())) * kWholeGpu);
    return static_cast<std::int64_t>(kMostScore / (1.0 + std::exp(-gpus)));
  }

  const TypicalJobs& typical_;
  TypicalJobs::Weights weights_;
  std::vector<std::int32_t> left_;
};

class FgdPolicy final : public ClusterPolicy {
 public:
  [[nodiscard]] bool reads_progress() const noexcept override { return false; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    std::optional<TypicalJobs> counted;
    if (view.models.typical == nullptr) counted.emplace(count(view, notes));
    Fgd rule(counted ? *counted : *view.models.typical);
    pack(view, notes, rule, plan);
  }

 private:
  /// List 1 of the notes has a job for each request that was seen, `numbers` how often.
  static TypicalJobs count(const ClusterView& view, Notes& notes) {
    notes.lists.resize(2);
    std::vector<JobIndex>& samples = notes.lists[1];
    for (const JobIndex job : view.arrived) {
      std::size_t known = 0;
      while (known < samples.size() &&
             request_of(view.jobs[samples[known]]) != request_of(view.jobs[job])) {
        ++known;
      }
      if (known == samples.size()) {
        samples.push_back(job);
        notes.numbers.push_back(0);
      }
      ++notes.numbers[known];
    }
    std::vector<std::pair<TypicalRequest, std::int64_t>> requests;
    requests.reserve(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      requests.emplace_back(request_of(view.jobs[samples[i]]),
                            static_cast<std::int64_t>(notes.numbers[i]));
    }
    return TypicalJobs(std::move(requests));
  }
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_fgd(Options& /*options*/) {
  return std::make_unique<FgdPolicy>();
}

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// 2d-gittins: the queues of 2d-las; inside a queue, first who will most likely finish soon, judged
// from the GPU-times of past jobs: P(finish within D | a) / E[min(remaining, D) | a] with D = 3250
// GPU-s. Ranks are refreshed at each event. Source: Tiresias (NSDI '19), 2D-Gittins; rules of
// SymbioticLab/Tiresias, simulator (`dlas-gpu-gittins`). Option `placement=skew`: skew_placement.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "coordinator/policies/attained_service.h"
#include "coordinator/policies/gittins_samples.h"
#include "coordinator/policies/hand_out.h"
#include "coordinator/policies/kept_order.h"
#include "coordinator/policies/makers.h"
#include "coordinator/policies/skew_placement.h"

namespace commensal::policies {
namespace {

constexpr double kDelta = 3250;
constexpr std::size_t kDemoted = 2 * ServiceQueues::kQueues;

double round_to(double value, double digits) { return std::nearbyint(value * digits) / digits; }

/// Ranks by service, from sorted samples.
class GittinsTable {
 public:
  explicit GittinsTable(std::span<const double> samples) : samples_(samples) {
    const std::size_t n = samples.size();
    std::vector<double> sums(n + 1, 0);  // of the first i
    for (std::size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + samples[i];
    for (const double sample : samples) {
      const double a = sample - 1;
      const std::size_t i = first_above(a);
      const std::size_t j = a + kDelta > samples.back() - 1 ? n - 1 : first_above(a + kDelta);
      const double p = round_to(static_cast<double>(j - i) / static_cast<double>(n - i), 1e5);
      const double expected = std::floor((sums[j] - sums[i] + kDelta * static_cast<double>(n - j)) /
                                         static_cast<double>(n - i));
      ranks_.push_back(round_to(1e6 * p / expected, 1e4));
    }
    begin_.assign(bin_of(samples.back()) + 1, n);
    for (std::size_t i = n; i-- > 0;) begin_[bin_of(samples[i])] = i;
    for (std::size_t bin = begin_.size() - 1; bin-- > 0;) {
      begin_[bin] = std::min(begin_[bin], begin_[bin + 1]);
    }
  }

  [[nodiscard]] double rank(double service) const {
    if (service >= samples_.back()) return 0;
    std::size_t i = begin_[bin_of(service)];
    while (samples_[i] <= service) ++i;
    return ranks_[i];
  }

 private:
  [[nodiscard]] std::size_t first_above(double value) const {
    return static_cast<std::size_t>(std::upper_bound(samples_.begin(), samples_.end(), value) -
                                    samples_.begin());
  }

  /// Sixty-four equal bins from each power of two to the next, from 1 on.
  [[nodiscard]] static std::size_t bin_of(double value) noexcept {
    constexpr unsigned kShift = std::numeric_limits<double>::digits - 1 - 6;
    const auto bits = std::bit_cast<std::uint64_t>(std::max(value, 1.0));
    return static_cast<std::size_t>((bits >> kShift) -
                                    (std::bit_cast<std::uint64_t>(1.0) >> kShift));
  }

  std::span<const double> samples_;
  std::vector<double> ranks_;       // of the samples
  std::vector<std::size_t> begin_;  // by bin: no sample before it is above a value of the bin
};

/// Largest rank first, then the earliest.
using Key = std::pair<double, double>;

class Gittins final : public ClusterPolicy {
 public:
  explicit Gittins(ServiceQueues queues) : queues_(queues), table_(kGittinsSamples) {}

  [[nodiscard]] bool adopts_running() const noexcept override { return true; }

  void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const override {
    notes.lists.resize(kDemoted + 1);
    notes.level.resize(view.jobs.size(), 0);
    const auto key_of = [&](JobIndex index) {
      const ClusterJob& job = view.jobs[index];
      return Key{-table_.rank(queues_.service(job)), job.submit};
    };
    // After a decision those that run stand before those that do not.
    const auto behind = [&](JobIndex job) { return view.jobs[job].phase != JobPhase::kRunning; };
    const auto order = [&](std::size_t level) {
      return KeptOrder<Key>(notes.lists[2 * level], notes.lists[2 * level + 1]);
    };
    for (std::size_t level = 0; level < ServiceQueues::kQueues; ++level) {
      order(level).forget_ended(view);
    }
    for (const JobIndex job : view.arrived) {
      notes.level[job] = queues_.level_of(view.jobs[job]);
      order(notes.level[job]).append(job, key_of);
    }
    queues_.demote(view, notes, kDemoted, [&](JobIndex job, std::size_t from) {
      order(from).remove(job);
      order(from + 1).append(job, key_of);
    });

    HandOut hand_out(view, notes, HandOut::Mode::kAnew);
    std::vector<JobIndex> run;
    for (std::size_t level = 0; level < ServiceQueues::kQueues && !hand_out.exhausted(); ++level) {
      order(level).walk(key_of, behind, [&](JobIndex job) {
        const Reason reason{"in queue {:.0f} of three, with rank {:.4f}",
                            {static_cast<double>(level), -key_of(job).first}};
        if (hand_out.offer(job, reason)) run.push_back(job);
        return !hand_out.exhausted();
      });
    }
    hand_out.finish({"jobs that finish sooner by their rank need all GPUs"}, plan);
    plan.wake = queues_.next_crossing(view, notes, run);
  }

 private:
  ServiceQueues queues_;
  GittinsTable table_;
};

}  // namespace

std::unique_ptr<ClusterPolicy> make_gittins(Options& options) {
  return with_placement(options, std::make_unique<Gittins>(read_service_queues(options, true)));
}

}  // namespace commensal::policies

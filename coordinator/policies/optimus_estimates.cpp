// SPDX-License-Identifier: Apache-2.0
// True times from the view's models, predicted ones from Optimus' fits.
#include "coordinator/policies/optimus_estimates.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "coordinator/policies/scaling_model.h"
#include "coordinator/prediction/optimus_fits.h"

namespace commensal::policies {
namespace {

constexpr std::array<std::int32_t, 4> kTried{1, 2, 4, 8};
constexpr double kYoungEpochs = 10;
constexpr double kYoungTrust = 0.95;

class True final : public OptimusEstimates {
 public:
  explicit True(const ClusterView& view) : view_(view) {}

  [[nodiscard]] std::optional<double> step_seconds(JobIndex job, std::int32_t gpus) const override {
    return view_.models.scaling->step_seconds(view_.jobs[job], gpus);
  }
  [[nodiscard]] double remaining_steps(JobIndex job) const override {
    return view_.models.scaling->remaining_steps(view_.jobs[job]);
  }
  [[nodiscard]] double trust(JobIndex /*job*/) const override { return 1; }

 private:
  const ClusterView& view_;
};

class Predicted final : public OptimusEstimates {
 public:
  Predicted(const ClusterView& view, const std::vector<JobIndex>& jobs, double threshold) {
    for (const JobIndex job : jobs) {
      known_.emplace(job, predict(*view.models.scaling, view.jobs[job], threshold));
    }
  }

  [[nodiscard]] std::optional<double> step_seconds(JobIndex job, std::int32_t gpus) const override {
    const Known& known = known_.at(job);
    if (!known.speed) return std::nullopt;
    const auto count = static_cast<double>(gpus);
    return known.speed->seconds({.workers = count, .servers = count, .batch = known.batch});
  }
  [[nodiscard]] double remaining_steps(JobIndex job) const override {
    return known_.at(job).remaining_steps;
  }
  [[nodiscard]] double trust(JobIndex job) const override { return known_.at(job).trust; }

 private:
  struct Known {
    std::optional<prediction::SpeedFit> speed;
    double batch = 1;
    double remaining_steps = 1;
    double trust = 1;
  };

  [[nodiscard]] static Known predict(const ScalingModel& scaling, const ClusterJob& job,
                                     double threshold) {
    Known known;
    known.batch = scaling.batch(job);
    std::vector<prediction::SpeedPoint> tried;
    for (const std::int32_t gpus : kTried) {
      const auto seconds = scaling.step_seconds(job, gpus);
      const auto count = static_cast<double>(gpus);
      if (seconds) tried.push_back({count, count, known.batch, *seconds});
    }
    if (!tried.empty()) known.speed.emplace(prediction::Training::kSynchronous, tried);
    const auto losses = scaling.losses(job);
    const double epoch_steps = scaling.epoch_steps(job);
    const auto curve = prediction::LossCurve::fit(losses);
    if (curve) {
      known.remaining_steps =
          std::max(1.0, curve->steps_until_flat(losses.back().step, epoch_steps, threshold));
    } else {
      known.remaining_steps = kYoungEpochs * epoch_steps;
      known.trust = kYoungTrust;
    }
    return known;
  }

  std::unordered_map<JobIndex, Known> known_;
};

}  // namespace

std::unique_ptr<OptimusEstimates> true_estimates(const ClusterView& view) {
  return std::make_unique<True>(view);
}

std::unique_ptr<OptimusEstimates> predicted_estimates(const ClusterView& view,
                                                      const std::vector<JobIndex>& jobs,
                                                      double threshold) {
  return std::make_unique<Predicted>(view, jobs, threshold);
}

}  // namespace commensal::policies

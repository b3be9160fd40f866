// SPDX-License-Identifier: Apache-2.0
// What Optimus goes by: how long jobs take with more GPUs, true or predicted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// Share of the largest loss: a job whose loss falls by less in an epoch is done.
inline constexpr double kOptimusThreshold = 0.01;

/// Of the jobs of one view. Lives for one decision.
class OptimusEstimates {
 public:
  virtual ~OptimusEstimates() = default;

  /// Seconds of one step on so many GPUs; nothing if nothing can be said.
  [[nodiscard]] virtual std::optional<double> step_seconds(JobIndex job,
                                                           std::int32_t gpus) const = 0;
  [[nodiscard]] virtual double remaining_steps(JobIndex job) const = 0;

  /// By how much a gain counts: less than one where little is known yet.
  [[nodiscard]] virtual double trust(JobIndex job) const = 0;
};

/// The truth.
[[nodiscard]] std::unique_ptr<OptimusEstimates> true_estimates(const ClusterView& view);

/// Optimus' predictions for `jobs`. Speed: a fit to one step each with 1, 2, 4 and 8 GPUs, every
/// GPU being a worker with a server beside it. Convergence: a fit to the losses so far; a job is
/// done when they fall by less than `threshold` of the largest in an epoch. A job with too few
/// epochs for a curve counts as having ten more, and its gain counts 0.95.
[[nodiscard]] std::unique_ptr<OptimusEstimates> predicted_estimates(
    const ClusterView& view, const std::vector<JobIndex>& jobs, double threshold);

}  // namespace commensal::policies

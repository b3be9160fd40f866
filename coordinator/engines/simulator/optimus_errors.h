// SPDX-License-Identifier: Apache-2.0
// How far Optimus' predictions were from the truth, by how much of a job is done.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/scaling_model.h"
#include "coordinator/prediction/prediction_errors.h"

namespace commensal::simulator {

/// Predicts, as the policy does, the steps that a running job has left and the time of its step on
/// the GPUs that it holds: once at each of its epochs, from the epochs before. Thread safety: none.
class OptimusErrors {
 public:
  /// @param threshold  the policy's option.
  OptimusErrors(const policies::ScalingModel& scaling, double threshold)
      : scaling_(scaling), threshold_(threshold) {}

  /// Looks at the running jobs after a decision.
  void look(policies::ClusterState& state);

  /// Of steps that are left; keys are quarters of the job. A job of which too few losses are known
  /// for a curve is not predicted from jobs alike, but given ten epochs more.
  [[nodiscard]] const prediction::PredictionErrors& steps_left() const noexcept { return left_; }
  /// Of step times.
  [[nodiscard]] const prediction::PredictionErrors& step_times() const noexcept { return times_; }

 private:
  const policies::ScalingModel& scaling_;
  double threshold_;
  std::vector<std::int32_t> next_epoch_;  // by job: the first that was not looked at
  prediction::PredictionErrors left_;
  prediction::PredictionErrors times_{1e-9};  // seconds
};

}  // namespace commensal::simulator

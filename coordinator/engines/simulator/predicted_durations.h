// SPDX-License-Identifier: Apache-2.0
// Shows policies predicted durations in place of the true ones, and keeps how far off they were.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/engines/simulator/semantics.h"
#include "coordinator/prediction/duration_predictor.h"
#include "coordinator/prediction/prediction_errors.h"

namespace commensal::simulator {

/// `duration` and `remaining` of the jobs that policies see; the engine goes by `Work`, which stays
/// true. A job is predicted once, when it arrives, from what has ended by then; it keeps that, so
/// that the order of a queue does not change by itself. One that has run for as long as predicted
/// has zero seconds left until it ends. Lives for one run. Thread safety: none.
class PredictedDurations {
 public:
  explicit PredictedDurations(std::string_view predictor);

  /// Predicts the duration of a job that has just arrived; jobs arrive in the order of their index.
  void arrive(ClusterJob& job, const Work& work);

  /// Puts what is left by the prediction in place of what is left in truth.
  void show(policies::JobIndex index, ClusterJob& job, const Work& work) const;

  /// Learns from a job that has ended.
  void end(policies::JobIndex index);

  [[nodiscard]] const std::string& predictor() const noexcept { return name_; }
  /// Errors of the jobs that have ended.
  [[nodiscard]] const prediction::PredictionErrors& errors() const noexcept { return errors_; }

 private:
  struct Known {
    prediction::Submission submission;
    prediction::Prediction prediction;
    double truth = 0;         ///< seconds
    double unit_seconds = 1;  ///< of its work, when it arrived
  };

  std::string name_;
  std::unique_ptr<prediction::DurationPredictor> predictor_;
  std::vector<Known> jobs_;
  prediction::PredictionErrors errors_;
};

/// Makes them by name: nothing for `truth`.
/// @throws std::invalid_argument for a name that does not exist, with the nearest; and for
/// semantics in which jobs have no duration of their own.
[[nodiscard]] std::unique_ptr<PredictedDurations> make_predicted(std::string_view name,
                                                                 const Semantics& semantics);

}  // namespace commensal::simulator

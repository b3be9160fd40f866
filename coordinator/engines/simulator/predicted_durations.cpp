// SPDX-License-Identifier: Apache-2.0
// Predictions at arrival, errors at the end.
#include "coordinator/engines/simulator/predicted_durations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "coordinator/policies/nearest_name.h"

namespace commensal::simulator {

PredictedDurations::PredictedDurations(std::string_view predictor)
    : name_(predictor), predictor_(prediction::make_predictor(predictor)) {}

void PredictedDurations::arrive(ClusterJob& job, const Work& work) {
  const TraceJob& recorded = *work.recorded;
  const prediction::Submission submission{
      .user = recorded.user.empty() ? recorded.tenant : recorded.user,
      .group = recorded.group,
      .name = recorded.title.empty() ? recorded.model : recorded.title,
      .gpus = recorded.gpus,
      .gpu_milli = recorded.gpu_milli};
  jobs_.push_back({submission, predictor_->predict(submission), job.duration, work.unit_seconds});
  job.duration = job.remaining = jobs_.back().prediction.seconds;
}

void PredictedDurations::show(policies::JobIndex index, ClusterJob& job, const Work& work) const {
  const Known& known = jobs_[index];
  const double longer = (known.prediction.seconds - known.truth) / known.unit_seconds;  // in units
  job.remaining = std::max(0.0, (work.left + longer) * work.unit_seconds);
}

void PredictedDurations::end(policies::JobIndex index) {
  const Known& known = jobs_[index];
  errors_.add(known.prediction, known.truth);
  predictor_->learn(known.submission, known.truth);
}

std::unique_ptr<PredictedDurations> make_predicted(std::string_view name,
                                                   const Semantics& semantics) {
  if (name == "truth") return nullptr;
  const auto& known = prediction::all_predictors();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    std::vector<std::string> names(known.begin(), known.end());
    names.emplace_back("truth");
    throw std::invalid_argument(fmt::format("no predictor {}; did you mean {}? There are {}", name,
                                            policies::nearest_name(name, names),
                                            fmt::join(names, ", ")));
  }
  if (semantics.round() > 0 || !semantics.leaves()) {
    throw std::invalid_argument(
        fmt::format("semantics {} have no durations to predict; without them: --predict truth",
                    semantics.name()));
  }
  return std::make_unique<PredictedDurations>(name);
}

}  // namespace commensal::simulator

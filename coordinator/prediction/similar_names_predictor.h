// SPDX-License-Identifier: Apache-2.0
// QSSF's estimate of a duration: by user and similar names.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "coordinator/prediction/duration_predictor.h"
#include "coordinator/prediction/history_means.h"

namespace commensal::prediction {

/// Helios' estimator from history (SC '21; S-Lab-System-Group/HeliosArtifact, QSSF Service,
/// `NaiveEstimator`). Names that ended are looked through for this one, or else for the two most
/// similar ones (difflib's ratio, at least 0.6). The prediction is the mean of the user's jobs of
/// those names with as many GPUs, else of the user's of those names, else of anybody's of those
/// names. Without such a name it is the mean of the user's jobs, else of all.
///
/// Helios' `CombinedEstimator` adds nine parts of a trained tree model (LightGBM, from a file) to
/// one part of this; such a model is not here. Thread safety: none.
class SimilarNamesPredictor final : public DurationPredictor {
 public:
  [[nodiscard]] Prediction predict(const Submission& job) const override;
  void learn(const Submission& job, double seconds) override;

 private:
  [[nodiscard]] std::vector<std::string_view> matches(std::string_view name) const;

  std::vector<std::string> names_;  // in the order of their first end
  std::unordered_set<std::string> known_;
  HistoryMeans of_request_;  // of a name, a user and a request
  HistoryMeans of_user_name_;
  HistoryMeans of_name_;
  HistoryMeans of_user_;
  Mean all_;
};

}  // namespace commensal::prediction

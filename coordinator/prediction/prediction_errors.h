// SPDX-License-Identifier: Apache-2.0
// How far predictions were from the truth.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/prediction/duration_predictor.h"

namespace commensal::prediction {

/// Collects absolute errors in percent of the truth.
class PredictionErrors {
 public:
  struct Row {
    std::string key;
    std::size_t jobs = 0;
    double mape_percent = 0;          ///< mean; zero without a job
    double median_error_percent = 0;  ///< number n/2 of the sorted ones, from 0; zero without a job
  };

  /// @param least_truth  what the truth counts as at least: above zero.
  explicit PredictionErrors(double least_truth = 1) : least_truth_(least_truth) {}

  /// @param alike  whether the prediction is from jobs like the one that it is for.
  void add(std::string_view key, bool alike, double predicted, double truth);
  void add(const Prediction& prediction, double truth_seconds) {
    add(prediction.key, prediction.alike, prediction.seconds, truth_seconds);
  }

  /// Of all that were predicted from jobs like them.
  [[nodiscard]] Row alike() const;
  [[nodiscard]] std::size_t jobs() const noexcept { return jobs_; }

  /// A row a key, in the order of keys.
  [[nodiscard]] std::vector<Row> by_key() const;

 private:
  double least_truth_;
  std::map<std::string, std::vector<double>, std::less<>> errors_;
  std::vector<double> alike_;
  std::size_t jobs_ = 0;
};

}  // namespace commensal::prediction

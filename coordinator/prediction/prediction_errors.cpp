// SPDX-License-Identifier: Apache-2.0
// Means and medians of errors.
#include "coordinator/prediction/prediction_errors.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace commensal::prediction {
namespace {

PredictionErrors::Row row_of(std::string key, std::vector<double> errors) {
  PredictionErrors::Row row{.key = std::move(key), .jobs = errors.size()};
  if (errors.empty()) return row;
  std::sort(errors.begin(), errors.end());
  row.mape_percent =
      std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size());
  row.median_error_percent = errors[errors.size() / 2];
  return row;
}

}  // namespace

void PredictionErrors::add(std::string_view key, bool alike, double predicted, double truth) {
  const double error = 100 * std::abs(predicted - truth) / std::max(truth, least_truth_);
  errors_[std::string(key)].push_back(error);
  if (alike) alike_.push_back(error);
  ++jobs_;
}

PredictionErrors::Row PredictionErrors::alike() const { return row_of("", alike_); }

std::vector<PredictionErrors::Row> PredictionErrors::by_key() const {
  std::vector<Row> rows;
  rows.reserve(errors_.size());
  for (const auto& [key, errors] : errors_) rows.push_back(row_of(key, errors));
  return rows;
}

}  // namespace commensal::prediction

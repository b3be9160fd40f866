// SPDX-License-Identifier: Apache-2.0
// Optimus' two fits.
#include "coordinator/prediction/optimus_fits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "coordinator/prediction/nnls.h"

namespace commensal::prediction {
namespace {

double median(double a, double b, double c) {
  return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

std::vector<LossPoint> without_outliers(const std::vector<LossPoint>& points) {
  std::vector<LossPoint> smooth = points;
  for (std::size_t i = 1; i + 1 < points.size(); ++i) {
    smooth[i].loss = median(points[i - 1].loss, points[i].loss, points[i + 1].loss);
  }
  return smooth;
}

std::vector<double> terms(Training training, const SpeedPoint& point) {
  if (point.workers < 1 || point.servers < 1) {
    throw std::invalid_argument("a speed of " + std::to_string(point.workers) + " workers and " +
                                std::to_string(point.servers) + " servers");
  }
  const double w = point.workers;
  const double p = point.servers;
  if (training == Training::kAsynchronous) return {1, w / p, w, p};
  return {point.batch / w, 1, w / p, w, p};
}

}  // namespace

std::optional<LossCurve> LossCurve::fit(const std::vector<LossPoint>& points) {
  if (points.size() < kLeastPoints) return std::nullopt;
  std::vector<LossPoint> smooth = without_outliers(points);
  double largest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const LossPoint& point : smooth) {
    largest = std::max(largest, point.loss);
    least = std::min(least, point.loss);
  }
  if (!(least > 0) || !std::isfinite(largest)) return std::nullopt;
  constexpr int kFloors = 50;
  std::optional<LossCurve> best;
  double best_error = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kFloors; ++i) {
    const double floor = least / largest * i / kFloors;
    std::vector<std::vector<double>> rows;
    std::vector<double> wanted;
    for (const LossPoint& point : smooth) {
      rows.push_back({point.step, 1});
      wanted.push_back(1 / (point.loss / largest - floor));
    }
    const std::vector<double> b = non_negative_least_squares(rows, wanted);
    const LossCurve curve(b[0], b[1], floor, largest);
    double error = 0;
    for (const LossPoint& point : smooth) {
      error += std::pow(curve.loss(point.step) - point.loss, 2);
    }
    if (!(error < best_error)) continue;
    best_error = error;
    best = curve;
  }
  return best;
}

double LossCurve::loss(double step) const { return (1 / (b0_ * step + b1_) + b2_) * largest_; }

double LossCurve::steps_until_flat(double step, double epoch_steps, double threshold) const {
  // With y = b0 k + b1 and f = b0 * epoch: 1 / y - 1 / (y + f) = threshold.
  const double fall = b0_ * epoch_steps;
  if (fall <= 0) return 0;
  const double y = (std::sqrt(fall * fall + 4 * fall / threshold) - fall) / 2;
  return std::max(0.0, (y - b1_) / b0_ - step);
}

SpeedFit::SpeedFit(Training training, const std::vector<SpeedPoint>& points) : training_(training) {
  std::vector<std::vector<double>> rows;
  std::vector<double> wanted;
  for (const SpeedPoint& point : points) {
    rows.push_back(terms(training, point));
    wanted.push_back(point.seconds);
  }
  weights_ = non_negative_least_squares(rows, wanted);
}

double SpeedFit::seconds(const SpeedPoint& point) const {
  const std::vector<double> row = terms(training_, point);
  double seconds = 0;
  for (std::size_t i = 0; i < row.size(); ++i) seconds += row[i] * weights_[i];
  return seconds;
}

}  // namespace commensal::prediction

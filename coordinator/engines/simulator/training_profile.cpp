// SPDX-License-Identifier: Apache-2.0
// Looks up and interpolates what was measured.
#include "coordinator/engines/simulator/training_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace commensal::simulator {
namespace {

constexpr std::int32_t kGpusPerNode = 4;
constexpr double kMostMeasuredNodes = 16;  // more were not measured
constexpr double kCeilingSlack = 1e-8;

std::int32_t ceiling(double value) {
  return static_cast<std::int32_t>(std::ceil(value - kCeilingSlack));
}

/// The rotation that comes first in the order of a dictionary.
std::string smallest_rotation(const NodeCounts& placement) {
  NodeCounts smallest = placement;
  NodeCounts rotated = placement;
  for (std::size_t i = 1; i < placement.size(); ++i) {
    std::rotate(rotated.begin(), rotated.begin() + 1, rotated.end());
    smallest = std::min(smallest, rotated);
  }
  std::string digits;
  for (const std::int32_t gpus : smallest) digits += std::to_string(gpus);
  return digits;
}

std::int32_t sum_of_digits(const std::string& digits) {
  return std::accumulate(digits.begin(), digits.end(), 0,
                         [](std::int32_t sum, char digit) { return sum + (digit - '0'); });
}

/// Means by nodes, GPUs and local batch, in this order; then what was measured by these alone.
ScatteredPoints scatter(const std::string& name, const MeasuredSteps& steps) {
  struct Sum {
    Value2 seconds{};
    double rows = 0;
  };
  std::map<Point3, Sum> sums;
  for (const auto& [digits, rows] : steps.placements) {
    for (const MeasuredSteps::Row& row : rows) {
      Sum& sum = sums[{static_cast<double>(digits.size()),
                       static_cast<double>(sum_of_digits(digits)), row.local_batch}];
      sum.seconds[0] += row.seconds[0];
      sum.seconds[1] += row.seconds[1];
      ++sum.rows;
    }
  }
  std::vector<Point3> points;
  std::vector<Value2> values;
  for (const auto& [point, sum] : sums) {
    points.push_back(point);
    values.push_back({sum.seconds[0] / sum.rows, sum.seconds[1] / sum.rows});
  }
  points.insert(points.end(), steps.scaled.begin(), steps.scaled.end());
  values.insert(values.end(), steps.scaled_seconds.begin(), steps.scaled_seconds.end());
  return {"step times of " + name, std::move(points), std::move(values)};
}

std::optional<Value2> along(const std::vector<MeasuredSteps::Row>& rows, double local_batch) {
  if (local_batch < rows.front().local_batch || local_batch > rows.back().local_batch) {
    return std::nullopt;
  }
  if (rows.size() == 1) return rows.front().seconds;
  const auto found = std::lower_bound(
      rows.begin() + 1, rows.end() - 1, local_batch,
      [](const MeasuredSteps::Row& row, double value) { return row.local_batch < value; });
  const MeasuredSteps::Row& low = *(found - 1);
  const MeasuredSteps::Row& high = *found;
  Value2 seconds{};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const double slope = (high.seconds[i] - low.seconds[i]) / (high.local_batch - low.local_batch);
    seconds[i] = slope * (local_batch - low.local_batch) + low.seconds[i];
  }
  return seconds;
}

}  // namespace

NodeCounts packed(std::int32_t gpus) {
  NodeCounts placement;
  for (; gpus > 0; gpus -= kGpusPerNode) placement.push_back(std::min(gpus, kGpusPerNode));
  return placement;
}

TrainingProfile::TrainingProfile(std::string name, const MeasuredSteps& steps,
                                 MeasuredEpochs epochs)
    : name_(std::move(name)),
      placements_(steps.placements),
      scaled_(scatter(name_, steps)),
      measured_(std::move(epochs)) {
  if (placements_.empty() || measured_.empty()) {
    throw std::invalid_argument(fmt::format("profile of {}: {} was measured", name_,
                                            measured_.empty() ? "no epoch" : "no placement"));
  }
  double smallest = std::numeric_limits<double>::max();
  double largest = 0;
  for (auto& [digits, rows] : placements_) {
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.local_batch < b.local_batch; });
    smallest = std::min(smallest, rows.front().local_batch);
    largest = std::max(largest, rows.back().local_batch);
  }
  smallest_local_ = static_cast<std::int32_t>(smallest);
  // Larger ones were measured, but are not used there.
  largest_local_ = name_ == "yolov3" ? 8 : static_cast<std::int32_t>(largest);
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const auto& [batch, rows] : measured_) least = std::min(least, rows.size());
  epochs_ = static_cast<std::int32_t>(least);
  if (epochs_ == 0) throw std::invalid_argument("profile of " + name_ + ": a batch has no epoch");
}

std::int32_t TrainingProfile::most_gpus(std::int32_t batch) const {
  if (name_ == "ncf") return 1;
  return std::max(1, batch / smallest_local_);
}

bool TrainingProfile::covers(std::int32_t batch) const {
  return batch >= smallest_batch() && batch <= largest_batch();
}

BatchSplit TrainingProfile::split(std::int32_t batch, std::int32_t gpus,
                                  bool always_accumulates) const {
  const std::int32_t local = ceiling(static_cast<double>(batch) / gpus);
  BatchSplit split{.gpus = gpus, .atomic = 0, .accumulations = 0};
  split.accumulations = ceiling(static_cast<double>(local) / largest_local_) - 1;
  if (gpus == 1 && (always_accumulates || batch > smallest_batch())) {
    split.accumulations = std::max(1, split.accumulations);
  }
  const std::int32_t turns = split.accumulations + 1;
  split.atomic =
      std::min(ceiling(static_cast<double>(local) / turns), largest_batch() / (gpus * turns));
  return split;
}

std::optional<Value2> TrainingProfile::times(const NodeCounts& placement,
                                             double local_batch) const {
  const auto listed = placements_.find(smallest_rotation(placement));
  if (listed != placements_.end()) return along(listed->second, local_batch);
  const double gpus = std::accumulate(placement.begin(), placement.end(), 0);
  return scaled_.at(
      {std::min(static_cast<double>(placement.size()), kMostMeasuredNodes), gpus, local_batch});
}

std::optional<double> TrainingProfile::step_seconds(const NodeCounts& placement,
                                                    const BatchSplit& split) const {
  const auto found = times(placement, split.atomic);
  if (!found) return std::nullopt;
  const auto [step, synchronising] = *found;
  return step + (step - synchronising) * split.accumulations;
}

double TrainingProfile::between(std::int32_t batch, std::int32_t epoch,
                                double MeasuredEpoch::*column) const {
  const auto upper = measured_.lower_bound(batch);
  if (!covers(batch) || epoch < 0 || epoch >= epochs_) {
    throw std::invalid_argument(fmt::format(
        "profile of {}: batch {} in epoch {} was not measured, only {} to {} in {} epochs", name_,
        batch, epoch, smallest_batch(), largest_batch(), epochs_));
  }
  const auto row = static_cast<std::size_t>(epoch);
  if (upper->first == batch) return upper->second[row].*column;
  const auto lower = std::prev(upper);
  const double high = upper->second[row].*column;
  const double low = lower->second[row].*column;
  return ((batch - lower->first) * high + (upper->first - batch) * low) /
         (upper->first - lower->first);
}

double TrainingProfile::gain(std::int32_t batch, std::int32_t epoch) const {
  const double sqr = between(batch, epoch, &MeasuredEpoch::grad_sqr);
  const double var = between(batch, epoch, &MeasuredEpoch::grad_var);
  const double scale = static_cast<double>(batch) / smallest_batch();
  return (var + sqr) / (var / scale + sqr);
}

double TrainingProfile::progress_after(std::int32_t epoch) const {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [batch, rows] : measured_) {
    least = std::min(least, rows.at(static_cast<std::size_t>(epoch)).progress);
  }
  return least;
}

double TrainingProfile::remaining_steps(std::int32_t batch, std::int32_t epoch) const {
  if (epoch >= epochs_ - 1) return 1;
  return between(batch, epochs_ - 1, &MeasuredEpoch::iterations) -
         between(batch, epoch, &MeasuredEpoch::iterations);
}

double TrainingProfile::steps_after(std::int32_t batch, std::int32_t epoch) const {
  return between(batch, epoch, &MeasuredEpoch::iterations);
}

double TrainingProfile::loss_after(std::int32_t batch, std::int32_t epoch) const {
  const std::vector<MeasuredEpoch>& smallest = measured_.begin()->second;
  const double metric = between(batch, epoch, &MeasuredEpoch::metric);
  if (smallest.front().metric >= smallest.back().metric) return metric;
  const double most = smallest.back().metric <= 1 ? 1 : 100;
  return std::max(0.0, most - metric);
}

std::optional<double> TrainingProfile::seconds_alone(std::int32_t batch, std::int32_t gpus) const {
  const BatchSplit divided = split(batch, gpus);
  const auto step = step_seconds(packed(gpus), divided);
  if (!step || !covers(divided.batch())) return std::nullopt;
  double seconds = 0;
  double progress = 0;
  for (std::int32_t epoch = 0; epoch < epochs_; ++epoch) {
    seconds += (progress_after(epoch) - progress) * *step / gain(divided.batch(), epoch);
    progress = progress_after(epoch);
  }
  return seconds;
}

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// Medians of step times.
#include "coordinator/node/step_history.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace commensal::node {
namespace {

using namespace std::chrono_literals;

/// How many steps an estimate is made of. A percentile needs more of them than a median.
struct Sizes {
  std::size_t quiet_kept;
  std::size_t shared_kept;
  std::size_t least_quiet;
  std::size_t least_shared;
  std::size_t newest;   ///< quiet steps that can overrule the older ones
  Duration shared_age;  ///< older shared steps go, if enough newer ones stay
};
constexpr Sizes kOfMedian{41, 200, 3, 5, 5, 8s};
constexpr Sizes kOfTail{400, 400, 50, 50, 20, 20s};
constexpr const Sizes& sizes(StepSignal signal) {
  return signal == StepSignal::kTail ? kOfTail : kOfMedian;
}
constexpr double kTailQuantile = 0.99;
constexpr double kChangedBy = 0.10;       // the newest quiet steps' median, to overrule older ones
constexpr double kMedianToError = 1.858;  // 1.2533 (median) * 1.4826 (MAD to deviation)
constexpr double kLeastRelativeError = 1e-3;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

void StepHistory::follow(StepSignal signal) {
  if (signal == signal_) return;
  signal_ = signal;
  quiet_steps_.clear();
  shared_steps_.clear();
}

void StepHistory::begin_quiet(TimePoint now) {
  quiet_ = true;
  since_ = now;
}

void StepHistory::begin_shared(TimePoint now) {
  quiet_ = false;
  since_ = now;
}

void StepHistory::add(TimePoint end, Duration duration) {
  if (duration <= Duration::zero()) return;
  const Step step{end, std::chrono::duration<double>(duration).count()};
  if (end - duration < since_ + kStepAge) return;  // saw both states, or may have
  if (quiet_) {
    ++quiet_total_;
    quiet_steps_.push_back(step);
    if (quiet_steps_.size() > sizes(signal_).quiet_kept) quiet_steps_.pop_front();
    drop_outdated_baseline();
    return;
  }
  shared_steps_.push_back(step);
  const Sizes& size = sizes(signal_);
  while (shared_steps_.size() > size.shared_kept ||
         (shared_steps_.size() > size.least_shared &&
          shared_steps_.front().end < end - size.shared_age)) {
    shared_steps_.pop_front();
  }
}

void StepHistory::drop_outdated_baseline() {
  const std::size_t count = sizes(signal_).newest;
  if (quiet_steps_.size() < 2 * count) return;
  const auto border = quiet_steps_.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<double> older;
  std::vector<double> newest;
  for (auto it = quiet_steps_.begin(); it != border; ++it) older.push_back(it->seconds);
  for (auto it = border; it != quiet_steps_.end(); ++it) newest.push_back(it->seconds);
  const double before = median(older);
  // All of them on the same side: one slow evaluation among them is no change of the job.
  const auto [least, most] = std::minmax_element(newest.begin(), newest.end());
  if (*least > before * (1 + kChangedBy) || *most < before / (1 + kChangedBy)) {
    quiet_steps_.erase(quiet_steps_.begin(), border);
    shared_steps_.clear();
  }
}

MedianEstimate StepHistory::estimate(const std::deque<Step>& steps) const {
  MedianEstimate result;
  result.steps = steps.size();
  if (steps.empty()) return result;
  std::vector<double> values;
  values.reserve(steps.size());
  for (const Step& step : steps) values.push_back(step.seconds);
  if (signal_ == StepSignal::kTail) {
    // The standard error of an order statistic: the ranks that lie one deviation of the binomial
    // distribution to both sides.
    std::sort(values.begin(), values.end());
    const auto n = static_cast<double>(values.size());
    const double rank = kTailQuantile * (n - 1.0);
    const double deviation = std::sqrt(n * kTailQuantile * (1.0 - kTailQuantile));
    const auto at = [&](double position) {
      return values[static_cast<std::size_t>(std::clamp(std::round(position), 0.0, n - 1.0))];
    };
    result.seconds = at(rank);
    result.error = std::max((at(rank + deviation) - at(rank - deviation)) / 2,
                            kLeastRelativeError * result.seconds);
    return result;
  }
  result.seconds = median(values);
  for (double& value : values) value = std::abs(value - result.seconds);
  result.error =
      std::max(kMedianToError * median(values) / std::sqrt(static_cast<double>(values.size())),
               kLeastRelativeError * result.seconds);
  return result;
}

MedianEstimate StepHistory::baseline() const { return estimate(quiet_steps_); }
MedianEstimate StepHistory::shared() const { return estimate(shared_steps_); }

std::optional<SlowdownEstimate> StepHistory::slowdown() const {
  const Sizes& size = sizes(signal_);
  if (quiet_steps_.size() < size.least_quiet || shared_steps_.size() < size.least_shared) {
    return std::nullopt;
  }
  const MedianEstimate alone = baseline();
  const MedianEstimate here = shared();
  const double ratio = here.seconds / alone.seconds;
  return SlowdownEstimate{
      ratio - 1.0, ratio * std::hypot(here.error / here.seconds, alone.error / alone.seconds),
      here.steps};
}

}  // namespace commensal::node

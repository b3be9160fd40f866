// SPDX-License-Identifier: Apache-2.0
// Medians of step times.
#include "coordinator/node/step_history.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace commensal::node {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kQuietKept = 41;
constexpr std::size_t kSharedKept = 200;
constexpr std::size_t kLeastShared = 5;
constexpr std::size_t kLeastQuiet = 3;
constexpr std::size_t kNewest = 5;        // quiet steps that can overrule the older ones
constexpr double kChangedBy = 0.10;       // ... when their median differs by this much
constexpr Duration kSharedAge = 8s;       // older shared steps go, if enough newer ones stay
constexpr double kMedianToError = 1.858;  // 1.2533 (median) * 1.4826 (MAD to deviation)
constexpr double kLeastRelativeError = 1e-3;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

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
    if (quiet_steps_.size() > kQuietKept) quiet_steps_.pop_front();
    drop_outdated_baseline();
    return;
  }
  shared_steps_.push_back(step);
  while (shared_steps_.size() > kSharedKept ||
         (shared_steps_.size() > kLeastShared && shared_steps_.front().end < end - kSharedAge)) {
    shared_steps_.pop_front();
  }
}

void StepHistory::drop_outdated_baseline() {
  if (quiet_steps_.size() < 2 * kNewest) return;
  const auto border = quiet_steps_.end() - static_cast<std::ptrdiff_t>(kNewest);
  std::vector<double> older;
  std::vector<double> newest;
  for (auto it = quiet_steps_.begin(); it != border; ++it) older.push_back(it->seconds);
  for (auto it = border; it != quiet_steps_.end(); ++it) newest.push_back(it->seconds);
  const double before = median(older);
  // All five on the same side: one slow evaluation among them is no change of the job.
  const auto [least, most] = std::minmax_element(newest.begin(), newest.end());
  if (*least > before * (1 + kChangedBy) || *most < before / (1 + kChangedBy)) {
    quiet_steps_.erase(quiet_steps_.begin(), border);
    shared_steps_.clear();
  }
}

MedianEstimate StepHistory::estimate(const std::deque<Step>& steps) {
  MedianEstimate result;
  result.steps = steps.size();
  if (steps.empty()) return result;
  std::vector<double> values;
  values.reserve(steps.size());
  for (const Step& step : steps) values.push_back(step.seconds);
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
  if (quiet_steps_.size() < kLeastQuiet || shared_steps_.size() < kLeastShared) return std::nullopt;
  const MedianEstimate alone = baseline();
  const MedianEstimate here = shared();
  const double ratio = here.seconds / alone.seconds;
  return SlowdownEstimate{
      ratio - 1.0, ratio * std::hypot(here.error / here.seconds, alone.error / alone.seconds)};
}

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// Pairs of shared and quiet steps.
#include "coordinator/node/step_pairs.h"

#include <algorithm>

namespace commensal::node {
namespace {

constexpr std::size_t kLeastSide = 2;  // steps that count as a side
constexpr double kNearSeconds = 2.0;   // between a window and its sides
constexpr double kNearSteps = 5.0;

/// Whether a step began near enough to `then`, which was before it.
bool near(TimePoint then, TimePoint end, double step) {
  const double between = std::chrono::duration<double>(end - then).count() - step;
  return between <= std::max(kNearSeconds, kNearSteps * step);
}

}  // namespace

void StepPairs::begin_quiet() {
  finish();
  before_.assign(newest_.begin(), newest_.end());
}

void StepPairs::add_quiet(TimePoint end, double seconds) {
  if (quiet_.empty() && !near(newest_end_, end, seconds)) before_.clear();
  quiet_.push_back(seconds);
  quiet_end_ = end;
  if (quiet_.size() > kQuiet) quiet_.pop_front();
}

void StepPairs::add_shared(TimePoint end, double seconds) {
  newest_.push_back(seconds);
  newest_end_ = end;
  if (newest_.size() > kSide) newest_.pop_front();
  if (quiet_.empty()) return;
  if (after_.empty() && !near(quiet_end_, end, seconds)) return finish();
  after_.push_back(seconds);
  if (after_.size() == kSide) finish();
}

void StepPairs::forget_shared() {
  newest_.clear();
  before_.clear();
  after_.clear();
  pairs_.clear();
}

std::optional<StepPairs::Pair> StepPairs::in_the_making() const {
  if (quiet_.empty()) return std::nullopt;
  double sum = 0.0;
  int sides = 0;
  for (const auto* side : {&before_, &after_}) {
    if (side->size() < kLeastSide) continue;
    sum += median(*side);
    ++sides;
  }
  if (sides == 0) return std::nullopt;
  return Pair{sum / sides / median({quiet_.begin(), quiet_.end()}), before_.size() + after_.size()};
}

void StepPairs::finish() {
  const auto pair = in_the_making();
  before_.clear();
  quiet_.clear();
  after_.clear();
  if (!pair) return;
  pairs_.push_back(*pair);
  if (pairs_.size() > kMost) pairs_.pop_front();
}

std::optional<double> StepPairs::newest() const {
  const auto pair = in_the_making();
  if (pair && after_.size() >= kLeastSide) return pair->ratio - 1.0;
  return pairs_.empty() ? std::nullopt : std::optional{pairs_.back().ratio - 1.0};
}

std::optional<SlowdownEstimate> StepPairs::slowdown() const {
  if (pairs_.size() < kLeast) return std::nullopt;
  std::vector<double> ratios;
  SlowdownEstimate estimate;
  for (const Pair& pair : pairs_) {
    ratios.push_back(pair.ratio);
    estimate.steps += pair.shared_steps;
  }
  estimate.value = median(ratios) - 1.0;
  estimate.error = error_of_median(ratios);
  return estimate;
}

}  // namespace commensal::node

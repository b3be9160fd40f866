// SPDX-License-Identifier: Apache-2.0
// Pairs of shared and quiet steps.
#include "coordinator/node/step_pairs.h"

#include <utility>

namespace commensal::node {
namespace {

constexpr std::size_t kLeastSide = 2;  // steps that count as a side

}  // namespace

void StepPairs::begin_quiet() {
  finish();
  before_.assign(newest_.begin(), newest_.end());
}

void StepPairs::add_quiet(double seconds) { quiet_.push_back(seconds); }

void StepPairs::add_shared(double seconds) {
  newest_.push_back(seconds);
  if (newest_.size() > kSide) newest_.pop_front();
  if (quiet_.empty()) return;
  after_.push_back(seconds);
  if (after_.size() == kSide) finish();
}

void StepPairs::finish() {
  const auto before = std::exchange(before_, {});
  const auto quiet = std::exchange(quiet_, {});
  const auto after = std::exchange(after_, {});
  if (quiet.empty()) return;
  double sum = 0.0;
  int sides = 0;
  for (const auto* side : {&before, &after}) {
    if (side->size() < kLeastSide) continue;
    sum += median(*side);
    ++sides;
  }
  if (sides == 0) return;
  pairs_.push_back({sum / sides / median(quiet), before.size() + after.size()});
  if (pairs_.size() > kMost) pairs_.pop_front();
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

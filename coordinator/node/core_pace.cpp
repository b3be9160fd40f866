// SPDX-License-Identifier: Apache-2.0
// The pace from thread clocks, and when it is used.
#include "coordinator/node/core_pace.h"

#include <utility>

namespace commensal::node {
namespace {

// Half of all steps lie within the spread s of their median; the confidence is at most 1 / (1 + s).
constexpr double kMeansNothing = 0.5;  // below: steps of very different lengths
constexpr double kMeansSomething = 0.6;
constexpr std::uint64_t kEnoughSteps = 16;      // before, the confidence is low for lack of them
constexpr std::uint64_t kEnoughStretches = 25;  // without any step: some seconds

}  // namespace

void CorePace::note(const CpuMeter::Totals& totals) {
  const CpuMeter::Totals before = std::exchange(last_, totals);
  const bool began = std::exchange(began_, true);
  if (!began) return;
  const Duration run = totals.run - before.run;
  const Duration delayed = totals.delayed - before.delayed;
  if (run < kLeastRun || delayed < Duration::zero()) return;  // or the clocks of other processes
  const double factor =
      1.0 + static_cast<double>(delayed.count()) / static_cast<double>(run.count());
  length_ = Duration{static_cast<Duration::rep>(static_cast<double>(kPiece.count()) * factor)};
  ++number_;
}

StepSignal choose_signal(const StepKnowledge& steps, StepSignal now) noexcept {
  if (steps.serves) return StepSignal::kTail;
  const bool by_cores = now == StepSignal::kCores;
  if (steps.number == 0) {
    return by_cores || steps.stretches >= kEnoughStretches ? StepSignal::kCores
                                                           : StepSignal::kMedian;
  }
  if (steps.number < kEnoughSteps) return now;
  return steps.confidence < (by_cores ? kMeansSomething : kMeansNothing) ? StepSignal::kCores
                                                                         : StepSignal::kMedian;
}

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// The pace of a job without steps, and when it is measured by that.
#include "coordinator/node/core_pace.h"

#include <gtest/gtest.h>

namespace commensal::node::core_pace_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

CpuMeter::Totals totals(Duration run, Duration delayed) { return {run, delayed, {}, {}}; }

TEST(CorePace, TellsNothingBeforeTheSecondLook) {
  CorePace pace;
  EXPECT_EQ(pace.number(), 0U);
  pace.note(totals(seconds{5}, seconds{1}));
  EXPECT_EQ(pace.number(), 0U);
  EXPECT_EQ(pace.length(), Duration::zero());
}

TEST(CorePace, IsAPieceOfWorkWhereNothingWaits) {
  CorePace pace;
  pace.note(totals(seconds{5}, seconds{1}));
  pace.note(totals(seconds{6}, seconds{1}));
  EXPECT_EQ(pace.number(), 1U);
  EXPECT_EQ(pace.length(), CorePace::kPiece);
}

TEST(CorePace, GrowsByTheTimeThatThreadsWaitForACore) {
  CorePace pace;
  pace.note(totals({}, {}));
  pace.note(totals(milliseconds{800}, milliseconds{200}));
  EXPECT_EQ(pace.length(), CorePace::kPiece * 5 / 4);
  pace.note(totals(milliseconds{1800}, milliseconds{200}));  // alone again
  EXPECT_EQ(pace.length(), CorePace::kPiece);
  EXPECT_EQ(pace.number(), 2U);
}

TEST(CorePace, SaysNothingOfAStretchInWhichTheJobHardlyRan) {
  CorePace pace;
  pace.note(totals({}, {}));
  pace.note(totals(milliseconds{10}, milliseconds{500}));
  EXPECT_EQ(pace.number(), 0U);
  // The next stretch begins there.
  pace.note(totals(milliseconds{1010}, milliseconds{500}));
  EXPECT_EQ(pace.length(), CorePace::kPiece);
}

TEST(CorePace, TotalsThatFallSayNothing) {
  CorePace pace;
  pace.note(totals(seconds{5}, seconds{2}));
  pace.note(totals(seconds{1}, seconds{1}));  // other processes than before
  pace.note(totals(seconds{2}, milliseconds{500}));
  EXPECT_EQ(pace.number(), 0U);
  pace.note(totals(seconds{3}, milliseconds{1500}));
  EXPECT_EQ(pace.length(), 2 * CorePace::kPiece);
}

StepKnowledge steps(std::uint64_t number, double confidence) {
  return {number, confidence, false, 100};
}

TEST(ChooseSignal, RequestsAreMeasuredByTheirTail) {
  EXPECT_EQ(choose_signal({0, 0.0, true, 100}, StepSignal::kCores), StepSignal::kTail);
  EXPECT_EQ(choose_signal({500, 0.0, true, 0}, StepSignal::kMedian), StepSignal::kTail);
}

TEST(ChooseSignal, StepsAreWaitedForAWhile) {
  EXPECT_EQ(choose_signal({0, 0.0, false, 24}, StepSignal::kMedian), StepSignal::kMedian);
  EXPECT_EQ(choose_signal({0, 0.0, false, 25}, StepSignal::kMedian), StepSignal::kCores);
  EXPECT_EQ(choose_signal({0, 0.0, false, 11}, StepSignal::kCores), StepSignal::kCores);
}

TEST(ChooseSignal, FewStepsChangeNothing) {
  EXPECT_EQ(choose_signal(steps(1, 0.0), StepSignal::kMedian), StepSignal::kMedian);
  EXPECT_EQ(choose_signal(steps(15, 0.9), StepSignal::kCores), StepSignal::kCores);
  EXPECT_EQ(choose_signal(steps(16, 0.9), StepSignal::kCores), StepSignal::kMedian);
}

TEST(ChooseSignal, StepsThatMeanLittleAreLeftForTheCores) {
  EXPECT_EQ(choose_signal(steps(200, 0.49), StepSignal::kMedian), StepSignal::kCores);
  EXPECT_EQ(choose_signal(steps(200, 0.51), StepSignal::kMedian), StepSignal::kMedian);
}

TEST(ChooseSignal, ItDoesNotSwitchToAndFro) {
  EXPECT_EQ(choose_signal(steps(200, 0.55), StepSignal::kCores), StepSignal::kCores);
  EXPECT_EQ(choose_signal(steps(200, 0.55), StepSignal::kMedian), StepSignal::kMedian);
  EXPECT_EQ(choose_signal(steps(200, 0.61), StepSignal::kCores), StepSignal::kMedian);
}

}  // namespace
}  // namespace commensal::node::core_pace_test

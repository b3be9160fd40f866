// SPDX-License-Identifier: Apache-2.0
// Where steps end, for each way in which training loops show it.
#include "torch_ext/runtime/step_tracker.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/torch_ext/fake_clock.h"

namespace commensal::step_tracker_test {
namespace {

using std::chrono::milliseconds;
using testing::FakeClock;

class StepTrackerTest : public ::testing::Test {
 protected:
  /// An eager optimizer step: hooks run inside of the range.
  bool eager_step(Duration length = milliseconds{1}) {
    (void)tracker_.optimizer_range_begin();
    (void)tracker_.hook_begin();
    clock_.advance(length);
    EXPECT_FALSE(tracker_.hook_end());
    return tracker_.optimizer_range_end();
  }
  bool fetch(Duration length = milliseconds{1}) {
    const bool ended = tracker_.fetch_begin();
    clock_.advance(length);
    return ended;
  }
  void compute(Duration length = milliseconds{8}) { clock_.advance(length); }
  [[nodiscard]] std::uint64_t number() const { return tracker_.state().number; }

  FakeClock clock_;
  StepTracker tracker_{clock_};
};

TEST_F(StepTrackerTest, NothingIsKnownAtFirst) {
  const StepState state = tracker_.state();
  EXPECT_EQ(state.number, 0U);
  EXPECT_EQ(state.source, StepSource::kNone);
  EXPECT_EQ(state.confidence, 0.0);
}

TEST_F(StepTrackerTest, WithoutALoaderEachOptimizerStepIsAStep) {
  for (int i = 0; i < 10; ++i) {
    compute(milliseconds{9});
    EXPECT_TRUE(eager_step());
  }
  const StepState state = tracker_.state();
  EXPECT_EQ(state.number, 10U);
  EXPECT_EQ(state.last, milliseconds{10});
  EXPECT_EQ(state.median, milliseconds{10});
  EXPECT_EQ(state.source, StepSource::kRange);
  EXPECT_GT(state.confidence, 0.7);
}

TEST_F(StepTrackerTest, RangeAndHookOfOneStepCountOnce) {
  EXPECT_TRUE(eager_step());
  EXPECT_EQ(number(), 1U);
}

TEST_F(StepTrackerTest, ACompiledStepShowsOnlyItsHooks) {
  for (int i = 0; i < 3; ++i) {
    (void)tracker_.hook_begin();
    compute();
    EXPECT_TRUE(tracker_.hook_end());
  }
  EXPECT_EQ(number(), 3U);
  EXPECT_EQ(tracker_.state().source, StepSource::kHook);
}

TEST_F(StepTrackerTest, ANestedSuperStepCountsOnce) {
  (void)tracker_.optimizer_range_begin();
  (void)tracker_.hook_begin();
  (void)tracker_.optimizer_range_begin();
  (void)tracker_.hook_begin();
  EXPECT_FALSE(tracker_.hook_end());
  EXPECT_FALSE(tracker_.optimizer_range_end());
  EXPECT_FALSE(tracker_.hook_end());
  EXPECT_TRUE(tracker_.optimizer_range_end());
  EXPECT_EQ(number(), 1U);
}

TEST_F(StepTrackerTest, NestedHooksWithoutRangesCountOnce) {
  (void)tracker_.hook_begin();
  (void)tracker_.hook_begin();
  EXPECT_FALSE(tracker_.hook_end());
  EXPECT_TRUE(tracker_.hook_end());
  EXPECT_EQ(number(), 1U);
}

TEST_F(StepTrackerTest, AStepThatRaisedDoesNotHideLaterOnes) {
  (void)tracker_.optimizer_range_begin();
  (void)tracker_.hook_begin();  // its post hook never runs
  (void)tracker_.optimizer_range_end();
  const std::uint64_t before = number();
  (void)tracker_.hook_begin();
  EXPECT_TRUE(tracker_.hook_end());
  EXPECT_EQ(number(), before + 1);
}

TEST_F(StepTrackerTest, WithALoaderAStepIsAnIteration) {
  EXPECT_FALSE(fetch());
  for (int i = 1; i <= 10; ++i) {
    compute();
    EXPECT_FALSE(eager_step()) << "not known to be the last one yet";
    EXPECT_TRUE(fetch());
    EXPECT_EQ(number(), static_cast<std::uint64_t>(i));
  }
  const StepState state = tracker_.state();
  EXPECT_EQ(state.median, milliseconds{10});
  EXPECT_GT(state.confidence, 0.9);
}

TEST_F(StepTrackerTest, AStepEndsWithItsLastOptimizerStepNotWithTheFetch) {
  (void)fetch();
  compute();
  (void)eager_step();
  const TimePoint end = clock_.now();
  compute(milliseconds{100});  // evaluation, logging
  (void)fetch();
  EXPECT_EQ(tracker_.state().last_end, end);
}

TEST_F(StepTrackerTest, TwoOptimizersInAnIterationAreOneStep) {
  (void)fetch();
  for (int i = 0; i < 5; ++i) {
    (void)eager_step();
    (void)eager_step();
    EXPECT_TRUE(fetch());
  }
  EXPECT_EQ(number(), 5U);
}

TEST_F(StepTrackerTest, OptimizerInBackwardIsOneStepAnIteration) {
  (void)fetch();
  for (int i = 0; i < 5; ++i) {
    for (int parameter = 0; parameter < 60; ++parameter) {
      EXPECT_FALSE(eager_step(std::chrono::microseconds{10}));
      (void)tracker_.zero_grad_end();
    }
    EXPECT_TRUE(fetch());
  }
  EXPECT_EQ(number(), 5U);
}

TEST_F(StepTrackerTest, AccumulationCountsOptimizerStepsNotBatches) {
  (void)fetch();
  for (int i = 1; i <= 12; ++i) {
    compute();
    if (i % 4 == 0) {
      (void)eager_step();
      (void)tracker_.zero_grad_end();
    }
    (void)fetch();
  }
  EXPECT_EQ(number(), 3U);
}

TEST_F(StepTrackerTest, AClosureIsPartOfItsStep) {
  (void)fetch();
  for (int i = 0; i < 3; ++i) {
    (void)tracker_.optimizer_range_begin();
    (void)tracker_.hook_begin();
    for (int evaluation = 0; evaluation < 4; ++evaluation) {
      EXPECT_FALSE(tracker_.zero_grad_end());
      compute();
    }
    (void)tracker_.hook_end();
    (void)tracker_.optimizer_range_end();
    EXPECT_TRUE(fetch());
  }
  EXPECT_EQ(number(), 3U);
}

TEST_F(StepTrackerTest, AStepThatTheGradientScalerSkippedStillEndsAnIteration) {
  (void)fetch();
  for (int i = 0; i < 10; ++i) {
    (void)tracker_.zero_grad_end();
    compute();
    if (i != 5) (void)eager_step();
    EXPECT_TRUE(fetch());
  }
  EXPECT_EQ(number(), 10U);
}

TEST_F(StepTrackerTest, EvaluationFetchesCountNothing) {
  (void)fetch();
  compute();
  (void)eager_step();
  EXPECT_TRUE(fetch());
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(fetch());
  EXPECT_EQ(number(), 1U);
}

TEST_F(StepTrackerTest, TrainingOnForABatchFetchedOnceCountsOptimizerSteps) {
  (void)fetch();
  for (int i = 0; i < 400; ++i) (void)eager_step();
  EXPECT_GE(number(), 100U);
  const std::uint64_t before = number();
  EXPECT_TRUE(eager_step());
  EXPECT_EQ(number(), before + 1);
}

TEST_F(StepTrackerTest, TheUsersStepOverrides) {
  (void)fetch();
  (void)eager_step();
  (void)fetch();
  EXPECT_EQ(number(), 1U);
  EXPECT_TRUE(tracker_.user_step());
  for (int i = 0; i < 8; ++i) {
    compute(milliseconds{5});
    EXPECT_FALSE(eager_step());
    EXPECT_FALSE(fetch());
    EXPECT_TRUE(tracker_.user_step());
  }
  const StepState state = tracker_.state();
  EXPECT_EQ(state.number, 10U);
  EXPECT_EQ(state.source, StepSource::kUser);
  EXPECT_EQ(state.median, milliseconds{7});
  EXPECT_EQ(state.confidence, 1.0);
}

TEST_F(StepTrackerTest, TheMedianForgetsAnOutlierAndOldSteps) {
  for (int i = 0; i < 20; ++i) (void)eager_step(milliseconds{10});
  (void)eager_step(std::chrono::seconds{5});
  (void)eager_step(milliseconds{10});
  EXPECT_EQ(tracker_.state().median, milliseconds{10});
  for (std::size_t i = 0; i < StepTracker::kWindow; ++i) (void)eager_step(milliseconds{20});
  EXPECT_EQ(tracker_.state().median, milliseconds{20});
}

TEST_F(StepTrackerTest, IrregularStepsLowerTheConfidence) {
  for (int i = 0; i < 20; ++i) (void)eager_step(milliseconds{10});
  const double regular = tracker_.state().confidence;
  for (int i = 0; i < 40; ++i) (void)eager_step(milliseconds{i % 2 == 0 ? 1 : 30});
  EXPECT_LT(tracker_.state().confidence, regular * 0.8);
}

TEST_F(StepTrackerTest, ThreadsDoNotDisturbEachOthersNesting) {
  (void)tracker_.optimizer_range_begin();
  std::thread([this] { EXPECT_TRUE(eager_step()); }).join();
  EXPECT_TRUE(tracker_.optimizer_range_end());
  EXPECT_EQ(number(), 2U);
}

// --- how long memory waits for the end of a step -------------------------------------------

class WaitForSafePoint : public StepTrackerTest {
 protected:
  void train(Duration step) {
    for (int i = 0; i < 5; ++i) {
      compute(step - milliseconds{1});
      (void)eager_step();
    }
  }
  [[nodiscard]] Duration wait(bool owed) const {
    return wait_for_safe_point(tracker_.state(), clock_.now(), owed);
  }
};

TEST_F(WaitForSafePoint, IsShortInAJobThatNeverSteps) {
  EXPECT_EQ(wait(false), milliseconds{200});
  clock_.advance(std::chrono::hours{1});
  EXPECT_EQ(wait(true), milliseconds{200});
}

TEST_F(WaitForSafePoint, IsNeverBelow200Milliseconds) {
  train(milliseconds{10});
  EXPECT_EQ(wait(false), milliseconds{200});
  EXPECT_EQ(wait(true), milliseconds{200});
}

TEST_F(WaitForSafePoint, IsTwoStepsWhereTheyAreLong) {
  train(milliseconds{300});
  EXPECT_EQ(wait(false), milliseconds{600});
  EXPECT_EQ(wait(true), milliseconds{600});
}

TEST_F(WaitForSafePoint, IsASecondAtMostForANewLimit) {
  train(std::chrono::seconds{5});
  EXPECT_EQ(wait(false), std::chrono::seconds{10});
  EXPECT_EQ(wait(true), std::chrono::seconds{1});
}

TEST_F(WaitForSafePoint, IsShortAgainInAJobThatStoppedStepping) {
  train(milliseconds{300});
  clock_.advance(milliseconds{2400});
  EXPECT_EQ(wait(false), milliseconds{600});
  clock_.advance(milliseconds{1});
  EXPECT_EQ(wait(false), milliseconds{200});
}

TEST_F(StepTrackerTest, RequestsThatWereFoundCountUntilTheJobShowsSteps) {
  for (int i = 0; i < 10; ++i) {
    compute(milliseconds{10});
    EXPECT_TRUE(tracker_.request_found(clock_.now() - milliseconds{3}));
  }
  StepState state = tracker_.state();
  EXPECT_EQ(state.number, 10U);
  EXPECT_EQ(state.source, StepSource::kFound);
  EXPECT_EQ(to_string(state.source), "found");
  EXPECT_EQ(state.median, milliseconds{10});
  EXPECT_EQ(state.last_end, clock_.now() - milliseconds{3});
  EXPECT_NEAR(state.confidence, 0.6, 1e-9);
  for (int i = 0; i < 4; ++i) {
    compute(milliseconds{99});
    EXPECT_TRUE(eager_step());
    EXPECT_FALSE(tracker_.request_found(clock_.now()));
  }
  state = tracker_.state();
  EXPECT_EQ(state.number, 14U);
  EXPECT_EQ(state.median, milliseconds{100}) << "requests were none of its steps";
}

TEST_F(StepTrackerTest, NoRequestsAreFoundWhereBatchesAreRead) {
  (void)fetch();
  EXPECT_FALSE(tracker_.request_found(clock_.now()));
  EXPECT_EQ(number(), 0U);
}

}  // namespace
}  // namespace commensal::step_tracker_test

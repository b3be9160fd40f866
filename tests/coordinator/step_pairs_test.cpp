// SPDX-License-Identifier: Apache-2.0
// How sure the coordinator is of a slowdown on a machine that changes by itself.
#include "coordinator/node/step_pairs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "coordinator/node/step_history.h"

namespace commensal::node::step_pairs_test {
namespace {

using namespace std::chrono_literals;

// --- numbers ------------------------------------------------------------------------------------

TEST(SlowdownEstimate, CertainIsWhatTwoErrorsLeave) {
  EXPECT_DOUBLE_EQ((SlowdownEstimate{0.05, 0.01, 20}).certain(), 0.03);
  EXPECT_LT((SlowdownEstimate{0.05, 0.03, 20}).certain(), 0.0);
}

TEST(SlowdownEstimate, WithASpreadLargerThanItselfItIsNotKnown) {
  EXPECT_EQ(why_not_known(SlowdownEstimate{5.26, 8.85, 3}),
            "not known yet: 526.0 % from 3 steps, with a standard error of 885.0 %");
  EXPECT_EQ(why_not_known(SlowdownEstimate{-0.2, 0.21, 7}),
            "not known yet: -20.0 % from 7 steps, with a standard error of 21.0 %");
  EXPECT_EQ(why_not_known(SlowdownEstimate{5.26, 5.0, 3}), "");
  EXPECT_EQ(why_not_known(SlowdownEstimate{-0.2, 0.19, 7}), "");
  EXPECT_EQ(why_not_known(std::nullopt), "not measured yet");
}

TEST(SlowdownEstimate, OfNextToNothingASmallSpreadSaysEnough) {
  EXPECT_EQ(why_not_known(SlowdownEstimate{0.0, 0.0, 9}), "");
  EXPECT_EQ(why_not_known(SlowdownEstimate{0.003, 0.02, 9}), "");
  EXPECT_EQ(why_not_known(SlowdownEstimate{-0.001, kTellingError, 9}), "");
  EXPECT_NE(why_not_known(SlowdownEstimate{0.003, kTellingError + 1e-6, 9}), "");
}

TEST(SlowdownEstimate, MediansAndDeviationsAreRobust) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2.0);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_DOUBLE_EQ(deviation({1, 2, 3, 4, 1000}), 1.4826);
  EXPECT_NEAR(error_of_median({1, 2, 3, 4, 1000}), 1.2533 * 1.4826 / std::sqrt(5.0) * 1.4, 1e-9);
  EXPECT_DOUBLE_EQ(error_of_median({7, 7, 7, 7}), 0.007 * 1.5) << "equal steps are not exact";
}

// --- pairs --------------------------------------------------------------------------------------

/// Pairs, and the time in which their steps end.
struct Shown {
  StepPairs pairs;
  TimePoint now{1h};
  TimePoint pass(double seconds) {
    return now += std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
  void quiet(double seconds) { pairs.add_quiet(pass(seconds), seconds); }
  void shared(double seconds) { pairs.add_shared(pass(seconds), seconds); }
};

/// Shows shared steps, a window, shared steps: the machine's speed changes by `drift` each time.
void show(Shown& to, int windows, double slowdown, double drift, std::size_t side = 8) {
  double step = 0.1;
  for (int i = 0; i < windows; ++i) {
    for (std::size_t k = 0; k < side; ++k) to.shared(step * (1 + slowdown));
    step *= 1 + drift;
    to.pairs.begin_quiet();
    for (int k = 0; k < 3; ++k) to.quiet(step);
    step *= 1 + drift;
  }
  for (std::size_t k = 0; k < side; ++k) to.shared(step * (1 + slowdown));
}

TEST(StepPairs, AreTheRatioOfBothSidesToTheWindow) {
  Shown to;
  show(to, 3, 0.02, 0.0);
  EXPECT_FALSE(to.pairs.slowdown()) << "too few";
  show(to, 1, 0.02, 0.0);
  ASSERT_TRUE(to.pairs.slowdown());
  EXPECT_NEAR(to.pairs.slowdown()->value, 0.02, 1e-9);
  EXPECT_EQ(to.pairs.slowdown()->steps, 4 * 16U);
}

TEST(StepPairs, AMachineThatGetsSlowerIsNoSlowdown) {
  Shown to;
  show(to, 6, 0.02, 0.05);
  EXPECT_NEAR(to.pairs.slowdown()->value, 0.02, 0.002);
  EXPECT_LT(to.pairs.slowdown()->error, 0.002);
}

TEST(StepPairs, TheOldestGo) {
  Shown to;
  show(to, 8, 0.5, 0.0);
  show(to, 8, 0.02, 0.0);
  EXPECT_NEAR(to.pairs.slowdown()->value, 0.02, 1e-9);
}

TEST(StepPairs, OneStepIsNoSideAndNoStepNoWindow) {
  Shown to;
  show(to, 8, 0.02, 0.0, 1);
  EXPECT_NEAR(to.pairs.slowdown()->value, 0.02, 1e-9) << "from the steps before alone";
  Shown empty;
  for (int i = 0; i < 10; ++i) {
    for (int k = 0; k < 8; ++k) empty.shared(0.1);
    empty.pairs.begin_quiet();
  }
  EXPECT_FALSE(empty.pairs.slowdown());
}

TEST(StepPairs, WhatIsForgottenDoesNotComeBack) {
  Shown to;
  show(to, 4, 0.5, 0.0);
  to.pairs.forget();
  EXPECT_FALSE(to.pairs.slowdown());
  show(to, 4, 0.02, 0.0);
  EXPECT_NEAR(to.pairs.slowdown()->value, 0.02, 1e-9);
}

TEST(StepPairs, TheNewestIsToldWhileItIsMade) {
  Shown to;
  to.pairs.begin_quiet();
  for (int k = 0; k < 3; ++k) to.quiet(0.1);
  to.shared(0.12);
  EXPECT_FALSE(to.pairs.newest());
  to.shared(0.12);
  ASSERT_TRUE(to.pairs.newest());
  EXPECT_NEAR(*to.pairs.newest(), 0.2, 1e-9);
}

TEST(StepPairs, AWindowOfJustNowOutlivesAChangeOfShares) {
  Shown to;
  show(to, 2, 0.5, 0.0);
  to.pairs.begin_quiet();
  for (int k = 0; k < 3; ++k) to.quiet(0.1);
  to.shared(0.15);
  to.shared(0.15);
  to.pairs.forget_shared();
  EXPECT_FALSE(to.pairs.newest());
  for (int k = 0; k < 8; ++k) to.shared(0.104);
  ASSERT_TRUE(to.pairs.newest());
  EXPECT_NEAR(*to.pairs.newest(), 0.04, 1e-9);
}

TEST(StepPairs, StepsThatAreNotNextToAWindowAreNoSide) {
  Shown to;
  to.pairs.begin_quiet();
  for (int k = 0; k < 3; ++k) to.quiet(0.1);
  to.pass(10.0);
  for (int k = 0; k < 8; ++k) to.shared(0.2);
  EXPECT_FALSE(to.pairs.newest()) << "after it";
  to.pass(10.0);
  to.pairs.begin_quiet();
  for (int k = 0; k < 3; ++k) to.quiet(0.1);
  for (int k = 0; k < 8; ++k) to.shared(0.13);
  ASSERT_TRUE(to.pairs.newest());
  EXPECT_NEAR(*to.pairs.newest(), 0.3, 1e-9) << "nor before it";
}

TEST(StepPairs, OfALongTimeAloneTheNewestStepsCount) {
  Shown to;
  to.pairs.begin_quiet();
  for (int k = 0; k < 1000; ++k) to.quiet(0.3);
  for (int k = 0; k < 8; ++k) to.quiet(0.1);
  for (int k = 0; k < 8; ++k) to.shared(0.11);
  ASSERT_TRUE(to.pairs.newest());
  EXPECT_NEAR(*to.pairs.newest(), 0.1, 1e-9);
}

// --- the history that uses them -----------------------------------------------------------------

/// A job of 50 ms whose machine's speed follows a function of the time in seconds.
class Machine {
 public:
  explicit Machine(std::function<double(double)> speed, double noise = 0.0)
      : speed_(std::move(speed)), noise_(0.0, noise) {}

  void quiet(int steps) {
    history.begin_quiet(now_);
    run(steps, 0.0);
  }
  void shared(int steps, double slowdown) {
    history.begin_shared(now_);
    run(steps, slowdown);
  }
  StepHistory history;

 private:
  void run(int steps, double slowdown) {
    now_ += kStepAge;
    for (int i = 0; i < steps; ++i) {
      const double at = std::chrono::duration<double>(now_ - TimePoint{1h}).count();
      const double seconds = 0.05 * speed_(at) * (1 + slowdown) * (1 + noise_(random_));
      const Duration step{static_cast<Duration::rep>(seconds * 1e9)};
      history.add(now_ += step, step);
    }
  }
  std::function<double(double)> speed_;
  std::normal_distribution<double> noise_;
  std::mt19937 random_{7};
  TimePoint now_{1h};
};

/// Each stretch of two seconds has a speed of its own, some per cent from the next one's.
double unsteady(double at) { return 1.0 + 0.05 * std::sin(std::floor(at / 2.0) * 2.4); }

TEST(StepHistory, AnUnsteadyMachineMakesASlowdownUncertain) {
  int alarms = 0;
  int naive = 0;  // with the errors of the two medians alone
  int looks = 0;
  Machine machine{unsteady};
  for (int i = 0; i < 40; ++i) {
    machine.quiet(3);
    machine.shared(20, 0.0);
    machine.history.forget_shared();  // no pair is ever made
    machine.shared(20, 0.0);
    const auto slowdown = machine.history.slowdown();
    if (!slowdown || i < 5) continue;
    ++looks;
    alarms += slowdown->certain() > 0.01 ? 1 : 0;
    const MedianEstimate alone = machine.history.baseline();
    const MedianEstimate here = machine.history.shared();
    const double error = std::hypot(alone.error, here.error) / alone.seconds;
    naive += here.seconds / alone.seconds - 1 - 2 * error > 0.01 ? 1 : 0;
  }
  EXPECT_GT(looks, 30);
  EXPECT_LE(alarms, 2) << "the neighbour costs nothing at all";
  EXPECT_GE(naive, 8);
}

TEST(StepHistory, PairsTellASmallSlowdownOnAnUnsteadyMachine) {
  Machine machine{[](double at) { return 1.0 + 0.1 * std::sin(at / 20.0); }};
  for (int i = 0; i < 12; ++i) {
    machine.quiet(3);
    machine.shared(60, 0.03);
  }
  ASSERT_TRUE(machine.history.slowdown());
  EXPECT_NEAR(machine.history.slowdown()->value, 0.03, 0.005);
  EXPECT_GT(machine.history.slowdown()->certain(), 0.02);
}

TEST(StepHistory, StepsThatDifferByChanceAreNoDrift) {
  Machine steady{[](double) { return 1.0; }, 0.03};
  for (int i = 0; i < 13; ++i) {
    steady.quiet(3);
    steady.shared(1, 0.0);
  }
  steady.history.forget_shared();
  steady.shared(100, 0.04);
  ASSERT_TRUE(steady.history.slowdown());
  EXPECT_NEAR(steady.history.slowdown()->value, 0.04, 0.02);
  EXPECT_LT(steady.history.slowdown()->error, 0.015) << "41 quiet steps of 3 %";
}

TEST(StepHistory, WhatHasCertainlyChangedDoesNotWaitForPairs) {
  Machine machine{[](double) { return 1.0; }, 0.01};
  for (int i = 0; i < 8; ++i) {
    machine.quiet(3);
    machine.shared(40, 0.0);
  }
  EXPECT_LT(machine.history.slowdown()->certain(), 0.01);
  machine.shared(200, 0.2);  // the neighbour's evaluation, say
  EXPECT_NEAR(machine.history.slowdown()->value, 0.2, 0.02);
  EXPECT_GT(machine.history.slowdown()->certain(), 0.1);
}

}  // namespace
}  // namespace commensal::node::step_pairs_test

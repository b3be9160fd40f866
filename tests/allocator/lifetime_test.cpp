// SPDX-License-Identifier: Apache-2.0
// Guesses of lifetimes: what is learned from a step, what is taken for granted, what is bounded.
#include "allocator/lifetime.h"

#include <gtest/gtest.h>

#include <vector>

namespace commensal::lifetime_test {
namespace {

constexpr std::size_t kSize = 4096;

class LifetimePredictorTest : public ::testing::Test {
 protected:
  /// One step of `births` blocks of a signature; those in `dying` die within it. Returns guesses.
  std::vector<Lifetime> step(Phase phase, std::size_t births, const std::vector<bool>& dying,
                             std::size_t size = kSize) {
    ++step_;
    std::vector<Lifetime> guesses;
    for (std::size_t i = 0; i < births; ++i) {
      const BirthMark mark = predictor_.born(phase, size, step_);
      guesses.push_back(mark.lifetime());
      if (dying[i % dying.size()]) predictor_.died(mark, step_);
    }
    return guesses;
  }

  LifetimePredictor predictor_;
  std::uint32_t step_ = 0;
};

TEST_F(LifetimePredictorTest, WhatWasNeverSeenGoesByItsPhase) {
  EXPECT_EQ(predictor_.born(Phase::kUnknown, 64, 1).lifetime(), Lifetime::kLong);
  EXPECT_EQ(predictor_.born(Phase::kOptimizer, 64, 1).lifetime(), Lifetime::kLong);
  EXPECT_EQ(predictor_.born(Phase::kForward, 64, 1).lifetime(), Lifetime::kStep);
  EXPECT_EQ(predictor_.born(Phase::kBackward, 64, 1).lifetime(), Lifetime::kStep);
  EXPECT_EQ(predictor_.born(Phase::kData, 64, 1).lifetime(), Lifetime::kStep);
}

TEST_F(LifetimePredictorTest, EachTurnOfAStepDoesWhatItDidInTheOneBefore) {
  // Of four blocks of one size in a backward pass the second and the fourth are gradients.
  const std::vector<bool> dying{true, false, true, false};
  step(Phase::kBackward, 4, dying);
  const std::vector<Lifetime> guesses = step(Phase::kBackward, 4, dying);
  EXPECT_EQ(guesses,
            (std::vector{Lifetime::kStep, Lifetime::kLong, Lifetime::kStep, Lifetime::kLong}));
}

TEST_F(LifetimePredictorTest, ChangesItsMindAfterOneStep) {
  step(Phase::kOptimizer, 3, {false});  // the state is made in the first step
  step(Phase::kOptimizer, 3, {true});   // later ones make temporaries of the same size
  EXPECT_EQ(step(Phase::kOptimizer, 3, {true}), std::vector(3, Lifetime::kStep));
}

TEST_F(LifetimePredictorTest, PhasesAndSizesDoNotMix) {
  step(Phase::kBackward, 1, {false});
  step(Phase::kForward, 1, {true});
  step(Phase::kBackward, 1, {true}, kSize * 2);
  EXPECT_EQ(step(Phase::kBackward, 1, {false}).front(), Lifetime::kLong);
  EXPECT_EQ(step(Phase::kForward, 1, {true}).front(), Lifetime::kStep);
  EXPECT_EQ(step(Phase::kBackward, 1, {true}, kSize * 2).front(), Lifetime::kStep);
}

TEST_F(LifetimePredictorTest, TurnsBeyondTheRememberedOnesFollowTheShare) {
  const std::size_t many = LifetimePredictor::kTurns * 3;
  step(Phase::kForward, many, {false, false, false, true});
  EXPECT_EQ(step(Phase::kForward, many, {true}).back(), Lifetime::kLong) << "3 of 4 outlived";
  for (int i = 0; i < 4; ++i) step(Phase::kForward, many, {true});
  EXPECT_EQ(step(Phase::kForward, many, {true}).back(), Lifetime::kStep);
}

TEST_F(LifetimePredictorTest, AStepOfAnyLengthKeepsTheShare) {
  const std::size_t many = 200'000;  // more than is counted
  step(Phase::kForward, many, {false, true, false, false});
  EXPECT_EQ(step(Phase::kForward, many, {true}).back(), Lifetime::kLong) << "3 of 4 outlived";
  for (int i = 0; i < 4; ++i) step(Phase::kForward, many, {true});
  EXPECT_EQ(step(Phase::kForward, many, {true}).back(), Lifetime::kStep);
}

TEST_F(LifetimePredictorTest, HugeSizesDoNotReachIntoThePhase) {
  const std::size_t huge = std::size_t{1} << 45U;
  step(Phase::kForward, 1, {false}, huge);
  EXPECT_EQ(step(Phase::kForward, 1, {true}, huge * 2).front(), Lifetime::kLong) << "one signature";
  EXPECT_EQ(step(Phase::kBackward, 1, {true}, huge).front(), Lifetime::kStep) << "another phase";
}

TEST_F(LifetimePredictorTest, ADeathInALaterStepSaysNothing) {
  const auto gradient = predictor_.born(Phase::kBackward, kSize, 1);
  predictor_.died(gradient, 2);  // zero_grad
  EXPECT_EQ(predictor_.born(Phase::kBackward, kSize, 2).lifetime(), Lifetime::kLong);
}

TEST_F(LifetimePredictorTest, IsBoundedAndTheOldestMakeRoom) {
  for (std::size_t size = 1; size <= LifetimePredictor::kSignatures * 8; ++size) {
    step(Phase::kForward, 1, {false}, size * 64);
  }
  // The newest are known, and marks of signatures that made room do no harm.
  EXPECT_EQ(step(Phase::kForward, 1, {false}, LifetimePredictor::kSignatures * 8 * 64).front(),
            Lifetime::kLong);
  predictor_.died(BirthMark{step_, 0, 0}, step_);
  predictor_.died(BirthMark{step_ - 1, 5, 200}, step_);
}

}  // namespace
}  // namespace commensal::lifetime_test

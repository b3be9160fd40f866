// SPDX-License-Identifier: Apache-2.0
// Steps a second by limit, and when a measurement counts.
#include "coordinator/node/speed_curve.h"

#include <gtest/gtest.h>

namespace commensal::node::speed_curve_test {
namespace {

using namespace commensal::literals;
using namespace std::chrono_literals;

class SpeedCurveTest : public ::testing::Test {
 protected:
  /// Trains with a limit, at a speed.
  void train(Bytes limit, double steps_per_second, Duration time, bool steady = true) {
    for (Duration passed{}; passed < time; passed += 200ms) {
      now_ += 200ms;
      steps_ += steps_per_second * 0.2;
      curve_.note(now_, limit, static_cast<std::uint64_t>(steps_), steady);
    }
  }
  TimePoint now_{1h};
  double steps_ = 0.0;
  SpeedCurve curve_;
};

TEST_F(SpeedCurveTest, MeasuresEachLimitAfterItHasSettled) {
  train(100_MiB, 10, 2s);
  EXPECT_TRUE(curve_.points().empty()) << "too early";
  train(100_MiB, 10, 3s);
  train(200_MiB, 20, 5s);
  const auto points = curve_.points();
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].limit, 100_MiB);
  EXPECT_NEAR(points[0].steps_per_second, 10, 1);
  EXPECT_NEAR(points[1].steps_per_second, 20, 2);
}

TEST_F(SpeedCurveTest, WhatIsNotSteadyDoesNotCount) {
  train(100_MiB, 10, 20s, false);
  EXPECT_TRUE(curve_.points().empty());
  train(100_MiB, 1, 8s);
  EXPECT_TRUE(curve_.points().empty()) << "too few steps";
}

TEST_F(SpeedCurveTest, OldPointsAndThoseOfAnotherJobGo) {
  train(100_MiB, 10, 5s);
  train(200_MiB, 20, 5s);
  train(100_MiB, 4, 5s);
  ASSERT_EQ(curve_.points().size(), 1U) << "the job has changed";
  EXPECT_NEAR(curve_.points()[0].steps_per_second, 4, 1);
  train(300_MiB, 10, 5s);
  EXPECT_EQ(curve_.points().size(), 2U);
  now_ += 11min;
  curve_.note(now_, 300_MiB, static_cast<std::uint64_t>(steps_), false);
  EXPECT_TRUE(curve_.points().empty());
}

TEST_F(SpeedCurveTest, ForgetsWhenItIsTold) {
  train(100_MiB, 10, 5s);
  curve_.clear();
  EXPECT_TRUE(curve_.points().empty());
  train(100_MiB, 30, 2s);
  EXPECT_TRUE(curve_.points().empty()) << "it settles again";
}

}  // namespace
}  // namespace commensal::node::speed_curve_test

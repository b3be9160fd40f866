// SPDX-License-Identifier: Apache-2.0
// Non-negative least squares, and what Optimus fits by them.
#include "coordinator/prediction/optimus_fits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

#include "coordinator/prediction/nnls.h"

namespace commensal::prediction::optimus_fits_test {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

double error_of(const std::vector<std::vector<double>>& rows, const std::vector<double>& wanted,
                const std::vector<double>& x) {
  double sum = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    double value = -wanted[i];
    for (std::size_t j = 0; j < x.size(); ++j) value += rows[i][j] * x[j];
    sum += value * value;
  }
  return sum;
}

TEST(NnlsTest, FindsWhatIsNotNegative) {
  EXPECT_THAT(non_negative_least_squares({{1, 0}, {1, 1}, {1, 2}}, {1, 3, 5}),
              ElementsAre(DoubleNear(1, 1e-9), DoubleNear(2, 1e-9)));
}

TEST(NnlsTest, KeepsAtZeroWhatWouldBeNegative) {
  // Unbounded, the slope would be -1; so it is the mean.
  EXPECT_THAT(non_negative_least_squares({{1, 0}, {1, 1}, {1, 2}}, {3, 2, 1}),
              ElementsAre(DoubleNear(2, 1e-9), 0));
  EXPECT_THAT(non_negative_least_squares({{1, 2}, {3, 4}}, {-1, -2}), ElementsAre(0, 0));
}

TEST(NnlsTest, IsNoWorseThanWhateverIsNear) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<double>> rows(8, std::vector<double>(5));
    std::vector<double> wanted(8);
    for (auto& row : rows) {
      for (double& value : row) value = normal(random);
    }
    for (double& value : wanted) value = normal(random);
    const auto x = non_negative_least_squares(rows, wanted);
    const double least = error_of(rows, wanted, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_GE(x[i], 0);
      for (const double change : {-1e-3, 1e-3}) {
        auto near = x;
        near[i] = std::max(0.0, near[i] + change);
        EXPECT_GE(error_of(rows, wanted, near), least - 1e-12);
      }
    }
  }
}

TEST(NnlsTest, DoesWithColumnsThatSayTheSame) {
  const std::vector<std::vector<double>> rows{{1, 2}, {2, 4}, {3, 6}};
  EXPECT_NEAR(error_of(rows, {2, 4, 6}, non_negative_least_squares(rows, {2, 4, 6})), 0, 1e-18);
}

TEST(NnlsTest, RefusesWhatIsNoMatrix) {
  EXPECT_THROW((void)non_negative_least_squares({}, {}), std::invalid_argument);
  EXPECT_THROW((void)non_negative_least_squares({{1}}, {1, 2}), std::invalid_argument);
  EXPECT_THROW((void)non_negative_least_squares({{1}, {1, 2}}, {1, 2}), std::invalid_argument);
  EXPECT_THROW((void)non_negative_least_squares({{NAN}}, {1}), std::invalid_argument);
}

std::vector<LossPoint> curve(double b0, double b1, double b2) {
  std::vector<LossPoint> points;
  for (double step = 100; step <= 2000; step += 100) {
    points.push_back({step, 1 / (b0 * step + b1) + b2});
  }
  return points;
}

TEST(LossCurveTest, GoesOnAsTheLossDid) {
  std::vector<LossPoint> points = curve(0.01, 0.5, 0.2);
  const double later = points.back().loss;
  points.resize(10);
  const auto fitted = LossCurve::fit(points);
  ASSERT_TRUE(fitted);
  EXPECT_NEAR(fitted->loss(2000), later, 0.02 * later);
}

TEST(LossCurveTest, IsNotMovedByAnOutlier) {
  std::vector<LossPoint> points = curve(0.01, 0.5, 0.2);
  const double later = points.back().loss;
  points[5].loss *= 10;
  const auto fitted = LossCurve::fit(points);
  ASSERT_TRUE(fitted);
  EXPECT_NEAR(fitted->loss(2000), later, 0.02 * later);
}

TEST(LossCurveTest, CountsTheStepsUntilTheLossIsFlat) {
  const auto fitted = LossCurve::fit(curve(0.01, 1, 0));
  ASSERT_TRUE(fitted);
  const double steps = fitted->steps_until_flat(100, 50, 0.01);
  const double largest = fitted->loss(100);
  EXPECT_NEAR(fitted->loss(100 + steps) - fitted->loss(150 + steps), 0.01 * largest, 1e-9);
  EXPECT_EQ(fitted->steps_until_flat(100 + 2 * steps, 50, 0.01), 0);
}

TEST(LossCurveTest, ALossThatDoesNotFallIsFlat) {
  const auto fitted = LossCurve::fit({{1, 2}, {2, 2}, {3, 2}, {4, 2}});
  ASSERT_TRUE(fitted);
  EXPECT_EQ(fitted->steps_until_flat(4, 1, 0.01), 0);
}

TEST(LossCurveTest, NeedsThreePointsAboveZero) {
  EXPECT_FALSE(LossCurve::fit({{1, 2}, {2, 1}}));
  EXPECT_FALSE(LossCurve::fit({{1, 2}, {2, 0}, {3, 0}}));
}

TEST(SpeedFitTest, PredictsWorkersAndServersThatWereNotTried) {
  const auto truth = [](double w, double p, double m) {
    return 0.02 * m / w + 0.1 + 0.3 * w / p + 0.01 * w + 0.02 * p;
  };
  std::vector<SpeedPoint> points;
  for (const double w : {1.0, 2.0, 4.0, 8.0}) {
    for (const double p : {1.0, 2.0, 4.0}) points.push_back({w, p, 64, truth(w, p, 64)});
  }
  const SpeedFit fit(Training::kSynchronous, points);
  EXPECT_NEAR(fit.seconds({.workers = 12, .servers = 6, .batch = 64}), truth(12, 6, 64), 1e-6);
}

TEST(SpeedFitTest, FitsAsynchronousTraining) {
  std::vector<SpeedPoint> points;
  for (const double w : {1.0, 2.0, 4.0, 8.0}) {
    for (const double p : {1.0, 2.0, 4.0}) {
      points.push_back({w, p, 0, 0.5 + 0.2 * w / p + 0.01 * w + 0.03 * p});
    }
  }
  const SpeedFit fit(Training::kAsynchronous, points);
  EXPECT_NEAR(fit.seconds({.workers = 16, .servers = 4}), 0.5 + 0.8 + 0.16 + 0.12, 1e-6);
}

TEST(SpeedFitTest, RefusesToFitNothing) {
  EXPECT_THROW(SpeedFit(Training::kSynchronous, {}), std::invalid_argument);
  EXPECT_THROW(SpeedFit(Training::kSynchronous, {{.workers = 0, .seconds = 1}}),
               std::invalid_argument);
}

}  // namespace
}  // namespace commensal::prediction::optimus_fits_test

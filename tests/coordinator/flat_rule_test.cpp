// SPDX-License-Identifier: Apache-2.0
// When a loss is flat, and when nobody can say so.
#include "coordinator/cluster/flat_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

namespace commensal::cluster::flat_rule_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr TimePoint kBegin{1h};
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A point each `step` from the begin on, for `length`.
std::vector<LossPoint> curve(Duration length, Duration step,
                             const std::function<double(double)>& loss) {
  std::vector<LossPoint> points;
  for (Duration at{}; at <= length; at += step) {
    points.push_back({kBegin + at, loss(std::chrono::duration<double>(at).count())});
  }
  return points;
}
FlatVerdict judge(const std::vector<LossPoint>& points, FlatRule rule = {10min, 0.01}) {
  return judge_flat(points, rule, points.empty() ? kBegin : points.back().at);
}

TEST(FlatRuleTest, WhatDoesNotMoveIsFlat) {
  const FlatVerdict verdict = judge(curve(20min, 10s, [](double) { return 0.5; }));
  EXPECT_TRUE(verdict.flat);
  EXPECT_EQ(verdict.reason,
            "its loss has been flat for 10 min: median 0.5, then 0.5 (+0 %; flat is 1 %)");
}

TEST(FlatRuleTest, WhatFallsIsNot) {
  const FlatVerdict verdict = judge(curve(20min, 10s, [](double t) { return std::exp(-t / 600); }));
  EXPECT_FALSE(verdict.flat);
  EXPECT_THAT(verdict.reason, HasSubstr("has fallen for 10 min"));
}

TEST(FlatRuleTest, WhatRisesIsNot) {
  const FlatVerdict verdict = judge(curve(20min, 10s, [](double t) { return 1 + t / 600; }));
  EXPECT_FALSE(verdict.flat);
  EXPECT_THAT(verdict.reason, HasSubstr("has risen"));
}

TEST(FlatRuleTest, ACurveThatFlattensIsFlatOnceItsWindowIs) {
  const auto falls_for_ten_minutes = [](double t) { return t < 600 ? 2 - t / 600 : 1.0; };
  EXPECT_FALSE(judge(curve(14min, 10s, falls_for_ten_minutes)).flat);
  EXPECT_TRUE(judge(curve(20min, 10s, falls_for_ten_minutes)).flat);
}

TEST(FlatRuleTest, HowMuchIsFlatIsTheRules) {
  const auto slowly = [](double t) { return 1 - t / 600 * 0.04; };  // 2 % between the medians
  EXPECT_FALSE(judge(curve(10min, 10s, slowly), {10min, 0.01}).flat);
  EXPECT_TRUE(judge(curve(10min, 10s, slowly), {10min, 0.05}).flat);
}

TEST(FlatRuleTest, NoiseAndOutliersDoNotDecide) {
  std::mt19937 random{7};  // NOLINT(cert-msc51-cpp,cert-msc32-c): the same sequence each time
  std::normal_distribution<double> noise{0, 0.05};
  int n = 0;
  const auto noisy = [&](double) { return ++n % 17 == 0 ? 1e9 : 1 + noise(random); };
  EXPECT_TRUE(judge(curve(30min, 1s, noisy), {20min, 0.02}).flat);
  n = 0;
  const auto falling = [&](double t) {
    return ++n % 17 == 0 ? -1e9 : 2 - t / 1800 + noise(random);
  };
  EXPECT_FALSE(judge(curve(30min, 1s, falling), {20min, 0.02}).flat);
}

TEST(FlatRuleTest, WhatIsNoNumberIsLeftOut) {
  int n = 0;
  EXPECT_TRUE(judge(curve(20min, 10s, [&](double) { return ++n % 3 == 0 ? kNaN : 0.5; })).flat);
  const FlatVerdict never = judge(curve(20min, 10s, [](double) { return kNaN; }));
  EXPECT_FALSE(never.flat);
  EXPECT_THAT(never.reason, HasSubstr("a number 0 and 0 times in the halves of the last 10 min"));
  const auto ends_in_infinity = [](double t) { return t < 900 ? 0.5 : kInfinity; };
  EXPECT_FALSE(judge(curve(20min, 10s, ends_in_infinity)).flat);
}

TEST(FlatRuleTest, NothingIsSaidOfLessThanAWindow) {
  EXPECT_EQ(judge({}).reason, "it has not told its loss yet");
  const FlatVerdict early = judge(curve(9min, 1s, [](double) { return 0.5; }));
  EXPECT_FALSE(early.flat);
  EXPECT_EQ(early.reason, "its loss is known for 9 min of 10 min");
}

TEST(FlatRuleTest, AJobThatWasPausedIsNotFlat) {
  auto points = curve(20min, 10s, [](double) { return 0.5; });
  EXPECT_FALSE(judge_flat(points, {10min, 0.01}, points.back().at + 5min).flat)
      << "nothing is known of the newer half";
  EXPECT_FALSE(judge_flat(points, {10min, 0.01}, points.back().at + 24h).flat);
}

TEST(FlatRuleTest, ZeroesAndVeryLargeLossesAreNumbersToo) {
  EXPECT_TRUE(judge(curve(20min, 10s, [](double) { return 0.0; })).flat);
  EXPECT_TRUE(judge(curve(20min, 10s, [](double) { return 1e308; })).flat);
  const auto flips = [](double t) { return t < 900 ? 1.5e308 : -1.5e308; };
  const FlatVerdict verdict = judge(curve(20min, 10s, flips));
  EXPECT_FALSE(verdict.flat);
  EXPECT_THAT(verdict.reason, HasSubstr("-2e+02 %"));
}

TEST(LossCurveTest, KeepsAWindowAndStaysSmall) {
  LossCurve curve;
  for (int i = 0; i < 100'000; ++i) curve.add({kBegin + i * 100ms, 0.5}, 600s);
  EXPECT_LE(curve.points().size(), 2U * LossCurve::kPointsOfWindow + 2);
  const TimePoint now = curve.points().back().at;
  EXPECT_GT(now, kBegin + 99'999 * 100ms - 2s);
  EXPECT_GE(curve.points().front().at, now - 30min) << "what is old has gone";
  EXPECT_TRUE(judge_flat(curve.points(), {600s, 0.01}, now).flat) << "however often it is told";
}

TEST(LossCurveTest, IsBoundedForTheShortestWindowToo) {
  LossCurve curve;
  for (int i = 0; i < 20'000; ++i) curve.add({kBegin + i * 1ms, 0.5}, FlatRule::kShortest);
  EXPECT_LE(curve.points().size(), 2U * LossCurve::kPointsOfWindow + 2);
  EXPECT_TRUE(judge_flat(curve.points(), {FlatRule::kShortest, 0.01}, kBegin + 20s).flat);
}

TEST(LossCurveTest, KeepsWhatSaysThatAWindowIsKnown) {
  LossCurve curve;
  for (int i = 0; i <= 40; ++i) curve.add({kBegin + i * 1min, 0.5}, 1200s);
  EXPECT_TRUE(judge_flat(curve.points(), {1200s, 0.01}, kBegin + 40min).flat);
}

TEST(LossCurveTest, TimeDoesNotRunBackwards) {
  LossCurve curve;
  curve.add({kBegin + 10s, 1}, 60s);
  curve.add({kBegin, 2}, 60s);
  ASSERT_EQ(curve.points().size(), 1U);
  EXPECT_EQ(curve.points()[0].loss, 1);
}

}  // namespace
}  // namespace commensal::cluster::flat_rule_test

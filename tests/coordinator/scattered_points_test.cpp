// SPDX-License-Identifier: Apache-2.0
// Interpolation between scattered points.
#include "coordinator/engines/simulator/scattered_points.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace commensal::simulator::scattered_points_test {
namespace {

using ::testing::HasSubstr;

double linear(const Point3& p) { return 1 + 2 * p[0] - 3 * p[1] + 0.5 * p[2]; }

ScatteredPoints grid() {
  std::vector<Point3> points;
  std::vector<Value2> values;
  for (const double x : {1.0, 2.0, 4.0}) {
    for (const double y : {1.0, 3.0, 4.0}) {
      for (const double z : {8.0, 16.0, 24.0}) {
        points.push_back({x, y, z});
        values.push_back({linear(points.back()), -linear(points.back())});
      }
    }
  }
  return {"a grid", points, values};
}

TEST(ScatteredPointsTest, GivesBackWhatIsLinear) {
  const ScatteredPoints points = grid();
  for (const Point3& at : {Point3{1.5, 2, 12}, Point3{3.9, 1.1, 8.5}, Point3{2, 3.5, 23},
                           Point3{1, 1, 8}, Point3{4, 4, 24}, Point3{4, 2, 16}}) {
    const auto found = points.at(at);
    ASSERT_TRUE(found);
    EXPECT_NEAR((*found)[0], linear(at), 1e-12);
    EXPECT_NEAR((*found)[1], -linear(at), 1e-12);
  }
}

TEST(ScatteredPointsTest, KnowsNothingOutsideOfTheHull) {
  const ScatteredPoints points = grid();
  EXPECT_FALSE(points.at({0.99, 2, 12}));
  EXPECT_FALSE(points.at({2, 4.01, 12}));
  EXPECT_FALSE(points.at({2, 2, 25}));
}

TEST(ScatteredPointsTest, KnowsNothingInACornerOfTheBoxThatTheHullLeavesOut) {
  const ScatteredPoints points("a pyramid", {{0, 0, 0}, {4, 0, 0}, {0, 4, 0}, {0, 0, 4}, {1, 1, 1}},
                               {{0, 0}, {4, 0}, {4, 0}, {4, 0}, {3, 0}});
  const auto inside = points.at({0.5, 0.5, 0.5});
  ASSERT_TRUE(inside);
  EXPECT_NEAR((*inside)[0], 1.5, 1e-12);
  EXPECT_FALSE(points.at({3, 3, 3}));
}

TEST(ScatteredPointsTest, RefusesPointsInOnePlane) {
  try {
    const ScatteredPoints points("flat things",
                                 {{0, 0, 1}, {1, 0, 1}, {0, 1, 1}, {1, 1, 1}, {2, 3, 1}},
                                 {{}, {}, {}, {}, {}});
    FAIL() << "no exception";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("flat things: 5 points cannot be triangulated"));
  }
}

TEST(ScatteredPointsTest, RefusesTooFewPoints) {
  EXPECT_THROW(ScatteredPoints("two", {{0, 0, 1}, {1, 0, 1}}, {{}, {}}), std::invalid_argument);
  EXPECT_THROW(ScatteredPoints("none", {}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace commensal::simulator::scattered_points_test

// SPDX-License-Identifier: Apache-2.0
// Who gets which part of the device's time.
#include "coordinator/node/share_division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace commensal::node::share_division_test {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

ShareClaim claim(double min, double max = 1.0, double deficit = 0.0) {
  return {{min, max}, deficit};
}
auto about(double value) { return DoubleNear(value, 1e-9); }

TEST(ShareDivision, MinimumSharesComeFirst) {
  EXPECT_THAT(divide_share(0.5, {claim(0.4), claim(0.1)}), ElementsAre(about(0.4), about(0.1)));
  EXPECT_THAT(divide_share(0.25, {claim(0.4), claim(0.1)}), ElementsAre(about(0.2), about(0.05)))
      << "too little for both: the same part of each";
}

TEST(ShareDivision, TheRestGoesByDeficit) {
  EXPECT_THAT(divide_share(0.6, {claim(0.1, 1, 3.0), claim(0.1, 1, 1.0)}),
              ElementsAre(about(0.4), about(0.2)));
  EXPECT_THAT(divide_share(0.6, {claim(0.1), claim(0.1)}), ElementsAre(about(0.3), about(0.3)))
      << "equally where nobody lacks anything";
}

TEST(ShareDivision, WhatIsAboveAMaximumGoesToTheOthers) {
  EXPECT_THAT(divide_share(0.9, {claim(0, 0.2, 5.0), claim(0, 1), claim(0, 1)}),
              ElementsAre(about(0.2), about(0.35), about(0.35)));
  EXPECT_THAT(divide_share(5.0, {claim(0, 0.2), claim(0, 1)}), ElementsAre(about(0.2), about(1)));
}

TEST(ShareDivision, NothingIsDividedWithoutABudgetOrJobs) {
  EXPECT_TRUE(divide_share(1.0, {}).empty());
  EXPECT_THAT(divide_share(0.0, {claim(0.3), claim(0)}), ElementsAre(about(0), about(0)));
  EXPECT_THAT(divide_share(-1.0, {claim(0.3)}), ElementsAre(about(0)));
}

TEST(ShareDivision, HoldsForRandomClaims) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> fraction(0, 1);
  for (int run = 0; run < 10'000; ++run) {
    std::vector<ShareClaim> claims(1 + random() % 6);
    double minima = 0.0;
    double maxima = 0.0;
    for (ShareClaim& one : claims) {
      one.bounds.max = fraction(random);
      one.bounds.min = one.bounds.max * fraction(random);
      one.deficit = random() % 2 == 0 ? 0.0 : fraction(random);
      minima += one.bounds.min;
      maxima += one.bounds.max;
    }
    const double budget = fraction(random) * 3;
    const auto parts = divide_share(budget, claims);
    const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
    EXPECT_NEAR(sum, std::min(budget, maxima), 1e-9);
    for (std::size_t i = 0; i < claims.size(); ++i) {
      EXPECT_LE(parts[i], claims[i].bounds.max + 1e-9);
      if (budget >= minima) {
        EXPECT_GE(parts[i], claims[i].bounds.min - 1e-9);
      }
    }
  }
}

TEST(ShareDivision, WhoGotLessLacksMore) {
  EXPECT_THAT(deficits({4.0, 0.0, 2.0}), ElementsAre(0.0, 2.0, 0.0));
  EXPECT_THAT(deficits({1.0, 1.0}), ElementsAre(0.0, 0.0));
  EXPECT_TRUE(deficits({}).empty());
}

}  // namespace
}  // namespace commensal::node::share_division_test

// SPDX-License-Identifier: Apache-2.0
// How long gaps last, and what is expected of one that has lasted so long already.
#include "torch_ext/gate/gap_histogram.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace commensal::gap_histogram_test {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

GapHistogram of(std::initializer_list<std::pair<int, Duration>> waits, int rounds = 1) {
  GapHistogram histogram;
  for (int i = 0; i < rounds; ++i) {
    for (const auto& [count, length] : waits) {
      for (int k = 0; k < count; ++k) histogram.add(length);
    }
  }
  return histogram;
}

TEST(GapBuckets, AreAQuarterOfAnOctaveWideAndCoverEverything) {
  for (std::size_t i = 0; i + 1 < wire::kGapBuckets; ++i) {
    const std::uint64_t floor = wire::gap_bucket_floor(i);
    const std::uint64_t next = wire::gap_bucket_floor(i + 1);
    ASSERT_LT(floor, next);
    EXPECT_EQ(wire::gap_bucket(floor), i);
    EXPECT_EQ(wire::gap_bucket(next - 1), i);
    if (i > 0) {
      EXPECT_LE(next - floor, floor / 4 + 1) << i;
    }
  }
  EXPECT_EQ(wire::gap_bucket(UINT64_MAX), wire::kGapBuckets - 1);
  EXPECT_GT(wire::gap_bucket_floor(wire::kGapBuckets - 1), 5'000'000'000U);
}

TEST(GapHistogram, SaysNothingOfFewerThanThreeWaits) {
  GapHistogram histogram;
  EXPECT_EQ(histogram.expected({}), Duration::zero());
  EXPECT_EQ(histogram.quantile(0.5), Duration::zero());
  histogram.add(milliseconds{30});
  histogram.add(milliseconds{30});
  EXPECT_EQ(histogram.expected({}), Duration::zero());
  histogram.add(milliseconds{30});
  EXPECT_EQ(histogram.expected({}), milliseconds{30});
  EXPECT_EQ(histogram.waits(), 3U);
  EXPECT_EQ(histogram.total(), milliseconds{90});
}

TEST(GapHistogram, ExpectsWhatFourOfFiveReach) {
  EXPECT_EQ(of({{1, milliseconds{1}}, {9, milliseconds{30}}}, 6).expected({}), milliseconds{30});
  EXPECT_EQ(of({{5, milliseconds{2}}, {5, milliseconds{30}}}, 6).expected({}), milliseconds{2});
}

/// The point of a survival estimate: a wait that has outlasted the short ones is one of the long.
TEST(GapHistogram, AWaitThatOutlastsTheShortOnesIsExpectedToBeALongOne) {
  const GapHistogram histogram = of({{8, milliseconds{2}}, {2, milliseconds{80}}}, 8);
  EXPECT_EQ(histogram.expected({}), milliseconds{2});
  EXPECT_EQ(histogram.expected(microseconds{1900}), milliseconds{2});
  EXPECT_EQ(histogram.expected(milliseconds{3}), milliseconds{80});
  EXPECT_EQ(histogram.expected(milliseconds{200}), Duration::zero()) << "none lasted so long";
}

TEST(GapHistogram, TheTableHoldsTheSameForEveryBucket) {
  std::mt19937 random{7};
  std::lognormal_distribution<double> length{16.0, 1.5};  // median 9 ms
  for (int round = 0; round < 50; ++round) {
    GapHistogram histogram;
    for (int i = 0; i <= round * 5; ++i) {
      histogram.add(Duration{static_cast<Duration::rep>(length(random))});
    }
    std::array<std::uint64_t, wire::kGapBuckets> table;
    histogram.expected(table);
    for (std::size_t i = 0; i < wire::kGapBuckets; ++i) {
      const Duration waited{static_cast<Duration::rep>(wire::gap_bucket_floor(i))};
      ASSERT_NEAR(static_cast<double>(table[i]),
                  static_cast<double>(histogram.expected(waited).count()), 2.0)
          << "round " << round << " bucket " << i;
      if (table[i] != 0) {
        ASSERT_GE(table[i] + 1, wire::gap_bucket_floor(i)) << "it has lasted so long already";
      }
    }
  }
}

TEST(GapHistogram, FollowsAJobThatChanges) {
  GapHistogram histogram = of({{500, milliseconds{30}}});
  for (int i = 0; i < 200; ++i) histogram.add(milliseconds{3});
  EXPECT_EQ(histogram.expected({}), milliseconds{3});
  for (int i = 0; i < 30; ++i) histogram.add(microseconds{100});
  EXPECT_EQ(histogram.expected({}), microseconds{100}) << "short ones count at once";
}

TEST(GapHistogram, StaysBoundedOverMillionsOfWaits) {
  GapHistogram histogram;
  for (int i = 0; i < 1'000'000; ++i) histogram.add(milliseconds{i % 2 == 0 ? 10 : 20});
  EXPECT_EQ(histogram.expected({}), milliseconds{10});
  EXPECT_NEAR(static_cast<double>(histogram.quantile(0.9).count()), 20e6, 1e3);
  double all = 0.0;
  for (std::size_t i = 0; i < wire::kGapBuckets; ++i) all += histogram.count(i);
  EXPECT_NEAR(all, GapHistogram::kMemory - 1, 1.0);
}

TEST(GapHistogram, TakesAnyLength) {
  GapHistogram histogram;
  for (int i = 0; i < 5; ++i) histogram.add(Duration{-5});
  EXPECT_EQ(histogram.expected({}), Duration::zero());
  for (int i = 0; i < 50; ++i) histogram.add(hours{30});
  EXPECT_EQ(histogram.expected(hours{1}), hours{30});
}

TEST(GapHistogram, QuantilesAreThoseOfWhatWasAdded) {
  GapHistogram histogram;
  for (int i = 0; i < 640; ++i) histogram.add(milliseconds{10 + i % 10});  // 10 to 19
  EXPECT_NEAR(static_cast<double>(histogram.quantile(0.5).count()), 14.5e6, 1.5e6);
  EXPECT_NEAR(static_cast<double>(histogram.quantile(0.9).count()), 18.5e6, 1.5e6);
  EXPECT_LT(histogram.quantile(0.1), histogram.quantile(0.5));
}

// --- the words of a device page
// --------------------------------------------------------------------

TEST(GapRules, SurviveTheirWords) {
  wire::GapRules rules;
  rules.known = true;
  rules.phases =
      wire::phase_bit(wire::GapPhase::kLoader) | wire::phase_bit(wire::GapPhase::kRequests);
  rules.smallest = milliseconds{5};
  rules.guard = microseconds{250};
  rules.in_flight = milliseconds{2};
  rules.hand_overs = 9.125;
  rules.change = microseconds{318};
  EXPECT_EQ(wire::unpack(wire::pack(rules)), rules);
  rules.phases = 0;
  EXPECT_EQ(wire::unpack(wire::pack(rules)), rules) << "no phase at all is a rule too";
}

TEST(GapRules, OfAnOlderCoordinatorBoundNothing) {
  EXPECT_EQ(wire::unpack({0, 0, 0}), wire::GapRules{});
  EXPECT_EQ(wire::pack(wire::GapRules{}).gaps, 0U);
  EXPECT_EQ(wire::GapRules{}.phases, wire::kAllGapPhases);
}

TEST(GapRules, AreCutToWhatAWordHolds) {
  wire::GapRules rules;
  rules.known = true;
  rules.guard = hours{1};
  rules.smallest = -milliseconds{1};
  rules.hand_overs = 1e300;
  const wire::GapRules seen = wire::unpack(wire::pack(rules));
  EXPECT_GT(seen.guard, std::chrono::seconds{16});
  EXPECT_EQ(seen.smallest, Duration::zero());
  EXPECT_GT(seen.hand_overs, 4e6);
  (void)wire::unpack({UINT64_MAX, UINT64_MAX, UINT64_MAX});  // scribbled over: any rules, no harm
}

}  // namespace
}  // namespace commensal::gap_histogram_test

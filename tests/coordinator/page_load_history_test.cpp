// SPDX-License-Identifier: Apache-2.0
// The numbers of jobs over time: which points are kept, and for how long.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "coordinator/page/load_history.h"

namespace commensal::page::page_load_history_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

class LoadHistoryTest : public ::testing::Test {
 protected:
  /// How it is so long after the beginning.
  bool add(std::chrono::milliseconds after, Load load) {
    return history_.add(load, kBegin + after, 1'000'000ms + after);
  }
  std::vector<std::int64_t> times() {
    std::vector<std::int64_t> times;
    for (const json& point : history_.list()) {
      times.push_back(point["at_ms"].get<std::int64_t>() - 1'000'000);
    }
    return times;
  }

  static constexpr TimePoint kBegin{10h};
  LoadHistory history_;
};

TEST_F(LoadHistoryTest, BeginsWithNothingAndTakesTheFirstAtOnce) {
  EXPECT_EQ(history_.list(), json::array());
  EXPECT_TRUE(history_.is_due(TimePoint{}));
  EXPECT_TRUE(add(0ms, {1, 2, 3}));
  EXPECT_EQ(history_.list(),
            json::parse(R"([{"at_ms":1000000,"guaranteed":1,"opportunistic":2,"waiting":3}])"));
}

TEST_F(LoadHistoryTest, TakesAPointEachStepAtMost) {
  (void)add(0ms, {1, 0, 0});
  EXPECT_FALSE(history_.is_due(kBegin + 4999ms));
  EXPECT_FALSE(add(4999ms, {2, 0, 0}));
  EXPECT_EQ(history_.due(), kBegin + 5s);
  EXPECT_TRUE(add(5s, {2, 0, 0}));
  EXPECT_EQ(times(), (std::vector<std::int64_t>{0, 5000}));
}

TEST_F(LoadHistoryTest, WhatIsAsBeforeIsNoPoint) {
  (void)add(0ms, {1, 1, 1});
  EXPECT_FALSE(add(1min, {1, 1, 1}));
  EXPECT_TRUE(history_.is_due(kBegin + 1min)) << "a change is taken at once";
  for (const Load& other : {Load{2, 1, 1}, Load{1, 2, 1}, Load{1, 1, 2}}) {
    LoadHistory history;
    (void)history.add({1, 1, 1}, kBegin, 0ms);
    EXPECT_TRUE(history.add(other, kBegin + 1min, 0ms));
  }
}

TEST_F(LoadHistoryTest, WhatIsOlderGoesButHowItWasThenStays) {
  (void)add(0ms, {1, 0, 0});
  (void)add(1min, {2, 0, 0});
  (void)add(10min, {3, 0, 0});
  (void)add(16min - 1ms, {4, 0, 0});
  EXPECT_EQ(times().front(), 0) << "until the second is fifteen minutes old";
  (void)add(17min, {5, 0, 0});
  EXPECT_EQ(times(), (std::vector<std::int64_t>{60'000, 600'000, 959'999, 1'020'000}));
}

TEST_F(LoadHistoryTest, IsBoundedWhateverHappens) {
  for (int second = 0; second < 10'000; ++second) {
    (void)add(std::chrono::seconds{second}, {second, 0, 0});
  }
  EXPECT_LE(times().size(), 1 + LoadHistory::kKept / LoadHistory::kStep);
}

TEST_F(LoadHistoryTest, AClockThatIsSetBackChangesNoOrder) {
  (void)history_.add({1, 0, 0}, kBegin, 5'000'000ms);
  (void)history_.add({2, 0, 0}, kBegin + 1min, 1'000ms);
  EXPECT_EQ(history_.list()[1]["at_ms"], 1000) << "what the clock said, in the order of events";
}

}  // namespace
}  // namespace commensal::page::page_load_history_test

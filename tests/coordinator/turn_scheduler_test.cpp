// SPDX-License-Identifier: Apache-2.0
// Turns on the device, in simulated time.
#include "coordinator/node/turn_scheduler.h"

#include <gtest/gtest.h>

#include <map>

namespace commensal::node::turn_scheduler_test {
namespace {

using namespace std::chrono_literals;

class TurnSchedulerTest : public ::testing::Test {
 protected:
  TurnClient& add(const std::string& id, double request, double limit = 1.0) {
    clients_.push_back({JobId{id}, request, limit, true, true, {}});
    return clients_.back();
  }
  /// Passes time in steps of 5 ms. @return the part of it that each job had the turn.
  std::map<std::string, double> run(Duration time) {
    std::map<std::string, double> parts;
    const Duration step = 5ms;
    const auto count = time / step;
    for (int i = 0; i < count; ++i) {
      const Turn& turn = scheduler_.update(now_, clients_);
      if (!turn.holder.empty()) parts[turn.holder.str()] += 1.0 / static_cast<double>(count);
      now_ += step;
    }
    return parts;
  }
  const Turn& update() { return scheduler_.update(now_, clients_); }

  TurnScheduler scheduler_;
  std::vector<TurnClient> clients_;
  TimePoint now_{std::chrono::hours{1}};
};

TEST_F(TurnSchedulerTest, GivesEachWhatItRequested) {
  add("a", 0.6);
  add("b", 0.3);
  add("c", 0.1);
  run(10s);
  const auto parts = run(20s);
  EXPECT_NEAR(parts.at("a"), 0.6, 0.05);
  EXPECT_NEAR(parts.at("b"), 0.3, 0.05);
  EXPECT_NEAR(parts.at("c"), 0.1, 0.05);
}

TEST_F(TurnSchedulerTest, DividesTheRestByLeastUse) {
  add("a", 0.2);
  add("b", 0.0);
  add("c", 0.0);
  run(10s);
  const auto parts = run(20s);
  for (const auto& [id, part] : parts) EXPECT_NEAR(part, 1.0 / 3, 0.05) << id;
}

TEST_F(TurnSchedulerTest, NobodyIsAboveItsLimit) {
  add("a", 0.0, 0.2);
  run(10s);
  EXPECT_NEAR(run(20s).at("a"), 0.2, 0.02);
  EXPECT_TRUE(update().holder.empty() || scheduler_.used(JobId{"a"}) < 2250ms);
  clients_.clear();
  add("b", 0.0, 0.0);
  EXPECT_TRUE(run(1s).empty()) << "a limit of nothing";
}

TEST_F(TurnSchedulerTest, ANewcomerGoesAtOnceWhenATurnEnds) {
  add("a", 1.0);
  run(5s);
  add("b", 0.0);
  EXPECT_GT(run(300ms).count("b"), 0U);
}

TEST_F(TurnSchedulerTest, ATurnLastsForItsQuota) {
  add("a", 0.5);
  add("b", 0.5);
  const TimePoint until = update().until;
  EXPECT_EQ(until - now_, 250ms) << "bursts are not known";
  now_ = until - 1ms;
  EXPECT_EQ(update().until, until);
  now_ = until;
  EXPECT_NE(update().until, until);
}

TEST_F(TurnSchedulerTest, TheQuotaFollowsTheBursts) {
  add("a", 0.5).burst = 1050ms;
  EXPECT_EQ(update().until - now_, 650ms) << "half of the burst, half of the last quota";
  clients_[0].burst = 1ms;
  for (int i = 0; i < 20; ++i) {
    now_ = update().until;
  }
  EXPECT_EQ(update().until - now_, 100ms) << "no shorter";
  clients_[0].wants = false;
  run(11s);
  clients_[0] = {JobId{"a"}, 0.5, 0.5, true, true, 60s};
  EXPECT_EQ(update().until - now_, 5s) << "no longer than its limit of the window";
}

TEST_F(TurnSchedulerTest, AHolderThatWantsNothingGivesItsTurnBack) {
  add("a", 0.9);
  add("b", 0.0);
  run(100ms);
  ASSERT_EQ(scheduler_.turn().holder.str(), "a");
  clients_[0].wants = false;
  EXPECT_EQ(update().holder.str(), "b");
  clients_[1].wants = false;
  EXPECT_TRUE(update().holder.empty());
}

TEST_F(TurnSchedulerTest, AGuaranteedJobsUseCountsWithoutATurn) {
  TurnClient& guaranteed = add("g", 1.0);
  guaranteed.asks = false;
  add("o", 0.0);
  // It is busy for three quarters of each 40 ms, and the other one's turns run on blindly.
  double with_turn = 0.0;
  for (int i = 0; i < 4000; ++i) {
    clients_[0].wants = i % 8 < 6;
    if (update().holder == JobId{"o"}) with_turn += 1.0 / 4000;
    now_ += 5ms;
  }
  EXPECT_GT(with_turn, 0.5) << "a turn is longer than a gap: this is what blind turns cost";
  const Duration used = scheduler_.used(JobId{"g"});
  EXPECT_GT(used, 3s) << "split where both ran";
  EXPECT_LT(used, 7500ms);
}

TEST_F(TurnSchedulerTest, WhatIsOlderThanTheWindowIsForgotten) {
  add("a", 0.5);
  run(2s);
  EXPECT_NEAR(std::chrono::duration<double>(scheduler_.used(JobId{"a"})).count(), 2.0, 0.02);
  clients_[0].wants = false;
  run(9s);
  EXPECT_LT(scheduler_.used(JobId{"a"}), 1100ms);
  run(2s);
  EXPECT_EQ(scheduler_.used(JobId{"a"}), 0s);
}

TEST_F(TurnSchedulerTest, AClockThatStandsStillOrGoesBackGivesNoUse) {
  add("a", 0.5);
  update();
  update();
  now_ -= 1s;
  update();
  EXPECT_EQ(scheduler_.used(JobId{"a"}), 0s);
}

}  // namespace
}  // namespace commensal::node::turn_scheduler_test

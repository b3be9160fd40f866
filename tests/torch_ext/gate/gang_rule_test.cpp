// SPDX-License-Identifier: Apache-2.0
// A rank at its closed gate: when it runs on because others wait for it, and for how long.
#include "torch_ext/gate/gang_rule.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/torch_ext/fake_clock.h"
#include "torch_ext/gate/gate.h"

namespace commensal::gang_rule_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// What a rank sees, and what it showed.
class FakeRank final : public DeviceObserver {
 public:
  DeviceObservation observe(TimePoint now) const noexcept override {
    DeviceObservation result = seen;
    result.now = now;
    return result;
  }
  void show_gang(std::uint64_t epoch, std::uint64_t stand) const noexcept override {
    shown = {epoch, stand};
  }

  DeviceObservation seen;
  mutable std::pair<std::uint64_t, std::uint64_t> shown{0, 0};
};

class GangRule : public ::testing::Test {
 protected:
  GangRule() {
    rank_.seen.gang = {.epoch = 7, .begun = 3, .front = 4};
    op_.record(milliseconds{1});
  }
  /// Passes one op of a millisecond, if the gate lets it.
  bool pass() {
    if (!gate_.try_enter_op(op_)) return false;
    clock_.advance(milliseconds{1});
    gate_.leave_op(op_);
    return true;
  }
  /// Tries an op each millisecond. @return the part of the time in which ops ran.
  double try_for(Duration time) {
    const TimePoint begin = clock_.now();
    Duration ran{};
    while (clock_.now() - begin < time) {
      if (pass()) {
        ran += milliseconds{1};
      } else {
        clock_.advance(milliseconds{1});
      }
    }
    return std::chrono::duration<double>(ran) / (clock_.now() - begin);
  }
  void guaranteed_job_is_busy(double trickle) {
    rank_.seen.guaranteed_present = rank_.seen.coordinator_alive = true;
    rank_.seen.busy_since = clock_.now();
    rank_.seen.trickle = trickle;
  }

  testing::FakeClock clock_;
  FakeRank rank_;
  Gate gate_{make_pacing_law("gap"), rank_, clock_};
  OpDuration op_;
};

TEST_F(GangRule, ARankIsBehindWhileAnotherHasBegunMore) {
  EXPECT_TRUE((GangObservation{.epoch = 1, .begun = 3, .front = 4}).behind());
  EXPECT_FALSE((GangObservation{.epoch = 1, .begun = 4, .front = 4}).behind());
  EXPECT_FALSE((GangObservation{.epoch = 1, .begun = 5, .front = 4}).behind());
  EXPECT_FALSE((GangObservation{.epoch = 0, .begun = 3, .front = 4}).behind()) << "no gang";
}

TEST_F(GangRule, ARankThatOthersWaitForRunsOnWhenItsJobIsPaused) {
  rank_.seen.paused = true;
  EXPECT_TRUE(pass());
  EXPECT_EQ(gate_.stats().reason, "nothing to wait for") << "nobody looked yet";
  gate_.refresh();
  EXPECT_EQ(gate_.stats().reason, kCatchUpReason);
  EXPECT_EQ(gate_.stats().ops_behind, 1U);
  rank_.seen.gang.begun = 4;  // it has come to the collective
  EXPECT_FALSE(pass());
  EXPECT_EQ(gate_.stats().reason, "paused by the coordinator");
}

TEST_F(GangRule, ARankThatOthersWaitForRunsOnIntoAWindow) {
  rank_.seen.share_max = 0.0;
  EXPECT_TRUE(pass());
  rank_.seen.gang.front = 3;
  EXPECT_FALSE(pass());
}

TEST_F(GangRule, ItRunsOnForAMomentOnly) {
  rank_.seen.paused = true;
  EXPECT_TRUE(pass());
  const double part = try_for(seconds{1});
  EXPECT_LE(part, 0.05 + 0.002) << "50 ms of a second";
  EXPECT_GT(part, 0.04);
  EXPECT_FALSE(pass());
}

TEST_F(GangRule, AFrontThatMovesLateIsStillCaughtUpWith) {
  rank_.seen.paused = true;
  rank_.seen.gang.front = 3;
  EXPECT_EQ(try_for(seconds{1}), 0.0) << "it stands, and nobody is ahead";
  rank_.seen.gang.front = 4;  // an op of another rank took that long
  EXPECT_TRUE(pass());
  const double part = try_for(seconds{1});
  EXPECT_GT(part, 0.04) << "for the same moment as ever";
  EXPECT_LE(part, 0.05 + 0.002);
}

TEST_F(GangRule, TheMomentIsOneForAllThatItCatchesUpWithInAClose) {
  rank_.seen.paused = true;
  double ran = 0.0;
  for (std::uint64_t front = 4; front < 200; ++front) {  // scribbled over, or another program
    rank_.seen.gang.front = front;
    ran += 0.02 * try_for(milliseconds{20});
    rank_.seen.gang.begun = front;
    EXPECT_FALSE(pass());
  }
  EXPECT_GT(ran, 0.02);
  EXPECT_LE(ran, 0.05 + 0.002);
}

TEST_F(GangRule, WhatItWaitsInACollectiveIsNoRunningOn) {
  rank_.seen.paused = true;
  EXPECT_TRUE(pass());
  rank_.seen.gang.begun = 4;
  clock_.advance(seconds{1});  // in the collective, for a third rank
  EXPECT_FALSE(pass());
  rank_.seen.gang.front = 5;
  EXPECT_TRUE(pass());
  EXPECT_GT(try_for(seconds{1}), 0.03);
}

TEST_F(GangRule, EachOrderToCloseGivesItAMomentAnew) {
  rank_.seen.paused = true;
  (void)try_for(seconds{1});
  EXPECT_FALSE(pass());
  rank_.seen.paused = false;
  EXPECT_TRUE(pass());
  rank_.seen.paused = true;
  clock_.advance(milliseconds{1});  // what was decided while it was open is forgotten
  EXPECT_TRUE(pass());
}

TEST_F(GangRule, AnOrderIsANewOneEvenIfNobodySawTheGateOpenInBetween) {
  rank_.seen.paused = true;
  (void)try_for(seconds{1});
  EXPECT_FALSE(pass());
  rank_.seen.gang.epoch += 2;  // it opened and closed, within less than a look
  EXPECT_TRUE(pass());
}

TEST_F(GangRule, TheFrontStandsAndSaysWhere) {
  rank_.seen.paused = true;
  EXPECT_TRUE(pass());
  EXPECT_EQ(rank_.shown, (std::pair<std::uint64_t, std::uint64_t>{7, 0})) << "it does not stand";
  rank_.seen.gang.begun = 4;
  EXPECT_FALSE(pass());
  EXPECT_EQ(rank_.shown, (std::pair<std::uint64_t, std::uint64_t>{7, 5}));
  rank_.seen.gang = {.epoch = 8, .begun = 4, .front = 4};
  rank_.seen.paused = false;
  EXPECT_TRUE(pass());
  EXPECT_EQ(rank_.shown, (std::pair<std::uint64_t, std::uint64_t>{8, 0}));
}

TEST_F(GangRule, WithoutAGangNoOpPasses) {
  rank_.seen.gang.epoch = 0;
  rank_.seen.paused = true;
  EXPECT_FALSE(pass());
  EXPECT_EQ(rank_.shown.first, 0U);
}

TEST_F(GangRule, WhatTheJobItselfWantsIsDoneAtOnce) {
  gate_.pause();
  EXPECT_FALSE(pass());
  gate_.resume();
  gate_.set_share(0.0, 0.0);
  EXPECT_FALSE(pass());
}

TEST_F(GangRule, BesideABusyJobItRunsOnOnCreditAndPaysItBack) {
  guaranteed_job_is_busy(0.01);
  int at_once = 0;
  while (pass()) ++at_once;
  EXPECT_GE(at_once, 5) << "5 ms of credit";
  EXPECT_LE(at_once, 8);
  gate_.refresh();
  EXPECT_EQ(gate_.stats().reason, "guaranteed job busy");
  const double part = try_for(seconds{60});
  EXPECT_NEAR(part, 0.01, 0.002) << "its trickle, as without a gang";
}

TEST_F(GangRule, WithoutATrickleItHasNoCredit) {
  guaranteed_job_is_busy(0.0);
  EXPECT_FALSE(pass());
}

TEST_F(GangRule, ARestForItsShareWaitsUntilItHasCaughtUp) {
  gate_.set_share(0.0, 0.5);
  rank_.seen.gang.begun = 4;
  EXPECT_TRUE(pass());
  EXPECT_FALSE(pass()) << "it rests";
  rank_.seen.gang.begun = 3;
  EXPECT_TRUE(pass());
  EXPECT_NEAR(try_for(seconds{10}), 0.5, 0.02) << "the share holds";
}

}  // namespace
}  // namespace commensal::gang_rule_test

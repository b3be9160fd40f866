// SPDX-License-Identifier: Apache-2.0
// Ops that are longer than the gaps: they wait for a long gap, and do not starve.
#include "torch_ext/gate/long_ops.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/torch_ext/fake_clock.h"
#include "tests/torch_ext/gate/fake_device.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/gate/law_parts.h"

namespace commensal::long_ops_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeClock;
using testing::FakeDevice;

/// A guaranteed job that is busy for 45 ms and waits for 5, again and again, in simulated time.
class LongOpsTest : public ::testing::Test {
 protected:
  LongOpsTest() {
    (void)run_op(mm_, milliseconds{11});  // alone: the gate learns their lengths
    (void)run_op(add_, microseconds{100});
    device_.set([](DeviceObservation& seen) { seen.trickle = 0.01; });
    begin_ = clock_.now();
  }

  void play() {
    const TimePoint now = clock_.now();
    if (pause_ != TimePoint{} && now >= pause_ && now < pause_ + milliseconds{300}) {
      device_.gap(pause_, pause_ + milliseconds{300});
      return;
    }
    const Duration at = (now - begin_) % milliseconds{50};
    if (at >= milliseconds{45}) {
      const TimePoint gap = now - at + milliseconds{45};
      device_.gap(gap, gap + milliseconds{5});
    } else {
      device_.burst(now - at);
    }
  }
  /// @return when it started.
  TimePoint run_op(OpDuration& op, Duration takes) {
    if (!gate_.try_enter_op(op)) gate_.wait_op(op);
    const TimePoint started = clock_.now();
    beside_ = !device_.observe(started).all_waiting;
    clock_.advance(takes);
    if (begin_ != TimePoint{}) play();
    gate_.leave_op(op);
    return started;
  }
  /// Short ops for so long.
  void run_short(Duration time) {
    for (const TimePoint end = clock_.now() + time; clock_.now() < end;) {
      (void)run_op(add_, microseconds{100});
    }
  }

  FakeClock clock_;
  FakeDevice device_;
  TimePoint begin_;
  TimePoint pause_;  // an evaluation's, of 300 ms
  bool beside_ = false;
  Gate gate_{make_pacing_law("gap"), device_, clock_, [this](Duration time, const Doorbell&) {
               clock_.advance(time);
               play();
             }};
  OpDuration mm_;
  OpDuration add_;
};

TEST_F(LongOpsTest, C3_AnOpLongerThanTheGapsWaitsForALongOne) {
  run_short(seconds{2});
  pause_ = clock_.now() + milliseconds{600};
  const TimePoint started = run_op(mm_, milliseconds{11});
  EXPECT_FALSE(beside_);
  EXPECT_GE(started, pause_);
  EXPECT_LE(started, pause_ + milliseconds{5});
}

TEST_F(LongOpsTest, C3_AsShortOpsDoItWouldCollide) {
  clock_.advance(seconds{2});  // no gap was seen: what is long is not known
  play();
  pause_ = clock_.now() + milliseconds{600};
  const TimePoint started = run_op(mm_, milliseconds{11});
  EXPECT_TRUE(beside_);
  EXPECT_LT(started, pause_);
}

TEST_F(LongOpsTest, AnOpThatFindsNoLongGapGoesByTheTrickle) {
  run_short(seconds{2});
  const TimePoint asked = clock_.now();
  const TimePoint started = run_op(mm_, milliseconds{11});
  EXPECT_GE(started - asked, milliseconds{800}) << "11 ms are saved at 1 % first";
  EXPECT_LE(started - asked, milliseconds{1500});
}

TEST_F(LongOpsTest, C4_LongOpsGetTheSameTrickleAsOthers) {
  run_short(seconds{2});
  const TimePoint begin = clock_.now();
  Duration ran{};
  for (; clock_.now() - begin < seconds{120}; ran += milliseconds{11}) {
    (void)run_op(mm_, milliseconds{11});
  }
  EXPECT_NEAR(
      std::chrono::duration<double>(ran) / std::chrono::duration<double>(clock_.now() - begin),
      0.01, 0.001);
}

TEST_F(LongOpsTest, AHeldOpSaysWhatItWaitsFor) {
  run_short(seconds{2});
  clock_.advance(milliseconds{50} - (clock_.now() - begin_) % milliseconds{50});
  play();
  gate_.refresh();
  EXPECT_FALSE(gate_.try_enter_op(mm_));
  EXPECT_EQ(gate_.stats().reason, "op longer than the usual gap: held for a long one");
}

// F15: a graph of a whole step, 20 ms long, beside a job whose gaps are 5 ms.
class HeldGraphTest : public LongOpsTest {
 protected:
  HeldGraphTest() {
    (void)run_op(step_, milliseconds{20});  // its length is known
    device_.set([](DeviceObservation& seen) {
      seen.trickle = seen.least_trickle = 0.01;
      seen.gap_rules.in_flight = microseconds{500};
    });
    gate_.on_graph_held([this](Duration predicted) { told_.push_back(predicted); });
  }
  /// @return how long it waited.
  Duration run_graph() {
    const TimePoint asked = clock_.now();
    if (!gate_.try_enter_op(graph())) gate_.wait_op(graph());
    const TimePoint started = clock_.now();
    beside_ = !device_.observe(started).all_waiting;
    clock_.advance(milliseconds{20});
    play();
    gate_.leave_op(graph());
    return started - asked;
  }
  OpEstimate graph() { return OpEstimate(step_).as_graph(); }

  OpDuration step_;
  std::vector<Duration> told_;
};

TEST_F(HeldGraphTest, WaitsForAGapThatItFitsIn) {
  run_short(seconds{2});
  pause_ = clock_.now() + seconds{30};
  const Duration waited = run_graph();
  EXPECT_FALSE(beside_);
  EXPECT_NEAR(std::chrono::duration<double>(waited).count(), 30.0, 0.05);
  EXPECT_GE(waited, milliseconds{29995}) << "the trickle would have paid for it after 2 s";
  for (const auto& [reason, time] : gate_.stats().closed_by) {
    if (reason == kGraphHeld) {
      EXPECT_GE(time, seconds{29});
    }
  }
  EXPECT_EQ(told_.size(), 1U) << "not for each";
  EXPECT_EQ(told_.at(0), step_.predicted());
}

TEST_F(HeldGraphTest, AlsoBeforeAnyGapWasSeen) {
  play();
  gate_.refresh();
  clock_.advance(seconds{3});  // what the trickle is owed is paid
  play();
  gate_.refresh();
  EXPECT_FALSE(gate_.try_enter_op(graph()));
  EXPECT_EQ(gate_.stats().reason, kGraphHeld);
  EXPECT_TRUE(gate_.try_enter_op(step_)) << "an op goes by the trickle";
  gate_.leave_op(step_);
}

TEST_F(HeldGraphTest, WhoeverNeedsItLessIsNotHeldUp) {
  play();
  gate_.refresh();
  const auto passes = [&](const OpEstimate& op) {
    const bool passed = gate_.try_enter_op(op);
    if (passed) gate_.leave_op(op);
    clock_.advance(seconds{3});  // what the trickle is owed is paid
    return passed;
  };
  EXPECT_FALSE(passes(graph()));
  EXPECT_TRUE(passes(OpEstimate(add_).as_graph())) << "as short as what may be in flight";
  OpDuration unknown;
  EXPECT_TRUE(passes(OpEstimate(unknown).as_graph())) << "once, to see how long it is";
  gate_.set_share(0.05, 1.0);
  EXPECT_TRUE(passes(graph())) << "a minimum that the job asked for";
  gate_.set_share(0.0, 1.0);
  EXPECT_FALSE(passes(graph()));
  device_.set([](DeviceObservation& seen) { seen.trickle = 1.0; });
  EXPECT_TRUE(passes(graph())) << "it was measured to do no harm";
  device_.set([](DeviceObservation& seen) { seen.trickle = 0.01; });
  EXPECT_FALSE(passes(graph()));
  device_.set([](DeviceObservation& seen) { seen.coordinator_alive = false; });
  EXPECT_FALSE(passes(graph()));
  device_.set([](DeviceObservation& seen) { seen.guaranteed_present = false; });
  EXPECT_TRUE(passes(graph()));
  EXPECT_TRUE(told_.empty());
}

TEST(LongOpsRule, OpsOfOtherThreadsDoNotStarveIt) {
  // Ops of another thread take what is saved as soon as there is any.
  PacingInput input;
  input.device.now = TimePoint{seconds{5}};
  input.device.guaranteed_present = input.device.coordinator_alive = true;
  input.device.trickle = 0.01;
  input.predicted = milliseconds{11};
  LongOps ops;
  ops.note_room(TimePoint{milliseconds{1}}, milliseconds{4});
  ops.note_room(TimePoint{milliseconds{51}}, milliseconds{4});
  ASSERT_TRUE(ops.is_long(input.predicted));
  const TimePoint asked = input.device.now;
  PacingDecision decision = ops.hold(input, input.predicted, kPollMax);
  while (!decision.open && input.device.now - asked < seconds{10}) {
    input.device.now += decision.recheck;
    decision = ops.hold(input, input.predicted, kPollMax);  // its debt never falls below zero
  }
  EXPECT_TRUE(decision.open);
  EXPECT_NEAR(std::chrono::duration<double>(input.device.now - asked).count(), 2.2, 0.05);
  EXPECT_EQ(decision.prepaid, Duration::zero()) << "so it pays afterwards";
}

TEST(LongOpsRule, OneLongGapMakesNoUsualOne) {
  LongOps ops;
  TimePoint gap{seconds{1}};
  const auto see = [&](Duration room) {
    ops.note_room(gap += milliseconds{50}, room);
    ops.note_room(gap, room / 2);
  };
  for (int i = 0; i < 20; ++i) see(milliseconds{5});
  see(seconds{10});
  see(milliseconds{5});
  EXPECT_TRUE(ops.is_long(milliseconds{11}));
  EXPECT_FALSE(ops.is_long(milliseconds{4}));
  for (int i = 0; i < 40; ++i) see(milliseconds{40});
  EXPECT_FALSE(ops.is_long(milliseconds{11})) << "gaps became longer";
}

TEST(LongOpsRule, C15_WithoutGapsOnlyWhatNoUsualGapHasRoomForIsLong) {
  EXPECT_FALSE(LongOps{}.is_long(milliseconds{50}));
  EXPECT_TRUE(LongOps{}.is_long(seconds{1}));
}

}  // namespace
}  // namespace commensal::long_ops_test

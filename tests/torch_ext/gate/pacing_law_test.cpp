// SPDX-License-Identifier: Apache-2.0
// The pacing laws, situation by situation.
#include "torch_ext/gate/pacing_law.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>

#include "tests/torch_ext/gate/shared_device.h"

namespace commensal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

const TimePoint kNow{std::chrono::hours{1}};

/// A guaranteed job that has waited for 2 ms and needs its device again in 3.
PacingInput in_a_gap() {
  PacingInput input;
  input.device.now = kNow;
  input.device.guaranteed_present = true;
  input.device.coordinator_alive = true;
  input.device.all_waiting = true;
  input.device.idle_since = kNow - milliseconds{2};
  input.device.last_touch = input.device.idle_since;
  input.device.idle_expected_end = kNow + milliseconds{3};
  input.trickle_debt = milliseconds{1};  // nothing passes by the trickle
  input.predicted = microseconds{100};
  return input;
}

PacingInput beside_a_burst() {
  PacingInput input = in_a_gap();
  input.device.all_waiting = false;
  input.device.busy_since = kNow - milliseconds{1};
  return input;
}

struct Situation {
  const char* name;
  PacingInput input;
  bool open;
  const char* reason;
};

template <typename Change>
PacingInput changed(PacingInput input, Change change) {
  change(input);
  return input;
}

class GapLawTest : public ::testing::TestWithParam<Situation> {};

TEST_P(GapLawTest, DecidesWithAReason) {
  const PacingDecision decision = make_pacing_law("gap")->decide(GetParam().input);
  EXPECT_EQ(decision.open, GetParam().open) << decision.reason;
  EXPECT_STREQ(decision.reason, GetParam().reason);
  EXPECT_EQ(decision.open, decision.recheck == Duration::zero());
}

INSTANTIATE_TEST_SUITE_P(
    Situations, GapLawTest,
    ::testing::Values(
        Situation{"alone", PacingInput{}, true, "no guaranteed job on the device"},
        Situation{"gap", in_a_gap(), true, "in a gap"},
        Situation{"burst", beside_a_burst(), false, "guaranteed job busy"},
        Situation{"op_longer_than_what_is_left",
                  changed(in_a_gap(), [](auto& i) { i.predicted = milliseconds{4}; }), false,
                  "op does not fit in what is left of the gap"},
        Situation{"eleven_ms_op_in_a_five_ms_gap",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.predicted = milliseconds{11};
                            i.device.idle_since = kNow - microseconds{600};
                            i.device.idle_expected_end = i.device.idle_since + milliseconds{5};
                          }),
                  false, "op does not fit in what is left of the gap"},
        Situation{"unknown_op_near_the_end",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.predicted = Duration::zero();
                            i.device.idle_expected_end = kNow + microseconds{150};
                          }),
                  false, "op does not fit in what is left of the gap"},
        Situation{
            "wait_has_just_begun",
            changed(in_a_gap(), [](auto& i) { i.device.idle_since = kNow - microseconds{400}; }),
            false, "guaranteed job may be working on its batch"},
        Situation{
            "wait_with_work_in_it",
            changed(in_a_gap(), [](auto& i) { i.device.last_touch = kNow - microseconds{100}; }),
            false, "guaranteed job may be working on its batch"},
        Situation{"unpredicted_wait",
                  changed(in_a_gap(), [](auto& i) { i.device.idle_expected_end = TimePoint{}; }),
                  true, "in a gap"},
        Situation{"long_op_in_an_unpredicted_wait",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.device.idle_expected_end = TimePoint{};
                            i.predicted = milliseconds{11};
                          }),
                  false, "op does not fit in what is left of the gap"},
        Situation{"later_than_expected",
                  changed(in_a_gap(),
                          [](auto& i) { i.device.idle_expected_end = kNow - microseconds{300}; }),
                  false, "op does not fit in what is left of the gap"},
        Situation{"much_later_than_expected",
                  changed(in_a_gap(),
                          [](auto& i) { i.device.idle_expected_end = kNow - milliseconds{40}; }),
                  true, "in a gap"},
        Situation{"trickle",
                  changed(beside_a_burst(),
                          [](auto& i) {
                            i.device.trickle = 0.01;
                            i.trickle_debt = Duration::zero();
                          }),
                  true, "trickle beside the guaranteed job"},
        Situation{"trickle_used_up",
                  changed(beside_a_burst(), [](auto& i) { i.device.trickle = 0.01; }), false,
                  "guaranteed job busy"},
        Situation{"no_trickle_allowed",
                  changed(beside_a_burst(), [](auto& i) { i.trickle_debt = Duration::zero(); }),
                  false, "guaranteed job busy"},
        Situation{"trickle_of_everything",
                  changed(beside_a_burst(), [](auto& i) { i.device.trickle = 1.0; }), true,
                  "beside the guaranteed job, unbounded"},
        Situation{"long_op_goes_by_the_trickle",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.predicted = milliseconds{11};
                            i.device.trickle = 0.01;
                            i.trickle_debt = Duration::zero();
                          }),
                  true, "trickle beside the guaranteed job"},
        Situation{"coordinator_silent",
                  changed(in_a_gap(), [](auto& i) { i.device.coordinator_alive = false; }), false,
                  "coordinator silent, guaranteed job present"},
        Situation{"coordinator_silent_trickle",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.device.coordinator_alive = false;
                            i.device.trickle = 0.05;
                            i.trickle_debt = Duration::zero();
                          }),
                  true, "trickle beside the guaranteed job"},
        Situation{"coordinator_silent_lease_over",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.device.coordinator_alive = false;
                            i.device.guaranteed_present = false;
                          }),
                  true, "no guaranteed job on the device"},
        Situation{"own_share_used_up",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.share_max = 0.5;
                            i.cap_debt = milliseconds{1};
                          }),
                  false, "resting for its share of device time"},
        Situation{"coordinators_share_used_up",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.device.share_max = 0.5;
                            i.cap_debt = milliseconds{1};
                          }),
                  false, "resting for its share of device time"},
        Situation{"share_zero", changed(PacingInput{}, [](auto& i) { i.share_max = 0.0; }), false,
                  "share is 0"}),
    [](const auto& param) { return std::string{param.param.name}; });

TEST(PacingLawTest, OpenNeverWaits) {
  const auto law = make_pacing_law("open");
  EXPECT_TRUE(law->decide(beside_a_burst()).open);
  EXPECT_FALSE(law->throttles(beside_a_burst().device, 0.1));
}

TEST(PacingLawTest, DutyCycleIgnoresTheGuaranteedJob) {
  const auto law = make_pacing_law("duty_cycle");
  EXPECT_TRUE(law->decide(beside_a_burst()).open);
  EXPECT_TRUE(law->throttles({}, 0.5));
  EXPECT_FALSE(law->throttles(beside_a_burst().device, 1.0));
}

TEST(PacingLawTest, ThrottlesOnlyWhereADecisionCanBeToWait) {
  const auto law = make_pacing_law("gap");
  EXPECT_FALSE(law->throttles({}, 1.0));
  EXPECT_TRUE(law->throttles(beside_a_burst().device, 1.0));
  EXPECT_TRUE(law->throttles({}, 0.9));
}

TEST(PacingLawTest, UnknownNameIsNamed) {
  try {
    (void)make_pacing_law("fast");
    FAIL() << "no exception";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string{error.what()}.find("'fast'"), std::string::npos);
  }
}

/// Runs ops of a length for a while as the law allows, and returns the share of time that they ran.
double simulate(PacingLaw& law, const PacingInput& input, Duration op, Duration total) {
  testing::SharedDevice device(law, {.op = op});
  device.input() = input;
  return device.run(total);
}

TEST(PacingLawTest, C4_TheTrickleIsKeptForShortAndLongOps) {
  PacingInput input = beside_a_burst();
  input.device.trickle = 0.05;
  for (const Duration op :
       {Duration{microseconds{20}}, Duration{milliseconds{1}}, Duration{milliseconds{11}}}) {
    const double share = simulate(*make_pacing_law("gap"), input, op, seconds{20});
    EXPECT_NEAR(share, 0.05, 0.005) << op.count() << " ns";
  }
}

/// What goes wrong where launches are charged instead of the time that they take.
TEST(PacingLawTest, C4_ChargedByTheirNumberLongOpsGetHundredfoldShares) {
  const auto share_of = [](Duration op) {
    RunTimeMeter meter;
    TimePoint now = kNow;
    Duration ran{};
    while (now - kNow < seconds{20}) {
      meter.advance(now, 0.05);
      if (meter.debt() > Duration::zero()) {
        now += microseconds{100};
        continue;
      }
      now += op;
      ran += op;
      meter.charge(microseconds{20});  // each counts the same
    }
    return std::chrono::duration<double>(ran) / std::chrono::duration<double>(now - kNow);
  };
  EXPECT_LT(share_of(microseconds{20}), 0.06);
  EXPECT_GT(share_of(milliseconds{11}), 0.5);
}

/// The maximum of an op's share within each window of a length.
double largest_share(PacingLaw& law, double share, Duration op, Duration window) {
  PacingInput input;
  input.share_max = share;
  RunTimeMeter cap;
  TimePoint now = kNow;
  double largest = 0.0;
  std::deque<TimePoint> begins;  // of the ops in the newest window
  while (now - kNow < 3 * window + seconds{20}) {
    input.device.now = now;
    cap.advance(now, share);
    input.cap_debt = cap.debt();
    const PacingDecision decision = law.decide(input);
    if (!decision.open) {
      now += decision.recheck + microseconds{60};
      continue;
    }
    begins.push_back(now);
    now += op;
    cap.charge(op);
    while (begins.front() < now - window) begins.pop_front();
    largest = std::max(largest, std::chrono::duration<double>(op) /
                                    std::chrono::duration<double>(window) *
                                    static_cast<double>(begins.size()));
  }
  return largest;
}

TEST(PacingLawTest, AMaximumHoldsWithinEverySecondAndBetterOverTen) {
  for (const double share : {0.1, 0.5, 0.9}) {
    for (const Duration op :
         {Duration{microseconds{20}}, Duration{milliseconds{5}}, Duration{milliseconds{40}}}) {
      const auto law = make_pacing_law("duty_cycle");
      const double longest_op = std::chrono::duration<double>(op).count();
      EXPECT_LE(largest_share(*law, share, op, seconds{1}), share + 0.05 + longest_op)
          << share << " " << op.count() << " ns";
      EXPECT_LE(largest_share(*law, share, op, seconds{10}), share + 0.02)
          << share << " " << op.count() << " ns";
    }
  }
}

TEST(PacingLawTest, DutyCycleHoldsItsShareForShortAndLongOps) {
  PacingInput input;
  for (const double share : {0.1, 0.5, 0.9}) {
    input.share_max = share;
    for (const Duration op : {Duration{microseconds{20}}, Duration{milliseconds{5}}}) {
      EXPECT_NEAR(simulate(*make_pacing_law("duty_cycle"), input, op, seconds{10}), share, 0.02)
          << op.count() << " ns";
    }
  }
}

TEST(PacingLawTest, WithoutALimitTheSimulationRunsAllTheTime) {
  PacingInput input;
  input.share_max = 0.5;
  EXPECT_GT(simulate(*make_pacing_law("open"), input, milliseconds{1}, seconds{1}), 0.99);
}

TEST(RunTimeMeterTest, PaysAtTheRateThatHoldsNow) {
  RunTimeMeter meter;
  meter.advance(kNow, 0.01);
  meter.charge(milliseconds{10});
  meter.advance(kNow + milliseconds{100}, 0.01);
  EXPECT_EQ(meter.debt(), milliseconds{9});
  meter.advance(kNow + milliseconds{110}, 1.0);  // the share was raised
  EXPECT_LE(meter.debt(), Duration::zero());
}

TEST(RunTimeMeterTest, IdleTimeIsNoStoreOfCredit) {
  RunTimeMeter meter;
  meter.advance(kNow, 1.0);
  meter.advance(kNow + std::chrono::hours{1}, 1.0);
  EXPECT_EQ(meter.debt(), -kMeterCredit);
}

}  // namespace
}  // namespace commensal

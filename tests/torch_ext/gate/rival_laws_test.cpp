// SPDX-License-Identifier: Apache-2.0
// The published laws of others: that they do what their papers and sources say, constants included.
#include <gtest/gtest.h>

#include <string>

#include "tests/torch_ext/gate/shared_device.h"
#include "torch_ext/gate/antman_law.h"
#include "torch_ext/gate/rate_aimd_law.h"
#include "torch_ext/gate/token_window_law.h"

namespace commensal::rival_laws_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::SharedDevice;

constexpr double kSlo = 0.01;

// --- rate_aimd -----------------------------------------------------------------------------------

TEST(RateAimdLaw, OneStepOfItsRateIsTheOneOfTgs) {
  const RateAimdConstants tgs;
  const AimdState early{0.1, true};
  const AimdState late{0.1, false};
  EXPECT_EQ(next_rate(early, 0.00, kSlo, tgs), (AimdState{0.1 * 1.5, true}));
  EXPECT_EQ(next_rate(early, 0.03, kSlo, tgs), (AimdState{0.1 * 1.5, true})) << "3 % is no loss";
  EXPECT_EQ(next_rate(early, 0.05, kSlo, tgs), (AimdState{0.1 / 1.5, false}));
  EXPECT_EQ(next_rate(late, 0.01, kSlo, tgs), (AimdState{0.1 + 0.00025, false}));
  EXPECT_EQ(next_rate(late, 0.05, kSlo, tgs), (AimdState{0.1 * (1 - 0.08), false}));
  EXPECT_EQ(next_rate(late, 0.10, kSlo, tgs), (AimdState{0.1 * 0.1, true})) << "beyond 9 %";
  EXPECT_EQ(next_rate(late, 0.05, 2 * kSlo, tgs), (AimdState{0.1 + 0.00025, false}))
      << "what it tolerates scales with the SLO";
  EXPECT_EQ(next_rate({0.9, true}, 0.0, kSlo, tgs).rate, 1.0) << "never above the device";
  EXPECT_GT(next_rate({0.0, false}, 0.5, kSlo, tgs).rate, 0.0) << "from nothing no factor leads up";
}

TEST(RateAimdLaw, LearnsForFiveWindowsThenStartsSlowly) {
  RateAimdLaw law;
  SharedDevice device(law);
  EXPECT_NEAR(device.run(seconds{25}), 0.02, 0.011) << "one op of 1 ms a slice at the least";
  EXPECT_EQ(law.rate(), 0.01);
  EXPECT_STREQ(device.reason(), "above its rate in this slice");
  device.run(seconds{6});
  EXPECT_NEAR(law.reference(), 20.0, 0.2) << "steps of 50 ms";
  EXPECT_NEAR(law.rate(), 0.01 * 1.5, 1e-9);
  device.run(seconds{5});
  EXPECT_NEAR(law.rate(), 0.01 * 1.5 * 1.5, 1e-9);
  device.run(seconds{60});
  EXPECT_EQ(law.rate(), 1.0) << "nothing is lost: all of it";
  EXPECT_GT(device.run(seconds{5}), 0.99);
}

TEST(RateAimdLaw, BacksOffFromWhatCostsTooMuch) {
  RateAimdLaw law;
  SharedDevice device(law, {.step = milliseconds{50}, .cost = 0.3, .op = milliseconds{1}});
  device.run(seconds{90});
  device.take_slowdown();
  const double share = device.run(seconds{300});
  const double slowdown = device.take_slowdown();
  EXPECT_GT(share, 0.02);
  EXPECT_LT(share, 0.3);
  EXPECT_GT(slowdown, kSlo) << "its target is 3 %, not our 1 %";
  EXPECT_LT(slowdown, 0.06);
}

TEST(RateAimdLaw, KeepsItsRateInEachSlice) {
  RateAimdConstants constants;
  constants.first_rate = 0.5;
  RateAimdLaw law(constants);
  SharedDevice device(law);
  for (int slice = 0; slice < 20; ++slice) {
    EXPECT_NEAR(device.run(milliseconds{50}), 0.5, 0.25) << slice;
  }
  EXPECT_NEAR(device.run(seconds{2}), 0.5, 0.1);
}

TEST(RateAimdLaw, C18_ItsReferenceDecaysWithALossThatLasts) {
  RateAimdLaw law;
  SharedDevice device(law);
  device.run(seconds{31});
  const double learned = law.reference();
  device.model().step = milliseconds{59};  // 15 % fewer steps, whatever the law does
  device.run(seconds{90});
  EXPECT_EQ(law.reference(), learned);
  device.run(seconds{30});
  EXPECT_DOUBLE_EQ(law.reference(), 0.8 * learned);
  const double pressed = law.rate();
  device.run(seconds{30});
  EXPECT_GT(law.rate(), pressed) << "what is lost for good counts as normal now";
}

TEST(RateAimdLaw, AnotherProcessBeginsAnewFromALowerReference) {
  RateAimdLaw law;
  SharedDevice device(law);
  device.run(seconds{60});
  const double learned = law.reference();
  EXPECT_GT(law.rate(), 0.05);
  device.device().processes = 2;
  device.run(milliseconds{100});
  EXPECT_EQ(law.rate(), 0.01);
  EXPECT_DOUBLE_EQ(law.reference(), 0.8 * learned);
}

TEST(RateAimdLaw, AFasterPhaseIsLearnedAnew) {
  RateAimdLaw law;
  SharedDevice device(law);
  device.run(seconds{40});
  device.model().step = milliseconds{25};
  device.run(seconds{40});
  EXPECT_NEAR(law.reference(), 40.0, 0.5);
}

TEST(RateAimdLaw, AJobThatTakesNoStepsChangesNothing) {
  RateAimdLaw law;
  SharedDevice device(law);
  device.run(seconds{45});
  const double rate = law.rate();
  device.model().step = seconds{1000};
  device.run(seconds{4});  // the window in which the last steps ended
  device.run(seconds{2});
  const double after = law.rate();
  EXPECT_GE(after, rate);
  device.run(seconds{60});
  EXPECT_EQ(law.rate(), after);
}

// --- antman --------------------------------------------------------------------------------------

TEST(AntmanLaw, ClampsUntilTheGuaranteedJobIsStableThenGivesInSteps) {
  AntmanLaw law;
  SharedDevice device(law);
  EXPECT_EQ(device.run(milliseconds{900}), 0.0);
  EXPECT_STREQ(device.reason(), "clamped: measuring the guaranteed job alone");
  device.run(milliseconds{200});
  EXPECT_DOUBLE_EQ(law.share(), 0.1);
  EXPECT_NEAR(device.run(milliseconds{9500}), 0.1, 0.01);
  device.run(seconds{1});
  EXPECT_DOUBLE_EQ(law.share(), 0.2);
  device.run(seconds{100});
  EXPECT_DOUBLE_EQ(law.share(), 1.0);
  EXPECT_GT(device.run(seconds{5}), 0.99);
}

TEST(AntmanLaw, ClampsWhenMiniBatchesAreNotFlat) {
  AntmanLaw law;
  // Costs 1 % from a share of 0.3 on, hence three steps are flat and the fourth is not.
  SharedDevice device(law, {.step = milliseconds{50}, .cost = 0.031, .op = milliseconds{1}});
  device.run(seconds{1} + milliseconds{100});
  for (int i = 0; i < 3; ++i) device.run(seconds{10});
  EXPECT_DOUBLE_EQ(law.share(), 0.4);
  device.run(seconds{10});
  EXPECT_NE(law.share(), 0.5) << "clamped";
  device.take_slowdown();
  EXPECT_NEAR(device.run(seconds{60}), 0.3, 0.07);
  EXPECT_LT(device.take_slowdown(), 0.011);
}

TEST(AntmanLaw, TriesMoreAgainAfterSomePatience) {
  AntmanLaw law;
  SharedDevice device(law, {.step = milliseconds{50}, .cost = 0.031, .op = milliseconds{1}});
  device.run(seconds{60});
  device.model().cost = 0.0;
  device.run(seconds{600});
  EXPECT_DOUBLE_EQ(law.share(), 1.0);
}

TEST(AntmanLaw, ArrivalIsClampedAtOnceAndOldRunTimeIsNotCharged) {
  AntmanLaw law;
  SharedDevice device(law);
  device.device().guaranteed_present = false;
  EXPECT_GT(device.run(seconds{20}), 0.99);
  device.device().guaranteed_present = true;
  EXPECT_EQ(device.run(milliseconds{500}), 0.0);
  device.run(milliseconds{700});
  EXPECT_NEAR(device.run(seconds{5}), 0.1, 0.02);
}

TEST(AntmanLaw, KeepsItsOwnMinimumWhileClamped) {
  AntmanLaw law;
  SharedDevice device(law);
  device.input().share_min = 0.2;
  EXPECT_NEAR(device.run(milliseconds{900}), 0.2, 0.03);
}

// --- token_window --------------------------------------------------------------------------------

PacingInput in_turn(Duration left) {
  PacingInput input;
  input.device.now = TimePoint{std::chrono::hours{1}};
  input.device.guaranteed_present = input.device.coordinator_alive = true;
  input.device.turn_until = input.device.now + left;
  return input;
}

TEST(TokenWindowLaw, RunsInItsTurnOnly) {
  TokenWindowLaw law;
  const PacingDecision open = law.decide(in_turn(milliseconds{3}));
  EXPECT_TRUE(open.open);
  EXPECT_STREQ(open.reason, "has the turn");
  EXPECT_EQ(law.decide(in_turn(microseconds{7})).valid_for, microseconds{7}) << "no longer than it";
  const PacingDecision over = law.decide(in_turn(Duration{0}));
  EXPECT_FALSE(over.open);
  EXPECT_STREQ(over.reason, "it is another's turn");
}

TEST(TokenWindowLaw, WithoutTurnsOnlyTheTricklePassesBesideAGuaranteedJob) {
  TokenWindowLaw law;
  PacingInput input = in_turn(milliseconds{3});
  input.device.coordinator_alive = false;
  input.trickle_debt = milliseconds{1};
  EXPECT_FALSE(law.decide(input).open);
  input.device.trickle = 0.05;
  input.trickle_debt = Duration::zero();
  EXPECT_TRUE(law.decide(input).trickle);
  input.device.guaranteed_present = false;
  EXPECT_STREQ(law.decide(input).reason, "nobody gives turns");
}

TEST(TokenWindowLaw, ABurstEndsWithAPauseOfTwoMilliseconds) {
  BurstEstimator bursts;
  TimePoint now{std::chrono::hours{1}};
  Duration ran{};
  const auto op = [&](Duration run, Duration pause) {
    bursts.note(now, ran);
    now += run + pause;
    ran += run;
  };
  for (int i = 0; i < 10; ++i) op(milliseconds{1}, milliseconds{1});  // one burst of 20 ms
  op(milliseconds{30}, milliseconds{1});                              // a long op is no pause
  op(milliseconds{1}, milliseconds{10});
  op(milliseconds{1}, milliseconds{10});
  EXPECT_EQ(bursts.longest(now), milliseconds{51});
  now += seconds{4};
  EXPECT_EQ(bursts.longest(now), Duration::zero()) << "remembered for three seconds";
}

TEST(TokenWindowLaw, NamesTheBurstForWhoeverGivesTurns) {
  const auto law = make_pacing_law("token_window");
  PacingInput input = in_turn(seconds{1});
  for (int i = 0; i < 20; ++i) {
    (void)law->decide(input);
    input.device.now += milliseconds{1};
    input.run_total += milliseconds{1};
  }
  EXPECT_EQ(law->burst(), milliseconds{19});
  EXPECT_EQ(make_pacing_law("gap")->burst(), Duration::zero());
}

// --- all -----------------------------------------------------------------------------------------

class EveryLaw : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryLaw, HasItsNameAndIsFreeAlone) {
  const auto law = make_pacing_law(GetParam());
  EXPECT_EQ(law->name(), GetParam());
  EXPECT_TRUE(law->decide(PacingInput{}).open);
  EXPECT_FALSE(law->throttles(DeviceObservation{}, 1.0)) << "no callback, no cost";
}

TEST_P(EveryLaw, NeverPassesWithAShareOfNothing) {
  if (std::string{GetParam()} == "open") return;  // it keeps no bound
  const auto law = make_pacing_law(GetParam());
  PacingInput input = in_turn(seconds{1});
  input.share_max = 0.0;
  const PacingDecision decision = law->decide(input);
  EXPECT_FALSE(decision.open);
  EXPECT_GT(decision.recheck, Duration::zero());
}

TEST_P(EveryLaw, EqualInputsInEqualOrderGiveEqualDecisions) {
  const auto one = make_pacing_law(GetParam());
  const auto other = make_pacing_law(GetParam());
  SharedDevice first(*one, {.step = milliseconds{20}, .cost = 0.2, .op = microseconds{700}});
  SharedDevice second(*other, {.step = milliseconds{20}, .cost = 0.2, .op = microseconds{700}});
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(first.run(seconds{1}), second.run(seconds{1}));
    EXPECT_STREQ(first.reason(), second.reason());
  }
}

INSTANTIATE_TEST_SUITE_P(Laws, EveryLaw,
                         ::testing::Values("gap", "duty_cycle", "antman", "rate_aimd",
                                           "token_window", "open"),
                         [](const auto& param) { return std::string{param.param}; });

}  // namespace
}  // namespace commensal::rival_laws_test

// SPDX-License-Identifier: Apache-2.0
// The pacing laws, situation by situation.
#include "torch_ext/gate/pacing_law.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <string>

#include "tests/torch_ext/gate/shared_device.h"
#include "torch_ext/gate/gap_histogram.h"

namespace commensal::pacing_law_test {
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

/// The same gap of a loader: boundaries and checkpoints closed, half a millisecond of guard, two of
/// work at once.
PacingInput under_rules() {
  PacingInput input = in_a_gap();
  input.device.gap_phases = wire::phase_bit(wire::GapPhase::kLoader);
  input.device.gap_rules.known = true;
  input.device.gap_rules.phases =
      wire::phase_bit(wire::GapPhase::kLoader) | wire::phase_bit(wire::GapPhase::kRequests);
  input.device.gap_rules.guard = microseconds{500};
  input.device.gap_rules.in_flight = milliseconds{2};
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
        Situation{"wait_that_has_surely_begun",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.device.idle_since = i.device.last_touch = kNow;
                            i.device.surely_idle = true;
                          }),
                  true, "in a gap"},
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
        Situation{"boundary_that_has_just_begun",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.device.gap_phases = wire::phase_bit(wire::GapPhase::kBoundary);
                            i.device.idle_since = i.device.last_touch = kNow - microseconds{1900};
                          }),
                  false, "guaranteed job may be working on its batch"},
        Situation{"synchronisation_that_has_just_ended",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.device.gap_phases = wire::phase_bit(wire::GapPhase::kSynchronisation);
                            i.device.idle_since = i.device.last_touch = kNow - microseconds{1900};
                          }),
                  false, "guaranteed job may be working on its batch"},
        Situation{"long_boundary",
                  changed(in_a_gap(),
                          [](auto& i) {
                            i.device.gap_phases = wire::phase_bit(wire::GapPhase::kBoundary);
                          }),
                  true, "in a gap"},
        Situation{"phase_that_is_closed",
                  changed(under_rules(),
                          [](auto& i) {
                            i.device.gap_phases = wire::phase_bit(wire::GapPhase::kCheckpoint);
                          }),
                  false, "gaps of this phase are closed: they were found to cost"},
        Situation{"one_of_two_phases_that_is_closed",
                  changed(under_rules(),
                          [](auto& i) {
                            i.device.gap_phases |= wire::phase_bit(wire::GapPhase::kBoundary);
                          }),
                  false, "gaps of this phase are closed: they were found to cost"},
        Situation{"phase_that_is_open", under_rules(), true, "in a gap"},
        Situation{"rules_of_an_older_coordinator",
                  changed(under_rules(),
                          [](auto& i) {
                            i.device.gap_rules = {};
                            i.device.gap_phases = wire::phase_bit(wire::GapPhase::kCheckpoint);
                          }),
                  true, "in a gap"},
        Situation{
            "gap_that_is_too_short",
            changed(under_rules(), [](auto& i) { i.device.gap_rules.smallest = milliseconds{6}; }),
            false, "gap is shorter than those that may be used"},
        Situation{"gap_that_has_proved_long",
                  changed(under_rules(),
                          [](auto& i) {
                            i.device.gap_rules.smallest = milliseconds{6};
                            i.device.idle_since = kNow - milliseconds{6};
                          }),
                  true, "in a gap"},
        Situation{"op_that_ends_within_the_guard",
                  changed(under_rules(), [](auto& i) { i.predicted = microseconds{2600}; }), false,
                  "op does not fit in what is left of the gap"},
        Situation{"op_that_ends_before_the_guard",
                  changed(under_rules(), [](auto& i) { i.predicted = microseconds{2400}; }), true,
                  "in a gap"},
        Situation{"an_op_at_the_bound_in_flight",
                  changed(under_rules(),
                          [](auto& i) {
                            i.predicted = microseconds{1200};
                            i.in_flight = milliseconds{2};
                          }),
                  false, "work in flight is at its bound"},
        Situation{"an_op_below_the_bound_in_flight",
                  changed(under_rules(),
                          [](auto& i) {
                            i.predicted = microseconds{1000};
                            i.in_flight = microseconds{900};
                          }),
                  true, "in a gap"},
        Situation{"share_zero", changed(PacingInput{}, [](auto& i) { i.share_max = 0.0; }), false,
                  "share is 0"}),
    [](const auto& param) { return std::string{param.param.name}; });

// --- rules for gaps
// ------------------------------------------------------------------------------

/// Offers an op in every gap of `length`, one each `period`, for `total`. @return gaps entered.
int gaps_entered(PacingLaw& law, PacingInput input, Duration period, Duration length,
                 Duration total) {
  int entered = 0;
  for (Duration at{}; at < total; at += period) {
    input.device.idle_since = input.device.last_touch = kNow + at;
    input.device.idle_expected_end = input.device.idle_since + length;
    bool in = false;
    for (Duration inside = milliseconds{1}; inside < length; inside += microseconds{500}) {
      input.device.now = input.device.idle_since + inside;
      in = law.decide(input).open || in;
    }
    entered += in ? 1 : 0;
  }
  return entered;
}

TEST(GapLaw, HandOversStayWithinTheirRate) {
  PacingInput input = under_rules();
  input.device.gap_rules.hand_overs = 5.0;
  const auto law = make_pacing_law("gap");
  const int entered = gaps_entered(*law, input, milliseconds{20}, milliseconds{10}, seconds{20});
  EXPECT_NEAR(entered, 100, 6) << "of 1000 gaps";
  EXPECT_EQ(law->hand_overs(), static_cast<std::uint64_t>(entered));
}

TEST(GapLaw, WithoutABoundEveryGapIsEntered) {
  PacingInput input = under_rules();
  const auto law = make_pacing_law("gap");
  EXPECT_EQ(gaps_entered(*law, input, milliseconds{20}, milliseconds{10}, seconds{2}), 100);
  EXPECT_EQ(law->hand_overs(), 100U);
}

TEST(GapLaw, AGapThatWasEnteredStaysOpen) {
  PacingInput input = under_rules();
  input.device.gap_rules.hand_overs = 0.001;
  const auto law = make_pacing_law("gap");
  ASSERT_TRUE(law->decide(input).open);
  for (int i = 0; i < 10; ++i) {
    input.device.now += microseconds{100};
    EXPECT_TRUE(law->decide(input).open) << i;
  }
  input.device.idle_since = input.device.last_touch = input.device.now + milliseconds{5};
  input.device.now = input.device.idle_since + milliseconds{1};
  input.device.idle_expected_end = input.device.now + milliseconds{3};
  EXPECT_STREQ(law->decide(input).reason, "hand-overs of this second are used up");
}

TEST(GapLaw, AnOpLongerThanTheBoundInFlightGoesAlone) {
  PacingInput input = under_rules();
  input.device.idle_expected_end = kNow + milliseconds{50};
  input.predicted = milliseconds{8};
  EXPECT_TRUE(make_pacing_law("gap")->decide(input).open) << "or nothing would ever let it go";
  input.in_flight = input.device.gap_rules.in_flight;
  EXPECT_FALSE(make_pacing_law("gap")->decide(input).open);
}

/// A guaranteed job that is busy for 40 ms, once for 30, and waits for 10 in between.
class BusyFor {
 public:
  /// Shows a law so many of its steps, and the begin of the next one.
  BusyFor(PacingLaw& law, int steps) : law_(law) {
    for (int i = 0; i < steps; ++i) {
      (void)look(Duration{});
      input_.device.all_waiting = true;
      input_.device.idle_since = begin_ + milliseconds{i == 3 ? 30 : 40};
      input_.device.now = input_.device.last_touch = input_.device.idle_since;
      input_.device.idle_expected_end = input_.device.now + milliseconds{10};
      (void)law_.decide(input_);
      begin_ = input_.device.idle_expected_end;
    }
  }
  /// How long its neighbour sleeps that looks at it so long after its begin.
  Duration look(Duration after) {
    input_.device.all_waiting = false;
    input_.device.busy_since = begin_;
    input_.device.now = begin_ + after;
    return law_.decide(input_).recheck;
  }

 private:
  PacingLaw& law_;
  PacingInput input_ = beside_a_burst();
  TimePoint begin_ = kNow;
};

TEST(GapLaw, ABusyJobIsLookedAtMoreOftenTowardsTheEndOfItsShortestStretch) {
  const auto law = make_pacing_law("gap");
  BusyFor job(*law, 8);
  EXPECT_EQ(job.look(milliseconds{0}), milliseconds{5});
  EXPECT_EQ(job.look(milliseconds{26}), milliseconds{2});
  EXPECT_EQ(job.look(microseconds{29'500}), microseconds{500});
  EXPECT_EQ(job.look(milliseconds{36}), microseconds{500}) << "a longer one may end at any time";
  int looks = 0;
  for (Duration at{}; at < milliseconds{40}; at += job.look(at)) ++looks;
  EXPECT_LE(looks, 32) << "80 at half a millisecond each";
}

TEST(GapLaw, AJobOfUnknownStretchesIsLookedAtOften) {
  const auto law = make_pacing_law("gap");
  BusyFor job(*law, 7);
  EXPECT_EQ(job.look(milliseconds{0}), microseconds{500});
}

TEST(GapLaw, AJobThatRingsIsHardlyLookedAt) {
  const std::atomic<std::uint64_t> word{1};
  PacingInput input = beside_a_burst();
  const auto law = make_pacing_law("gap");
  EXPECT_FALSE(law->decide(input).bell);
  input.device.bell = {&word, 1};
  const PacingDecision decision = law->decide(input);
  EXPECT_EQ(decision.bell.word, &word);
  EXPECT_EQ(decision.bell.seen, 1U);
  EXPECT_EQ(decision.recheck, kLongestSleep);
  EXPECT_FALSE(law->decide(in_a_gap()).bell) << "its end is not rung";
}

TEST(GapLaw, TheTrickleIsPaidOffBesideAJobThatRings) {
  const std::atomic<std::uint64_t> word{1};
  PacingInput input = beside_a_burst();
  input.device.bell = {&word, 1};
  input.device.trickle = 0.5;
  input.trickle_debt = milliseconds{2};
  const PacingDecision decision = make_pacing_law("gap")->decide(input);
  EXPECT_EQ(decision.recheck, milliseconds{4});
  EXPECT_TRUE(decision.bell) << "what comes first counts";
}

TEST(GapLaw, AGapOfNoUseIsLookedAtWhenItIsExpectedToEnd) {
  const auto recheck = [](Duration left, auto... changes) {
    PacingInput input = under_rules();
    input.device.idle_expected_end = input.device.now + left;
    (changes(input), ...);
    const PacingDecision decision = make_pacing_law("gap")->decide(input);
    EXPECT_FALSE(decision.open) << decision.reason;
    return decision.recheck;
  };
  const auto too_long = [](PacingInput& input) { input.predicted = milliseconds{60}; };
  const auto no_phase = [](PacingInput& input) { input.device.gap_rules.phases = 0; };
  const auto too_short = [](PacingInput& input) { input.device.gap_rules.smallest = seconds{1}; };
  EXPECT_EQ(recheck(milliseconds{3}, too_long), milliseconds{3});
  EXPECT_EQ(recheck(milliseconds{3}, no_phase), milliseconds{3});
  EXPECT_EQ(recheck(milliseconds{3}, too_short), milliseconds{3});
  EXPECT_EQ(recheck(milliseconds{50}, too_long), milliseconds{5}) << "it may end early";
  EXPECT_EQ(recheck(-milliseconds{3}, too_long), microseconds{500}) << "any moment now";
}

TEST(GapLaw, UsedUpHandOversAreWaitedFor) {
  PacingInput input = under_rules();
  input.device.gap_rules.hand_overs = 200.0;
  const auto law = make_pacing_law("gap");
  PacingDecision decision = law->decide(input);
  const TimePoint began = input.device.now;
  while (decision.open) {  // gap after gap in no time
    input.device.idle_since -= microseconds{1};
    decision = law->decide(input);
  }
  EXPECT_STREQ(decision.reason, "hand-overs of this second are used up");
  EXPECT_EQ(decision.recheck, milliseconds{5});
  input.device.now = began + decision.recheck;
  input.device.idle_expected_end = input.device.now + milliseconds{3};
  EXPECT_TRUE(law->decide(input).open) << "no look in between was needed";
}

TEST(GapLaw, TheTrickleGoesOnUnderEveryRule) {
  PacingInput input = under_rules();
  input.device.gap_rules.phases = 0;
  input.device.trickle = 0.01;
  input.trickle_debt = Duration::zero();
  EXPECT_STREQ(make_pacing_law("gap")->decide(input).reason, "trickle beside the guaranteed job");
}

// --- expected ends
// -------------------------------------------------------------------------------

/// What ops of 1.1 ms made of waits of two kinds: four of five last 2 ms, the others 80.
struct Harvest {
  Duration used{};
  Duration waited{};
  Duration overrun{};
};

/// @param expects  the end of a wait, from how long it has lasted; zero: not known.
template <typename Expects>
Harvest harvest(Expects expects, GapHistogram& lengths) {
  const auto law = make_pacing_law("gap");
  PacingInput input = in_a_gap();
  input.predicted = microseconds{1100};
  Harvest result;
  TimePoint now = kNow;
  for (int i = 0; i < 2000; ++i) {
    const Duration length = i % 5 == 3 ? milliseconds{80} : milliseconds{2};
    const TimePoint begin = now + milliseconds{20};  // it works on its batch
    const TimePoint end = begin + length;
    input.device.idle_since = input.device.last_touch = begin;
    for (now = begin; now < end;) {
      input.device.now = now;
      const Duration expected = expects(now - begin);
      input.device.idle_expected_end =
          expected == Duration::zero() ? TimePoint{} : begin + expected;
      const PacingDecision decision = law->decide(input);
      const Duration step = decision.open ? input.predicted : decision.recheck;
      now += step;
      if (!decision.open) continue;
      result.used += step;
      result.overrun += std::max(Duration::zero(), now - end);
    }
    now = std::max(now, end);
    result.waited += length;
    lengths.add(length);
  }
  return result;
}

/// Survival finds the long waits among the short ones; one quantile over all counts on 2 ms, and
/// finds them only a little at a time, each longer than it expected.
TEST(GapLaw, TheLongWaitsAmongShortOnesAreUsedWithoutRunningOverTheirEnds) {
  GapHistogram lengths;
  const Harvest by_survival =
      harvest([&](Duration waited) { return lengths.expected(waited); }, lengths);
  GapHistogram same;
  const Harvest by_quantile = harvest([&](Duration) { return same.quantile(0.2); }, same);
  const auto share = [](Duration part, const Harvest& of) {
    return std::chrono::duration<double>(part) / std::chrono::duration<double>(of.waited);
  };
  EXPECT_GT(share(by_survival.used, by_survival), 0.85);
  EXPECT_LT(share(by_survival.overrun, by_survival), 0.01);
  EXPECT_LT(share(by_quantile.used, by_quantile), share(by_survival.used, by_survival));
  EXPECT_GT(by_quantile.overrun, 4 * by_survival.overrun);
}

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
}  // namespace commensal::pacing_law_test

// SPDX-License-Identifier: Apache-2.0
// Which gaps may be used, decision by decision, and what reports say of gaps.
#include "coordinator/node/gap_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/node/gap_report.h"

namespace commensal::node::gap_control_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;
using wire::GapPhase;

SlowdownEstimate estimate(double value, double error = 0.001) { return {value, error, 40}; }

/// 40 gaps a second of 2 ms between steps, 5 of 30 ms in the loader, one checkpoint a minute.
std::vector<GapClass> gaps() {
  return {{GapPhase::kBoundary, 2400, 0.08, 0.002, 0.002, {{0.0018, 1.0}}},
          {GapPhase::kLoader, 300, 0.15, 0.030, 0.034, {{0.024, 0.2}, {0.028, 0.6}, {0.033, 0.2}}},
          {GapPhase::kCheckpoint, 1, 0.01, 0.5, 0.5, {{0.5, 1.0}}}};
}

GapInput input(int level, std::optional<SlowdownEstimate> slowdown, bool at_least = true) {
  GapInput in;
  in.state.level = level;
  in.slowdown = slowdown;
  in.shares_at_least = at_least;
  in.gaps = gaps();
  return in;
}

bool allows(const wire::GapRules& rules, GapPhase phase) {
  return (rules.phases & wire::phase_bit(phase)) != 0;
}

TEST(HandOverBudget, IsThePublishedOne) {
  // compute_sharing, section 7.4, c = 0.1 ms: 29 a second at 0.5 ms, 9.1 at 2 ms, 2.0 at 10 ms.
  EXPECT_NEAR(hand_over_budget(0.01, 0.0005), 29, 0.5);
  EXPECT_NEAR(hand_over_budget(0.01, 0.002), 9.1, 0.1);
  EXPECT_NEAR(hand_over_budget(0.01, 0.010), 2.0, 0.05);
  // On a GPU a change of processes costs more: 24 a second.
  EXPECT_NEAR(hand_over_budget(0.01, 0.0005, kDeviceChange), 24.4, 0.1);
}

TEST(GapRulesAt, TheFirstLevelRestrictsNothing) {
  EXPECT_EQ(gap_rules_at(0, 0.01, gaps()), wire::GapRules{.known = true});
}

TEST(GapRulesAt, WorkInQueuesIsBoundedAtEveryLevel) {
  for (int level = 0; level <= GapState::kMostLevel; ++level) {
    wire::GapRules rules = gap_rules_at(level, 0.01, gaps());
    EXPECT_EQ(with_queues(rules).in_flight, 500us) << level;
    EXPECT_EQ(with_queues(rules).change, kDeviceChange) << level;
    rules.in_flight = with_queues(rules).in_flight;
    rules.change = kDeviceChange;
    EXPECT_EQ(with_queues(rules), rules) << "and nothing else";
  }
  EXPECT_TRUE(with_queues({}).known) << "also before the first decision";
}

/// What the hand-overs of a level cost at most where each leaves so much work queued.
double cost_of(const wire::GapRules& rules, Duration queued) {
  const double change =
      rules.change > Duration::zero() ? in_seconds(rules.change) / 2 : kHandOverSeconds;
  return rules.hand_overs * (in_seconds(queued) / 2 + change);
}

TEST(GapRulesAt, HandOversAreThoseThatTheWorkInQueuesAllows) {
  const GapUsers users{.idle_class = false, .queues = true, .jobs = 1};
  const wire::GapRules rules = gap_rules_at(2, 0.01, gaps(), users);
  EXPECT_EQ(rules.in_flight, kMostQueued);
  EXPECT_NEAR(rules.hand_overs, 24.4, 0.1) << "compute_sharing, section 7.4, at 0.5 ms";
  EXPECT_NEAR(cost_of(rules, kMostQueued), 0.01, 1e-6) << "all that the objective allows";
  EXPECT_THAT(decide_gaps({.state = {.level = 2}, .slowdown = {}, .users = users}).reason,
              HasSubstr("0.5 ms of work at once, gaps from 1.2 ms on, 24.4 gaps a second"));
  for (int level = 3; level <= GapState::kMostLevel; ++level) {
    const wire::GapRules more = gap_rules_at(level, 0.01, gaps(), users);
    EXPECT_LT(more.hand_overs, gap_rules_at(level - 1, 0.01, gaps(), users).hand_overs) << level;
  }
}

TEST(GapRulesAt, BySomeLevelsOwnWorkInFlightTheObjectiveWouldBeLeftUnused) {
  const wire::GapRules rules = gap_rules_at(2, 0.01, gaps());  // 2 ms, as on a CPU
  EXPECT_LT(cost_of(rules, kMostQueued), 0.0035);
}

TEST(GapRulesAt, JobsThatShareGapsHaveTheQueuesTogether) {
  for (const std::size_t jobs : {1U, 2U, 5U}) {
    const GapUsers users{.idle_class = false, .queues = true, .jobs = jobs};
    const wire::GapRules rules = gap_rules_at(2, 0.01, gaps(), users);
    EXPECT_EQ(rules.in_flight * jobs, kMostQueued);
    EXPECT_NEAR(cost_of(rules, rules.in_flight * jobs), 0.01, 1e-6) << jobs;
    EXPECT_EQ(with_queues(rules, jobs), rules) << "once for all";
  }
  // The twin: with the whole bound for each of five, the same hand-overs cost three times as much.
  const wire::GapRules alone =
      gap_rules_at(2, 0.01, gaps(), {.idle_class = false, .queues = true, .jobs = 1});
  EXPECT_GT(cost_of(alone, 5 * alone.in_flight), 0.03);
}

TEST(GapRulesAt, ManyJobsHaveFewerHandOversRatherThanNothingInFlight) {
  const GapUsers users{.idle_class = false, .queues = true, .jobs = 20};
  const wire::GapRules rules = gap_rules_at(2, 0.01, gaps(), users);
  EXPECT_EQ(rules.in_flight, kLeastQueued);
  EXPECT_NEAR(cost_of(rules, 20 * kLeastQueued), 0.01, 1e-6);
  EXPECT_EQ(with_queues({}, 0).in_flight, kMostQueued) << "nobody yet";
}

TEST(GapRulesAt, EveryLevelRestrictsMoreThanTheOneBefore) {
  for (int level = 1; level <= GapState::kMostLevel; ++level) {
    const wire::GapRules before = gap_rules_at(level - 1, 0.01, gaps());
    const wire::GapRules rules = gap_rules_at(level, 0.01, gaps());
    EXPECT_GE(rules.guard, before.guard) << level;
    EXPECT_GE(rules.smallest, before.smallest) << level;
    EXPECT_EQ(rules.phases & ~before.phases, 0U) << level;
    if (before.hand_overs > 0.0) {
      EXPECT_LT(rules.hand_overs, before.hand_overs) << level;
    }
    EXPECT_GT(rules.in_flight, Duration::zero());
    if (before.in_flight > Duration::zero()) {
      EXPECT_LE(rules.in_flight, before.in_flight) << level;
    }
    EXPECT_NE(rules, before) << level;
  }
}

TEST(GapRulesAt, OnlyTheLongestGapsAreUsedWhereHandOversAreCounted) {
  const wire::GapRules rules = gap_rules_at(2, 0.01, gaps());
  EXPECT_NEAR(rules.hand_overs, 9.1, 0.1);
  EXPECT_GT(rules.smallest, 2ms) << "45 gaps a second are too many";
  EXPECT_LE(rules.smallest, 25ms) << "5 a second of 24 ms or more are not";
  EXPECT_FALSE(allows(rules, GapPhase::kBoundary)) << "none of them is long enough";
  EXPECT_TRUE(allows(rules, GapPhase::kLoader));
  EXPECT_TRUE(allows(rules, GapPhase::kCheckpoint));
}

TEST(GapRulesAt, OfGapsThatAreAlikeNoneIsTooShort) {
  // 22 a second of 24 ms, of which chance puts a few into the next bucket.
  const std::vector<GapClass> alike{
      {GapPhase::kLoader, 1320, 0.5, 0.024, 0.025, {{0.021, 0.9}, {0.025, 0.1}}}};
  const wire::GapRules rules = gap_rules_at(2, 0.01, alike);
  EXPECT_NEAR(rules.hand_overs, 9.1, 0.1) << "bounds them";
  EXPECT_LE(rules.smallest, 21ms) << "2 a second of 25 ms or more would be a tenth of the time";
}

TEST(GapRulesAt, FewLongGapsAreNotUsedUpByManyShortOnes) {
  std::vector<GapClass> few = gaps();
  few[1].per_minute = 60;  // one a second
  EXPECT_GT(gap_rules_at(2, 0.01, few).smallest, 2ms);
  few[1].per_minute = 6;  // too few to matter
  EXPECT_LE(gap_rules_at(2, 0.01, few).smallest, 2ms);
}

TEST(GapRulesAt, WhoIsNotInTheIdleClassEndsBeforeAGapDoes) {
  for (int level = 0; level <= GapState::kMostLevel; ++level) {
    const wire::GapRules at_once = gap_rules_at(level, 0.01, gaps(), {.idle_class = true});
    const wire::GapRules later = gap_rules_at(level, 0.01, gaps(), {.idle_class = false});
    EXPECT_EQ(later.guard, std::max<Duration>(at_once.guard, kWakeGuard)) << level;
    EXPECT_EQ(later.in_flight, at_once.in_flight) << level;
  }
  GapInput in = input(0, estimate(0.0));
  in.users.idle_class = false;
  EXPECT_EQ(decide_gaps(in).rules.guard, kWakeGuard);
  EXPECT_THAT(decide_gaps(in).reason,
              HasSubstr("every gap may be used, ops end 0.3 ms before a gap is expected to;"));
}

TEST(GapDecision, IsHeldUntilALookAtTheJobAloneConfirmsIt) {
  GapInput in = input(1, estimate(0.2));
  in.confirmed = false;
  const GapDecision held = decide_gaps(in);
  EXPECT_EQ(held.state.level, 1);
  EXPECT_TRUE(held.wants_look);
  EXPECT_THAT(held.reason, HasSubstr("held until a look at it alone confirms it"));
  in.confirmed = true;
  EXPECT_EQ(decide_gaps(in).state.level, 2);
  EXPECT_FALSE(decide_gaps(in).wants_look);
  in.confirmed = false;
  in.slowdown = estimate(0.0);
  EXPECT_FALSE(decide_gaps(in).wants_look) << "nothing is to be confirmed";
  in.slowdown = estimate(0.2);
  in.shares_at_least = false;
  EXPECT_FALSE(decide_gaps(in).wants_look) << "shares are cut first, and come back soon";
}

TEST(GapRulesAt, ALargerObjectiveAllowsMoreHandOvers) {
  EXPECT_GT(gap_rules_at(2, 0.05, gaps()).hand_overs, 4 * gap_rules_at(2, 0.01, gaps()).hand_overs);
  EXPECT_LT(gap_rules_at(2, 0.05, gaps()).smallest, gap_rules_at(2, 0.01, gaps()).smallest);
}

TEST(GapRulesAt, WithoutAHistogramOnlyBoundariesGo) {
  const wire::GapRules rules = gap_rules_at(3, 0.01, {});
  EXPECT_FALSE(allows(rules, GapPhase::kBoundary));
  for (const GapPhase phase : {GapPhase::kUnknown, GapPhase::kLoader, GapPhase::kEvaluation,
                               GapPhase::kCheckpoint, GapPhase::kRequests}) {
    EXPECT_TRUE(allows(rules, phase)) << wire::to_string(phase);
  }
}

TEST(GapDecision, RestrictsOnlyBeyondDoubt) {
  EXPECT_EQ(decide_gaps(input(0, estimate(0.03))).state.level, 1);
  EXPECT_THAT(decide_gaps(input(0, estimate(0.03))).reason,
              HasSubstr("guaranteed step 3.0 % over baseline (+-0.1 %, n = 40"));
  EXPECT_THAT(decide_gaps(input(0, estimate(0.03))).reason, HasSubstr("restricted"));
  EXPECT_EQ(decide_gaps(input(0, estimate(0.03, 0.05))).state.level, 0);
  EXPECT_THAT(decide_gaps(input(0, estimate(0.03, 0.05))).reason, HasSubstr("not certain"));
  EXPECT_EQ(decide_gaps(input(2, std::nullopt)).state, input(2, std::nullopt).state);
}

TEST(GapDecision, WhatRunsBesideTheJobIsCutFirst) {
  const GapDecision decision = decide_gaps(input(0, estimate(0.03), false));
  EXPECT_EQ(decision.state.level, 0);
  EXPECT_THAT(decision.reason, HasSubstr("what runs beside it is cut first"));
}

TEST(GapDecision, NothingWindsUpAtItsEnds) {
  GapInput in = input(0, estimate(0.2));
  for (int i = 0; i < 1000; ++i) in.state = decide_gaps(in).state;
  EXPECT_EQ(in.state.level, GapState::kMostLevel);
  // An hour at the end makes the way back no longer than a minute there would.
  in.slowdown = estimate(0.0);
  int periods = 0;
  for (; in.state.level == GapState::kMostLevel && periods < 1000; ++periods) {
    in.state = decide_gaps(in).state;
  }
  EXPECT_EQ(periods, GapState::kLeastPatience);
}

TEST(GapDecision, RelaxesWhenItHolds) {
  GapInput in = input(3, estimate(0.004));
  int periods = 0;
  for (; in.state.level > 0 && periods < 1000; ++periods) in.state = decide_gaps(in).state;
  EXPECT_EQ(periods, 3 * GapState::kLeastPatience);
}

TEST(GapDecision, ALevelThatHadToBeTakenBackIsGivenBackLater) {
  GapInput in = input(2, estimate(0.0));
  for (int i = 0; i < GapState::kLeastPatience; ++i) in.state = decide_gaps(in).state;
  ASSERT_EQ(in.state.level, 1);
  in.slowdown = estimate(0.05);
  in.state = decide_gaps(in).state;
  ASSERT_EQ(in.state.level, 2);
  EXPECT_EQ(in.state.patience, 2 * GapState::kLeastPatience);
  in.state = decide_gaps(in).state;
  EXPECT_EQ(in.state.patience, 2 * GapState::kLeastPatience) << "once for each time it was relaxed";
}

TEST(GapDecision, EqualInputEqualDecision) {
  EXPECT_EQ(decide_gaps(input(2, estimate(0.02))), decide_gaps(input(2, estimate(0.02))));
}

TEST(GapDecision, TheReasonTellsTheRules) {
  EXPECT_THAT(decide_gaps(input(0, std::nullopt)).reason, HasSubstr("every gap may be used"));
  const std::string reason = decide_gaps(input(2, estimate(0.0))).reason;
  EXPECT_THAT(reason, HasSubstr("ops end 0.2 ms before a gap is expected to"));
  EXPECT_THAT(reason, HasSubstr("2.0 ms of work at once"));
  EXPECT_THAT(reason, HasSubstr("9.1 gaps a second"));
  EXPECT_THAT(reason, HasSubstr("none in boundary"));
}

// --- reports -------------------------------------------------------------------------------------

json report(double waits, double seconds) {
  json report = json::parse(R"({"activity": {"gaps": [{"phase": "loader", "median_seconds": 0.03,
      "p90_seconds": 0.04, "lengths": [[0.028, 30.0], [0.024, 10.0]]}]}})");
  report["activity"]["gaps"][0]["waits_total"] = waits;
  report["activity"]["gaps"][0]["seconds_total"] = seconds;
  return report;
}

TEST(GapReport, ClassesAreDifferencesOfTotals) {
  const GapTotals before = read_gap_totals(report(100, 3.0));
  const auto classes = gap_classes(report(220, 6.6), before, 60.0);
  ASSERT_EQ(classes.size(), 1U);
  EXPECT_EQ(classes[0].phase, GapPhase::kLoader);
  EXPECT_DOUBLE_EQ(classes[0].per_minute, 120);
  EXPECT_NEAR(classes[0].share, 0.06, 1e-9);
  ASSERT_EQ(classes[0].lengths.size(), 2U);
  EXPECT_DOUBLE_EQ(classes[0].lengths[0].first, 0.024);
  EXPECT_DOUBLE_EQ(classes[0].lengths[0].second, 0.25);
  EXPECT_TRUE(gap_classes(report(100, 3.0), before, 60.0).empty()) << "none of late";
  EXPECT_TRUE(gap_classes(report(5, 0.1), before, 60.0).empty()) << "it began anew";
  EXPECT_TRUE(gap_classes(report(220, 6.6), before, 0.0).empty());
}

TEST(GapReport, TakesAnythingForAReport) {
  for (const char* text :
       {"null", "[]", "3", R"({"activity": 3})", R"({"activity": {"gaps": 3}})",
        R"({"activity": {"gaps": [3, null, {}, {"phase": 3}, {"phase": "none such"}]}})",
        R"({"activity": {"gaps": [{"phase": "loader", "waits_total": "many", "lengths": 5}]}})",
        R"({"activity": {"gaps": [{"phase": "loader", "waits_total": 5, "seconds_total": -1e300,
            "lengths": [[1], 3, ["a", "b"], [-1, -1], [1e999, 2]]}]}})"}) {
    const json given = json::parse(text, nullptr, false);
    for (const GapClass& gap : gap_classes(given, {}, 60.0)) {
      EXPECT_GE(gap.share, 0.0);
      EXPECT_LE(gap.share, 1.0);
      (void)gap_rules_at(5, 0.01, {gap});
    }
  }
}

TEST(GapReport, WritesClassesAndRulesForPeople) {
  const json classes = to_json(gaps());
  EXPECT_EQ(classes[1]["phase"], "loader");
  EXPECT_EQ(classes[1]["p90_seconds"], 0.034);
  const json rules = to_json(decide_gaps(input(2, estimate(0.0))));
  EXPECT_EQ(rules["level"], 2);
  EXPECT_DOUBLE_EQ(rules["guard_seconds"].get<double>(), 0.0002);
  EXPECT_EQ(rules["phases"].size(), wire::kGapPhases - 1);
  const json none = to_json(decide_gaps(input(0, std::nullopt)));
  EXPECT_TRUE(none["in_flight_seconds"].is_null());
  EXPECT_TRUE(none["hand_overs_per_second"].is_null());
}

}  // namespace
}  // namespace commensal::node::gap_control_test

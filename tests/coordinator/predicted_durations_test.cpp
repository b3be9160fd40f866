// SPDX-License-Identifier: Apache-2.0
// Policies see predictions, made of what ended before; the engine goes by the truth.
#include "coordinator/engines/simulator/predicted_durations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::simulator::predicted_durations_test {
namespace {

using policies::Cluster;
using policies::equal_nodes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Jobs of one GPU: submission, duration, group.
Trace trace_of(const std::vector<std::tuple<double, double, std::string>>& jobs) {
  Trace trace{.source = "made up", .jobs = {}};
  for (const auto& [submit, duration, group] : jobs) {
    TraceJob job;
    job.name = std::to_string(trace.jobs.size());
    job.tenant = "ann";
    job.group = group;
    job.submit = submit;
    job.duration = duration;
    trace.jobs.push_back(job);
  }
  return trace;
}

struct Ran {
  Outcome outcome;
  std::unique_ptr<PredictedDurations> predicted;
  std::vector<std::vector<double>> remaining;  ///< of all jobs, after each decision
};

Ran run(const Trace& trace, std::string_view policy, std::string_view predictor,
        std::string_view semantics = "tiresias") {
  const auto rules = make_semantics(semantics, policy, trace);
  const auto decides = policies::make_policy(policy, rules->options(policy));
  Ran ran{{}, make_predicted(predictor, *rules), {}};
  ran.outcome = simulate(trace, Cluster(equal_nodes(1, 1)), *rules, policy, *decides, {},
                         [&](policies::ClusterState& state, Time, std::size_t) {
                           ran.remaining.emplace_back();
                           for (const ClusterJob& job : state.jobs())
                             ran.remaining.back().push_back(job.remaining);
                         },
                         {.tenants = {}, .failures = nullptr, .predicted = ran.predicted.get()});
  return ran;
}

std::vector<double> ends(const Outcome& outcome) {
  std::vector<double> all;
  for (const JobOutcome& job : outcome.jobs) all.push_back(job.end);
  return all;
}

TEST(PredictedDurationsTest, AQueueIsOrderedByWhatEndedBefore) {
  // Both groups end once; then, while a runs again, one of each waits. The run of b is in truth the
  // shorter one this time, but its group took longer.
  const Trace trace =
      trace_of({{0, 10, "a"}, {10, 50, "b"}, {60, 10, "a"}, {61, 5, "b"}, {62, 20, "a"}});
  EXPECT_THAT(ends(run(trace, "sjf", "group").outcome), ElementsAre(10, 60, 70, 95, 90));
  EXPECT_THAT(ends(run(trace, "sjf", "truth").outcome), ElementsAre(10, 60, 70, 75, 95));
}

TEST(PredictedDurationsTest, WhatRunsOrWaitsTeachesNothing) {
  // a is not over when the others of its group arrive: unknown, they keep their order.
  const Trace trace = trace_of({{0, 100, "a"}, {1, 30, "a"}, {2, 20, "a"}, {3, 10, "a"}});
  const Ran ran = run(trace, "sjf", "group-request");
  EXPECT_THAT(ends(ran.outcome), ElementsAre(100, 130, 150, 160));
  const auto rows = ran.predicted->errors().by_key();
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].key, "nothing");
  EXPECT_EQ(rows[0].jobs, 4U);
  EXPECT_EQ(ran.predicted->errors().alike().jobs, 0U);
}

TEST(PredictedDurationsTest, AnEndAtTheTimeOfAnArrivalIsKnown) {
  const Ran ran = run(trace_of({{0, 10, "a"}, {10, 12, "a"}}), "fifo", "group");
  EXPECT_EQ(ran.predicted->errors().alike().jobs, 1U);
  EXPECT_NEAR(ran.predicted->errors().alike().mape_percent, 100 * 2.0 / 12, 1e-9);
}

TEST(PredictedDurationsTest, WhatIsLeftIsThatOfThePrediction) {
  // Predicted 10: after 4 s 6 are left, though it takes 100; who overruns has none left, and ends.
  const Trace trace = trace_of({{0, 10, "a"}, {20, 100, "a"}, {24, 1, "b"}, {50, 1, "b"}});
  const Ran ran = run(trace, "srtf", "group");
  EXPECT_EQ(ran.remaining[2][1], 10);
  EXPECT_EQ(ran.remaining[3][1], 6);
  EXPECT_EQ(ran.remaining[4][1], 0);
  EXPECT_THAT(ends(ran.outcome), ElementsAre(10, 120, 121, 122));
}

TEST(PredictedDurationsTest, WhatAStopCostsIsAdded) {
  // Helios charges 7 s. The job is predicted to take 40 and stopped after 5 for one of 8.
  const Trace trace = trace_of({{0, 40, "a"}, {41, 8, "b"}, {60, 60, "a"}, {65, 8, "b"}});
  const Ran ran = run(trace, "srtf", "group", "helios");
  ASSERT_EQ(ran.outcome.jobs[2].preemptions, 1U);
  double most = 0;
  for (const auto& at : ran.remaining) {
    if (at.size() == 4 && at[2] > 35) most = std::max(most, at[2]);
  }
  EXPECT_EQ(most, 42);  // 35 and 7
}

TEST(PredictedDurationsTest, APerfectHistoryIsAsGoodAsTheTruth) {
  Trace trace = trace_of({});
  for (int i = 0; i < 60; ++i) {
    TraceJob job;
    job.name = std::to_string(i);
    job.group = std::to_string(i % 6);
    job.submit = i < 6 ? i * 1000 : 10'000 + i;
    job.duration = 10 + 7 * (i % 6);
    trace.jobs.push_back(job);
  }
  for (const std::string_view policy : {"sjf", "srtf", "srsf"}) {
    EXPECT_EQ(ends(run(trace, policy, "group").outcome), ends(run(trace, policy, "truth").outcome))
        << policy;
  }
  EXPECT_EQ(run(trace, "sjf", "group").predicted->errors().alike().mape_percent, 0);
}

TEST(PredictedDurationsTest, ATenantIsAUserWhereNoneIsStated) {
  const Ran ran = run(trace_of({{0, 10, ""}, {10, 10, ""}}), "fifo", "user");
  EXPECT_EQ(ran.predicted->errors().alike().jobs, 1U);
}

TEST(PredictedDurationsTest, UnknownPredictorsAndRulesWithoutDurationsAreRefused) {
  const Trace trace = trace_of({{0, 1, "a"}});
  const auto rules = make_semantics("tiresias", "sjf", trace);
  EXPECT_EQ(make_predicted("truth", *rules), nullptr);
  EXPECT_THAT([&] { (void)make_predicted("groop", *rules); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("did you mean group?")));
  const auto fgd = make_semantics("fgd", "fgd", trace);
  EXPECT_THAT([&] { (void)make_predicted("group", *fgd); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("semantics fgd have no durations")));
}

}  // namespace
}  // namespace commensal::simulator::predicted_durations_test

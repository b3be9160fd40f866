// SPDX-License-Identifier: Apache-2.0
// The rules of Pollux' simulator, with an application that is easy to calculate with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "coordinator/engines/simulator/metrics.h"
#include "coordinator/engines/simulator/semantics.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/toy_profile.h"

namespace commensal::simulator::pollux_rules_test {
namespace {

using ::testing::HasSubstr;

TraceJob job(std::string name, double submit, std::int32_t gpus, std::int32_t batch) {
  TraceJob made;
  made.name = std::move(name);
  made.model = "toy";
  made.submit = submit;
  made.gpus = gpus;
  made.batch_size = batch;
  return made;
}

Trace trace(std::vector<TraceJob> jobs, std::vector<double> epoch_ends) {
  Trace made;
  made.source = "toy.csv";
  made.jobs = std::move(jobs);
  auto profiles = std::make_shared<TrainingProfiles>();
  profiles->emplace("toy", toy_profile(std::move(epoch_ends)));
  made.profiles = profiles;
  return made;
}

Outcome run(const Trace& trace, std::string_view policy_name, std::int32_t nodes,
            const std::map<std::string, std::string>& options = {}) {
  const auto semantics = make_semantics("pollux", policy_name, trace);
  const auto policy = policies::make_policy(policy_name, options);
  return simulate(trace, policies::Cluster(policies::equal_nodes(nodes, 4)), *semantics,
                  policy_name, *policy, {});
}

TEST(PolluxRulesTest, BeginsAtTheNextRoundWithAPause) {
  // Submitted at 61, seen at 120, pauses until 150, then 20 steps of a second.
  const Outcome outcome = run(trace({job("a", 61, 2, 16)}, {10, 20}), "tiresias", 1);
  EXPECT_EQ(outcome.jobs[0].first_start, 120);
  EXPECT_EQ(outcome.jobs[0].end, 170);
}

TEST(PolluxRulesTest, EndsEpochsAtWholeSecondsHalfOnesToTheEven) {
  // 2.5 s are 2; then 3.5 s are 4.
  EXPECT_EQ(run(trace({job("a", 60, 2, 16)}, {2.5}), "tiresias", 1).jobs[0].end, 92);
  EXPECT_EQ(run(trace({job("a", 60, 2, 16)}, {2.5, 6}), "tiresias", 1).jobs[0].end, 96);
}

TEST(PolluxRulesTest, GoesOnWithTheRestOfARoundBehindAnEpoch) {
  // 10.4 s are 10, so the epoch after it has 20 s of this round and 25 of the next: 45 more.
  const Outcome outcome = run(trace({job("a", 60, 2, 16)}, {10.4, 55.4}), "tiresias", 1);
  EXPECT_EQ(outcome.jobs[0].end, 60 + 30 + 10 + 45);
}

TEST(PolluxRulesTest, CountsWhatALargerBatchIsWorth) {
  // Batch 32 on two GPUs: steps of 2 s, worth 4/3 each.
  EXPECT_EQ(run(trace({job("a", 60, 2, 32)}, {20}), "tiresias", 1).jobs[0].end, 60 + 30 + 30);
}

TEST(PolluxRulesTest, AnEndedJobKeepsItsGpusForTheRound) {
  const Outcome outcome =
      run(trace({job("a", 60, 4, 32), job("b", 60, 4, 32)}, {20}), "tiresias", 1);
  EXPECT_EQ(outcome.jobs[0].end, 60 + 30 + 15);
  EXPECT_EQ(outcome.jobs[1].first_start, 120);
}

TEST(PolluxRulesTest, AJobThatIsStoppedGoesOnWithAnotherPause) {
  // After a round with four GPUs each has its limit, and who has not goes first; then the first
  // again.
  const Outcome outcome = run(trace({job("a", 60, 4, 32), job("b", 90, 4, 32)}, {80}), "tiresias",
                              1, {{"limit", "240"}});
  // 4/3 a second: half of it in the round from 60 on (b: 120), the rest in that from 180 on (b:
  // 240).
  EXPECT_EQ(outcome.jobs[0].end, 180 + 30 + 30);
  EXPECT_EQ(outcome.jobs[1].end, 240 + 30 + 30);
  EXPECT_EQ(outcome.jobs[0].preemptions, 1U);
  EXPECT_EQ(outcome.jobs[0].restarts, 1U);
  EXPECT_EQ(metrics_of(outcome).at("restarts"), 2);
}

TEST(PolluxRulesTest, OptimusMovesAJobWhenAnotherArrives) {
  const Outcome outcome =
      run(trace({job("a", 60, 1, 32), job("b", 100, 1, 32)}, {400, 800}), "optimus+oracle", 1);
  EXPECT_EQ(outcome.jobs[0].preemptions, 0U);
  EXPECT_GE(outcome.jobs[0].restarts, 1U);
}

TEST(PolluxRulesTest, RefusesATraceWithoutProfiles) {
  Trace bare = trace({job("a", 0, 1, 16)}, {10});
  bare.profiles = nullptr;
  EXPECT_THROW((void)make_semantics("pollux", "tiresias", bare), std::invalid_argument);
}

TEST(PolluxRulesTest, RefusesAnApplicationOrBatchThatWasNotMeasured) {
  Trace other = trace({job("a", 0, 1, 16)}, {10});
  other.jobs[0].model = "unheard";
  EXPECT_THROW((void)make_semantics("pollux", "tiresias", other), std::invalid_argument);
  EXPECT_THROW((void)make_semantics("pollux", "tiresias", trace({job("a", 0, 1, 65)}, {10})),
               std::invalid_argument);
}

TEST(PolluxRulesTest, NamesAPlacementThatWasNotMeasured) {
  try {
    (void)run(trace({job("a", 0, 20, 64)}, {10}), "tiresias", 5);
    FAIL() << "no exception";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("job a: what toy does with 3 samples a GPU on "
                                        "4 + 4 + 4 + 4 + 4 GPUs"));
  }
}

}  // namespace
}  // namespace commensal::simulator::pollux_rules_test

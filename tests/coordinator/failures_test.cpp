// SPDX-License-Identifier: Apache-2.0
// Failures of jobs: which are drawn, how they are handled, and what they cost.
#include "coordinator/engines/simulator/failures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "coordinator/engines/simulator/metrics.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator::failures_test {
namespace {

using policies::Cluster;
using policies::equal_nodes;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::string_view kNothing = "user=0,semantic=0,gpu-hours=0,corrupt=0";

/// Jobs of 1 to 8 GPUs and of minutes to hours.
Trace drawn_trace(std::size_t jobs) {
  Trace trace{.source = "made up", .jobs = {}};
  for (std::size_t i = 0; i < jobs; ++i) {
    TraceJob job;
    job.name = std::to_string(i);
    job.submit = static_cast<double>(i * 97 % 5000);
    job.duration = static_cast<double>(60 + i * i * 31 % 20'000);
    job.gpus = 1 << (i % 4);
    trace.jobs.push_back(job);
  }
  return trace;
}

Trace one_job(double duration, std::int32_t gpus) {
  Trace trace{.source = "made up", .jobs = {}};
  trace.jobs.resize(1);
  trace.jobs[0].duration = duration;
  trace.jobs[0].gpus = gpus;
  return trace;
}

struct Ran {
  Outcome outcome;
  FailureCosts costs;
};

Ran run(const Trace& trace, const std::string& words, std::string_view policy = "fit-first",
        std::string_view semantics = "tiresias", std::uint64_t seed = 1) {
  const auto rules = make_semantics(semantics, policy, trace);
  const auto decides = policies::make_policy(policy, rules->options(policy));
  Failures failures(failure_options(words), trace, seed);
  Ran ran;
  ran.outcome = simulate(trace, Cluster(equal_nodes(2, 8)), *rules, policy, *decides, {}, {},
                         {.tenants = {}, .failures = &failures});
  ran.costs = failures.costs();
  return ran;
}

std::string with(std::string_view rates) {
  return std::string(kNothing) + "," + std::string(rates);
}

const FailureCosts::OfClass& of(const FailureCosts& costs, FailureClass kind) {
  return costs.by_class[static_cast<std::size_t>(kind)];
}

TEST(FailureModelTest, UserErrorsAreTheSameInEachAttemptAndThoseOfMachinesAreNot) {
  const Trace trace = one_job(1e9, 8);
  const FailureModel model({.user = 1, .semantic = 0, .gpu_hours = 0, .corrupt = 0}, 3);
  const auto first = model.next(trace.jobs[0], 0, 1e9, 0, 0, {});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->kind, FailureClass::kUser);
  EXPECT_EQ(model.next(trace.jobs[0], 0, 1e9, 0, 1, {})->at, first->at);
  EXPECT_NE(model.next(trace.jobs[0], 1, 1e9, 0, 0, {})->at, first->at) << "another row";
  const FailureModel machines({.user = 0, .semantic = 0, .gpu_hours = 1, .corrupt = 0}, 3);
  EXPECT_NE(machines.next(trace.jobs[0], 0, 1e9, 0, 0, {})->at,
            machines.next(trace.jobs[0], 0, 1e9, 0, 1, {})->at);
}

TEST(FailureModelTest, OnlyGangsMeetSemanticErrors) {
  const FailureModel model({.user = 0, .semantic = 1, .gpu_hours = 0, .corrupt = 0}, 3);
  const Trace alone = one_job(100, 1);
  EXPECT_FALSE(model.next(alone.jobs[0], 0, 100, 0, 0, {}));
  const Trace gang = one_job(100, 2);
  EXPECT_EQ(model.next(gang.jobs[0], 0, 100, 0, 0, {})->kind, FailureClass::kSemantic);
}

TEST(FailureModelTest, JobsOfAGroupMeetTheSameCorruptRecordsUntilTheyAreKnown) {
  const FailureModel model(
      {.user = 0, .semantic = 0, .gpu_hours = 0, .corrupt = 1, .records = 2, .passes = 1}, 3);
  Trace trace = one_job(100, 1);
  trace.jobs[0].group = "speech";
  const auto first = model.next(trace.jobs[0], 0, 100, 0, 0, {});
  const auto other = model.next(trace.jobs[0], 7, 100, 0, 0, {});
  ASSERT_TRUE(first && other);
  EXPECT_EQ(first->record, other->record);
  EXPECT_EQ(first->at, other->at);
  const auto second = model.next(trace.jobs[0], 0, 100, 0, 1, {first->record});
  ASSERT_TRUE(second);
  EXPECT_GT(second->at, first->at);
  EXPECT_FALSE(model.next(trace.jobs[0], 0, 100, 0, 2, {first->record, second->record}));
}

TEST(RetryRuleTest, WaitsTwiceAsLongEachTimeUpToABoundAndSoOftenOnly) {
  const RetryRule rule{
      .which = RetryRule::Which::kAll, .retries = 3, .back_off = 100, .longest_back_off = 300};
  EXPECT_EQ(rule.delay(FailureClass::kUser, 1, false), 100);
  EXPECT_EQ(rule.delay(FailureClass::kUser, 2, false), 200);
  EXPECT_EQ(rule.delay(FailureClass::kUser, 3, false), 300);
  EXPECT_FALSE(rule.delay(FailureClass::kUser, 4, false));
}

TEST(RetryRuleTest, ByClassTriesOnlyWhatMayGoWell) {
  const RetryRule rule{.which = RetryRule::Which::kByClass};
  EXPECT_TRUE(rule.delay(FailureClass::kInfrastructure, 1, false));
  EXPECT_TRUE(rule.delay(FailureClass::kInput, 1, true));
  EXPECT_FALSE(rule.delay(FailureClass::kInput, 1, false));
  EXPECT_FALSE(rule.delay(FailureClass::kUser, 1, false));
  EXPECT_FALSE(rule.delay(FailureClass::kSemantic, 1, false));
  EXPECT_FALSE(
      (RetryRule{.which = RetryRule::Which::kNone}).delay(FailureClass::kInfrastructure, 1, false));
}

TEST(PreRunPoolTest, OneAfterTheOtherOnEachGpuOfThePool) {
  PreRunPool pool({.pool = 1, .seconds = 60, .from = 2});
  EXPECT_FALSE(pool.try_out(0, 1, 1000, 5)) << "one GPU: nothing to save";
  EXPECT_EQ(pool.try_out(0, 2, 1000, {})->end, 60);
  const auto failing = pool.try_out(10, 8, 1000, 5);
  EXPECT_TRUE(failing->fails);
  EXPECT_EQ(failing->begin, 60);
  EXPECT_EQ(failing->end, 65);
  EXPECT_FALSE(pool.try_out(100, 8, 1000, 61)->fails) << "behind the first step";
  EXPECT_EQ(pool.try_out(1000, 8, 20, {})->end, 1020) << "a job shorter than the step";
  EXPECT_FALSE(PreRunPool({}).try_out(0, 8, 1000, 5));
}

TEST(FailuresTest, WithoutFailuresARunIsTheSameAsWithoutThem) {
  const Trace trace = drawn_trace(200);
  for (const std::string_view policy : {"fifo", "srtf", "2d-las", "antman"}) {
    const std::string_view semantics = policy == "antman" ? "commensal" : "tiresias";
    const auto rules = make_semantics(semantics, policy, trace);
    const auto decides = policies::make_policy(policy, rules->options(policy));
    const Outcome plain = simulate(trace, Cluster(equal_nodes(2, 8)), *rules, policy, *decides, {});
    const Ran ran = run(trace, std::string(kNothing), policy, semantics);
    EXPECT_EQ(metrics_of(ran.outcome), metrics_of(plain)) << policy;
    EXPECT_EQ(ran.costs.completed, 200U);
    EXPECT_EQ(ran.costs.wasted_gpu_seconds(), 0);
  }
}

TEST(FailuresTest, AUserErrorIsMetAgainInEachRetryUnlessItsClassIsKnown) {
  const Trace trace = one_job(1e7, 4);
  const double at = *FailureModel({.user = 1}, 1).user_error(0);
  const Ran all = run(trace, with("user=1,retry=all,retries=2,back-off=100,checkpoint=0"));
  EXPECT_DOUBLE_EQ(all.outcome.jobs[0].end, 3 * at + 100 + 200);
  EXPECT_EQ(all.outcome.jobs[0].restarts, 2U);
  EXPECT_NEAR(all.costs.wasted_gpu_seconds(), 3 * 4 * at, 1e-6);
  EXPECT_EQ(of(all.costs, FailureClass::kUser).failed_attempts, 3U);
  EXPECT_EQ(of(all.costs, FailureClass::kUser).given_up, 1U);
  EXPECT_EQ(all.costs.completed, 0U);
  const Ran by_class = run(trace, with("user=1,retry=class,checkpoint=0"));
  EXPECT_DOUBLE_EQ(by_class.outcome.jobs[0].end, at);
  EXPECT_EQ(by_class.costs.retries, 0U);
}

TEST(FailuresTest, APreRunFindsAUserErrorOnOneGpu) {
  const Trace trace = one_job(1e7, 8);
  const double at = *FailureModel({.user = 1}, 1).user_error(0);
  const Ran ran = run(trace, with("user=1,prerun=1,prerun-seconds=1e9"));
  EXPECT_DOUBLE_EQ(ran.outcome.jobs[0].end, at);
  EXPECT_DOUBLE_EQ(ran.costs.wasted_gpu_seconds(), at);
  EXPECT_EQ(ran.costs.found_by_pre_run, 1U);
  EXPECT_EQ(ran.costs.completed, 0U);
}

TEST(FailuresTest, AfterAFailureOfAMachineAJobGoesOnFromItsCheckpoint) {
  const Trace trace = one_job(100'000, 8);
  const std::string rates = "gpu-hours=100,retries=1000,retry=class,back-off=0,";
  const Ran saved = run(trace, with(rates + "checkpoint=1000"));
  const Ran anew = run(trace, with(rates + "checkpoint=0"));
  EXPECT_EQ(saved.costs.completed, 1U);
  EXPECT_GT(saved.costs.retries, 0U);
  EXPECT_LE(saved.costs.wasted_gpu_seconds(),
            8.0 * 1000 * static_cast<double>(saved.costs.retries));
  EXPECT_GT(anew.costs.wasted_gpu_seconds(), saved.costs.wasted_gpu_seconds());
  EXPECT_NEAR(saved.outcome.jobs[0].end * 8, saved.costs.used_gpu_seconds, 1e-3);
}

TEST(FailuresTest, ABlacklistLetsTheNextAttemptAndAllOtherJobsPass) {
  Trace trace = drawn_trace(40);
  for (TraceJob& job : trace.jobs) job.group = "one input";
  const std::string rates = "corrupt=1,passes=1,retry=class";
  const Ran without = run(trace, with(rates));
  EXPECT_EQ(without.costs.completed, 0U);
  const Ran list = run(trace, with(rates + ",blacklist=on"));
  EXPECT_EQ(list.costs.completed, 40U);
  EXPECT_EQ(list.costs.blacklisted, 1U);
  EXPECT_LT(of(list.costs, FailureClass::kInput).failed_attempts, 40U);
}

TEST(FailuresTest, EveryGpuSecondIsOfACompletedJobOrWasted) {
  const Trace trace = drawn_trace(300);
  const std::string words =
      "user=0.3,semantic=0.1,gpu-hours=20,corrupt=0.5,inputs=5,records=2,prerun=1,"
      "checkpoint=500,retries=2";
  for (const std::string_view policy : {"fifo", "fit-first", "srtf", "srsf", "2d-las"}) {
    for (const std::string_view rest : {",retry=all", ",retry=class,blacklist=on"}) {
      const Ran ran = run(trace, words + std::string(rest), policy);
      double given_up = 0;
      for (const auto& of_class : ran.costs.by_class) {
        EXPECT_GT(of_class.failed_attempts, 0U);
        given_up += static_cast<double>(of_class.given_up);
      }
      EXPECT_EQ(ran.outcome.jobs.size(), 300U);
      EXPECT_EQ(static_cast<double>(ran.costs.completed) + given_up, 300);
      double useful = 0;
      for (const JobOutcome& job : ran.outcome.jobs) {
        if (job.completed) useful += trace.jobs[job.row].duration * job.gpus;
        EXPECT_GE(job.end, job.submit);
      }
      EXPECT_NEAR(ran.costs.used_gpu_seconds, useful + ran.costs.wasted_gpu_seconds(), 1e-3)
          << policy;
    }
  }
}

TEST(FailuresTest, TheSameSeedGivesTheSameFailuresUnderEveryPolicy) {
  const Trace trace = drawn_trace(100);
  const Ran one = run(trace, "gpu-hours=0,retry=class");
  const Ran again = run(trace, "gpu-hours=0,retry=class");
  EXPECT_EQ(metrics_of(one.outcome), metrics_of(again.outcome));
  EXPECT_EQ(one.costs.metrics(), again.costs.metrics());
  const Ran other = run(trace, "gpu-hours=0,retry=class", "srtf");
  EXPECT_EQ(other.costs.completed, one.costs.completed);
  const Ran seeded = run(trace, "gpu-hours=0,retry=class", "fit-first", "tiresias", 2);
  EXPECT_NE(seeded.costs.metrics(), one.costs.metrics());
}

TEST(FailuresTest, RefusesSemanticsWithRoundsAndWordsThatMeanNothing) {
  const auto says = [](const std::string& words) {
    try {
      (void)failure_options(words);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(says("retryy=all"), HasSubstr("no option retryy; did you mean retry?"));
  EXPECT_THAT(says("user"), HasSubstr("neither on nor name=value"));
  EXPECT_THAT(says("user=2"), HasSubstr("user is not from 0 to 1: 2"));
  EXPECT_THAT(says("prerun=1.5"), HasSubstr("prerun is no whole number: 1.5"));
  EXPECT_THAT(says("retry=often"), HasSubstr("none of none, all, class: often"));
  EXPECT_EQ(says("on"), "");
  const Trace trace = one_job(10, 1);
  EXPECT_THAT(
      [&] { (void)run(trace, "on", "best-fit", "fgd"); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("semantics fgd have no ends of jobs")));
}

}  // namespace
}  // namespace commensal::simulator::failures_test

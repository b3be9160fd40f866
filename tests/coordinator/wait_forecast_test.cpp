// SPDX-License-Identifier: Apache-2.0
// When waiting jobs are said to start.
#include "coordinator/cluster/wait_forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/policies/registry.h"
#include "tests/coordinator/fake_engine.h"

namespace commensal::cluster::wait_forecast_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class WaitForecastTest : public ::testing::Test {
 protected:
  /// Adds a guaranteed job of so many seconds; on devices of n1 from `device` on if it runs.
  ForecastJob& add(const std::string& id, int gpus, std::optional<double> seconds, int device = -1,
                   const std::string& tenant = "default") {
    JobRecord& record = records_.emplace_back();
    record.id = JobId{id};
    record.spec.tenant = tenant;
    record.spec.asked = policies::AskedClass::kGuaranteed;
    record.spec.gpus = gpus;
    record.state = device < 0 ? JobState::kQueued : JobState::kRunning;
    record.job_class = JobClass::kGuaranteed;
    for (int i = 0; device >= 0 && i < gpus; ++i) record.placement.push_back({"n1", device + i});
    ForecastJob job{.record = &record};
    if (seconds) job.expected = ExpectedTime{*seconds, true};
    return world_.jobs.emplace_back(job);
  }
  WaitEstimate of(const std::string& id, const ForecastBounds& bounds = {}) {
    return forecast_waits(*policy_, world_, bounds).at(JobId{id});
  }
  std::optional<double> seconds(const std::string& id) { return of(id).seconds; }

  std::unique_ptr<policies::ClusterPolicy> policy_ = policies::make_policy("fifo", {});
  std::deque<JobRecord> records_;
  ForecastWorld world_{{}, {FakeWorld::make_node("n1", 2)}, {{"default", std::nullopt}}};
};

TEST_F(WaitForecastTest, AJobStartsWhenAnotherEnds) {
  add("1", 2, 100, 0).elapsed = 40;
  add("2", 1, 10);
  EXPECT_EQ(seconds("2"), 60);
  EXPECT_EQ(of("2").words, "in about 60 s, if jobs run as long as those like them did");
}

TEST_F(WaitForecastTest, ThoseBehindWaitForThoseBefore) {
  add("1", 2, 100, 0);
  add("2", 2, 50);
  add("3", 1, 20);
  add("4", 2, 20);
  EXPECT_EQ(seconds("2"), 100);
  EXPECT_EQ(seconds("3"), 150);
  EXPECT_EQ(seconds("4"), 170);
}

TEST_F(WaitForecastTest, AJobThatOnlyRunningOnesAreToldOfHasNone) {
  add("1", 2, 100, 0);
  EXPECT_TRUE(forecast_waits(*policy_, world_).empty());
}

TEST_F(WaitForecastTest, WhatIsNotKnownIsSaid) {
  add("1", 2, std::nullopt, 0);
  add("2", 1, 10);
  EXPECT_EQ(seconds("2"), std::nullopt);
  EXPECT_EQ(of("2").words, "no estimate: how long job 1 runs is not known");
}

TEST_F(WaitForecastTest, AnUnknownJobDoesNotHideWhatTheOthersAllow) {
  add("1", 1, std::nullopt, 0);
  add("2", 1, 30, 1);
  add("3", 1, 10);
  EXPECT_EQ(seconds("3"), 30);
}

TEST_F(WaitForecastTest, AJobThatRunsLongerThanExpectedRunsATenthMore) {
  add("1", 2, 100, 0).elapsed = 400;
  add("2", 1, 10);
  EXPECT_EQ(seconds("2"), 40);
}

TEST_F(WaitForecastTest, AJobThatFollowsAnotherStartsAfterIt) {
  add("1", 1, 100, 0);
  add("2", 1, 10);
  records_.back().spec.after = JobId{"1"};
  add("3", 1, 10);
  records_.back().spec.after = JobId{"2"};
  EXPECT_EQ(seconds("2"), 100);
  EXPECT_EQ(seconds("3"), 110);
}

TEST_F(WaitForecastTest, NothingIsSaidOfAParkedJobNorWhenItsFollowersStart) {
  add("1", 1, 100);
  records_.back().state = JobState::kParked;
  add("2", 1, 10);
  records_.back().spec.after = JobId{"1"};
  add("3", 1, 10);
  EXPECT_FALSE(forecast_waits(*policy_, world_).contains(JobId{"1"}));
  EXPECT_EQ(seconds("2"), std::nullopt);
  EXPECT_EQ(of("2").words, "no estimate: what is known to end does not let it start");
  EXPECT_EQ(seconds("3"), 0) << "who does not follow it is not held up";
}

TEST_F(WaitForecastTest, AJobThatIsTriedAgainWaitsForItsTime) {
  add("1", 1, 10).not_before = 25;
  EXPECT_EQ(seconds("1"), 25);
}

TEST_F(WaitForecastTest, TheQuotaCountsToo) {
  world_.tenants = {{"default", 1}, {"other", std::nullopt}};
  policy_ = policies::make_policy("antman", {});
  add("1", 1, 100, 0);
  add("2", 1, 10);
  add("3", 1, 10, -1, "other");
  EXPECT_EQ(seconds("3"), 0) << "there is a free device";
  EXPECT_EQ(of("3").words, "soon, if jobs run as long as those like them did");
  EXPECT_EQ(seconds("2"), 100) << "its tenant has none left";
}

TEST_F(WaitForecastTest, AMeanOfAllJobsIsSaidToBeOne) {
  add("1", 2, 1000, 0).expected->alike = false;
  add("2", 1, 10);
  EXPECT_EQ(of("2").words, "in about 17 min, if jobs run as long as others did");
}

TEST_F(WaitForecastTest, TheWorkIsBounded) {
  add("1", 2, 100, 0);
  for (int i = 2; i <= 6; ++i) add(std::to_string(i), 2, 100);
  EXPECT_EQ(of("3", {.waiting = 3}).seconds, 200);
  EXPECT_EQ(of("6", {.waiting = 3}).seconds, std::nullopt);
  EXPECT_THAT(of("6", {.waiting = 3}).words, HasSubstr("more than 3 jobs wait before it"));
  EXPECT_EQ(of("2", {.decisions = 3}).seconds, 100);
  EXPECT_THAT(of("6", {.decisions = 3}).words, HasSubstr("too much happens before"));
}

TEST_F(WaitForecastTest, WithoutANodeNothingStarts) {
  world_.nodes.clear();
  add("1", 1, 10);
  EXPECT_EQ(of("1").words, "no estimate: what is known to end does not let it start");
}

TEST_F(WaitForecastTest, EveryPolicyEndsWithAnAnswerForEachJob) {
  for (const policies::PolicyEntry& entry : policies::all_policies()) {
    world_.jobs.clear();
    add("1", 2, 100, 0);
    for (int i = 2; i <= 20; ++i) add(std::to_string(i), i % 2 + 1, 60);
    try {
      policy_ = policies::make_policy(std::string{entry.name}, {});
    } catch (const std::invalid_argument&) {
      continue;  // needs to know of jobs what no coordinator does
    }
    EXPECT_EQ(forecast_waits(*policy_, world_).size(), 19U) << entry.name;
  }
}

TEST_F(WaitForecastTest, WordsFitTheTime) {
  for (const auto& [seconds, words] : {std::pair{5.0, "in about 5 s"},
                                       {500.0, "in about 9 min"},
                                       {20'000.0, "in about 6 h"},
                                       {400'000.0, "in about 5 days"}}) {
    world_.jobs.clear();
    add("1", 2, seconds, 0);
    add("2", 2, 1);
    EXPECT_THAT(of("2").words, HasSubstr(words));
  }
}

JobSpec spec(const std::string& name, std::optional<std::chrono::seconds> limit = std::nullopt) {
  JobSpec spec;
  spec.tenant = "vision";
  spec.name = name;
  spec.directory = "/home/a";
  spec.time_limit = limit;
  return spec;
}

TEST(RunTimesTest, OfAPreRunWhatItWasGivenIsExpectedAndNothingIsLearnt) {
  RunTimes times;
  JobSpec spec;
  spec.pre_run = std::chrono::seconds{90};
  times.learn(spec, 5);
  EXPECT_EQ(times.expect(spec), (ExpectedTime{90, true}));
  spec.pre_run.reset();
  EXPECT_EQ(times.expect(spec), std::nullopt);
}

TEST(RunTimesTest, NothingIsExpectedOfNothing) {
  EXPECT_EQ(RunTimes{}.expect(spec("train")), std::nullopt);
}

TEST(RunTimesTest, JobsLikeItCountBeforeAllOthers) {
  RunTimes times;
  times.learn(spec("train"), 100);
  times.learn(spec("train"), 200);
  times.learn(spec("evaluate"), 6);
  EXPECT_EQ(times.expect(spec("train")), (ExpectedTime{150, true}));
  EXPECT_EQ(times.expect(spec("other")), (ExpectedTime{102, false}));
}

TEST(RunTimesTest, ALimitBoundsWhatIsExpectedAndStandsForIt) {
  RunTimes times;
  EXPECT_EQ(times.expect(spec("train", 60s)), (ExpectedTime{60, true}));
  times.learn(spec("train"), 100);
  EXPECT_EQ(times.expect(spec("train", 60s)), (ExpectedTime{60, true}));
  EXPECT_EQ(times.expect(spec("train", 600s)), (ExpectedTime{100, true}));
  EXPECT_EQ(times.expect(spec("other", 600s)), (ExpectedTime{600, true}));
}

TEST(RunTimesTest, AClockThatWasSetBackTeachesNothingNegative) {
  RunTimes times;
  times.learn(spec("train"), -50);
  EXPECT_EQ(times.expect(spec("train")), (ExpectedTime{0, true}));
}

}  // namespace
}  // namespace commensal::cluster::wait_forecast_test

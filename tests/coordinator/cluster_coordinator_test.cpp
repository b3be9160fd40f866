// SPDX-License-Identifier: Apache-2.0
// The cluster coordinator with a real store and a fake engine: what users see, and what is left
// after it died at any point.
#include "coordinator/cluster/cluster_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/policies/registry.h"
#include "tests/coordinator/fake_engine.h"

namespace commensal::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Changes classes when the test says so.
class FakeClasses final : public ClassChanger {
 public:
  void change(const JobRecord& job, JobClass job_class) override {
    asked.emplace_back(Attempt{job.id, job.attempt}, job_class);
  }
  std::vector<Outcome> outcomes() override { return std::exchange(answers, {}); }

  std::vector<std::pair<Attempt, JobClass>> asked;
  std::vector<Outcome> answers;
};

class ClusterCoordinatorTest : public ::testing::Test {
 protected:
  ClusterCoordinatorTest() {
    folder_ = std::filesystem::temp_directory_path() /
              ("commensal-cluster-" + std::to_string(getpid()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    world_.nodes = {FakeWorld::make_node("n1", 2), FakeWorld::make_node("n2", 2)};
    open();
  }
  ~ClusterCoordinatorTest() override {
    close();
    std::filesystem::remove_all(folder_);
  }

  void open() {
    store_ = std::make_unique<Store>(folder_ / "cluster.db");
    engine_ = std::make_unique<FakeEngine>(world_);
    coordinator_ = std::make_unique<ClusterCoordinator>(
        config_, *store_, *engine_, classes_, *policy_, [this] { return wall_; }, log_, now_);
  }
  void close() {
    coordinator_.reset();
    engine_.reset();
    store_.reset();
  }
  void restart() {
    close();
    open();
    settle();
  }

  void settle() {
    now_ += 1ms;
    wall_ += 1ms;
    coordinator_->settle(now_);
  }
  /// Until nothing is to be done at once.
  void settle_all() {
    for (int i = 0; i < 5; ++i) settle();
  }
  void pass(Duration time) {
    now_ += time;
    settle_all();
  }

  static json job(std::string tenant = "default", int gpus = 1, std::string asked = "guaranteed",
                  std::vector<std::string> command = {"train"}) {
    return {{"name", "train"},
            {"tenant", std::move(tenant)},
            {"class", std::move(asked)},
            {"gpus", gpus},
            {"cpu_milli", 0},
            {"host_memory_mib", 0},
            {"environment", json::object()},
            {"command", std::move(command)},
            {"directory", "/"}};
  }
  std::string submit(json job, const std::string& request = "") {
    return ask({{"type", "submit"}, {"job", std::move(job)}, {"request", request}})["id"];
  }
  json ask(const json& request) {
    json answer = coordinator_->answer(request, now_);
    settle_all();
    return answer;
  }
  std::string refusal(const json& request) {
    try {
      (void)coordinator_->answer(request, now_);
    } catch (const RequestRefused& error) {
      return error.code() + ": " + error.what();
    }
    return "not refused";
  }
  json shown(const std::string& id) { return ask({{"type", "explain"}, {"id", id}})["job"]; }
  std::string state(const std::string& id) { return shown(id)["state"]; }
  std::string reason(const std::string& id) { return shown(id)["reason"]; }
  std::vector<std::string> past(const std::string& id) {
    std::vector<std::string> states;
    const json told = ask({{"type", "explain"}, {"id", id}});
    for (const json& line : told["history"]) {
      states.push_back(line["to"]);
    }
    return states;
  }
  json node(const std::string& name) {
    const json told = ask({{"type", "nodes"}});
    for (const json& one : told["nodes"]) {
      if (one["name"] == name) return one;
    }
    return {};
  }
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream{folder_ / name} << text;
    return folder_ / name;
  }
  static Attempt attempt(const std::string& id, std::uint32_t number = 1) {
    return {JobId{id}, number};
  }

  std::filesystem::path folder_;
  ClusterConfig config_;
  FakeWorld world_;
  FakeClasses classes_;
  std::unique_ptr<policies::ClusterPolicy> policy_ = policies::make_policy("antman", {});
  std::shared_ptr<spdlog::logger> log_ =
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_st>());
  TimePoint now_{1h};
  WallTime wall_{std::chrono::hours{24}};
  std::unique_ptr<Store> store_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<ClusterCoordinator> coordinator_;
};

TEST_F(ClusterCoordinatorTest, AJobIsQueuedStartedAndFinished) {
  const std::string id = submit(job());
  EXPECT_EQ(state(id), "running");
  EXPECT_EQ(shown(id)["class"], "guaranteed");
  EXPECT_TRUE(world_.runs(attempt(id)));
  world_.end(attempt(id), 0);
  settle_all();
  EXPECT_EQ(state(id), "finished");
  EXPECT_EQ(shown(id)["exit_code"], 0);
  EXPECT_THAT(past(id), ElementsAre("submitted", "queued", "starting", "running", "finished"));
}

TEST_F(ClusterCoordinatorTest, HealthIsWhatIsAroundAndTheTime) {
  EXPECT_EQ(ask({{"type", "health"}})["health"].size(), 1U);
  config_.surroundings = [] { return json{{"version", "1"}}; };
  restart();
  const json told = coordinator_->answer({{"type", "health"}}, now_)["health"];
  EXPECT_EQ(told["version"], "1");
  EXPECT_EQ(told["time_ms"], wall_.time_since_epoch().count());
}

TEST_F(ClusterCoordinatorTest, ItSaysOfAJobWhetherItLivesOrWhenItEnded) {
  const std::string id = submit(job());
  EXPECT_EQ(coordinator_->end_of(JobId{id}), (JobEnd{true, std::nullopt}));
  world_.end(attempt(id), 0);
  settle_all();
  const JobEnd over = coordinator_->end_of(JobId{id});
  EXPECT_FALSE(over.lives);
  ASSERT_TRUE(over.ended.has_value());
  restart();
  EXPECT_EQ(coordinator_->end_of(JobId{id}), over);
  EXPECT_EQ(coordinator_->end_of(JobId{"77"}), JobEnd{});
  EXPECT_EQ(coordinator_->end_of(JobId{"x"}), JobEnd{});
}

TEST_F(ClusterCoordinatorTest, EndedJobsAreShownOnlyWhenAskedFor) {
  const std::string id = submit(job());
  world_.end(attempt(id), 3);
  settle_all();
  EXPECT_THAT(ask({{"type", "queue"}})["jobs"], IsEmpty());
  const json all = ask({{"type", "queue"}, {"all", true}})["jobs"];
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0]["state"], "failed");
  EXPECT_EQ(all[0]["exit_code"], 3);
}

TEST_F(ClusterCoordinatorTest, AUsersFailureIsNotTriedAgain) {
  const std::string id = submit(job());
  world_.end(attempt(id), 1);
  pass(1h);
  EXPECT_EQ(state(id), "failed");
  EXPECT_EQ(world_.starts(attempt(id, 2)), 0);
}

TEST_F(ClusterCoordinatorTest, ALostJobIsTriedAgainLaterAndNotForEver) {
  const std::string id = submit(job());
  for (std::uint32_t number = 1; number <= config_.retries.infrastructure; ++number) {
    world_.lose(attempt(id, number));
    settle_all();
    EXPECT_EQ(state(id), "queued") << number;
    EXPECT_THAT(reason(id), HasSubstr("tried again"));
    pass(config_.retries.first * (1 << (number - 1)) - 1s);
    EXPECT_EQ(state(id), "queued") << "too early: " << number;
    pass(2s);
    EXPECT_EQ(state(id), "running") << number;
  }
  world_.lose(attempt(id, config_.retries.infrastructure + 1));
  pass(24h);
  EXPECT_EQ(state(id), "lost");
}

TEST_F(ClusterCoordinatorTest, ARestartDoesNotShortenTheWaitBeforeARetryNorDoesAClockThatIsSet) {
  const std::string id = submit(job());
  world_.lose(attempt(id));
  settle_all();
  wall_ += config_.retries.first / 2ms * 1ms;
  pass(config_.retries.first / 2);
  for (const auto jump : {0h, -1h}) {  // what is left is counted by the wall clock
    wall_ += jump;
    restart();
    settle_all();
    EXPECT_EQ(state(id), "queued");
    EXPECT_THAT(reason(id), HasSubstr("tried again"));
  }
  pass(config_.retries.first + 1s);
  EXPECT_EQ(state(id), "running") << "never longer than it was to wait";
}

TEST_F(ClusterCoordinatorTest, AFailureOfTheMachineIsSeenInTheOutputAndTriedAgain) {
  const std::string id = submit(job());
  world_.logs[attempt(id)] = {write("log",
                                    "step 7\nRuntimeError: CUDA error: uncorrectable ECC "
                                    "error encountered\n")};
  world_.end(attempt(id), 1);
  settle_all();
  EXPECT_EQ(state(id), "queued");
  EXPECT_THAT(reason(id), HasSubstr("infrastructure failure: it printed \"uncorrectable ECC"));
  EXPECT_THAT(past(id),
              ElementsAre("submitted", "queued", "starting", "running", "failed", "queued"));
  pass(11s);
  EXPECT_EQ(state(id), "running");
  world_.end(attempt(id, 2), 1);
  pass(1h);
  EXPECT_EQ(state(id), "failed") << "without that output it is its user's";
}

TEST_F(ClusterCoordinatorTest, ACancelledJobIsNotTriedAgainWhateverItFailedOf) {
  const std::string id = submit(job("default", 1, "guaranteed", {"stubborn"}));
  ask({{"type", "cancel"}, {"id", id}});
  world_.end(attempt(id), 75);
  pass(1h);
  EXPECT_EQ(state(id), "cancelled");
}

TEST_F(ClusterCoordinatorTest, ANodeOnWhichJobsAreLostIsAvoidedForAWhile) {
  config_.retries.infrastructure = 0;
  restart();
  ask({{"type", "drain"}, {"node", "n2"}});
  for (int i = 0; i < 3; ++i) {
    const std::string id = submit(job());
    EXPECT_EQ(shown(id)["placement"][0]["node"], "n1");
    world_.lose(attempt(id));
    settle_all();
  }
  EXPECT_EQ(node("n1")["state"], "avoided");
  EXPECT_THAT(node("n1")["reason"].get<std::string>(), HasSubstr("3 failures of 3 jobs"));
  EXPECT_EQ(state(submit(job())), "running") << "a bad node is better than none";
  ask({{"type", "undrain"}, {"node", "n2"}});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(shown(submit(job()))["placement"][0]["node"], "n2");
  }
  const std::string waits = submit(job());
  EXPECT_EQ(state(waits), "queued");
  EXPECT_GE(now_ + 10min, coordinator_->next_wake()) << "it looks again by itself";
  pass(10min);
  EXPECT_EQ(node("n1")["state"], "up");
  EXPECT_EQ(shown(waits)["placement"][0]["node"], "n1");
}

TEST_F(ClusterCoordinatorTest, AnOperatorForgivesANode) {
  config_.retries.infrastructure = 0;
  restart();
  ask({{"type", "drain"}, {"node", "n2"}});
  for (int i = 0; i < 3; ++i) {
    world_.lose(attempt(submit(job())));
    settle_all();
  }
  ask({{"type", "undrain"}, {"node", "n2"}});
  EXPECT_EQ(node("n1")["state"], "avoided");
  ask({{"type", "undrain"}, {"node", "n1"}});
  EXPECT_EQ(node("n1")["state"], "up");
}

TEST_F(ClusterCoordinatorTest, AnEngineThatCannotStartIsNotHeldAgainstTheNode) {
  ask({{"type", "drain"}, {"node", "n2"}});
  for (int i = 0; i < 4; ++i) {
    world_.fail(EngineCall::kHold);
    submit(job());
  }
  EXPECT_EQ(node("n1")["state"], "up");
}

TEST_F(ClusterCoordinatorTest, GuaranteedJobsStayWithinTheQuota) {
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
  const std::string first = submit(job("vision"));
  const std::string second = submit(job("vision"));
  EXPECT_EQ(state(first), "running");
  EXPECT_EQ(state(second), "queued");
  EXPECT_THAT(reason(second), HasSubstr("quota"));
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 2}});
  EXPECT_EQ(state(second), "running");
}

TEST_F(ClusterCoordinatorTest, WhoWaitsIsToldHowLong) {
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
  const auto estimate = [this](const std::string& id) { return shown(id)["estimate"]; };
  const std::string first = submit(job("vision"));
  const std::string second = submit(job("vision"));
  EXPECT_EQ(estimate(second)["words"], "no estimate: how long job " + first + " runs is not known");
  wall_ += 60s;
  now_ += 60s;
  world_.end(attempt(first), 0);
  settle_all();
  const std::string third = submit(job("vision"));
  wall_ += 20s;
  pass(20s);
  const json told = ask({{"type", "queue"}})["jobs"];
  ASSERT_EQ(told.size(), 2U);
  EXPECT_FALSE(told[0].contains("estimate")) << "it runs";
  EXPECT_NEAR(told[1]["estimate"]["starts_in_ms"].get<double>(), 40'000, 1000);
  restart();
  EXPECT_NEAR(estimate(third)["starts_in_ms"].get<double>(), 40'000, 1000)
      << "what has ended is remembered";
}

TEST_F(ClusterCoordinatorTest, AnOpportunisticJobCostsNoQuota) {
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 0}});
  const std::string id = submit(job("vision", 1, "opportunistic"));
  EXPECT_EQ(state(id), "running");
  EXPECT_EQ(shown(id)["class"], "opportunistic");
  const json told = ask({{"type", "tenants"}});
  ASSERT_EQ(told["tenants"].size(), 2U);
  for (const json& tenant : told["tenants"]) {
    if (tenant["name"] != "vision") continue;
    EXPECT_EQ(tenant["guaranteed_devices"], 0);
    EXPECT_EQ(tenant["opportunistic_devices"], 1);
  }
}

TEST_F(ClusterCoordinatorTest, AnAutoJobIsUpgradedWhereItRunsWhenQuotaFrees) {
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
  const std::string first = submit(job("vision"));
  const std::string second = submit(job("vision", 1, "auto"));
  EXPECT_EQ(shown(second)["class"], "opportunistic");
  world_.end(attempt(first), 0);
  settle_all();
  EXPECT_EQ(state(second), "upgrading");
  ASSERT_EQ(classes_.asked.size(), 1U);
  EXPECT_EQ(classes_.asked[0], std::pair(attempt(second), JobClass::kGuaranteed));
  classes_.answers.push_back({attempt(second), true, "done"});
  settle_all();
  EXPECT_EQ(state(second), "running");
  EXPECT_EQ(shown(second)["class"], "guaranteed");
  EXPECT_EQ(world_.starts(attempt(second)), 1) << "without a restart";
}

TEST_F(ClusterCoordinatorTest, AnUpgradeThatFailsGivesItsQuotaBack) {
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
  const std::string first = submit(job("vision"));
  const std::string second = submit(job("vision", 1, "auto"));
  world_.end(attempt(first), 0);
  settle_all();
  classes_.answers.push_back({attempt(second), false, "its memory does not fit"});
  settle();
  EXPECT_THAT(ask({{"type", "explain"}, {"id", second}}).dump(),
              HasSubstr("its memory does not fit"));
  EXPECT_EQ(shown(second)["class"], "opportunistic");
  EXPECT_EQ(state(second), "running") << "not again at once";
  EXPECT_EQ(classes_.asked.size(), 1U);
  pass(2min);
  EXPECT_EQ(classes_.asked.size(), 2U);
}

TEST_F(ClusterCoordinatorTest, AGangStartsWholeOrNotAtAll) {
  const std::string small = submit(job());
  const std::string gang = submit(job("default", 4));
  EXPECT_NE(state(gang), "running");
  EXPECT_EQ(world_.starts(attempt(gang)), 0);
  world_.end(attempt(small), 0);
  settle_all();
  EXPECT_EQ(state(gang), "running");
  EXPECT_EQ(shown(gang)["placement"].size(), 4U);
}

TEST_F(ClusterCoordinatorTest, CancellingWhatWaitsEndsItAtOnce) {
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
  submit(job("vision"));
  const std::string waits = submit(job("vision"));
  const std::string next = submit(job("vision"));
  EXPECT_EQ(ask({{"type", "cancel"}, {"id", waits}})["state"], "cancelled");
  EXPECT_EQ(state(waits), "cancelled");
  EXPECT_EQ(world_.starts(attempt(waits)), 0);
  world_.end(attempt("1"), 0);
  settle_all();
  EXPECT_EQ(state(next), "running") << "those behind it move up";
}

TEST_F(ClusterCoordinatorTest, CancellingWhatRunsEndsItsProcesses) {
  const std::string id = submit(job());
  ask({{"type", "cancel"}, {"id", id}});
  world_.tick();
  settle_all();
  EXPECT_EQ(state(id), "cancelled");
  EXPECT_FALSE(world_.runs(attempt(id)));
  EXPECT_THAT(refusal({{"type", "cancel"}, {"id", id}}), HasSubstr("has ended: cancelled"));
}

TEST_F(ClusterCoordinatorTest, AJobStartsAfterAnother) {
  json second = job();
  const std::string first = submit(job());
  second["after"] = first;
  const std::string id = submit(second);
  EXPECT_EQ(state(id), "queued");
  EXPECT_THAT(reason(id), HasSubstr("after job " + first));
  world_.end(attempt(first), 0);
  settle_all();
  EXPECT_EQ(state(id), "running");
}

TEST_F(ClusterCoordinatorTest, WhatWasToFollowAFailureIsCancelled) {
  json second = job();
  const std::string first = submit(job());
  second["after"] = first;
  const std::string id = submit(second);
  world_.end(attempt(first), 1);
  settle_all();
  EXPECT_EQ(state(id), "cancelled");
  EXPECT_THAT(reason(id), HasSubstr("job " + first));
}

TEST_F(ClusterCoordinatorTest, ADrainedNodeIsGivenNoMoreJobs) {
  const std::string runs = submit(job("default", 2));
  const std::string on = shown(runs)["placement"][0]["node"];
  const std::string other = on == "n1" ? "n2" : "n1";
  ask({{"type", "drain"}, {"node", other}});
  const std::string waits = submit(job());
  EXPECT_EQ(state(waits), "queued");
  ask({{"type", "drain"}, {"node", on}});
  EXPECT_EQ(state(runs), "running") << "what runs there runs on";
  EXPECT_THAT(reason(waits), HasSubstr("no node"));
  ask({{"type", "undrain"}, {"node", other}});
  EXPECT_EQ(state(waits), "running");
  restart();
  const json told = ask({{"type", "nodes"}});
  ASSERT_EQ(told["nodes"].size(), 2U);
  for (const json& node : told["nodes"]) {
    EXPECT_EQ(node["state"], node["name"] == on ? "drained" : "up");
  }
}

TEST_F(ClusterCoordinatorTest, JobsOnADrainedNodeStayCharged) {
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
  const std::string runs = submit(job("vision"));
  ask({{"type", "drain"}, {"node", shown(runs)["placement"][0]["node"]}});
  const std::string waits = submit(job("vision"));
  EXPECT_EQ(state(waits), "queued");
  world_.end(attempt(runs), 0);
  settle_all();
  EXPECT_EQ(state(waits), "running");
}

TEST_F(ClusterCoordinatorTest, WrongRequestsNameTheValueAndChangeNothing) {
  EXPECT_THAT(refusal({{"type", "submit"}, {"job", job("visoin")}}), HasSubstr("\"visoin\""));
  EXPECT_THAT(refusal({{"type", "submit"}, {"job", job("default", 5)}}),
              HasSubstr("asks for 5 devices and the cluster has 4"));
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 2}});
  EXPECT_THAT(refusal({{"type", "submit"}, {"job", job("vision", 3)}}),
              HasSubstr("quota of tenant"));
  submit(job("vision", 2));
  EXPECT_THAT(refusal({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}}),
              HasSubstr("quota below use: tenant vision has guaranteed jobs on 2 devices"));
  EXPECT_THAT(refusal({{"type", "quota"}, {"tenant", "vision"}, {"quota", -1}}), HasSubstr("-1"));
  EXPECT_THAT(refusal({{"type", "cancel"}, {"id", "77"}}), HasSubstr("\"77\""));
  EXPECT_THAT(refusal({{"type", "cancel"}, {"id", 77}}), HasSubstr("\"id\" cannot be 77"));
  EXPECT_THAT(refusal({{"type", "drain"}, {"node", "n11"}}), HasSubstr("did you mean \"n1\""));
  EXPECT_THAT(refusal({{"type", "dance"}}), HasSubstr("dance"));
  EXPECT_THAT(refusal(json::object()), HasSubstr("\"type\" is missing"));
  EXPECT_THAT(refusal({{"type", "submit"}, {"job", {{"name", "x"}}}}), HasSubstr("malformed"));
  EXPECT_EQ(ask({{"type", "queue"}})["jobs"].size(), 1U);
}

TEST_F(ClusterCoordinatorTest, ARepeatedSubmissionIsOneJob) {
  const std::string first = submit(job(), "request-1");
  EXPECT_EQ(submit(job(), "request-1"), first);
  restart();
  EXPECT_EQ(submit(job(), "request-1"), first);
  EXPECT_EQ(world_.starts(attempt(first)), 1);
}

TEST_F(ClusterCoordinatorTest, JobsRunOnThroughARestart) {
  const std::string id = submit(job());
  restart();
  EXPECT_EQ(state(id), "running");
  EXPECT_EQ(world_.starts(attempt(id)), 1);
  close();
  world_.end(attempt(id), 0);
  open();
  settle_all();
  EXPECT_EQ(state(id), "finished");
}

TEST_F(ClusterCoordinatorTest, WhatTheEngineForgotIsLostAndTriedAgain) {
  const std::string id = submit(job());
  close();
  world_.wipe(attempt(id));
  open();
  settle_all();
  EXPECT_EQ(state(id), "queued");
  EXPECT_THAT(reason(id), HasSubstr("does not know it any more"));
  pass(config_.retries.first + 1s);
  EXPECT_EQ(world_.starts(attempt(id, 2)), 1);
}

TEST_F(ClusterCoordinatorTest, WhatRunsAndShouldNotIsEnded) {
  close();
  FakeEngine other{world_};
  JobSpec spec;
  spec.command = {"train"};
  spec.directory = "/";
  other.hold(attempt("99"), spec);
  other.place(attempt("99"), {{"n1", 0}}, JobClass::kOpportunistic);
  other.release(attempt("99"));
  open();
  settle_all();
  world_.tick();
  settle_all();
  EXPECT_FALSE(world_.runs(attempt("99")));
}

TEST_F(ClusterCoordinatorTest, AnEngineThatDoesNotAnswerStartsNothingAndSaysSo) {
  world_.fail(EngineCall::kNodes, Moment::kBefore, 1'000);
  pass(config_.look);
  const std::string id = submit(job());
  EXPECT_EQ(state(id), "queued");
  EXPECT_FALSE(reason(id).empty());
  world_.no_more_faults();
  pass(config_.look);
  EXPECT_EQ(state(id), "running");
}

TEST_F(ClusterCoordinatorTest, AnEngineThatCannotBeWatchedIsWatchedAgain) {
  const std::string id = submit(job("default", 1, "opportunistic"));
  ASSERT_EQ(state(id), "running");
  world_.fail(EngineCall::kWatch, Moment::kBefore, 2);
  world_.end(attempt(id), 3);
  settle_all();
  pass(config_.look);
  pass(config_.look);
  EXPECT_EQ(state(id), "failed");
  world_.fail(EngineCall::kWatch);
  close();
  open();  // also at its start
  const std::string next = submit(job("default", 1, "opportunistic"));
  pass(config_.look);
  EXPECT_EQ(state(next), "running");
}

TEST_F(ClusterCoordinatorTest, AStartThatTheEngineRefusesIsTriedAgainAsTheNextAttempt) {
  for (const EngineCall call : {EngineCall::kHold, EngineCall::kPlace, EngineCall::kRelease}) {
    world_.fail(call, Moment::kAfter);
    const std::string id = submit(job("default", 1, "opportunistic"));
    EXPECT_EQ(state(id), "queued") << static_cast<int>(call);
    world_.tick();
    pass(config_.retries.first + 1s);
    EXPECT_EQ(state(id), "running");
    EXPECT_EQ(world_.starts(attempt(id, 2)), 1);
    EXPECT_FALSE(world_.runs(attempt(id))) << "no two attempts of one job run";
  }
}

// The coordinator dies at each call of the engine, before and after it did its work; whatever the
// call was about, the next one finds every job, and none has been started twice.
TEST_F(ClusterCoordinatorTest, DyingAtAnyCallOfTheEngineLosesAndDoublesNothing) {
  for (const EngineCall call : {EngineCall::kHold, EngineCall::kPlace, EngineCall::kRelease,
                                EngineCall::kTakeBack, EngineCall::kWatch, EngineCall::kForget}) {
    for (const Moment moment : {Moment::kBefore, Moment::kAfter}) {
      const std::string ends = submit(job("default", 1, "opportunistic"));
      const std::string cancelled = submit(job("default", 1, "opportunistic"));
      world_.die(call, moment);
      std::string id;
      bool died = false;
      try {
        id = coordinator_->answer({{"type", "submit"}, {"job", job("default", 1, "opportunistic")}},
                                  now_)["id"];
        (void)coordinator_->answer({{"type", "cancel"}, {"id", cancelled}}, now_);
        world_.end(attempt(ends), 0);
        settle_all();
      } catch (const CoordinatorDied&) {
        died = true;
      }
      EXPECT_TRUE(died) << static_cast<int>(call);
      world_.no_more_faults();
      close();
      open();
      for (int i = 0; i < 4; ++i) {
        settle_all();
        world_.tick();
      }
      EXPECT_EQ(state(ends), "finished") << static_cast<int>(call) << static_cast<int>(moment);
      for (const std::string& job_id : {ends, cancelled, id}) {
        if (job_id.empty()) continue;
        EXPECT_LE(world_.starts(attempt(job_id)), 1) << job_id;
        EXPECT_EQ(world_.starts(attempt(job_id, 2)), 0) << job_id;
      }
    }
  }
}

}  // namespace
}  // namespace commensal::cluster

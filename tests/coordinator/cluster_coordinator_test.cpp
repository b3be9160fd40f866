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

namespace commensal::cluster::cluster_coordinator_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

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
  std::string why_not_opened() {
    try {
      open();
      return "";
    } catch (const StoreFailed& error) {
      EXPECT_EQ(error.why(), StoreFailed::Why::kForeign);
      return error.what();
    }
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

  std::filesystem::path back_up() {
    config_.backups = folder_ / "backups";
    restart();
    return ask({{"type", "backup"}})["file"].get<std::string>();
  }
  /// Goes back to a copy of the store, as docs/operating.md has it; the coordinator has not been
  /// asked for anything yet.
  void go_back(const std::filesystem::path& copy) {
    close();
    for (const std::string name : {"cluster.db", "cluster.db-wal", "cluster.db-shm"}) {
      std::filesystem::remove(folder_ / name);
    }
    std::filesystem::copy_file(copy, folder_ / "cluster.db");
    open();
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
  /// Tells a loss that does not move until a rule of ten minutes has seen enough of it.
  void tell_flat(const std::string& id, std::uint32_t attempt = 1) {
    for (int i = 0; i < 70 && shown(id)["cancelling"] == false && state(id) == "running"; ++i) {
      (void)ask({{"type", "report_loss"},
                 {"id", id},
                 {"attempt", attempt},
                 {"points", {{{"age_ms", 0}, {"loss", 1}}}}});
      pass(10s);
    }
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

TEST_F(ClusterCoordinatorTest, ANodeIsToldWhatIsPlacedOnIt) {
  json asked = job("default", 2);
  asked["cpu_milli"] = 2000;
  asked["memory"] = {{"min_bytes", (4_GiB).count()}, {"max_bytes", (8_GiB).count()}};
  asked["share"] = {{"min", 0.25}};
  const std::uint64_t before = coordinator_->placement_revision("n1");
  const std::string id = submit(asked);
  const std::string on = shown(id)["placement"][0]["node"];
  const std::string other = on == "n1" ? "n2" : "n1";
  const auto told = coordinator_->placements_on(on);
  ASSERT_TRUE(told.has_value());
  wire::Placement expected;
  expected.id = "job-1.1";
  expected.job = "1";
  expected.attempt = 1;
  expected.name = "train";
  expected.tenant = "default";
  expected.job_class = JobClass::kGuaranteed;
  expected.state = wire::PlacementState::kRunning;
  expected.devices = {on + "-gpu-0", on + "-gpu-1"};
  expected.cpu_milli = 2000;
  expected.memory = {4_GiB, 8_GiB};
  expected.share = {0.25, 1.0};
  EXPECT_EQ(*told, std::vector{expected});
  EXPECT_THAT(*coordinator_->placements_on(other), IsEmpty());
  EXPECT_THAT(*coordinator_->placements_on("n9"), IsEmpty()) << "the engine does not have it";
  EXPECT_EQ(coordinator_->placement_revision(other), before);
  restart();
  EXPECT_EQ(coordinator_->placements_on(on), told) << "a coordinator that begins anew knows it";
  world_.end(attempt(id), 0);
  settle_all();
  EXPECT_THAT(*coordinator_->placements_on(on), IsEmpty());
}

TEST_F(ClusterCoordinatorTest, APlacementFollowsItsJobsLife) {
  world_.begin_at_release = false;
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
  const auto placed = [&](const std::string& id) {
    for (const char* name : {"n1", "n2"}) {
      auto on = coordinator_->placements_on(name);
      for (wire::Placement& one : on.value()) {
        if (one.job == id) return std::optional{std::move(one)};
      }
    }
    return std::optional<wire::Placement>{};
  };
  const std::string first = submit(job("vision"));
  const std::string id = submit(job("vision", 1, "auto"));
  ASSERT_TRUE(placed(id).has_value());
  EXPECT_EQ(placed(id)->state, wire::PlacementState::kStarting);
  EXPECT_EQ(placed(id)->job_class, JobClass::kOpportunistic);
  EXPECT_FALSE(placed(id)->memory.has_value() || placed(id)->share.has_value());
  world_.begin(attempt(first));
  world_.begin(attempt(id));
  settle_all();
  EXPECT_EQ(placed(id)->state, wire::PlacementState::kRunning);
  world_.end(attempt(first), 0);
  settle_all();
  EXPECT_FALSE(placed(first).has_value());
  ASSERT_EQ(state(id), "upgrading");
  EXPECT_EQ(placed(id)->state, wire::PlacementState::kUpgrading);
  EXPECT_EQ(placed(id)->job_class, JobClass::kOpportunistic);
  classes_.answers.push_back({attempt(id), true, "its node has changed its class"});
  settle_all();
  EXPECT_EQ(placed(id)->state, wire::PlacementState::kRunning);
  EXPECT_EQ(placed(id)->job_class, JobClass::kGuaranteed);
}

TEST_F(ClusterCoordinatorTest, WhileTheEngineHasNeverAnsweredNothingIsSaidOfPlacements) {
  const std::string id = submit(job());
  const std::string on = shown(id)["placement"][0]["node"];
  world_.fail(EngineCall::kNodes, Moment::kBefore, 3);
  restart();
  EXPECT_EQ(coordinator_->placements_on(on), std::nullopt);
  const std::uint64_t before = coordinator_->placement_revision(on);
  world_.no_more_faults();
  pass(10s);
  EXPECT_NE(coordinator_->placement_revision(on), before);
  EXPECT_EQ(coordinator_->placements_on(on)->size(), 1U);
}

TEST_F(ClusterCoordinatorTest, AMinimumShareWaitsForRoomAndTheQueueSaysSo) {
  world_.nodes = {FakeWorld::make_node("n1", 1)};
  restart();
  json asked = job("default", 1, "opportunistic");
  asked["share"] = {{"min", 0.6}};
  const std::string first = submit(asked);
  const std::string second = submit(asked);
  EXPECT_EQ(state(first), "running");
  EXPECT_EQ(state(second), "queued");
  const std::string why =
      "its minimum share of 0.6 fits beside those of others on 0 of 1 devices, it asks for 1";
  EXPECT_EQ(reason(second), why);
  EXPECT_EQ(ask({{"type", "queue"}})["jobs"][1]["reason"], why);
  restart();
  EXPECT_EQ(state(second), "queued") << "what runs counts after a restart";
  world_.end(attempt(first), 0);
  settle_all();
  EXPECT_EQ(state(second), "running");
}

TEST_F(ClusterCoordinatorTest, AMinimumOfMemoryThatNoDeviceHasIsRefused) {
  json asked = job();
  asked["memory"] = {{"min_bytes", (96_GiB).count()}};
  const json request{{"type", "submit"}, {"job", asked}, {"request", ""}};
  for (EngineNode& node : world_.nodes) node.device_memory = 80_GiB;
  restart();
  EXPECT_EQ(refusal(request),
            "refused: the job needs at least 96 GiB of device memory, and no device has more than "
            "80 GiB");
  EXPECT_THAT(ask({{"type", "queue"}, {"all", true}})["jobs"], IsEmpty()) << "nothing has changed";
  world_.nodes[1].device_memory = 96_GiB;
  restart();
  EXPECT_EQ(shown(submit(asked))["placement"][0]["node"], "n2");
}

TEST_F(ClusterCoordinatorTest, CoresOrHostMemoryThatNoNodeHasAreRefused) {
  json asked = job();
  asked["cpu_milli"] = 99'000;
  const auto submission = [&] { return json{{"type", "submit"}, {"job", asked}, {"request", ""}}; };
  EXPECT_EQ(refusal(submission()),
            "refused: the job asks for 99 cores on each node, and no node has more than 64");
  asked["cpu_milli"] = 0;
  asked["host_memory_mib"] = std::int64_t{1} << 30U;
  EXPECT_THAT(refusal(submission()), HasSubstr("1 PiB of host memory on each node"));
  EXPECT_THAT(ask({{"type", "queue"}, {"all", true}})["jobs"], IsEmpty()) << "nothing has changed";
  asked["host_memory_mib"] = 1024;
  EXPECT_EQ(state(submit(asked)), "running");
}

TEST_F(ClusterCoordinatorTest, AJobWithoutDevicesIsRefusedAndAnOldOneEndsNobody) {
  EXPECT_EQ(refusal({{"type", "submit"}, {"job", job("default", 0)}, {"request", ""}}),
            "refused: a job has at least one device, not 0");
  JobSpec spec = store_->job(JobId{submit(job())})->spec;
  spec.gpus = 0;
  const JobId id = store_->add(spec, "", wall_, 1);
  store_->commit();
  restart();
  settle_all();
  EXPECT_THAT(reason(id.str()), HasSubstr("no such device: n1 -1")) << "as the engine says";
}

TEST_F(ClusterCoordinatorTest, AnUnknownTenantIsGuessedAndSaidHowToMake) {
  EXPECT_EQ(refusal({{"type", "submit"}, {"job", job("robotics")}}),
            "unknown_tenant: unknown tenant \"robotics\" "
            "('commensal quota set robotics N' makes it)");
}

TEST_F(ClusterCoordinatorTest, AQuotaThatMakesATenantSaysSo) {
  const json request{{"type", "quota"}, {"tenant", "vison"}, {"quota", 1}};
  EXPECT_EQ(ask(request)["made"], true);
  EXPECT_EQ(ask(request)["made"], false);
}

TEST_F(ClusterCoordinatorTest, MinimaOfJobsAndMemoryOfDevicesAreShown) {
  EXPECT_EQ(node("n1")["devices"][0]["memory_bytes"], nullptr) << "it is not known";
  for (EngineNode& node : world_.nodes) node.device_memory = 80_GiB;
  restart();
  EXPECT_EQ(node("n1")["devices"][1]["memory_bytes"], (80_GiB).count());
  json asked = job("default", 1, "opportunistic");
  asked["share"] = {{"min", 0.25}, {"max", 0.5}};
  asked["memory"] = {{"min_bytes", (4_GiB).count() + 1}};
  const std::string id = submit(asked);
  EXPECT_EQ(shown(id)["share"], asked["share"]);
  EXPECT_EQ(shown(id)["memory"], asked["memory"]);
  const json plain = shown(submit(job()));
  EXPECT_FALSE(plain.contains("share") || plain.contains("memory")) << "it asks for none";
  const json state = ask({{"type", "state"}})["state"];
  EXPECT_EQ(state["nodes"][0]["gpu_memory_mib"], 80 * 1024);
  EXPECT_EQ(state["jobs"][0]["min_share"], 0.25);
  EXPECT_EQ(state["jobs"][0]["min_gpu_memory_mib"], 4 * 1024);
  EXPECT_FALSE(state["jobs"][1].contains("min_share"));
}

TEST_F(ClusterCoordinatorTest, NamesAndReasonsThatOthersCannotReadAreRefused) {
  const auto named = [](const std::string& name) {
    json called = job();
    called["name"] = name;
    return json{{"type", "submit"}, {"job", called}};
  };
  EXPECT_EQ(refusal(named("a\x1b[2J")),
            "malformed: the name of a job holds no control characters, but there is one (code 27) "
            "at byte 1");
  EXPECT_EQ(refusal(named(std::string(10'000, 'x'))),
            "malformed: the name of a job has at most 255 bytes, not 10000");
  EXPECT_EQ(refusal(named("   ")), "malformed: the name of a job is not blank: \"   \"");
  EXPECT_TRUE(ask({{"type", "queue"}, {"all", true}})["jobs"].empty()) << "nothing was queued";
  EXPECT_EQ(shown(ask(named(""))["id"])["name"], "") << "a job has its number";

  const auto quota = [](const std::string& tenant) {
    return json{{"type", "quota"}, {"tenant", tenant}, {"quota", 1}};
  };
  EXPECT_EQ(refusal(quota("")), "malformed: the name of a tenant is not empty");
  EXPECT_EQ(refusal(quota("a\nb")),
            "malformed: the name of a tenant holds no control characters, but there is one (code "
            "10) at byte 1");
  EXPECT_EQ(ask({{"type", "tenants"}})["tenants"].size(), 1U);

  const std::string id = submit(job());
  for (const char* type : {"cancel", "drain"}) {
    EXPECT_EQ(
        refusal({{"type", type}, {"id", id}, {"node", "n1"}, {"reason", "\x07"}}),
        "malformed: a reason holds no control characters, but there is one (code 7) at byte 0")
        << type;
  }
  EXPECT_NE(state(id), "cancelled");
  EXPECT_EQ(node("n1")["state"], "up");
}

TEST_F(ClusterCoordinatorTest, ATenantOfAnEarlierVersionMayHaveAnyName) {
  store_->put(TenantRecord{.name = "a\nb", .quota = 1});
  store_->commit();
  restart();
  EXPECT_EQ(ask({{"type", "quota"}, {"tenant", "a\nb"}, {"quota", 2}})["quota"], 2);
}

TEST_F(ClusterCoordinatorTest, NumbersThatDoNotFitAreRefusedAsTheyWereWritten) {
  const auto quota = [](const json& value) {
    return json{{"type", "quota"}, {"tenant", "vision"}, {"quota", value}};
  };
  for (const json& value : {json(-1), json(1'000'001), json(std::int64_t{1} << 32U), json(1.5),
                            json(1e20), json(true), json("many")}) {
    EXPECT_THAT(refusal(quota(value)), AllOf(StartsWith("malformed: field 'quota' must be "),
                                             EndsWith(": " + value.dump())));
  }
  EXPECT_EQ(ask({{"type", "tenants"}})["tenants"].size(), 1U) << "nothing has changed";
  EXPECT_EQ(ask(quota(1'000'000))["quota"], 1'000'000);
  const std::string id = submit(job());
  EXPECT_EQ(refusal({{"type", "logs"}, {"id", id}, {"attempt", -1}}),
            "malformed: field 'attempt' must be a whole number from 0 to 4294967295: -1");
  EXPECT_EQ(refusal({{"type", "logs"}, {"id", id}, {"attempt", 1.5}}),
            "malformed: field 'attempt' must be a whole number from 0 to 4294967295: 1.5");
}

TEST_F(ClusterCoordinatorTest, WhereMemoryIsNotKnownNoMinimumIsRefused) {
  json asked = job();
  asked["memory"] = {{"min_bytes", (96_GiB).count()}};
  EXPECT_EQ(state(submit(asked)), "running");
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

TEST_F(ClusterCoordinatorTest, AfterAnOlderCopyNoNumberIsGivenOfWhichSomethingIsLeft) {
  const std::string kept = submit(job());
  const std::filesystem::path copy = back_up();
  const std::string ended = submit(job());
  const std::string runs = submit(job("default", 1, "guaranteed", {"stubborn"}));
  world_.end(attempt(ended), 0);
  settle_all();
  go_back(copy);
  // Asked before anything else is done: what runs and is nobody's is only being ended.
  const std::string next = submit(job());
  EXPECT_EQ(next, "4") << "2 has ended, 3 is being ended";
  EXPECT_EQ(world_.starts(attempt(next)), 1);
  EXPECT_EQ(state(kept), "running");
  EXPECT_EQ(refusal({{"type", "explain"}, {"id", runs}}), "unknown_job: unknown job \"3\"");
  world_.tick();
  settle_all();
  EXPECT_FALSE(world_.attempts.contains(attempt(runs))) << "and the engine has forgotten it";
  EXPECT_EQ(submit(job()), "5");
}

TEST_F(ClusterCoordinatorTest, AfterAnOlderCopyOutputKeepsItsNumberOverRestarts) {
  const std::filesystem::path copy = back_up();
  const std::string id = submit(job());
  const std::string other = submit(job());
  world_.logs[attempt(other)] = {write("log", "the end")};
  world_.end(attempt(id), 0);
  world_.end(attempt(other), 0);
  settle_all();
  ASSERT_THAT(world_.attempts, IsEmpty());
  for (int i = 0; i < 2; ++i) {
    go_back(copy);
    restart();
    restart();
    EXPECT_EQ(submit(job()), "3") << "1 and 2 were given";
    world_.attempts.clear();
  }
  world_.logs.clear();
  go_back(copy);
  EXPECT_EQ(submit(job()), "1") << "nothing is left of any";
}

TEST_F(ClusterCoordinatorTest, AStoreThatWasLostEndsNoJob) {
  const std::string runs = submit(job());
  const std::string ends = submit(job());
  const std::filesystem::path copy = back_up();
  close();
  world_.end(attempt(ends), 0);  // while nobody listens
  std::filesystem::remove(folder_ / "cluster.db");
  world_.calls.clear();
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(why_not_opened(), HasSubstr("knows none of the 2 attempts"));
    close();
  }
  EXPECT_TRUE(world_.runs(attempt(runs)));
  EXPECT_THAT(world_.calls, IsEmpty());
  go_back(copy);
  settle_all();
  EXPECT_EQ(state(runs), "running");
  EXPECT_EQ(state(ends), "finished") << "its end was not forgotten meanwhile";
  EXPECT_EQ(shown(runs)["attempt"], 1);
}

TEST_F(ClusterCoordinatorTest, TheStoreOfOtherJobsEndsNone) {
  const std::string runs = submit(job());
  close();
  std::filesystem::rename(folder_ / "cluster.db", folder_ / "theirs");
  const std::string stamp = std::exchange(world_.store_stamp, "");
  std::map<Attempt, FakeWorld::Known> attempts;
  attempts.swap(world_.attempts);
  open();
  EXPECT_EQ(submit(job()), runs) << "another job of the same number";
  close();
  world_.store_stamp = stamp;
  world_.attempts = attempts;
  EXPECT_THAT(why_not_opened(), HasSubstr("is not that of the 1 attempts"));
  close();
  EXPECT_TRUE(world_.runs(attempt(runs)));
  std::filesystem::rename(folder_ / "theirs", folder_ / "cluster.db");
  open();
  settle_all();
  EXPECT_EQ(state(runs), "running");
}

TEST_F(ClusterCoordinatorTest, WhoBeginsAnewEndsTheJobsThatTheStoreDoesNotKnow) {
  const std::string runs = submit(job());
  close();
  std::filesystem::remove(folder_ / "cluster.db");
  config_.begin_anew = true;
  open();
  settle_all();
  EXPECT_THAT(world_.attempts, IsEmpty());
  config_.begin_anew = false;
  const std::string next = submit(job());
  restart();
  EXPECT_EQ(state(next), "running") << "the store is theirs from then on";
}

TEST_F(ClusterCoordinatorTest, AStoreFromBeforeThereWereStampsGoesOn) {
  const std::string runs = submit(job());
  store_->put_note("stamp", "");
  store_->commit();
  const std::filesystem::path copy = store_->back_up(folder_ / "backups", wall_);
  close();
  const std::string stamp = std::exchange(world_.store_stamp, "");
  restart();
  EXPECT_EQ(state(runs), "running");
  EXPECT_NE(world_.store_stamp, "");
  EXPECT_NE(world_.store_stamp, stamp);
  const std::string later = world_.store_stamp;
  go_back(copy);  // which has none, too
  EXPECT_EQ(state(runs), "running");
  EXPECT_EQ(world_.store_stamp, later) << "copies made since then are still theirs";
}

TEST_F(ClusterCoordinatorTest, AStartThatDiesBetweenTheTwoStampsGoesOn) {
  close();
  world_.store_stamp.clear();
  std::filesystem::remove(folder_ / "cluster.db");
  for (const Moment moment : {Moment::kBefore, Moment::kAfter}) {
    world_.die(EngineCall::kSetStoreStamp, moment);
    EXPECT_THROW(open(), CoordinatorDied);
    close();
    world_.store_stamp.clear();
  }
  open();
  const std::string runs = submit(job());
  restart();
  EXPECT_EQ(state(runs), "running");
}

TEST_F(ClusterCoordinatorTest, ARepeatedRequestIsTheJobOfTheCopyWhateverNumbersAreTaken) {
  const std::string id = submit(job(), "mine");
  const std::filesystem::path copy = back_up();
  (void)submit(job());
  go_back(copy);
  EXPECT_EQ(submit(job(), "mine"), id);
}

TEST_F(ClusterCoordinatorTest, WithoutAnOlderCopyNumbersFollowEachOther) {
  EXPECT_EQ(submit(job()), "1");
  world_.logs[attempt("1")] = {write("log", "text")};
  restart();
  EXPECT_EQ(submit(job()), "2");
  restart();
  EXPECT_EQ(submit(job()), "3");
}

TEST_F(ClusterCoordinatorTest, WhileTheEngineDoesNotSayWhichNumbersAreTakenNoneIsGiven) {
  const std::filesystem::path copy = back_up();
  world_.logs[attempt("6")] = {write("log", "text")};
  world_.fail(EngineCall::kHighestJob, Moment::kBefore, 2);  // at the start, and once more
  go_back(copy);
  const json request{{"type", "submit"}, {"job", job()}};
  EXPECT_THROW((void)coordinator_->answer(request, now_), EngineFailed);
  settle_all();
  EXPECT_THAT(ask({{"type", "queue"}, {"all", true}})["jobs"], IsEmpty());
  EXPECT_EQ(submit(job()), "7");
  world_.fail(EngineCall::kHighestJob);
  EXPECT_EQ(submit(job()), "8") << "it is not asked again";
}

TEST_F(ClusterCoordinatorTest, ARepeatedRequestIsAnsweredWhateverIsTheMatterNow) {
  const json request{{"type", "submit"}, {"job", job("default", 2)}, {"request", "mine"}};
  const std::string id = ask(request)["id"];
  // The engine does not say which numbers are taken, ...
  world_.fail(EngineCall::kHighestJob, Moment::kBefore, 3);
  restart();
  EXPECT_EQ(ask(request)["id"], id);
  EXPECT_THROW(
      (void)coordinator_->answer({{"type", "submit"}, {"job", job()}, {"request", "new"}}, now_),
      EngineFailed);
  world_.no_more_faults();
  // ... it has ended, and its tenant's quota is less than it asked for: it is not begun again.
  ask({{"type", "cancel"}, {"id", id}});
  settle_all();
  ask({{"type", "quota"}, {"tenant", "default"}, {"quota", 1}});
  const auto lines = ask({{"type", "explain"}, {"id", id}})["history"].size();
  EXPECT_EQ(ask(request)["id"], id);
  EXPECT_EQ(ask({{"type", "explain"}, {"id", id}})["history"].size(), lines);
  EXPECT_EQ(ask({{"type", "queue"}, {"all", true}})["jobs"].size(), 1U);
}

TEST_F(ClusterCoordinatorTest, AnEngineThatAnswersAgainIsAskedAgainWhichNumbersAreTaken) {
  world_.fail(EngineCall::kNodes, Moment::kBefore, 2);
  restart();
  EXPECT_EQ(submit(job()), "1") << "jobs are accepted all the same";
  world_.logs[attempt("6")] = {write("log", "text")};  // of what could not be seen
  pass(config_.look);
  pass(config_.look);
  EXPECT_EQ(submit(job()), "7");
}

TEST_F(ClusterCoordinatorTest, WhereNoNumberIsLeftTheSubmissionIsRefused) {
  world_.logs[attempt("9223372036854775807")] = {write("log", "text")};
  restart();
  EXPECT_EQ(refusal({{"type", "submit"}, {"job", job()}}),
            "refused: no number is left for a job: the engine has something of job "
            "9223372036854775807");
  EXPECT_THAT(ask({{"type", "queue"}, {"all", true}})["jobs"], IsEmpty());
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

TEST_F(ClusterCoordinatorTest, AnUpgradeThatFailsAgainAndAgainIsAskedForLessOften) {
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
  const std::string first = submit(job("vision"));
  const std::string second = submit(job("vision", 1, "auto"));
  world_.end(attempt(first), 0);
  settle_all();
  std::vector<int> minutes;  // until it is asked for again
  for (int i = 0; i < 8; ++i) {
    const std::size_t asked = classes_.asked.size();
    classes_.answers.push_back({attempt(second), false, "its node does not know it"});
    settle_all();
    minutes.push_back(0);
    for (; classes_.asked.size() == asked && minutes.back() < 200; ++minutes.back()) pass(1min);
  }
  EXPECT_THAT(minutes, ElementsAre(1, 2, 4, 8, 16, 32, 64, 64));
}

class UpgradedJobTest : public ClusterCoordinatorTest {
 protected:
  UpgradedJobTest() {
    ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});
    const std::string first = submit(job("vision"));
    id_ = submit(job("vision", 1, "auto"));
    world_.end(attempt(first), 0);
    settle_all();
    classes_.answers.push_back({attempt(id_), true, "done"});
    settle_all();
    classes_.asked.clear();
  }
  void tell(EngineEvent::Kind kind, const std::string& reason) {
    world_.of_devices = {{attempt(id_), kind, std::nullopt, reason}};
    settle_all();
  }
  /// What the nodes were asked for since the last time.
  std::vector<JobClass> asked() {
    std::vector<JobClass> classes;
    for (const auto& [attempt, job_class] : std::exchange(classes_.asked, {})) {
      classes.push_back(job_class);
    }
    return classes;
  }
  void answer(JobClass asked, bool changed) {
    classes_.answers.push_back({attempt(id_), changed, "as the test says", asked});
    settle_all();
  }
  double charged() {
    const json told = ask({{"type", "tenants"}});
    for (const json& tenant : told["tenants"]) {
      if (tenant["name"] == "vision") return tenant["guaranteed_devices"];
    }
    return -1;
  }
  std::string id_;
};

TEST_F(UpgradedJobTest, WhileNobodyHoldsItsDevicesQueueAndExplainSaySo) {
  tell(EngineEvent::Kind::kUnheld, "waits for them as job 3");
  EXPECT_EQ(reason(id_), "waits for them as job 3");
  EXPECT_EQ(ask({{"type", "queue"}})["jobs"][0]["reason"], "waits for them as job 3");
  EXPECT_EQ(shown(id_)["class"], "guaranteed");
  const std::size_t lines = past(id_).size();
  pass(10s);
  EXPECT_EQ(past(id_).size(), lines) << "told again, it is one line";
  restart();
  EXPECT_EQ(past(id_).size(), lines);
  tell(EngineEvent::Kind::kHeld, "job 3 holds them");
  EXPECT_EQ(reason(id_), "job 3 holds them");
  EXPECT_EQ(world_.starts(attempt(id_)), 1);
  EXPECT_THAT(asked(), IsEmpty());
}

TEST_F(UpgradedJobTest, OneWhoseDevicesAreAnothersGoesOnAsOpportunistic) {
  EXPECT_EQ(charged(), 1);
  tell(EngineEvent::Kind::kTaken, "job 900 has them");
  EXPECT_EQ(state(id_), "running");
  EXPECT_EQ(shown(id_)["class"], "opportunistic");
  EXPECT_EQ(reason(id_), "job 900 has them");
  EXPECT_EQ(charged(), 0) << "it costs no quota";
  EXPECT_THAT(asked(), ElementsAre(JobClass::kOpportunistic)) << "once";
  EXPECT_TRUE(world_.runs(attempt(id_)));
  world_.of_devices.clear();
  answer(JobClass::kOpportunistic, true);
  EXPECT_EQ(state(id_), "running") << "not again at once";
  pass(2min);
  EXPECT_THAT(asked(), ElementsAre(JobClass::kGuaranteed)) << "as any other";
  EXPECT_EQ(state(id_), "upgrading");
  answer(JobClass::kGuaranteed, true);
  EXPECT_EQ(shown(id_)["class"], "guaranteed");
  EXPECT_EQ(world_.starts(attempt(id_)), 1);
}

TEST_F(UpgradedJobTest, ANodeThatCannotBeToldIsToldLaterAndNoUpgradeComesBefore) {
  tell(EngineEvent::Kind::kTaken, "job 900 has them");
  world_.of_devices.clear();
  EXPECT_THAT(asked(), ElementsAre(JobClass::kOpportunistic));
  answer(JobClass::kOpportunistic, false);
  EXPECT_THAT(asked(), IsEmpty());
  pass(10s);
  EXPECT_THAT(asked(), ElementsAre(JobClass::kOpportunistic));
  pass(5min);
  EXPECT_EQ(state(id_), "running");
  EXPECT_THAT(asked(), IsEmpty()) << "it is being asked";
  answer(JobClass::kOpportunistic, true);
  pass(1s);
  EXPECT_THAT(asked(), ElementsAre(JobClass::kGuaranteed));
}

TEST_F(UpgradedJobTest, TheNextCoordinatorTellsTheNodesWhatTheLastOneCouldNot) {
  tell(EngineEvent::Kind::kTaken, "job 900 has them");
  world_.of_devices.clear();
  EXPECT_THAT(asked(), ElementsAre(JobClass::kOpportunistic));
  restart();
  settle_all();
  EXPECT_EQ(shown(id_)["class"], "opportunistic");
  EXPECT_THAT(asked(), ElementsAre(JobClass::kOpportunistic));
  answer(JobClass::kOpportunistic, true);
  restart();
  settle_all();
  EXPECT_THAT(asked(), Each(JobClass::kGuaranteed)) << "that it was told was written down";
}

TEST_F(UpgradedJobTest, OneThatEndsMeanwhileHasEnded) {
  tell(EngineEvent::Kind::kTaken, "job 900 has them");
  world_.of_devices.clear();
  answer(JobClass::kOpportunistic, false);
  world_.end(attempt(id_), 0);
  settle_all();
  EXPECT_EQ(state(id_), "finished");
  (void)asked();
  pass(1min);
  EXPECT_THAT(asked(), IsEmpty());
  answer(JobClass::kOpportunistic, true);
  EXPECT_EQ(state(id_), "finished");
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

TEST_F(ClusterCoordinatorTest, AGangThatWouldMixGpusAndCoresIsRefusedWhenItIsSubmitted) {
  EngineNode cores = FakeWorld::make_node("c1", 1);
  cores.devices = {"host"};
  cores.device_type = "cpu";
  world_.nodes = {FakeWorld::make_node("n1", 2), cores};
  restart();
  EXPECT_EQ(refusal({{"type", "submit"}, {"job", job("default", 3)}}),
            "refused: the job asks for 3 devices, all GPUs or none, and the cluster has 2 GPUs and "
            "1 nodes' cores");
  EXPECT_EQ(state(submit(job("default", 2))), "running");
  EXPECT_EQ(shown("1")["placement"][1]["node"], "n1");
  EXPECT_EQ(state(submit(job())), "running") << "on the cores";
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
  EXPECT_THAT(refusal({{"type", "cancel"}, {"id", 77}}),
              HasSubstr("field 'id' must be a text: 77"));
  EXPECT_THAT(refusal({{"type", "drain"}, {"node", "n11"}}), HasSubstr("did you mean \"n1\""));
  EXPECT_THAT(refusal({{"type", "dance"}}), HasSubstr("dance"));
  EXPECT_THAT(refusal(json::object()), HasSubstr("field 'type' is missing"));
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

TEST_F(ClusterCoordinatorTest, NobodyIsToldAStartWhileTheEngineIsSilent) {
  submit(job("default", 4));
  const std::string waits = submit(job("default", 4));
  ASSERT_EQ(state(waits), "queued");
  world_.fail(EngineCall::kNodes, Moment::kBefore, 1'000);
  pass(config_.look + 1s);
  const json estimate = shown(waits)["estimate"];
  EXPECT_EQ(estimate["starts_in_ms"], nullptr);
  EXPECT_EQ(estimate["words"], "no estimate while the engine does not answer");
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

// --- bad inputs --------------------------------------------------------------------------------

json report(const std::string& id, const std::string& record, bool failing = false) {
  return {{"type", "report_input"}, {"id", id},         {"attempt", 1},
          {"dataset", "d"},         {"record", record}, {"reason", "bad crc"},
          {"failing", failing}};
}

TEST_F(ClusterCoordinatorTest, WhatAJobReportsOthersAreGiven) {
  config_.input_lists = folder_ / "inputs";
  restart();
  const std::string first = submit(job());
  EXPECT_EQ(world_.attempts.at(attempt(first)).spec.environment.count(kInputsVariable), 0U);
  const json answer = ask(report(first, "shard-17:4711"));
  EXPECT_EQ(answer["listed"], true);
  const json listed = ask({{"type", "inputs"}, {"dataset", "d"}});
  ASSERT_EQ(listed["inputs"].size(), 1U);
  EXPECT_EQ(listed["inputs"][0]["record"], "shard-17:4711");
  EXPECT_EQ(listed["inputs"][0]["reason"], "bad crc");
  EXPECT_EQ(listed["inputs"][0]["reports"][0]["job"], first);
  EXPECT_EQ(listed["more"], false);
  const std::string second = submit(job());
  const auto& environment = world_.attempts.at(attempt(second)).spec.environment;
  ASSERT_EQ(environment.count(kInputsVariable), 1U);
  std::ifstream in{environment.at(kInputsVariable)};
  EXPECT_EQ(json::parse(in),
            (json{{"tenant", "default"}, {"datasets", {{"d", {"shard-17:4711"}}}}}));
}

TEST_F(ClusterCoordinatorTest, AReportSurvivesARestart) {
  const std::string id = submit(job());
  ask(report(id, "r"));
  restart();
  EXPECT_EQ(ask({{"type", "inputs"}})["inputs"][0]["record"], "r");
  ask({{"type", "remove_input"}, {"dataset", "d"}, {"record", "r"}});
  restart();
  EXPECT_THAT(ask({{"type", "inputs"}, {"suspects", true}})["inputs"], IsEmpty());
}

TEST_F(ClusterCoordinatorTest, ARecordAtWhichJobsFailIsListedAfterTheSecond) {
  for (const bool last : {false, true}) {
    const std::string id = submit(job());
    EXPECT_EQ(ask(report(id, "r", true))["listed"], false);
    restart();
    world_.end(attempt(id), 1);
    settle_all();
    EXPECT_EQ(ask({{"type", "inputs"}})["inputs"].size(), last ? 1U : 0U);
  }
  const json input = ask({{"type", "inputs"}})["inputs"][0];
  EXPECT_EQ(input["reports"].size(), 2U);
  EXPECT_EQ(input["reports"][1]["counted"], true);
}

TEST_F(ClusterCoordinatorTest, LostAndCancelledAndFinishedJobsSayNothingAgainstARecord) {
  const std::string lost = submit(job());
  ask(report(lost, "r", true));
  world_.lose(attempt(lost));
  settle_all();
  const std::string cancelled = submit(job());
  ask(report(cancelled, "r", true));
  ask({{"type", "cancel"}, {"id", cancelled}});
  const std::string finished = submit(job());
  ask(report(finished, "r", true));
  world_.end(attempt(finished), 0);
  settle_all();
  EXPECT_THAT(ask({{"type", "inputs"}, {"suspects", true}})["inputs"], IsEmpty());
}

TEST_F(ClusterCoordinatorTest, AListThatIsKnownIsNotToldAgain) {
  const std::string id = submit(job());
  const json none = ask({{"type", "inputs"}});
  EXPECT_THAT(none["inputs"], IsEmpty());
  EXPECT_EQ(ask({{"type", "inputs"}, {"known", none["version"]}})["unchanged"], true);
  ask(report(id, "r"));
  const json one = ask({{"type", "inputs"}, {"known", none["version"]}});
  EXPECT_EQ(one["unchanged"], false);
  EXPECT_EQ(one["inputs"].size(), 1U);
}

TEST_F(ClusterCoordinatorTest, ALongListIsToldInPartsThatFitIntoAMessage) {
  const std::string id = submit(job());
  const std::string reason(BadInputs::kMostReason, 'x');
  constexpr int kRecords = 600;
  for (int i = 0; i < kRecords; ++i) {
    json one = report(id, "record-" + std::to_string(i));
    one["reason"] = reason;
    (void)coordinator_->answer(one, now_);
  }
  settle_all();
  json request{{"type", "inputs"}};
  std::set<std::string> found;
  int parts = 0;
  for (bool more = true; more; ++parts) {
    const json part = ask(request);
    EXPECT_LT(part.dump().size(), 600'000U);
    for (const json& input : part["inputs"]) found.insert(input["record"]);
    more = part["more"];
    if (more) request["after"] = {"d", part["inputs"].back()["record"]};
  }
  EXPECT_EQ(found.size(), static_cast<std::size_t>(kRecords));
  EXPECT_GT(parts, 1);
}

TEST_F(ClusterCoordinatorTest, ABadReportIsRefusedAndChangesNothing) {
  const std::string id = submit(job());
  EXPECT_EQ(refusal(report("99", "r")), "unknown_job: unknown job \"99\"");
  json later = report(id, "r");
  later["attempt"] = 2;
  EXPECT_EQ(refusal(later), "refused: job 1 has no attempt 2: the last is 1");
  EXPECT_EQ(refusal(report(id, "")), "refused: the name of a record is not empty");
  json nameless = report(id, "r");
  nameless.erase("record");
  EXPECT_EQ(refusal(nameless), "malformed: field 'record' is missing");
  world_.end(attempt(id), 1);
  settle_all();
  EXPECT_EQ(refusal(report(id, "r", true)),
            "refused: attempt 1 of job 1 is over: nothing can fail in it");
  EXPECT_EQ(refusal({{"type", "add_input"}, {"tenant", "defaults"}, {"record", "r"}}),
            "unknown_tenant: unknown tenant \"defaults\"; did you mean \"default\"? "
            "('commensal quota set defaults N' makes it)");
  EXPECT_EQ(refusal({{"type", "remove_input"}, {"record", "r"}}),
            "refused: no record \"r\" of data set \"default\" is known of tenant default");
  EXPECT_EQ(refusal({{"type", "inputs"}, {"after", {"d"}}}),
            "malformed: field 'after' must be a list of 2: [\"d\"]");
  EXPECT_THAT(ask({{"type", "inputs"}, {"suspects", true}})["inputs"], IsEmpty());
}

TEST_F(ClusterCoordinatorTest, AJobStartsWithoutAListThatCannotBeWritten) {
  std::ofstream{folder_ / "inputs"} << "in the way";
  config_.input_lists = folder_ / "inputs";
  restart();
  ask({{"type", "add_input"}, {"record", "r"}});
  const std::string id = submit(job());
  EXPECT_EQ(state(id), "running");
  EXPECT_EQ(world_.attempts.at(attempt(id)).spec.environment.count(kInputsVariable), 0U);
}

// --- rules of jobs -----------------------------------------------------------------------------

json with_rule(json job) {
  job["end_when_flat"] = {{"window_ms", 600'000}, {"change", 0.01}};
  return job;
}

json loss(const std::string& id, const json& value, std::uint32_t attempt = 1) {
  return {{"type", "report_loss"},
          {"id", id},
          {"attempt", attempt},
          {"points", {{{"age_ms", 0}, {"loss", value}}}}};
}

TEST_F(ClusterCoordinatorTest, AJobWhoseLossIsFlatEndsByItsOwnRule) {
  const std::string id = submit(with_rule(job()));
  EXPECT_EQ(world_.attempts.at(attempt(id)).spec.environment.at(kLossVariable), "10");
  EXPECT_EQ(shown(id)["rule"], "it has not told its loss yet");
  int told = 0;
  for (; state(id) == "running" && told < 200; ++told) {
    (void)ask(loss(id, told < 60 ? 2.0 - told * 0.01 : 1.4));
    pass(10s);
  }
  EXPECT_GT(told, 60 + 30) << "most of a window";
  EXPECT_LT(told, 60 + 61) << "not much longer";
  EXPECT_EQ(state(id), "finished");
  EXPECT_THAT(reason(id), HasSubstr("ended by its own rule: its loss has been flat for 10 min"));
  EXPECT_FALSE(shown(id).contains("rule"));
  EXPECT_EQ(refusal(loss(id, 1)), "refused: attempt 1 of job 1 is over");
}

TEST_F(ClusterCoordinatorTest, AJobThatItsRuleEndsIsEndedAfterARestartToo) {
  const std::string id = submit(with_rule(job("default", 1, "guaranteed", {"stubborn"})));
  for (int i = 0; i < 70; ++i) {
    (void)ask(loss(id, 1));
    pass(10s);
  }
  EXPECT_EQ(state(id), "running");
  EXPECT_EQ(shown(id)["cancelling"], true) << "it is asked to end";
  EXPECT_FALSE(ask(loss(id, 1)).empty()) << "what it says meanwhile does no harm";
  const std::string why = reason(id);
  EXPECT_THAT(why, HasSubstr("ended by its own rule"));
  restart();
  world_.end(attempt(id), 1);
  settle_all();
  EXPECT_EQ(state(id), "finished");
  EXPECT_EQ(reason(id), why);
  EXPECT_EQ(world_.starts(attempt(id, 2)), 0) << "it is not tried again";
}

json with_parking(json job) {
  job["park_when_flat"] = {{"window_ms", 600'000}, {"change", 0.01}};
  return job;
}

json resume(const std::string& id) { return {{"type", "resume"}, {"id", id}}; }

TEST_F(ClusterCoordinatorTest, AJobWhoseLossIsFlatIsParkedAndGivesItsDeviceBack) {
  const std::string id = submit(with_parking(job("default", 4)));
  const std::string next = submit(job("default", 4));
  EXPECT_EQ(world_.attempts.at(attempt(id)).spec.environment.at(kLossVariable), "10");
  tell_flat(id);
  EXPECT_EQ(state(id), "parked");
  EXPECT_THAT(reason(id), HasSubstr("parked by its own rule: its loss has been flat for 10 min"));
  EXPECT_FALSE(world_.runs(attempt(id)));
  EXPECT_EQ(state(next), "running") << "on the devices that it had";
  const json told = shown(id);
  EXPECT_EQ(told["cancelling"], false);
  EXPECT_THAT(told["placement"], IsEmpty());
  for (const char* none : {"class", "rule", "estimate"}) EXPECT_FALSE(told.contains(none)) << none;
  EXPECT_EQ(refusal(loss(id, 1)), "refused: attempt 1 of job 1 is over");
  pass(1h);
  EXPECT_EQ(state(id), "parked") << "it does not come back by itself";
}

TEST_F(ClusterCoordinatorTest, AResumedJobStartsAnewAndIsNotParkedByItsOldCurve) {
  const std::string id = submit(with_parking(job()));
  tell_flat(id);
  ASSERT_EQ(state(id), "parked");
  EXPECT_EQ(ask(resume(id))["state"], "queued");
  EXPECT_EQ(state(id), "running");
  EXPECT_EQ(world_.starts(attempt(id, 2)), 1);
  EXPECT_THAT(past(id), ElementsAre("submitted", "queued", "starting", "running", "running",
                                    "parked", "queued", "starting", "running"));
  for (int i = 0; i < 30; ++i) {
    (void)ask(loss(id, 1, 2));
    pass(10s);
  }
  EXPECT_EQ(state(id), "running") << "half a window of this attempt is not enough";
  tell_flat(id, 2);
  EXPECT_EQ(state(id), "parked") << "a whole one is";
  EXPECT_EQ(shown(id)["attempt"], 2);
  EXPECT_EQ(ask({{"type", "cancel"}, {"id", id}})["state"], "cancelled");
}

TEST_F(ClusterCoordinatorTest, AJobThatIsToBeParkedIsAskedAgainAfterARestart) {
  const std::string id = submit(with_parking(job("default", 1, "guaranteed", {"stubborn"})));
  tell_flat(id);
  EXPECT_EQ(state(id), "running");
  EXPECT_EQ(shown(id)["cancelling"], true) << "it is asked to end";
  EXPECT_EQ(refusal(resume(id)), "refused: job 1 is not parked yet: it is running");
  const std::string why = reason(id);
  world_.calls.clear();
  restart();
  EXPECT_THAT(world_.calls, ::testing::Contains("take_back 1.1"));
  world_.lose(attempt(id));
  settle_all();
  EXPECT_EQ(state(id), "parked");
  EXPECT_EQ(reason(id), why);
  restart();
  EXPECT_EQ(state(id), "parked");
  EXPECT_EQ(reason(id), why);
  EXPECT_EQ(world_.starts(attempt(id, 2)), 0) << "a parked job is not tried again";
  (void)ask(resume(id));
  restart();
  EXPECT_EQ(state(id), "running");
}

TEST_F(ClusterCoordinatorTest, AFollowerOfAParkedJobWaitsForIt) {
  const std::string id = submit(with_parking(job()));
  json next = job();
  next["after"] = id;
  const std::string follower = submit(next);
  tell_flat(id);
  EXPECT_EQ(state(follower), "queued");
  EXPECT_EQ(reason(follower), "starts after job 1, which is parked");
  EXPECT_EQ(shown(follower)["estimate"]["starts_in_ms"], nullptr);
  (void)ask(resume(id));
  world_.end(attempt(id, 2), 0);
  settle_all();
  EXPECT_EQ(state(follower), "running");
}

TEST_F(ClusterCoordinatorTest, AParkedJobThatIsCancelledHasEnded) {
  const std::string id = submit(with_parking(job()));
  json next = job();
  next["after"] = id;
  const std::string follower = submit(next);
  tell_flat(id);
  EXPECT_EQ(ask({{"type", "cancel"}, {"id", id}})["state"], "cancelled");
  EXPECT_EQ(state(id), "cancelled");
  EXPECT_EQ(state(follower), "cancelled");
  EXPECT_THAT(ask({{"type", "queue"}})["jobs"], IsEmpty());
  EXPECT_EQ(refusal(resume(id)), "refused: job 1 is not parked: it is cancelled");
}

TEST_F(ClusterCoordinatorTest, AParkedJobIsCountedAsSuchAndDoesNotWait) {
  const std::string id = submit(with_parking(job()));
  tell_flat(id);
  ASSERT_EQ(state(id), "parked");
  const json picture = coordinator_->picture({});
  EXPECT_EQ(picture["jobs"][0]["state"], "parked");
  EXPECT_EQ(picture["summary"]["waiting"], 0);
  EXPECT_EQ(picture["summary"]["oldest_waiting_ms"], nullptr);
  int parked = 0;
  for (const json& entry : picture["summary"]["jobs"]) {
    if (entry["state"] == "parked") parked += entry["count"].get<int>();
  }
  EXPECT_EQ(parked, 1);
  EXPECT_EQ(picture["tenants"][0]["waiting_jobs"], 0);
  EXPECT_EQ(picture["tenants"][0]["guaranteed_devices"], 0) << "its quota is free";
  EXPECT_THAT(coordinator_->picture({.parked = 0})["jobs"], IsEmpty());
}

TEST_F(ClusterCoordinatorTest, OnlyAParkedJobIsResumed) {
  const std::string runs = submit(job());
  EXPECT_EQ(refusal(resume(runs)), "refused: job 1 is not parked: it is running");
  const std::string waits = submit(job("default", 4));
  EXPECT_EQ(refusal(resume(waits)), "refused: job 2 is not parked: it is reserved");
  EXPECT_EQ(refusal(resume("77")), "unknown_job: unknown job \"77\"");
  EXPECT_EQ(refusal({{"type", "resume"}}), "malformed: field 'id' is missing");
  EXPECT_EQ(state(runs), "running");
  EXPECT_EQ(state(waits), "reserved");
}

// --- pre-runs of gangs -------------------------------------------------------------------------

json with_pre_run(json job, std::int64_t milliseconds = 300'000) {
  return {{"type", "submit"},
          {"job", std::move(job)},
          {"request", "gang"},
          {"pre_run_ms", milliseconds}};
}

json first_step(const std::string& id, std::uint32_t attempt = 1) {
  return {{"type", "first_step"}, {"id", id}, {"attempt", attempt}};
}

TEST_F(ClusterCoordinatorTest, AGangIsPlacedOnceItsFirstStepWasDoneOnOneDevice) {
  const json told = ask(with_pre_run(job("default", 4)));
  EXPECT_EQ(told["pre_run"], "1");
  EXPECT_EQ(told["id"], "2");
  const json tried = shown("1");
  EXPECT_EQ(tried["name"], "train (pre-run)");
  EXPECT_EQ(tried["class"], "opportunistic") << "it is free of charge";
  EXPECT_EQ(tried["placement"].size(), 1U);
  const auto& environment = world_.attempts.at(attempt("1")).spec.environment;
  EXPECT_EQ(environment.at(kPreRunVariable), "1");
  EXPECT_EQ(state("2"), "queued");
  EXPECT_EQ(reason("2"), "starts after its pre-run, job 1");
  EXPECT_EQ(ask(first_step("1"))["id"], "1");
  EXPECT_EQ(state("1"), "finished");
  EXPECT_EQ(reason("1"), "its pre-run went well: its first step is done");
  EXPECT_EQ(state("2"), "running");
  EXPECT_EQ(shown("2")["placement"].size(), 4U);
  EXPECT_EQ(world_.attempts.at(attempt("2")).spec.environment.count(kPreRunVariable), 0U);
}

TEST_F(ClusterCoordinatorTest, APreRunInWhichNothingFailsForLongEnoughWentWell) {
  (void)ask(with_pre_run(job("default", 4)));
  pass(200s);
  EXPECT_EQ(state("1"), "running");
  EXPECT_LE(coordinator_->next_wake(), now_ + 100s) << "the coordinator comes back for it";
  wall_ += 200s;  // by which the next one knows when it began
  restart();
  pass(99s);
  EXPECT_EQ(state("1"), "running");
  pass(2s);
  EXPECT_EQ(state("1"), "finished");
  EXPECT_EQ(reason("1"), "its pre-run went well: nothing failed in 300 s");
  EXPECT_EQ(state("2"), "running");
  EXPECT_GT(coordinator_->next_wake(), now_) << "it does not wake for what is over";
}

TEST_F(ClusterCoordinatorTest, APreRunThatDoesNotEndWhenAskedWakesNobodyMeanwhile) {
  (void)ask(with_pre_run(job("default", 4, "guaranteed", {"stubborn"}), 10'000));
  pass(11s);
  EXPECT_EQ(shown("1")["cancelling"], true);
  EXPECT_GT(coordinator_->next_wake(), now_);
  EXPECT_EQ(ask(first_step("1"))["id"], "1") << "says nothing new";
  world_.tick();
  settle_all();
  EXPECT_EQ(state("1"), "finished");
}

TEST_F(ClusterCoordinatorTest, AGangWhosePreRunFailsIsNeverPlaced) {
  (void)ask(with_pre_run(job("default", 4)));
  world_.end(attempt("1"), 1);
  settle_all();
  EXPECT_EQ(state("1"), "failed");
  EXPECT_EQ(state("2"), "cancelled");
  EXPECT_EQ(reason("2"), "its pre-run, job 1, is failed: ended with 1");
  EXPECT_EQ(world_.starts(attempt("2")), 0);
}

TEST_F(ClusterCoordinatorTest, APreRunThatAMachineFailsIsTriedAgain) {
  (void)ask(with_pre_run(job("default", 4)));
  world_.lose(attempt("1"));
  settle_all();
  EXPECT_EQ(state("2"), "queued");
  pass(11s);
  EXPECT_EQ(state("1"), "running");
  EXPECT_EQ(refusal(first_step("1", 1)), "refused: attempt 1 of job 1 is over");
  (void)ask(first_step("1", 2));
  EXPECT_EQ(state("2"), "running");
}

TEST_F(ClusterCoordinatorTest, WhoCancelsAGangCancelsItsPreRun) {
  (void)ask(with_pre_run(job("default", 4)));
  (void)ask({{"type", "cancel"}, {"id", "2"}});
  EXPECT_EQ(state("1"), "cancelled");
  EXPECT_FALSE(world_.runs(attempt("1")));
  const json again = with_pre_run(job("default", 4));
  EXPECT_EQ(ask(again)["id"], "2") << "a repeated request is the jobs of before";
  EXPECT_EQ(ask(again)["pre_run"], "1");
}

TEST_F(ClusterCoordinatorTest, APreRunStartsAfterWhatItsGangIsToFollow) {
  const std::string first = submit(job());
  json gang = job("default", 4);
  gang["after"] = first;
  gang["park_when_flat"] = {{"window_ms", 600'000}, {"change", 0.01}};
  (void)ask(with_pre_run(gang));
  EXPECT_EQ(reason("2"), "starts after job 1");
  world_.end(attempt(first), 0);
  settle_all();
  EXPECT_EQ(state("2"), "running");
  EXPECT_FALSE(shown("2").contains("rule")) << "a rule is its gang's";
  const json told = ask({{"type", "explain"}, {"id", "3"}});
  EXPECT_TRUE(told["spec"].contains("park_when_flat"));
  EXPECT_NEAR(told["job"]["estimate"]["starts_in_ms"].get<double>(), 300'000, 1'000);
}

TEST_F(ClusterCoordinatorTest, ABadPreRunIsRefusedAndNothingIsQueued) {
  EXPECT_EQ(refusal(with_pre_run(job())),
            "refused: a pre-run is for a gang, and the job asks for 1 device");
  for (const std::int64_t wrong : {-1, 999, 1'500, 86'401'000}) {
    EXPECT_EQ(refusal(with_pre_run(job("default", 2), wrong)),
              "malformed: field 'pre_run_ms' must be whole seconds from 1000 to 86400000: " +
                  std::to_string(wrong));
  }
  EXPECT_THAT(refusal(with_pre_run(job("default", 9))), HasSubstr("asks for 9 devices"));
  EXPECT_THAT(ask({{"type", "queue"}, {"all", true}})["jobs"], IsEmpty());
  const std::string id = submit(job());
  EXPECT_EQ(refusal(first_step(id)), "refused: job 1 is no pre-run");
}

TEST_F(ClusterCoordinatorTest, AJobHasOneRuleThatLooksAtItsLoss) {
  EXPECT_EQ(refusal({{"type", "submit"}, {"job", with_parking(with_rule(job()))}}),
            "malformed: field 'park_when_flat' must be absent where end_when_flat is given: "
            "600000");
  EXPECT_THAT(ask({{"type", "queue"}, {"all", true}})["jobs"], IsEmpty());
}

TEST_F(ClusterCoordinatorTest, AJobIsAskedForEnoughLossesForTheShortestRule) {
  json one = with_rule(job());
  one["end_when_flat"]["window_ms"] = 10'000;
  const std::string id = submit(one);
  const double every =
      std::stod(world_.attempts.at(attempt(id)).spec.environment.at(kLossVariable));
  EXPECT_GT(10 / every / 2, static_cast<double>(kLeastPoints) * 2) << "in each half";
}

TEST_F(ClusterCoordinatorTest, AFollowerOfAJobThatItsRuleEndedStarts) {
  const std::string id = submit(with_rule(job()));
  json next = job();
  next["after"] = id;
  const std::string follower = submit(next);
  for (int i = 0; i < 70; ++i) {
    if (state(id) == "running") (void)ask(loss(id, 1));
    pass(10s);
  }
  EXPECT_EQ(state(follower), "running");
}

TEST_F(ClusterCoordinatorTest, ALossThatIsNoNumberEndsNoJob) {
  const std::string id = submit(with_rule(job()));
  for (int i = 0; i < 100; ++i) {
    (void)ask(loss(id, nullptr));
    pass(10s);
  }
  EXPECT_EQ(state(id), "running");
  EXPECT_THAT(shown(id)["rule"].get<std::string>(), HasSubstr("as a number 0 and 0 times"));
}

TEST_F(ClusterCoordinatorTest, ABadReportOfALossIsRefused) {
  const std::string without = submit(job());
  EXPECT_EQ(refusal(loss(without, 1)), "refused: job 1 has no rule that looks at its loss");
  const std::string id = submit(with_rule(job()));
  EXPECT_EQ(refusal(loss(id, 1, 2)), "refused: attempt 2 of job 2 is over");
  EXPECT_THAT(refusal(loss(id, "low")),
              HasSubstr("field 'points[0].loss' must be a number: \"low\""));
  json old = loss(id, 1);
  old["points"][0]["age_ms"] = -1;
  EXPECT_EQ(refusal(old), "malformed: field 'points[0].age_ms' must be from 0 to 3600000: -1");
  old["points"] = 7;
  EXPECT_EQ(refusal(old), "malformed: field 'points' must be a list: 7");
  json short_window = with_rule(job());
  short_window["end_when_flat"]["window_ms"] = 9'000;
  EXPECT_THAT(refusal({{"type", "submit"}, {"job", short_window}}),
              HasSubstr("field 'end_when_flat.window_ms' must be at least 10 seconds: 9000"));
  json wide = with_rule(job());
  wide["end_when_flat"]["change"] = 0.6;
  EXPECT_THAT(refusal({{"type", "submit"}, {"job", wide}}),
              HasSubstr("field 'end_when_flat.change' must be above 0 and at most 0.5: 0.6"));
}

}  // namespace
}  // namespace commensal::cluster::cluster_coordinator_test

// SPDX-License-Identifier: Apache-2.0
// The coordinator without sockets: registration, grants, questions, commands, deaths.
#include "coordinator/node/node_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace commensal::node::node_coordinator_test {
namespace {

using namespace commensal::literals;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

wire::Register hello(const std::string& job, JobClass job_class, Bytes min,
                     std::optional<Bytes> max = std::nullopt, std::int64_t pid = 0) {
  wire::Register message;
  message.job_id = job;
  message.name = "name-" + job;
  message.tenant = "t";
  message.job_class = job_class;
  message.terms.memory.min = min;
  if (max) message.terms.memory.max = max;
  message.pid =
      pid != 0 ? pid : static_cast<std::int64_t>(std::hash<std::string>{}(job) % 30000 + 1);
  message.start_ticks = 1;
  message.role = "main";
  return message;
}

class NodeCoordinatorTest : public ::testing::Test {
 protected:
  static Device device() {
    Device device;
    device.capacity = 1000_MiB;
    device.cores = 2;
    return device;
  }
  static CoordinatorConfig config(Duration recovery = {}) {
    CoordinatorConfig config;
    config.recovery = recovery;
    config.memory.headroom = 0.05;
    return config;
  }

  /// Sends a message and keeps what goes out by peer; the peer's name is the job's.
  void send(const std::string& peer, const wire::Message& message) {
    node_.receive(peer, message, now_);
    collect();
  }
  void collect() {
    for (Outgoing& out : node_.take_outgoing()) inbox_[out.peer].push_back(std::move(out.message));
  }
  template <typename T>
  std::vector<T> take(const std::string& peer) {
    std::vector<T> result;
    std::vector<wire::Message> rest;
    for (wire::Message& message : inbox_[peer]) {
      if (auto* wanted = std::get_if<T>(&message)) {
        result.push_back(std::move(*wanted));
      } else {
        rest.push_back(std::move(message));
      }
    }
    inbox_[peer] = std::move(rest);
    return result;
  }
  wire::Registered join(const wire::Register& message) {
    send(message.job_id, message);
    const auto replies = take<wire::Registered>(message.job_id);
    EXPECT_EQ(replies.size(), 1U);
    return replies.empty() ? wire::Registered{} : replies.front();
  }
  /// Answers the newest change of a job as applied.
  void obey(const wire::Register& who, wire::Outcome outcome = wire::Outcome::kApplied,
            std::optional<Bytes> held = std::nullopt) {
    for (const wire::Change& change : take<wire::Change>(who.job_id)) {
      if (!change.limit_bytes) continue;
      wire::Answer answer{who.job_id,
                          who.pid,
                          change.revision,
                          outcome,
                          0,
                          0,
                          held ? held->count() : *change.limit_bytes,
                          ""};
      send(who.job_id, answer);
    }
  }
  void report(const wire::Register& who, Bytes held) {
    send(who.job_id,
         wire::Stats{who.job_id, who.pid, {{"memory", {{"device_bytes", held.count()}}}}, false});
  }
  /// Begins again with another configuration.
  void restart(const CoordinatorConfig& config) {
    node_ = NodeCoordinator{config, device(), 77, 5, now_};
  }
  Bytes limit(const wire::Register& who) {
    return node_.host().ledger().limit({JobId{who.job_id}, who.pid});
  }
  void pass(Duration time) {
    now_ += time;
    node_.tick(now_);
    collect();
  }

  TimePoint now_{1h};
  NodeCoordinator node_{config(), device(), 77, 5, now_};
  std::map<std::string, std::vector<wire::Message>> inbox_;
};

TEST_F(NodeCoordinatorTest, AnOpportunisticJobAloneGetsTheDevice) {
  const auto reply = join(hello("o", JobClass::kOpportunistic, 0_B));
  EXPECT_EQ(reply.limit_bytes, (1000_MiB).count());
  EXPECT_EQ(reply.capacity_bytes, (1000_MiB).count());
  EXPECT_EQ(reply.coordinator_pid, 77);
  EXPECT_EQ(reply.law, "gap");
  EXPECT_EQ(reply.reason, "");
}

TEST_F(NodeCoordinatorTest, AGuaranteedJobsFloorIsReleasedElsewhereFirst) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  const auto g = hello("g", JobClass::kGuaranteed, 400_MiB, 400_MiB);
  join(o);
  EXPECT_EQ(join(g).limit_bytes, 0U) << "nothing is free yet";
  EXPECT_EQ(limit(o), 600_MiB);
  EXPECT_TRUE(take<wire::Change>("g").empty()) << "growth waits for the answer";
  obey(o);
  const auto changes = take<wire::Change>("g");
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].limit_bytes, (400_MiB).count());
  EXPECT_THAT(changes[0].reason, HasSubstr("floor"));
}

TEST_F(NodeCoordinatorTest, WhatIsDeferredIsToldAgainUntilItIsDone) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  const auto g = hello("g", JobClass::kGuaranteed, 400_MiB, 400_MiB);
  join(o);
  join(g);
  obey(o, wire::Outcome::kDeferred, 700_MiB);
  auto changes = take<wire::Change>("g");
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].limit_bytes, (300_MiB).count()) << "what there is, for now";
  pass(1100ms);
  obey(o);
  changes = take<wire::Change>("g");
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].limit_bytes, (400_MiB).count());
}

TEST_F(NodeCoordinatorTest, StaleAndRefusedAnswersReleaseNothing) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  const auto g = hello("g", JobClass::kGuaranteed, 400_MiB, 400_MiB);
  join(o);
  join(g);
  send("o", wire::Answer{"o", o.pid, 1, wire::Outcome::kApplied, 0, 0, 0, "an old one"});
  EXPECT_TRUE(take<wire::Change>("g").empty());
  obey(o, wire::Outcome::kRefused, 0_B);
  EXPECT_TRUE(take<wire::Change>("g").empty());
  pass(11s);
  obey(o, wire::Outcome::kStale, 0_B);
  EXPECT_TRUE(take<wire::Change>("g").empty());
  pass(1100ms);
  obey(o);
  EXPECT_FALSE(take<wire::Change>("g").empty());
}

TEST_F(NodeCoordinatorTest, AFloorThatDoesNotFitMakesTheJobOpportunistic) {
  join(hello("g", JobClass::kGuaranteed, 700_MiB, 700_MiB));
  const auto reply = join(hello("h", JobClass::kGuaranteed, 400_MiB, 400_MiB));
  EXPECT_EQ(reply.job_class, JobClass::kOpportunistic);
  EXPECT_EQ(reply.law, "gap");
  EXPECT_THAT(reply.reason, AllOf(HasSubstr("does not fit"), HasSubstr("400 MiB > 300 MiB")));
  EXPECT_EQ(reply.limit_bytes, (300_MiB).count());
}

TEST_F(NodeCoordinatorTest, ImpossibleWishesGetAReason) {
  auto upside_down = hello("a", JobClass::kGuaranteed, 400_MiB, 100_MiB);
  EXPECT_THAT(join(upside_down).reason, HasSubstr("minimum above maximum"));
  auto share = hello("b", JobClass::kOpportunistic, 0_B);
  share.terms.share = {0.5, 1.5};
  EXPECT_THAT(join(share).reason, HasSubstr("0.5:1.5"));
  auto law = hello("c", JobClass::kOpportunistic, 0_B);
  law.terms.law = "jungle";
  const auto reply = join(law);
  EXPECT_EQ(reply.law, "gap");
  EXPECT_THAT(reply.reason, HasSubstr("'jungle'"));
  auto role = hello("d", JobClass::kOpportunistic, 0_B);
  role.role = "king";
  send("d", role);
  EXPECT_THAT(take<wire::Error>("d").at(0).what, HasSubstr("'king'"));
}

TEST_F(NodeCoordinatorTest, RegisteringTwiceChangesNothing) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  const auto first = join(o);
  const auto second = join(o);
  EXPECT_EQ(first.limit_bytes, second.limit_bytes);
  EXPECT_EQ(first.revision, second.revision);
  EXPECT_EQ(node_.host().table().jobs().size(), 1U);
  EXPECT_EQ(node_.host().table().jobs()[0].members.size(), 1U);
}

TEST_F(NodeCoordinatorTest, ADeathReturnsTheLease) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  const auto g = hello("g", JobClass::kGuaranteed, 400_MiB, 400_MiB);
  join(g);
  join(o);
  EXPECT_EQ(limit(o), 600_MiB);
  node_.member_gone(JobId{"g"}, g.pid, Departure::kExited, now_);
  collect();
  EXPECT_EQ(limit(o), 1000_MiB);
  const auto status = node_.status("g", now_);
  ASSERT_EQ(status["jobs"].size(), 1U);
  EXPECT_EQ(status["jobs"][0]["ended"], true);
  EXPECT_THAT(status["jobs"][0]["exit_reason"].get<std::string>(), HasSubstr("killed or crashed"));
}

TEST_F(NodeCoordinatorTest, AJobThatSaidGoodbyeEnded) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  send("o", wire::Stats{"o", o.pid, {{"step", {{"number", 42}}}}, true});
  node_.member_gone(JobId{"o"}, o.pid, Departure::kExited, now_);
  const auto job = node_.status("o", now_)["jobs"][0];
  EXPECT_EQ(job["exit_reason"], "ended");
  EXPECT_EQ(job["step"]["number"], 42);
  EXPECT_EQ(node_.idle_since(), now_);
}

TEST_F(NodeCoordinatorTest, KeepsTheLastHundredEndedJobs) {
  for (int i = 0; i < 120; ++i) {
    const auto job = hello("j" + std::to_string(i), JobClass::kOpportunistic, 0_B);
    join(job);
    node_.member_gone(JobId{job.job_id}, job.pid, Departure::kExited, now_);
  }
  const auto jobs = node_.status("", now_)["jobs"];
  EXPECT_EQ(jobs.size(), 100U);
  EXPECT_EQ(jobs.back()["job"]["id"], "j119");
}

/// A guaranteed job comes for memory that its neighbour holds and does not give back.
class LastResortTest : public NodeCoordinatorTest {
 protected:
  /// `o_` has all of the device and holds 700 MiB of it; `g_` needs 900.
  void SetUp() override {
    join(o_);
    report(o_, 700_MiB);
    see_free(free_);
    join(g_);
    EXPECT_EQ(limit(o_), 100_MiB);
    EXPECT_EQ(limit(g_), 0_MiB);
  }
  void see_free(Bytes available) {
    node_.observe_available(DeviceId{kHostId}, available, now_);
    collect();
  }
  LeaseKey key(const wire::Register& who) { return {JobId{who.job_id}, who.pid}; }
  /// What the daemon does about a process that stands still.
  void recall(Bytes taken) {
    EXPECT_THAT(node_.host().outdated(), ::testing::ElementsAre(key(o_)));
    node_.host().observe_standstill(key(o_), "stopped", true);
    node_.host().recall(key(o_), now_);
    node_.host().settle_recall(key(o_), taken, now_);
    collect();
  }
  nlohmann::json status(const char* job) { return node_.status(job, now_)["jobs"][0]["lease"]; }
  nlohmann::json device_status() { return node_.status("", now_)["devices"][0]; }
  std::vector<ProcessSignal> signals() {
    std::vector<ProcessSignal> sent;
    for (const SignalOrder& order : node_.host().take_signals()) {
      EXPECT_EQ(order.process, key(o_));
      sent.push_back(order.signal);
    }
    return sent;
  }
  /// Waits beside a neighbour that says again and again that it can give back nothing.
  void pass_beside_stuck(Duration time) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      obey(o_, wire::Outcome::kDeferred, 700_MiB);
      node_.host().observe_standstill(key(o_), "", true);
      pass(500ms);
    }
  }

  Bytes free_ = 0_B;
  wire::Register o_ = hello("o", JobClass::kOpportunistic, 0_B);
  wire::Register g_ = hello("g", JobClass::kGuaranteed, 900_MiB, 900_MiB);
};

TEST_F(LastResortTest, AStoppedJobIsChargedWhatItHoldsAndTheRestIsGrantedAtOnce) {
  recall(700_MiB);
  EXPECT_EQ(limit(g_), 300_MiB);
  EXPECT_EQ(status("o")["charged_bytes"], (700_MiB).count());
  EXPECT_THAT(status("o")["reason"].get<std::string>(), HasSubstr("is stopped"));
  EXPECT_TRUE(node_.host().outdated().empty()) << "it is recalled once";
  pass(5s);
  EXPECT_EQ(limit(g_), 300_MiB) << "no more is free";
}

TEST_F(NodeCoordinatorTest, WhoStoodStillBeforeIsRecalledBeforeMemoryBeyondTheBudgetIsGranted) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  const auto g = hello("g", JobClass::kGuaranteed, 900_MiB, 900_MiB);
  const LeaseKey key{JobId{"o"}, o.pid};
  join(o);
  report(o, 700_MiB);
  node_.observe_available(DeviceId{kHostId}, 2000_MiB, now_);
  node_.host().observe_standstill(key, "stopped", true);
  join(g);
  EXPECT_EQ(limit(g), 0_MiB) << "charged with its limit it would get all of it beyond the budget";
  EXPECT_THAT(node_.host().outdated(), ::testing::ElementsAre(key));
  node_.host().observe_standstill(key, "stopped", true);
  node_.host().recall(key, now_);
  node_.host().settle_recall(key, 700_MiB, now_);
  collect();
  EXPECT_EQ(limit(g), 900_MiB);
  EXPECT_EQ(node_.status("g", now_)["jobs"][0]["lease"]["beyond_budget_bytes"], (600_MiB).count());
}

TEST_F(LastResortTest, AStoppedJobThatCannotBeRecalledHoldsUpNobody) {
  see_free(2000_MiB);
  EXPECT_EQ(limit(g_), 0_MiB);
  node_.host().observe_standstill(key(o_), "stopped", true);
  pass(100ms);
  EXPECT_EQ(limit(g_), 900_MiB);
}

TEST_F(LastResortTest, ItsPageEntryForbidsItToTakeMoreBeforeItHasReadItsLimit) {
  const auto recalled = [&] { return node_.host().page_entries(now_).at(0).memory_recalled; };
  EXPECT_EQ(recalled(), 0U);
  const Revision before = node_.host().ledger().revision(key(o_));
  recall(700_MiB);
  EXPECT_GT(recalled(), before);
  EXPECT_LE(recalled(), node_.host().ledger().revision(key(o_))) << "what it is told is enough";
}

TEST_F(LastResortTest, WhenItGoesOnItGivesBackAndNothingIsBeyondTheBudget) {
  see_free(2000_MiB);
  recall(700_MiB);
  EXPECT_EQ(limit(g_), 900_MiB);
  EXPECT_EQ(status("g")["beyond_budget_bytes"], (600_MiB).count());
  obey(o_);
  EXPECT_EQ(status("g")["beyond_budget_bytes"], 0);
  EXPECT_EQ(limit(g_), 900_MiB);
  EXPECT_EQ(device_status()["granted_bytes"], (1000_MiB).count());
}

TEST_F(LastResortTest, MemoryThatNeverMovesDoesNotHoldUpAMinimumWhereMemoryIsFree) {
  see_free(2000_MiB);
  obey(o_, wire::Outcome::kDeferred, 700_MiB);
  EXPECT_EQ(limit(g_), 900_MiB) << "at once: it has said that it keeps it";
  EXPECT_THAT(status("g")["reason"].get<std::string>(),
              HasSubstr("600 MiB of it beyond the budget of 1000 MiB"));
  EXPECT_EQ(device_status()["beyond_budget_bytes"], (600_MiB).count());
  pass(200ms);
  EXPECT_EQ(limit(o_), 100_MiB) << "nothing beyond the budget for anybody else";
  EXPECT_EQ(device_status()["last_resort"], "none");
}

TEST_F(LastResortTest, WhoIsOnlySlowHasOneSecond) {
  see_free(2000_MiB);
  pass(100ms);
  pass(900ms);
  EXPECT_EQ(limit(g_), 0_MiB);
  EXPECT_EQ(device_status()["last_resort"], "wait");
  pass(200ms);
  EXPECT_EQ(limit(g_), 900_MiB);
}

TEST_F(LastResortTest, NoMoreThanIsPhysicallyFreeIsGranted) {
  see_free(131_MiB);  // 31.25 of it are kept
  obey(o_, wire::Outcome::kDeferred, 700_MiB);
  EXPECT_EQ(limit(g_), 300_MiB) << "what the kernel has left is less than the budget";
  see_free(431_MiB);
  pass(200ms);
  EXPECT_GE(limit(g_), 399_MiB);
  EXPECT_LE(limit(g_), 400_MiB);
}

TEST_F(LastResortTest, WithoutFreeMemoryTheNeighbourIsStoppedAndGoesOnWhenItMay) {
  obey(o_, wire::Outcome::kDeferred, 700_MiB);
  pass_beside_stuck(19s);
  EXPECT_TRUE(signals().empty());
  pass_beside_stuck(2s);
  EXPECT_THAT(signals(), ::testing::ElementsAre(ProcessSignal::kStop));
  EXPECT_THAT(status("o")["reason"].get<std::string>(), HasSubstr("stopped from outside"));
  pass(60s);
  EXPECT_TRUE(signals().empty()) << "nobody is ended unless that is allowed";
  see_free(2000_MiB);
  pass(200ms);
  pass(200ms);
  EXPECT_EQ(limit(g_), 900_MiB);
  EXPECT_THAT(signals(), ::testing::ElementsAre(ProcessSignal::kGoOn));
}

TEST_F(LastResortTest, WhereThatIsAllowedTheNeighbourIsToldToEndAndThenKilled) {
  CoordinatorConfig ending = config();
  ending.resort.may_end = true;
  restart(ending);
  SetUp();
  obey(o_, wire::Outcome::kDeferred, 700_MiB);
  pass_beside_stuck(21s);
  EXPECT_THAT(signals(), ::testing::ElementsAre(ProcessSignal::kStop));
  node_.host().observe_standstill(key(o_), "stopped", true);
  pass(10s);
  EXPECT_THAT(signals(), ::testing::ElementsAre(ProcessSignal::kEnd, ProcessSignal::kGoOn));
  pass_beside_stuck(25s);
  EXPECT_TRUE(signals().empty()) << "it has 30 s";
  node_.host().observe_standstill(key(o_), "stopped", true);
  pass(10s);
  EXPECT_THAT(signals(), ::testing::Contains(ProcessSignal::kKill));
  node_.member_gone(JobId{"o"}, o_.pid, Departure::kExited, now_);
  collect();
  EXPECT_EQ(limit(g_), 900_MiB);
  EXPECT_THAT(node_.status("o", now_)["jobs"][0]["exit_reason"].get<std::string>(),
              HasSubstr("ended by the coordinator: lacks"));
}

/// A job of several processes; a peer's name is the process's pid.
class JobOfRanksTest : public NodeCoordinatorTest {
 protected:
  void add(int pid, const std::string& role, int rank = 0) {
    auto message = hello("j", job_class_, 0_B, 800_MiB, pid);
    message.role = role;
    message.rank = rank;
    pids_.insert(pid);
    send(std::to_string(pid), message);
  }
  /// Every process applies what it is told, until nobody is told anything new.
  void settle() {
    for (bool told = true; told;) {
      told = false;
      for (const int pid : pids_) {
        const std::string peer = std::to_string(pid);
        for (const auto& change : take<wire::Change>(peer)) {
          if (!change.limit_bytes) continue;
          told = true;
          send(peer, wire::Answer{"j", pid, change.revision, wire::Outcome::kApplied, 0, 0,
                                  *change.limit_bytes, ""});
        }
      }
    }
  }
  void report_use(int pid, Bytes use) {
    send(std::to_string(pid),
         wire::Stats{"j", pid, {{"memory", {{"device_bytes", use.count()}}}}, false});
    pass(200ms);
    settle();
  }
  void step_at(int pid, std::uint64_t number) {
    PageReading reading;
    reading.heartbeat = now_;
    reading.step_number = number;
    node_.observe_page(JobId{"j"}, pid, reading, now_);
  }
  Bytes limit_of(int pid) { return node_.host().ledger().limit({JobId{"j"}, pid}); }

  JobClass job_class_ = JobClass::kOpportunistic;
  std::set<int> pids_;
};

TEST_F(JobOfRanksTest, TheLimitIsDividedAmongThem) {
  add(100, "main");
  EXPECT_EQ(take<wire::Registered>("100").at(0).limit_bytes, (800_MiB).count());
  add(101, "rank");
  add(102, "rank", 1);
  add(103, "helper");
  EXPECT_THAT(take<wire::Registered>("103").at(0).reason, HasSubstr("listed only"));
  settle();
  EXPECT_EQ(limit_of(100), 64_MiB) << "it waits for its ranks";
  EXPECT_EQ(limit_of(101), 368_MiB);
  EXPECT_EQ(limit_of(102), 368_MiB);
  EXPECT_EQ(limit_of(103), 0_B);
  const auto job = node_.status("j", now_)["jobs"][0];
  EXPECT_EQ(job["members"].size(), 4U);
  EXPECT_EQ(job["job"]["role"], "rank") << "a rank speaks for it";
  node_.member_gone(JobId{"j"}, 102, Departure::kExited, now_);
  collect();
  settle();
  EXPECT_EQ(limit_of(101), 736_MiB);
  node_.member_gone(JobId{"j"}, 101, Departure::kExited, now_);
  collect();
  settle();
  EXPECT_EQ(limit_of(100), 800_MiB) << "the job is its main again";
  node_.member_gone(JobId{"j"}, 100, Departure::kExited, now_);
  EXPECT_TRUE(node_.host().table().jobs().empty()) << "a helper alone is no job";
}

TEST_F(JobOfRanksTest, AMainBesideRanksKeepsWhatItUses) {
  add(100, "main");
  add(101, "rank");
  add(102, "rank", 1);
  settle();
  report_use(100, 150_MiB);  // the data that its ranks train on
  EXPECT_EQ(limit_of(100), 192_MiB);
  EXPECT_EQ(limit_of(101), 304_MiB);
  EXPECT_EQ(limit_of(102), 304_MiB);
  report_use(100, 160_MiB);
  EXPECT_EQ(limit_of(101), 304_MiB) << "small changes move nobody";
  report_use(100, 700_MiB);
  EXPECT_EQ(limit_of(100), Bytes{(800_MiB).count() / 3}) << "no more than an equal part";
  EXPECT_EQ(limit_of(101), limit_of(102));
  EXPECT_LE(limit_of(100) + limit_of(101) + limit_of(102), 800_MiB);
}

TEST_F(JobOfRanksTest, WhatALauncherStartsIsTheJobUntilItEnds) {
  job_class_ = JobClass::kGuaranteed;
  const auto speaker = [&] { return node_.status("j", now_)["jobs"][0]["job"]["pid"]; };
  add(100, "main");
  settle();
  EXPECT_EQ(speaker(), 100);
  add(101, "main");
  settle();
  EXPECT_EQ(speaker(), 101) << "before its first step, too";
  EXPECT_EQ(limit_of(100), 64_MiB) << "it waits";
  EXPECT_EQ(limit_of(101), 736_MiB);
  step_at(101, 1);
  EXPECT_EQ(speaker(), 101);
  node_.member_gone(JobId{"j"}, 101, Departure::kExited, now_);
  collect();
  settle();
  EXPECT_EQ(speaker(), 100);
  EXPECT_EQ(limit_of(100), 800_MiB) << "it may train itself, or start the next";
  step_at(100, 1);
  add(102, "main");
  settle();
  EXPECT_EQ(speaker(), 100) << "the job is who makes its steps";
  EXPECT_EQ(limit_of(102), 64_MiB);
}

TEST_F(JobOfRanksTest, ProgramsThatTrainAtTheSameTimeHaveEqualParts) {
  add(100, "main");
  add(101, "main");
  add(102, "main");
  settle();
  step_at(101, 1);
  step_at(102, 1);
  pass(200ms);
  settle();
  EXPECT_EQ(limit_of(100), 64_MiB);
  EXPECT_EQ(limit_of(101), 368_MiB);
  EXPECT_EQ(limit_of(102), 368_MiB);
}

TEST_F(JobOfRanksTest, AMainMayAskBesideItsRanks) {
  add(100, "main");
  add(101, "rank");
  settle();
  send("100", wire::AskMemory{"j", 100, (200_MiB).count(), (60_MiB).count()});
  settle();
  EXPECT_GE(limit_of(100), 260_MiB);
  EXPECT_TRUE(take<wire::Error>("100").empty());
  send("100", wire::AskMemory{"j", 100, UINT64_MAX, UINT64_MAX});
  EXPECT_EQ(take<wire::Error>("100").at(0).code, "no_memory");
}

TEST_F(JobOfRanksTest, ASpawnedHelperBecomesARank) {
  add(100, "main");
  add(101, "helper");
  add(102, "helper");
  take<wire::Registered>("101");
  take<wire::Registered>("102");
  settle();
  EXPECT_EQ(limit_of(100), 800_MiB);
  add(101, "rank");
  EXPECT_EQ(take<wire::Registered>("101").at(0).limit_bytes, (200_MiB).count()) << "what is free";
  add(102, "rank", 1);
  settle();
  EXPECT_EQ(limit_of(100), 64_MiB);
  EXPECT_EQ(limit_of(101), 368_MiB);
  EXPECT_EQ(limit_of(102), 368_MiB);
  EXPECT_EQ(node_.host().table().jobs()[0].members.size(), 3U);
  add(102, "rank", 1);
  EXPECT_EQ(take<wire::Registered>("102").back().limit_bytes, (368_MiB).count()) << "said twice";
}

TEST_F(JobOfRanksTest, ItsStepsAreThoseOfItsSlowestRank) {
  job_class_ = JobClass::kGuaranteed;
  const auto steps_at = [&](int pid, std::uint64_t number, Duration last) {
    PageReading reading;
    reading.heartbeat = now_;
    reading.step_number = number;
    reading.step_last = last;
    node_.observe_page(JobId{"j"}, pid, reading, now_);
  };
  add(100, "main");
  add(101, "rank");
  add(102, "rank", 1);
  settle();
  // The main stopped stepping when it started the ranks: it must not be taken for the slowest.
  for (std::uint64_t step = 1; step <= 40; ++step) {
    now_ += 50ms;
    steps_at(100, 1, 900ms);
    steps_at(101, step, 50ms);
    steps_at(102, step, 50ms);
    node_.sample(now_);
    node_.tick(now_);
  }
  const auto job = node_.status("j", now_)["jobs"][0];
  EXPECT_GT(job["baseline_steps"], 0);
  EXPECT_NEAR(job["baseline_seconds"].get<double>(), 0.05, 1e-6);
}

TEST_F(JobOfRanksTest, WithoutStepsItIsMeasuredByItsTimeOnCores) {
  job_class_ = JobClass::kGuaranteed;
  add(100, "main");
  settle();
  const auto measured_by = [&] {
    return node_.status("j", now_)["jobs"][0]["measured_by"].get<std::string>();
  };
  ThreadTimes threads{{100, {}}};
  const auto work = [&](int looks, Duration delayed) {
    for (int i = 0; i < looks; ++i) {
      now_ += 200ms;
      threads[100].run += 200ms - delayed;
      threads[100].delayed += delayed;
      node_.observe_cpu(JobId{"j"}, 100, threads, {}, now_);
      node_.sample(now_);
      node_.tick(now_);
    }
  };
  work(10, {});
  EXPECT_EQ(measured_by(), "steps");
  work(60, {});
  EXPECT_EQ(measured_by(), "cores");
  EXPECT_NEAR(node_.status("j", now_)["jobs"][0]["baseline_seconds"].get<double>(), 0.05, 1e-6);
  const auto steps = [&](std::uint64_t number, double confidence) {
    PageReading reading;
    reading.heartbeat = now_;
    reading.step_number = number;
    reading.step_last = 50ms;
    reading.step_confidence = confidence;
    node_.observe_page(JobId{"j"}, 100, reading, now_);
    work(1, {});
  };
  steps(5, 0.9);
  EXPECT_EQ(measured_by(), "cores") << "too few to tell";
  steps(20, 0.9);
  EXPECT_EQ(measured_by(), "steps");
  steps(30, 0.3);
  EXPECT_EQ(measured_by(), "cores");
}

TEST_F(NodeCoordinatorTest, AskingIsAnsweredAtOnceFromFreeMemory) {
  const auto g = hello("g", JobClass::kGuaranteed, 0_B);
  const auto o = hello("o", JobClass::kOpportunistic, 0_B, 200_MiB);
  join(g);
  join(o);
  obey(g, wire::Outcome::kApplied, 50_MiB);
  send("g", wire::AskMemory{"g", g.pid, (300_MiB).count(), (50_MiB).count()});
  const auto changes = take<wire::Change>("g");
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_GE(*changes[0].limit_bytes, (350_MiB).count());
}

TEST_F(NodeCoordinatorTest, AskingShrinksOpportunisticJobsFirst) {
  const auto g = hello("g", JobClass::kGuaranteed, 0_B);
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  join(g);
  obey(o);
  take<wire::Change>("g");
  const Bytes before = limit(g);
  send("g", wire::AskMemory{"g", g.pid, (500_MiB).count(), before.count()});
  EXPECT_TRUE(take<wire::Change>("g").empty());
  EXPECT_TRUE(take<wire::Error>("g").empty());
  obey(o);
  const auto changes = take<wire::Change>("g");
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_GE(*changes[0].limit_bytes, (before + 500_MiB).count());
}

TEST_F(NodeCoordinatorTest, AskingWhatNobodyGivesBackEndsAtTheDeadline) {
  const auto g = hello("g", JobClass::kGuaranteed, 0_B);
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  join(g);
  send("g", wire::AskMemory{"g", g.pid, (500_MiB).count(), 0});
  pass(4500ms);
  EXPECT_TRUE(take<wire::Error>("g").empty());
  pass(600ms);
  const auto errors = take<wire::Error>("g");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].code, "no_memory");
  EXPECT_THAT(errors[0].what, HasSubstr("in time"));
}

TEST_F(NodeCoordinatorTest, AskingForMoreThanTheMaximumIsRefusedAtOnce) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B, 100_MiB);
  join(o);
  for (const std::uint64_t needed : {(200_MiB).count(), UINT64_MAX}) {
    send("o", wire::AskMemory{"o", o.pid, needed, (100_MiB).count()});
    const auto errors = take<wire::Error>("o");
    ASSERT_EQ(errors.size(), 1U);
    EXPECT_THAT(errors[0].what, HasSubstr("100 MiB"));
  }
}

TEST_F(NodeCoordinatorTest, ARestartedCoordinatorRebuildsFromTheJobs) {
  NodeCoordinator again{config(1500ms), device(), 78, 5, now_};
  auto o = hello("o", JobClass::kOpportunistic, 0_B);
  o.devices[0].held_bytes = (600_MiB).count();
  o.devices[0].limit_bytes = (700_MiB).count();
  o.devices[0].revision = 41;
  again.receive("o", o, now_);
  auto out = again.take_outgoing();
  ASSERT_EQ(out.size(), 1U);
  const auto reply = std::get<wire::Registered>(out[0].message);
  EXPECT_EQ(reply.limit_bytes, (700_MiB).count());
  EXPECT_EQ(reply.revision, 41U);
  // Another old job may still come: nothing grows until then.
  auto fresh = hello("n", JobClass::kOpportunistic, 0_B);
  again.receive("n", fresh, now_);
  auto p = hello("p", JobClass::kOpportunistic, 0_B);
  p.devices[0].held_bytes = p.devices[0].limit_bytes.emplace((300_MiB).count());
  p.devices[0].revision = 7;
  again.receive("p", p, now_);
  EXPECT_LE(again.host().ledger().total_charged(), 1000_MiB);
  (void)again.take_outgoing();
  again.tick(now_ + 1600ms);
  for (const Outgoing& message : again.take_outgoing()) {
    if (const auto* change = std::get_if<wire::Change>(&message.message)) {
      if (message.peer == "o") {
        EXPECT_GT(change->revision, 41U);
      }
      if (message.peer == "p") {
        EXPECT_GT(change->revision, 7U);
      }
    }
  }
  EXPECT_LE(again.host().ledger().total_charged(), 1000_MiB);
}

TEST_F(NodeCoordinatorTest, MemoryThatJobsHeldAtTheStartCountsAsAvailable) {
  Device device = NodeCoordinatorTest::device();
  device.fraction = 0.5;
  NodeCoordinator again{config(), device, 78, 5, now_};
  auto o = hello("o", JobClass::kOpportunistic, 0_B);
  o.devices[0].held_bytes = (100_MiB).count();
  again.receive("o", o, now_);
  EXPECT_EQ(again.host().device().capacity, 1050_MiB);
  again.receive("o", o, now_);
  EXPECT_EQ(again.host().device().capacity, 1050_MiB) << "once";
}

TEST_F(NodeCoordinatorTest, UnknownProcessesAreToldToRegister) {
  send("x", wire::Stats{"x", 9, nlohmann::json::object(), false});
  send("x", wire::Answer{"x", 9, 1, wire::Outcome::kApplied, 0, 0, 0, ""});
  send("x", wire::AskMemory{"x", 9, 1, 0});
  const auto errors = take<wire::Error>("x");
  ASSERT_EQ(errors.size(), 3U);
  for (const auto& error : errors) EXPECT_EQ(error.code, "unknown_job");
}

TEST_F(NodeCoordinatorTest, AReusedPidIsANewProcess) {
  auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  o.start_ticks = 99;
  join(o);
  ASSERT_EQ(node_.host().table().jobs().size(), 1U);
  EXPECT_EQ(node_.host().table().jobs()[0].members.size(), 1U);
  EXPECT_EQ(node_.host().table().jobs()[0].members[0].start_ticks, 99U);
}

TEST_F(NodeCoordinatorTest, SetMovesLimitsSharesAndPauses) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  wire::SetRequest request;
  request.job = "name-o";
  request.terms.memory = MemoryRange{{}, 300_MiB};
  request.terms.share = ShareRange{0.1, 0.4};
  request.paused = true;
  send("cli", request);
  const auto reply = take<wire::SetReply>("cli").at(0);
  EXPECT_EQ(reply.outcome, wire::Outcome::kApplied);
  EXPECT_EQ(reply.job_id, "o");
  EXPECT_THAT(reply.reason, AllOf(HasSubstr("300 MiB"), HasSubstr("0.1:0.4"), HasSubstr("paused")));
  const auto changes = take<wire::Change>("o");
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].limit_bytes, (300_MiB).count());
  EXPECT_EQ(changes[1].terms.share->max, 0.4);
  EXPECT_EQ(changes[1].paused, true);
  EXPECT_GT(changes[1].revision, changes[0].revision);
  const auto entries = node_.host().page_entries(now_);
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_TRUE(entries[0].paused);
  EXPECT_DOUBLE_EQ(entries[0].share_max, 0.4);
  request = {};
  request.job = "o";
  request.paused = false;
  send("cli", request);
  EXPECT_FALSE(node_.host().page_entries(now_)[0].paused);
}

TEST_F(NodeCoordinatorTest, AMemoryMapIsAskedOfTheProcessAndHandedBack) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  const PeerId asker{"\0\x9b cli", 6};  // names are any bytes
  send(asker, wire::MapRequest{"name-o", std::nullopt, ""});
  const auto asked = take<wire::MapRequest>("o").at(0);
  EXPECT_EQ(asked.job, "o");
  EXPECT_EQ(asked.pid, o.pid);
  EXPECT_EQ(asked.ticket, "009b20636c69");
  send("o", wire::MapReply{"o", o.pid, asked.ticket, {{"segments", {1, 2}}}, ""});
  const auto reply = take<wire::MapReply>(asker).at(0);
  EXPECT_EQ(reply.job_id, "o");
  EXPECT_EQ(reply.map, nlohmann::json::parse(R"({"segments": [1, 2]})"));
  EXPECT_EQ(reply.ticket, "");

  for (const char* ticket : {"", "0", "zz", "00 1"}) {
    send("o", wire::MapReply{"o", o.pid, ticket, {}, ""});
    EXPECT_THAT(take<wire::Error>("o").at(0).what, HasSubstr("ticket"));
  }
  send("stranger", wire::MapReply{"o", 1, asked.ticket, {}, ""});
  EXPECT_EQ(take<wire::MapReply>(asker).size(), 0U) << "only a process of the job may answer";
  send(asker, wire::MapRequest{"nobody", std::nullopt, ""});
  EXPECT_THAT(take<wire::Error>(asker).at(0).what, HasSubstr("nobody"));
  send(asker, wire::MapRequest{"o", o.pid + 1, ""});
  EXPECT_THAT(take<wire::Error>(asker).at(0).what,
              HasSubstr("has no process " + std::to_string(o.pid + 1)));
}

TEST_F(NodeCoordinatorTest, MinimumSharesFitTheDevice) {
  auto first = hello("a", JobClass::kOpportunistic, 0_B);
  first.terms.share = {0.7, 1.0};
  join(first);
  auto second = hello("b", JobClass::kOpportunistic, 0_B);
  second.terms.share = {0.4, 0.9};
  EXPECT_THAT(
      join(second).reason,
      HasSubstr("minimum shares add up to more than the device: 0.4 and 0.7 of other jobs"));
  EXPECT_EQ(node_.status("b", now_)["jobs"][0]["share"]["min"], 0.0);
  EXPECT_EQ(node_.status("b", now_)["jobs"][0]["share"]["max"], 0.9);
  wire::SetRequest request;
  request.job = "b";
  request.terms.share = ShareRange{0.31, 1.0};
  send("cli", request);
  const auto refused = take<wire::SetReply>("cli").at(0);
  EXPECT_EQ(refused.outcome, wire::Outcome::kRefused);
  EXPECT_THAT(refused.reason, HasSubstr("0.31"));
  request.terms.share = ShareRange{0.3, 1.0};
  send("cli", request);
  EXPECT_EQ(take<wire::SetReply>("cli").at(0).outcome, wire::Outcome::kApplied);
  auto guaranteed = hello("g", JobClass::kGuaranteed, 0_B);
  guaranteed.terms.share = {1.0, 1.0};
  EXPECT_EQ(join(guaranteed).job_class, JobClass::kGuaranteed) << "its share is not divided";
}

TEST_F(NodeCoordinatorTest, SetRefusesWithTheValue) {
  join(hello("g", JobClass::kGuaranteed, 700_MiB, 700_MiB));
  auto twin = hello("h", JobClass::kOpportunistic, 0_B);
  twin.name = "twin";
  join(twin);
  auto other = hello("i", JobClass::kOpportunistic, 0_B);
  other.name = "twin";
  join(other);
  const auto refused = [&](const wire::SetRequest& request) {
    send("cli", request);
    const auto reply = take<wire::SetReply>("cli").at(0);
    EXPECT_EQ(reply.outcome, wire::Outcome::kRefused);
    return reply.reason;
  };
  wire::SetRequest request;
  request.job = "nobody";
  EXPECT_THAT(refused(request), AllOf(HasSubstr("'nobody'"), HasSubstr("g (name-g)")));
  request.job = "twin";
  EXPECT_THAT(refused(request), AllOf(HasSubstr("h (twin)"), HasSubstr("i (twin)")));
  request.job = "h";
  request.terms.share = ShareRange{0.5, 1.25};
  EXPECT_THAT(refused(request), HasSubstr("0.5:1.25"));
  request.terms.share.reset();
  request.terms.memory = MemoryRange{Bytes{5}, Bytes{3}};
  EXPECT_THAT(refused(request), HasSubstr("5 B > 3 B"));
  request.terms.memory = MemoryRange{2000_MiB, std::nullopt};
  EXPECT_THAT(refused(request), HasSubstr("above the device"));
  wire::SetRequest floor;
  floor.job = "g";
  join(hello("k", JobClass::kGuaranteed, 200_MiB, 200_MiB));
  floor.terms.memory = MemoryRange{900_MiB, std::nullopt};
  EXPECT_THAT(refused(floor), HasSubstr("900 MiB > 800 MiB"));
}

TEST_F(NodeCoordinatorTest, StatusHasEveryFieldBeforeTheFirstReport) {
  join(hello("o", JobClass::kOpportunistic, 0_B));
  const auto status = node_.status("", now_);
  EXPECT_EQ(status["schema"], 1);
  EXPECT_EQ(status["devices"][0]["capacity_bytes"], (1000_MiB).count());
  EXPECT_EQ(status["devices"][0]["free_bytes"], 0);
  const auto& job = status["jobs"][0];
  EXPECT_EQ(job["job"]["class"], "opportunistic");
  EXPECT_EQ(job["memory"]["moved_bytes_total"], 0);
  EXPECT_EQ(job["gate"]["law"], "gap");
  EXPECT_EQ(job["step"]["number"], 0);
  EXPECT_EQ(job["lease"]["granted_bytes"], (1000_MiB).count());
  EXPECT_TRUE(job["slowdown"].is_null());
  EXPECT_EQ(job["ended"], false);
}

TEST_F(NodeCoordinatorTest, StrangeReportsDoNoHarm) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  for (const char* text :
       {R"({"memory":5,"gate":[],"step":null,"job":"x"})", R"({"memory":{"device_bytes":-3}})",
        R"({"gate":{"idle_class":"perhaps"}})", R"({"extra":{"deep":[1,2]}})"}) {
    send("o", wire::Stats{"o", o.pid, nlohmann::json::parse(text), false});
    EXPECT_NO_THROW((void)node_.status("", now_)) << text;
    pass(200ms);
  }
}

TEST_F(NodeCoordinatorTest, GuaranteedArrivalsReachThePageAtOnce) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  EXPECT_DOUBLE_EQ(node_.host().page_entries(now_)[0].share_min, 1.0);
  join(hello("g", JobClass::kGuaranteed, 0_B));
  const auto entries = node_.host().page_entries(now_);
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_DOUBLE_EQ(entries[0].share_min, 0.01) << "its trickle";
  EXPECT_EQ(entries[1].lease_until, now_ + 2s);
  EXPECT_TRUE(node_.wants_sampling());
  send("o", wire::Stats{"o", o.pid, {{"gate", {{"idle_class", true}}}}, false});
  EXPECT_DOUBLE_EQ(node_.host().page_entries(now_)[0].share_min, 1.0) << "the kernel keeps it away";
}

TEST_F(NodeCoordinatorTest, APageThatIsFullTakesNobodyElse) {
  for (int i = 0; i < 64; ++i) join(hello("j" + std::to_string(i), JobClass::kOpportunistic, 0_B));
  send("late", hello("late", JobClass::kOpportunistic, 0_B));
  EXPECT_EQ(take<wire::Error>("late").at(0).code, "full");
}

TEST_F(NodeCoordinatorTest, MalformedFramesAreCountedAndAnswered) {
  node_.receive_malformed("x", wire::BadMessage("malformed", "field 'v' is missing"));
  node_.receive("x", wire::SetReply{}, now_);
  collect();
  EXPECT_EQ(node_.malformed_total(), 2U);
  EXPECT_EQ(take<wire::Error>("x").size(), 2U);
}

// --- what the kernel shows ----------------------------------------------------------------------

/// A coordinator whose budget covers all that jobs hold, and one job that holds `limit` of it.
class BudgetTest : public NodeCoordinatorTest {
 protected:
  static CoordinatorConfig all(bool prove_releases = true) {
    CoordinatorConfig config = NodeCoordinatorTest::config();
    config.charge_unmanaged = true;
    config.prove_releases = prove_releases;
    return config;
  }
  void use(const wire::Register& who, Bytes resident, Duration time = 3s,
           std::vector<ChildUse> children = {}) {
    for (Duration passed{}; passed <= time; passed += 500ms) {
      now_ += 500ms;
      JobUse use;
      use.resident[who.pid] = resident;
      use.children = children;
      use.by = "process";
      node_.observe_use(DeviceId{kHostId}, JobId{who.job_id}, use, now_);
      node_.tick(now_);
      collect();
    }
  }
  nlohmann::json lease(const std::string& job) {
    return node_.status(job, now_)["jobs"][0]["lease"];
  }
};

TEST_F(BudgetTest, UnmanagedMemoryIsChargedAndShownApart) {
  restart(all());
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  obey(o, wire::Outcome::kApplied, 100_MiB);
  report(o, 100_MiB);
  use(o, 340_MiB);
  EXPECT_EQ(node_.host().ledger().unmanaged(JobId{"o"}), 256_MiB) << "240 MiB, in steps of 32";
  EXPECT_EQ(limit(o), 744_MiB) << "the limit is of managed bytes still";
  EXPECT_EQ(lease("o")["unmanaged_bytes"], (256_MiB).count());
  EXPECT_EQ(lease("o")["resident_bytes"], (340_MiB).count());
  EXPECT_EQ(node_.status("", now_)["devices"][0]["unmanaged_bytes"], (256_MiB).count());
}

TEST_F(BudgetTest, WithoutTheChargeOnlyManagedMemoryCounts) {
  CoordinatorConfig managed = all();
  managed.charge_unmanaged = false;
  restart(managed);
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  use(o, 340_MiB);
  EXPECT_EQ(limit(o), 1000_MiB);
  EXPECT_EQ(lease("o")["unmanaged_bytes"], (352_MiB).count()) << "it is shown all the same";
}

TEST_F(BudgetTest, AGuaranteedFloorIsKeptWhateverElseIsUsed) {
  restart(all());
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  const auto g = hello("g", JobClass::kGuaranteed, 600_MiB, 600_MiB);
  join(o);
  use(o, 700_MiB);
  join(g);
  obey(o, wire::Outcome::kApplied, 0_B);
  EXPECT_EQ(limit(g), 600_MiB);
}

TEST_F(BudgetTest, AMomentsDifferenceIsNotBelieved) {
  restart(all());
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  report(o, 100_MiB);
  use(o, 100_MiB);
  use(o, 600_MiB, 500ms);  // it has grown, and its report is older
  EXPECT_EQ(node_.host().ledger().unmanaged(JobId{"o"}), 0_B);
  report(o, 600_MiB);
  use(o, 600_MiB);
  EXPECT_EQ(node_.host().ledger().unmanaged(JobId{"o"}), 0_B);
}

/// P26: memory that a job says it gave back counts when the kernel shows it.
class P26Test : public BudgetTest {
 protected:
  /// o says that it gave back what g waits for; the kernel shows that it still holds it.
  Bytes granted_after_a_false_word(bool prove) {
    restart(all(prove));
    const auto o = hello("o", JobClass::kOpportunistic, 0_B);
    const auto g = hello("g", JobClass::kGuaranteed, 400_MiB, 400_MiB);
    join(o);
    report(o, 1000_MiB);
    use(o, 1000_MiB);
    join(g);
    obey(o, wire::Outcome::kApplied, 600_MiB);
    return limit(g);
  }
};

TEST_F(P26Test, P26_AReleaseCountsWhenTheKernelShowsIt) {
  EXPECT_EQ(granted_after_a_false_word(true), 0_B);
  EXPECT_THAT(lease("o")["reason"].get<std::string>(), HasSubstr("the kernel shows 1000 MiB"));
  EXPECT_LE(node_.host().ledger().total_charged(), 1000_MiB);
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  JobUse use;
  use.resident[o.pid] = 600_MiB;
  use.by = "process";
  node_.observe_use(DeviceId{kHostId}, JobId{"o"}, use, now_);  // now it is so
  pass(1200ms);  // it is told again, and answers again
  obey(o, wire::Outcome::kApplied, 600_MiB);
  EXPECT_EQ(limit(hello("g", JobClass::kGuaranteed, 0_B)), 400_MiB);
}

/// o gives back what g waits for, and says so. @param told_first  its word is there before the
/// look.
class TrueWordTest : public BudgetTest {
 protected:
  Bytes beside_after_a_true_word(bool told_first) {
    restart(all());
    const auto o = hello("o", JobClass::kOpportunistic, 0_B);
    join(o);
    report(o, 700_MiB);
    use(o, 940_MiB);  // 240 MiB are beside
    join(hello("g", JobClass::kGuaranteed, 400_MiB, 400_MiB));
    if (told_first) node_.observe_held(JobId{"o"}, o.pid, 300_MiB);
    JobUse now;
    now.resident[o.pid] = 540_MiB;
    now.by = "process";
    node_.observe_use(DeviceId{kHostId}, JobId{"o"}, now, now_);
    obey(o, wire::Outcome::kApplied, 300_MiB);
    EXPECT_EQ(limit(hello("g", JobClass::kGuaranteed, 0_B)), 400_MiB);
    return node_.host().ledger().unmanaged(JobId{"o"});
  }
};

TEST_F(TrueWordTest, WhatIsBesideStaysKnown) { EXPECT_EQ(beside_after_a_true_word(true), 256_MiB); }

// Then the job's limit grows by it, and what is promised is more than there is.
TEST_F(TrueWordTest, ComparedWithAnOlderWordItIsForgotten) {
  EXPECT_EQ(beside_after_a_true_word(false), 0_B);
}

TEST_F(P26Test, P26_WithoutTheLookTheNeighbourGetsBytesThatAreNotThere) {
  EXPECT_EQ(granted_after_a_false_word(false), 400_MiB);
}

TEST_F(P26Test, P26_AYoungJobsWordIsTakenUntilItIsKnownWhatItHoldsBeside) {
  restart(all());
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  const auto g = hello("g", JobClass::kGuaranteed, 400_MiB, 400_MiB);
  join(o);
  use(o, 350_MiB, 1s);  // Python, libraries
  join(g);
  obey(o, wire::Outcome::kApplied, 0_B);
  EXPECT_EQ(limit(g), 400_MiB);
}

TEST_F(BudgetTest, WhatForkedChildrenHoldIsNamed) {
  restart(all());
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  report(o, 100_MiB);
  use(o, 100_MiB, 3s, {{4242, 64_MiB}, {4243, 64_MiB}});
  EXPECT_EQ(lease("o")["children_bytes"], (128_MiB).count());
  EXPECT_EQ(lease("o")["children"][1]["pid"], 4243);
  EXPECT_THAT(lease("o")["reason"].get<std::string>(),
              HasSubstr("128 MiB held by forked children: 4242 4243"));
  EXPECT_EQ(limit(o), 872_MiB);
  use(o, 100_MiB);
  EXPECT_EQ(limit(o), 1000_MiB) << "they have ended";
}

TEST_F(BudgetTest, WhatOthersTakeOfTheMachineIsNotDivided) {
  restart(all());
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  join(o);
  obey(o, wire::Outcome::kApplied, 100_MiB);
  report(o, 100_MiB);
  for (int i = 0; i < 8; ++i) {
    node_.observe_available(DeviceId{kHostId}, 400_MiB, now_);
    pass(500ms);
  }
  obey(o, wire::Outcome::kApplied, 100_MiB);
  // 100 MiB held, 400 available, a 32nd of the device kept: 468.75 MiB, in steps of 32.
  EXPECT_EQ(limit(o), 456_MiB);
  EXPECT_EQ(node_.status("", now_)["devices"][0]["outside_bytes"], (544_MiB).count());
  for (int i = 0; i < 8; ++i) {
    node_.observe_available(DeviceId{kHostId}, 4000_MiB, now_);
    pass(500ms);
  }
  EXPECT_EQ(limit(o), 1000_MiB);
}

// --- shrink, park, move
// ---------------------------------------------------------------------------

TEST_F(NodeCoordinatorTest, AJobThatGivesNothingBackIsParkedThenToBeMoved) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  const auto g = hello("g", JobClass::kGuaranteed, 400_MiB, 400_MiB);
  join(o);
  join(g);
  (void)take<wire::Change>("o");
  for (int i = 0; i < 22; ++i) pass(500ms);
  std::optional<wire::Change> park;
  for (const wire::Change& change : take<wire::Change>("o")) {
    if (change.parked) park = change;
  }
  ASSERT_TRUE(park);
  EXPECT_TRUE(*park->parked);
  EXPECT_TRUE(*park->paused) << "a job that does not know parking waits at least";
  EXPECT_THAT(park->reason, HasSubstr("did not give back 400 MiB within 10 s"));
  EXPECT_EQ(node_.status("o", now_)["jobs"][0]["lease"]["state"], "parked");
  EXPECT_TRUE(node_.host().page_entries(now_).at(0).paused);
  for (int i = 0; i < 124; ++i) pass(500ms);
  const auto lease = node_.status("o", now_)["jobs"][0]["lease"];
  EXPECT_EQ(lease["stage"], "move");
  EXPECT_THAT(lease["reason"].get<std::string>(), HasSubstr("the engine is asked"));
  // It answers at last: what it held goes to the other, and it runs again.
  obey(o, wire::Outcome::kApplied, 0_B);
  EXPECT_EQ(limit(g), 400_MiB);
  (void)take<wire::Change>("o");
  for (int i = 0; i < 24; ++i) pass(500ms);
  bool woken = false;
  for (const wire::Change& change : take<wire::Change>("o")) {
    woken = woken || (change.parked && !*change.parked && !*change.paused);
  }
  EXPECT_TRUE(woken);
  EXPECT_EQ(limit(o), 600_MiB);
}

TEST_F(NodeCoordinatorTest, ResumingAParkedJobSaysWhatItWaitsFor) {
  const auto o = hello("o", JobClass::kOpportunistic, 300_MiB);
  const auto g = hello("g", JobClass::kGuaranteed, 800_MiB, 800_MiB);
  join(o);
  join(g);
  wire::SetRequest request;
  request.job = "o";
  request.paused = false;
  send("cli", request);
  EXPECT_THAT(take<wire::SetReply>("cli").at(0).reason,
              HasSubstr("its minimum of 300 MiB does not fit"));
  bool paused = true;
  for (const wire::Change& change : take<wire::Change>("o"))
    paused = change.paused.value_or(paused);
  EXPECT_TRUE(paused);
}

TEST_F(NodeCoordinatorTest, OpportunisticJobsAloneTradeByMeasuredSpeed) {
  const auto a = hello("a", JobClass::kOpportunistic, 0_B);
  const auto b = hello("b", JobClass::kOpportunistic, 0_B);
  join(a);
  join(b);
  // a's speed follows its memory, b's does not.
  double steps_a = 1.0;
  double steps_b = 1.0;
  std::set<std::string> reasons;
  for (int i = 0; i < 3000; ++i) {
    for (const auto* who : {&a, &b}) obey(*who);
    const double speed = 50.0 * static_cast<double>(limit(a).count() >> 20U) / 900;
    steps_a += speed * 0.2;
    steps_b += 20 * 0.2;
    PageReading page;
    page.memory_wanted = 900_MiB;
    page.heartbeat = now_;
    page.step_number = static_cast<std::uint64_t>(steps_a);
    node_.observe_page(JobId{"a"}, a.pid, page, now_);
    page.step_number = static_cast<std::uint64_t>(steps_b);
    node_.observe_page(JobId{"b"}, b.pid, page, now_);
    pass(200ms);
    reasons.insert(node_.host().table().jobs()[0].target_reason);
  }
  EXPECT_GT(limit(a), 800_MiB);
  EXPECT_LE(limit(a) + limit(b), 1000_MiB);
  EXPECT_TRUE(std::any_of(reasons.begin(), reasons.end(), [](const std::string& reason) {
    return reason.find("gains most from 31 MiB") != std::string::npos;
  }));
}

/// Point 7 for the coordinator: two jobs that together need 1.5 times the device, a hundred bursts.
TEST_F(NodeCoordinatorTest, AGuaranteedJobsBurstsAreServedAHundredTimes) {
  const auto o = hello("o", JobClass::kOpportunistic, 0_B);
  const auto g = hello("g", JobClass::kGuaranteed, 0_B);
  join(o);
  join(g);
  for (int burst = 0; burst < 100; ++burst) {
    const Bytes base = 100_MiB;
    const Bytes peak = 800_MiB;
    const Duration pause = std::chrono::seconds{burst % 20};
    PageReading page;
    page.memory_wanted = base;
    for (Duration passed{}; passed < pause; passed += 500ms) {
      page.heartbeat = now_;
      node_.observe_page(JobId{"g"}, g.pid, page, now_);
      page.memory_wanted = 700_MiB;
      node_.observe_page(JobId{"o"}, o.pid, page, now_);
      page.memory_wanted = base;
      pass(500ms);
      obey(o);
      obey(g, wire::Outcome::kApplied, base);
    }
    send("g", wire::AskMemory{"g", g.pid, (peak - base).count(), base.count()});
    obey(o);  // it gives back at its next step
    const auto changes = take<wire::Change>("g");
    ASSERT_FALSE(changes.empty()) << "burst " << burst;
    EXPECT_GE(Bytes{*changes.back().limit_bytes}, peak) << "burst " << burst;
    EXPECT_TRUE(take<wire::Error>("g").empty());
    (void)take<wire::Change>("o");
    send("g", wire::Answer{"g", g.pid, changes.back().revision, wire::Outcome::kApplied, 0, 0,
                           peak.count(), ""});
    ASSERT_LE(node_.host().ledger().total_charged(), 1000_MiB);
  }
  EXPECT_EQ(node_.host().table().jobs().size(), 2U) << "nobody has ended";
}

/// Law 3 through messages: whatever jobs do and whatever gets lost, they never hold too much.
TEST_F(NodeCoordinatorTest, Law3_JobsNeverHoldMoreThanTheDevice) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  struct Process {
    wire::Register hello;
    Bytes limit;
    Bytes held;
    Revision revision = 0;
  };
  std::map<std::string, Process> processes;
  std::vector<std::pair<std::string, wire::Answer>> answers;
  int next = 0;
  for (int step = 0; step < 4000; ++step) {
    const auto pick = [&]() -> Process* {
      if (processes.empty()) return nullptr;
      auto it = processes.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(random() % processes.size()));
      return &it->second;
    };
    switch (random() % 7) {
      case 0:
        if (processes.size() < 5) {
          const auto message =
              hello("p" + std::to_string(next),
                    random() % 2 == 0 ? JobClass::kGuaranteed : JobClass::kOpportunistic,
                    Bytes{random() % (300_MiB).count()}, std::nullopt, next + 1);
          ++next;
          processes[message.job_id].hello = message;
          node_.receive(message.job_id, message, now_);
        }
        break;
      case 1:
        if (Process* p = pick(); p != nullptr && random() % 6 == 0) {
          const wire::Register who = p->hello;
          processes.erase(who.job_id);
          node_.member_gone(JobId{who.job_id}, who.pid, Departure::kExited, now_);
        }
        break;
      case 2:
        if (Process* p = pick()) {
          node_.receive(p->hello.job_id,
                        wire::AskMemory{p->hello.job_id, p->hello.pid, random() % (400_MiB).count(),
                                        p->held.count()},
                        now_);
        }
        break;
      case 3:
        if (Process* p = pick()) {
          p->held = std::max(p->held, random() % 2 == 0 ? p->limit : Bytes{});
          node_.receive(p->hello.job_id,
                        wire::Stats{p->hello.job_id,
                                    p->hello.pid,
                                    {{"memory", {{"device_bytes", p->held.count()}}}},
                                    false},
                        now_);
        }
        break;
      case 4:
        now_ += Duration{std::chrono::milliseconds{random() % 700}};
        node_.tick(now_);
        break;
      default:
        if (!answers.empty()) {
          const std::size_t at = random() % answers.size();
          const auto [peer, answer] = answers[at];
          if (random() % 4 != 0) answers.erase(answers.begin() + static_cast<std::ptrdiff_t>(at));
          if (random() % 5 != 0) node_.receive(peer, answer, now_);
        }
    }
    for (const Outgoing& out : node_.take_outgoing()) {
      const auto found = processes.find(out.peer);
      if (found == processes.end()) continue;
      Process& p = found->second;
      if (const auto* registered = std::get_if<wire::Registered>(&out.message)) {
        p.limit = Bytes{registered->limit_bytes};
        p.revision = registered->revision;
      } else if (const auto* change = std::get_if<wire::Change>(&out.message);
                 change != nullptr && change->limit_bytes) {
        if (random() % 10 == 0) continue;  // lost
        p.limit = Bytes{*change->limit_bytes};
        p.revision = change->revision;
        if (random() % 3 != 0) p.held = std::min(p.held, p.limit);
        answers.push_back({out.peer, wire::Answer{p.hello.job_id, p.hello.pid, p.revision,
                                                  p.held > p.limit ? wire::Outcome::kDeferred
                                                                   : wire::Outcome::kApplied,
                                                  0, 0, p.held.count(), ""}});
      }
    }
    Bytes held;
    for (const auto& [name, p] : processes) held += p.held;
    ASSERT_LE(held, 1000_MiB) << "step " << step;
    ASSERT_LE(node_.host().ledger().total_charged(), 1000_MiB) << "step " << step;
  }
  for (const auto& [name, p] : processes) {
    node_.member_gone(JobId{name}, p.hello.pid, Departure::kExited, now_);
  }
  pass(10s);
  EXPECT_EQ(node_.host().ledger().total_charged(), 0_B) << "nothing is kept for the dead";
  const auto last = hello("last", JobClass::kGuaranteed, 1000_MiB, 1000_MiB);
  join(last);
  obey(last);
  EXPECT_EQ(limit(last), 1000_MiB);
}

}  // namespace
}  // namespace commensal::node::node_coordinator_test

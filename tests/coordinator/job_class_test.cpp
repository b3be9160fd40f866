// SPDX-License-Identifier: Apache-2.0
// A running job's class is changed: memory first, then its processes, then the answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/node/node_coordinator.h"

namespace commensal::node::job_class_test {
namespace {

using namespace commensal::literals;
using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr JobClass kGuaranteed = JobClass::kGuaranteed;
constexpr JobClass kOpportunistic = JobClass::kOpportunistic;

/// A node whose processes answer as a session does, unless a test keeps them from it.
class JobClassTest : public ::testing::Test {
 protected:
  struct Process {
    wire::Register hello;
    JobClass in_force = kOpportunistic;
    bool answers = true;
    bool is_old = false;  // knows nothing of classes that change
    std::string refuses;  // changes to `refuses_class`
    JobClass refuses_class = kGuaranteed;
    std::optional<Bytes> holds;  // and gives none of it back
    std::vector<wire::Change> told;
    std::vector<wire::Registered> registered;
  };

  static Device device(const std::string& id = kHostId, Bytes capacity = 1000_MiB) {
    Device device;
    device.id = id;
    device.kind = id == kHostId ? DeviceKind::kHost : DeviceKind::kGpu;
    device.capacity = capacity;
    device.cores = 4;
    return device;
  }
  static CoordinatorConfig config() {
    CoordinatorConfig config;
    config.memory.headroom = 0.05;
    return config;
  }

  Process& join(const std::string& job, JobClass job_class, std::int64_t pid, Bytes min = 0_B,
                std::optional<Bytes> max = std::nullopt, int world_size = 1) {
    Process process;
    process.hello.job_id = process.hello.name = job;
    process.hello.tenant = "t";
    process.hello.job_class = process.in_force = job_class;
    process.hello.terms.memory.min = min;
    if (max) process.hello.terms.memory.max = max;
    process.hello.pid = pid;
    process.hello.start_ticks = 1;
    process.hello.role = world_size > 1 ? "rank" : "main";
    process.hello.rank = static_cast<int>(pid % 10);
    process.hello.world_size = world_size;
    return join(std::move(process));
  }
  Process& join(Process process) {
    const std::int64_t pid = process.hello.pid;
    Process& here = processes_[pid] = std::move(process);
    node_->receive(std::to_string(pid), here.hello, now_);
    exchange();
    return here;
  }
  /// Hands out what the node says, and back what processes answer, until nobody says anything.
  void exchange() {
    for (std::vector<Outgoing> out = node_->take_outgoing(); !out.empty();
         out = node_->take_outgoing()) {
      for (const Outgoing& each : out) hear(each);
    }
  }
  void hear(const Outgoing& out) {
    if (const auto* reply = std::get_if<wire::SetReply>(&out.message)) replies_.push_back(*reply);
    const auto found =
        out.peer.empty() || std::isdigit(static_cast<unsigned char>(out.peer[0])) == 0
            ? processes_.end()
            : processes_.find(std::stoll(out.peer));
    if (found == processes_.end()) return;
    if (const auto* registered = std::get_if<wire::Registered>(&out.message)) {
      found->second.registered.push_back(*registered);
      found->second.in_force = registered->job_class;
    }
    if (const auto* change = std::get_if<wire::Change>(&out.message)) {
      found->second.told.push_back(*change);
      if (found->second.answers) answer(found->second, *change);
    }
  }
  void answer(Process& process, const wire::Change& change) {
    wire::Answer answer;
    answer.job_id = process.hello.job_id;
    answer.pid = process.hello.pid;
    answer.revision = change.revision;
    answer.outcome = wire::Outcome::kApplied;
    answer.held_bytes = process.holds.value_or(Bytes{change.limit_bytes.value_or(0)}).count();
    if (change.job_class && !process.is_old) {
      if (!process.refuses.empty() && *change.job_class == process.refuses_class) {
        answer.outcome = wire::Outcome::kRefused;
        answer.reason = process.refuses;
      } else {
        process.in_force = *change.job_class;
        process.hello.job_class = *change.job_class;  // what it says when it registers again
        if (change.terms.memory) process.hello.terms.memory = *change.terms.memory;
      }
    }
    if (!process.is_old) answer.job_class = process.in_force;
    node_->receive(std::to_string(process.hello.pid), answer, now_);
  }
  /// Asks for a class, with more if wanted. @return the answers that have come by now.
  std::vector<wire::SetReply> ask(const std::string& job, JobClass job_class,
                                  const std::function<void(wire::SetRequest&)>& more = nullptr) {
    wire::SetRequest request;
    request.job = job;
    request.job_class = job_class;
    if (more) more(request);
    replies_.clear();
    node_->receive("cli", request, now_);
    exchange();
    return replies_;
  }
  /// The same where one answer must be there.
  wire::SetReply outcome(const std::string& job, JobClass job_class,
                         const std::function<void(wire::SetRequest&)>& more = nullptr) {
    const auto replies = ask(job, job_class, more);
    EXPECT_THAT(replies, SizeIs(1));
    return replies.empty() ? wire::SetReply{} : replies.front();
  }
  static void at_least(wire::SetRequest& request, Bytes min) {
    request.terms.memory = MemoryRange{min, std::nullopt};
  }
  void pass(Duration time) {
    now_ += time;
    node_->sample(now_);
    node_->tick(now_);
    exchange();
  }
  const Job& job(const std::string& id) const {
    for (const Job* const job : node_->jobs()) {
      if (job->id.str() == id) return *job;
    }
    throw std::logic_error("no job " + id);
  }
  json status(const std::string& id) { return node_->status(id, now_)["jobs"][0]; }
  PageEntry entry(const std::string& id) {
    for (const PageEntry& entry : node_->host().page_entries(now_)) {
      if (entry.job_id == id) return entry;
    }
    throw std::logic_error("no entry of " + id);
  }
  Bytes limit(const Process& process) {
    return node_->host().ledger().limit({JobId{process.hello.job_id}, process.hello.pid});
  }
  /// Changes of the class that a process was told, in order.
  static std::vector<JobClass> classes_told(const Process& process) {
    std::vector<JobClass> told;
    for (const wire::Change& change : process.told) {
      if (change.job_class) told.push_back(*change.job_class);
    }
    return told;
  }
  void step(const Process& process, std::uint64_t number, Duration length) {
    PageReading page;
    page.heartbeat = page.step_end = now_;
    page.step_number = number;
    page.step_last = length;
    node_->observe_page(JobId{process.hello.job_id}, process.hello.pid, page, now_);
  }

  TimePoint now_{1h};
  std::optional<NodeCoordinator> node_{std::in_place, config(), device(), 77, 5, now_};
  std::map<std::int64_t, Process> processes_;
  std::vector<wire::SetReply> replies_;
};

TEST_F(JobClassTest, AJobIsUpgradedWhereItRuns) {
  Process& process = join("o", kOpportunistic, 10);
  const auto reply = outcome("o", kGuaranteed);
  EXPECT_EQ(reply.outcome, wire::Outcome::kApplied);
  EXPECT_THAT(reply.reason, HasSubstr("guaranteed, law open"));
  EXPECT_EQ(process.in_force, kGuaranteed);
  ASSERT_THAT(process.told, SizeIs(1));
  EXPECT_EQ(process.told[0].terms.law, "open");
  EXPECT_EQ(process.told[0].revision, reply.revision);
  EXPECT_EQ(status("o")["job"]["class"], "guaranteed");
  EXPECT_TRUE(status("o")["class_change"].is_null());
  const PageEntry shown = entry("o");
  EXPECT_EQ(shown.job_class, kGuaranteed);
  EXPECT_GT(shown.lease_until, now_);
  EXPECT_EQ(shown.share_max, 1.0);
}

TEST_F(JobClassTest, OthersYieldToItFromThenOn) {
  Process& first = join("a", kOpportunistic, 10);
  join("b", kOpportunistic, 20);
  EXPECT_FALSE(node_->wants_sampling());
  EXPECT_EQ(outcome("a", kGuaranteed).outcome, wire::Outcome::kApplied);
  EXPECT_TRUE(node_->wants_sampling()) << "the page of who is guaranteed now is looked at";
  step(first, 1, 20ms);
  pass(20ms);
  EXPECT_LT(entry("b").share_min, 1.0);
  EXPECT_EQ(status("a")["measured_by"], "steps");
  EXPECT_TRUE(status("b")["measured_by"].is_null());
}

TEST_F(JobClassTest, TheReverseGivesWay) {
  Process& process = join("g", kGuaranteed, 10, 400_MiB, 800_MiB);
  join("o", kOpportunistic, 20);
  const auto reply = outcome("g", kOpportunistic);
  EXPECT_EQ(reply.outcome, wire::Outcome::kApplied);
  EXPECT_EQ(process.in_force, kOpportunistic);
  EXPECT_EQ(process.told.back().terms.law.value_or("gap"), "gap");
  const json now = status("g");
  EXPECT_EQ(now["job"]["class"], "opportunistic");
  EXPECT_EQ(now["lease"]["min_bytes"], 0) << "its floor was that of a guaranteed job";
  EXPECT_EQ(now["lease"]["max_bytes"], (800_MiB).count());
  EXPECT_EQ(entry("g").law, "gap");
  EXPECT_EQ(entry("g").lease_until, TimePoint{});
  EXPECT_FALSE(node_->wants_sampling());
}

TEST_F(JobClassTest, EachClassKeepsWhatTheJobHadInIt) {
  Process& process = join("j", kGuaranteed, 10, 400_MiB);
  wire::SetRequest slo;
  slo.job = "j";
  slo.terms.slo = 0.05;
  node_->receive("cli", slo, now_);
  exchange();
  ASSERT_EQ(outcome("j", kOpportunistic, [](auto& r) { r.terms.law = "antman"; }).outcome,
            wire::Outcome::kApplied);
  EXPECT_EQ(entry("j").law, "antman");
  EXPECT_TRUE(status("j")["slo"].is_null());
  ASSERT_EQ(outcome("j", kGuaranteed).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(entry("j").law, "open");
  EXPECT_EQ(status("j")["slo"], 0.05);
  EXPECT_EQ(status("j")["lease"]["min_bytes"], (400_MiB).count());
  EXPECT_EQ(process.told.back().terms.slo, 0.05);
  ASSERT_EQ(outcome("j", kOpportunistic).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(process.told.back().terms.law, "antman");
}

TEST_F(JobClassTest, TheSameAgainDoesNothing) {
  Process& process = join("o", kOpportunistic, 10);
  ASSERT_EQ(outcome("o", kGuaranteed).outcome, wire::Outcome::kApplied);
  const Revision revision = job("o").revision;
  const std::size_t told = process.told.size();
  const auto again = outcome("o", kGuaranteed);
  EXPECT_EQ(again.outcome, wire::Outcome::kApplied);
  EXPECT_EQ(again.reason, "it is guaranteed");
  EXPECT_EQ(again.revision, revision);
  EXPECT_THAT(process.told, SizeIs(told));
  EXPECT_EQ(outcome("o", kOpportunistic).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(outcome("o", kOpportunistic).reason, "it is opportunistic");
}

TEST_F(JobClassTest, WithTheClassThatItHasTheRestIsAChangeAsAnyOther) {
  join("g", kGuaranteed, 10);
  EXPECT_EQ(outcome("g", kGuaranteed, [](auto& r) { r.terms.slo = 0.03; }).outcome,
            wire::Outcome::kApplied);
  EXPECT_EQ(status("g")["slo"], 0.03);
}

// --- memory -------------------------------------------------------------------------------------

TEST_F(JobClassTest, AnUpgradeWaitsUntilOthersHaveGivenItsFloorBack) {
  Process& holder = join("b", kOpportunistic, 20);
  holder.answers = false;
  holder.holds = 1000_MiB;
  Process& process = join("a", kOpportunistic, 10);
  EXPECT_THAT(ask("a", kGuaranteed, [](auto& r) { at_least(r, 600_MiB); }), IsEmpty());
  pass(2s);
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].outcome, wire::Outcome::kDeferred);
  EXPECT_THAT(replies_[0].reason, HasSubstr("of its floor of 600 MiB on host"));
  EXPECT_THAT(replies_[0].reason, HasSubstr("give back first"));
  EXPECT_EQ(status("a")["job"]["class"], "opportunistic") << "it is not told what is not so";
  EXPECT_EQ(status("a")["class_change"]["wanted"], "guaranteed");
  EXPECT_EQ(status("a")["class_change"]["waits_for"], "memory");
  EXPECT_THAT(classes_told(process), IsEmpty());
  EXPECT_LE(limit(holder), 400_MiB);
  // The kernel shows that it is back.
  holder.answers = true;
  holder.holds.reset();
  answer(holder, holder.told.back());
  exchange();
  EXPECT_GE(limit(process), 600_MiB);
  EXPECT_EQ(process.in_force, kGuaranteed);
  EXPECT_EQ(status("a")["job"]["class"], "guaranteed");
  EXPECT_TRUE(status("a")["class_change"].is_null());
}

TEST_F(JobClassTest, WhoWaitsForAnUpgradeIsToldAgainWhatItWaitsFor) {
  Process& holder = join("b", kOpportunistic, 20);
  holder.answers = false;
  join("a", kOpportunistic, 10);
  ASSERT_THAT(ask("a", kGuaranteed, [](auto& r) { at_least(r, 600_MiB); }), IsEmpty());
  pass(3s);
  EXPECT_THAT(replies_, SizeIs(1));
  EXPECT_THAT(ask("a", kGuaranteed), IsEmpty());
  pass(3s);
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].outcome, wire::Outcome::kDeferred);
  EXPECT_EQ(status("a")["lease"]["min_bytes"], (600_MiB).count()) << "the same change again";
  const auto other = outcome("a", kOpportunistic);
  EXPECT_EQ(other.outcome, wire::Outcome::kApplied);
  EXPECT_EQ(other.reason, "it is opportunistic");
  EXPECT_TRUE(status("a")["class_change"].is_null());
  EXPECT_EQ(status("a")["lease"]["min_bytes"], 0);
}

TEST_F(JobClassTest, WhatCanNeverFitIsRefusedWithTheValues) {
  join("g", kGuaranteed, 10, 700_MiB);
  Process& process = join("o", kOpportunistic, 20);
  const auto reply = outcome("o", kGuaranteed, [](auto& r) { at_least(r, 400_MiB); });
  EXPECT_EQ(reply.outcome, wire::Outcome::kRefused);
  EXPECT_THAT(reply.reason, HasSubstr("400 MiB > 300 MiB"));
  EXPECT_EQ(status("o")["job"]["class"], "opportunistic");
  EXPECT_EQ(status("o")["lease"]["min_bytes"], 0);
  EXPECT_THAT(classes_told(process), IsEmpty());
  EXPECT_THAT(outcome("o", kGuaranteed, [](auto& r) { at_least(r, 2000_MiB); }).reason,
              HasSubstr("above the device"));
}

TEST_F(JobClassTest, AFloorThatIsPromisedIsNotPromisedTwice) {
  Process& holder = join("h", kOpportunistic, 30);
  holder.answers = false;
  join("a", kOpportunistic, 10);
  join("b", kOpportunistic, 20);
  ASSERT_THAT(ask("a", kGuaranteed, [](auto& r) { at_least(r, 600_MiB); }), IsEmpty());
  EXPECT_THAT(outcome("b", kGuaranteed, [](auto& r) { at_least(r, 600_MiB); }).reason,
              HasSubstr("600 MiB > 400 MiB"));
}

TEST_F(JobClassTest, ASecondGuaranteedJobIsOneBesideTheFirst) {
  join("g", kGuaranteed, 10);
  join("o", kOpportunistic, 20);
  const auto reply = outcome("o", kGuaranteed);
  EXPECT_EQ(reply.outcome, wire::Outcome::kApplied);
  EXPECT_THAT(reply.reason, HasSubstr("beside another guaranteed job, 'g'"));
}

TEST_F(JobClassTest, AParkedJobThatIsUpgradedRuns) {
  Process& parked = join("o", kOpportunistic, 20, 500_MiB);
  join("g", kGuaranteed, 10, 400_MiB);
  join("p", kOpportunistic, 30, 500_MiB);
  pass(1s);
  const bool first = status("o")["lease"]["state"] == "parked";
  const std::string who = first ? "o" : "p";
  ASSERT_EQ(status(who)["lease"]["state"], "parked");
  EXPECT_EQ(outcome(who, kGuaranteed).outcome, wire::Outcome::kApplied);
  EXPECT_NE(status(who)["lease"]["state"], "parked");
  const Process& process = first ? parked : processes_.at(30);
  bool runs = false;
  for (const wire::Change& change : process.told) runs = change.parked ? !*change.parked : runs;
  EXPECT_TRUE(runs);
}

// --- processes ----------------------------------------------------------------------------------

TEST_F(JobClassTest, AllRanksChangeTogether) {
  Process& first = join("o", kOpportunistic, 10, 0_B, std::nullopt, 2);
  Process& second = join("o", kOpportunistic, 11, 0_B, std::nullopt, 2);
  second.answers = false;
  EXPECT_THAT(ask("o", kGuaranteed), IsEmpty()) << "not before all have said so";
  EXPECT_EQ(first.in_force, kGuaranteed);
  EXPECT_EQ(status("o")["class_change"]["waits_for"], "processes");
  EXPECT_THAT(status("o")["class_change"]["reason"].get<std::string>(), HasSubstr("process 11"));
  second.answers = true;
  answer(second, second.told.back());
  exchange();
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].outcome, wire::Outcome::kApplied);
  EXPECT_EQ(classes_told(second), std::vector{kGuaranteed});
}

TEST_F(JobClassTest, WhoAsksDoesNotWaitForEver) {
  Process& process = join("o", kOpportunistic, 10);
  process.answers = false;
  EXPECT_THAT(ask("o", kGuaranteed), IsEmpty());
  pass(1900ms);
  EXPECT_THAT(replies_, IsEmpty());
  pass(200ms);
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].outcome, wire::Outcome::kDeferred);
  EXPECT_THAT(replies_[0].reason, HasSubstr("process 10"));
  EXPECT_GE(classes_told(process).size(), 2U) << "it is told again";
  process.answers = true;
  answer(process, process.told.back());
  exchange();
  EXPECT_TRUE(status("o")["class_change"].is_null());
  EXPECT_THAT(replies_, SizeIs(1)) << "one answer to one question";
}

TEST_F(JobClassTest, WhoEndsIsNotWaitedFor) {
  join("o", kOpportunistic, 10, 0_B, std::nullopt, 2);
  join("o", kOpportunistic, 11, 0_B, std::nullopt, 2).answers = false;
  EXPECT_THAT(ask("o", kGuaranteed), IsEmpty());
  node_->member_gone(JobId{"o"}, 11, Departure::kExited, now_);
  exchange();
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].outcome, wire::Outcome::kApplied);
}

TEST_F(JobClassTest, AJobThatEndsMeanwhileIsSaidToHaveEnded) {
  join("o", kOpportunistic, 10).answers = false;
  EXPECT_THAT(ask("o", kGuaranteed), IsEmpty());
  node_->member_gone(JobId{"o"}, 10, Departure::kExited, now_);
  exchange();
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].outcome, wire::Outcome::kRefused);
  EXPECT_THAT(replies_[0].reason, HasSubstr("ended"));
}

TEST_F(JobClassTest, AProcessThatRefusesLeavesAllAsTheyWere) {
  Process& willing = join("o", kOpportunistic, 10, 100_MiB, std::nullopt, 2);
  Process& other = join("o", kOpportunistic, 11, 100_MiB, std::nullopt, 2);
  other.refuses = "its threads cannot leave the kernel's idle class";
  const auto reply = outcome("o", kGuaranteed, [](auto& r) {
    at_least(r, 300_MiB);
    r.terms.slo = 0.02;
  });
  EXPECT_EQ(reply.outcome, wire::Outcome::kRefused);
  EXPECT_THAT(reply.reason, HasSubstr("process 11: its threads cannot leave"));
  EXPECT_EQ(willing.in_force, kOpportunistic);
  EXPECT_EQ(classes_told(willing), (std::vector{kGuaranteed, kOpportunistic}));
  EXPECT_EQ(willing.told.back().terms.law.value_or("gap"), "gap");
  const json now = status("o");
  EXPECT_EQ(now["job"]["class"], "opportunistic");
  EXPECT_EQ(now["lease"]["min_bytes"], (100_MiB).count());
  EXPECT_TRUE(now["class_change"].is_null());
  EXPECT_EQ(entry("o").job_class, kOpportunistic);
  other.refuses.clear();
  EXPECT_EQ(outcome("o", kGuaranteed).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(status("o")["slo"], 0.01) << "nothing of what was refused is left";
  EXPECT_EQ(status("o")["lease"]["min_bytes"], (100_MiB).count());
}

TEST_F(JobClassTest, AnOlderProcessThatIgnoresItIsNotSaidToHaveChanged) {
  Process& process = join("o", kOpportunistic, 10);
  process.is_old = true;
  const auto reply = outcome("o", kGuaranteed);
  EXPECT_EQ(reply.outcome, wire::Outcome::kRefused);
  EXPECT_THAT(reply.reason, HasSubstr("process 10 is of an older commensal"));
  EXPECT_EQ(status("o")["job"]["class"], "opportunistic");
  EXPECT_EQ(process.told.back().terms.law, "gap") << "its law follows, and goes back";
}

TEST_F(JobClassTest, AStaleAnswerIsNone) {
  Process& process = join("o", kOpportunistic, 10);
  process.answers = false;
  EXPECT_THAT(ask("o", kGuaranteed), IsEmpty());
  const Revision told = process.told.back().revision;
  node_->receive("10", wire::Answer{"o", 10, told, wire::Outcome::kStale, 0, 0, 0, "newer"}, now_);
  exchange();
  EXPECT_THAT(replies_, IsEmpty());
  process.answers = true;
  pass(1100ms);
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].outcome, wire::Outcome::kApplied);
}

TEST_F(JobClassTest, TheNewestChangeWins) {
  Process& process = join("o", kOpportunistic, 10);
  process.answers = false;
  EXPECT_THAT(ask("o", kGuaranteed), IsEmpty());
  const wire::Change older = process.told.back();
  const auto replies = ask("o", kOpportunistic);
  ASSERT_THAT(replies, SizeIs(1)) << "who asked for the older one hears so";
  EXPECT_EQ(replies[0].outcome, wire::Outcome::kRefused);
  EXPECT_THAT(replies[0].reason, HasSubstr("newer change"));
  const wire::Change newer = process.told.back();
  EXPECT_GT(newer.revision, older.revision);
  answer(process, older);
  exchange();
  EXPECT_THAT(replies_, SizeIs(1)) << "an answer to the older one counts for nothing";
  answer(process, newer);
  exchange();
  ASSERT_THAT(replies_, SizeIs(2));
  EXPECT_EQ(replies_[1].outcome, wire::Outcome::kApplied);
  EXPECT_EQ(process.in_force, kOpportunistic);
}

TEST_F(JobClassTest, AProcessThatComesLaterGetsTheClassOfItsJob) {
  join("o", kOpportunistic, 10, 0_B, std::nullopt, 2);
  ASSERT_EQ(outcome("o", kGuaranteed, [](auto& r) { at_least(r, 200_MiB); }).outcome,
            wire::Outcome::kApplied);
  Process& late = join("o", kOpportunistic, 11, 0_B, std::nullopt, 2);
  ASSERT_THAT(late.registered, SizeIs(1));
  EXPECT_EQ(late.registered[0].job_class, kGuaranteed);
  EXPECT_EQ(classes_told(late), std::vector{kGuaranteed}) << "to say so when it registers again";
  EXPECT_EQ(late.hello.terms.memory.min, 200_MiB);
}

TEST_F(JobClassTest, TheClassInForceSurvivesTheCoordinator) {
  join("o", kOpportunistic, 10, 0_B, std::nullopt, 2);
  Process& second = join("o", kOpportunistic, 11, 0_B, std::nullopt, 2);
  ASSERT_EQ(outcome("o", kGuaranteed, [](auto& r) { at_least(r, 200_MiB); }).outcome,
            wire::Outcome::kApplied);
  Process helper = second;
  node_.emplace(config(), device(), 78, 5, now_);
  for (const std::int64_t pid : {10, 11}) join(Process{processes_.at(pid)});
  EXPECT_EQ(status("o")["job"]["class"], "guaranteed");
  EXPECT_EQ(status("o")["job"]["reason"], "");
  EXPECT_EQ(status("o")["lease"]["min_bytes"], (200_MiB).count());
  EXPECT_EQ(entry("o").job_class, kGuaranteed);
}

TEST_F(JobClassTest, WhatWasNotGrantedAtFirstIsNoChange) {
  join("g", kGuaranteed, 10, 800_MiB);
  Process& process = join("h", kGuaranteed, 20, 800_MiB);
  EXPECT_EQ(process.in_force, kOpportunistic);
  EXPECT_THAT(classes_told(process), IsEmpty()) << "it asks for the same of the next coordinator";
}

TEST_F(JobClassTest, AFloorIsKeptUntilAllHaveTakenTheReverse) {
  Process& process = join("g", kGuaranteed, 10, 700_MiB, 700_MiB);
  Process& other = join("o", kOpportunistic, 20);
  process.refuses = "it began as guaranteed";
  process.refuses_class = kOpportunistic;
  process.answers = false;
  EXPECT_THAT(ask("g", kOpportunistic), IsEmpty());
  pass(100ms);
  EXPECT_LE(limit(other), 300_MiB) << "it may be needed again";
  process.answers = true;
  pass(1s);
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].outcome, wire::Outcome::kRefused);
  EXPECT_EQ(status("g")["job"]["class"], "guaranteed");
  EXPECT_EQ(limit(process), 700_MiB);
  process.refuses.clear();
  EXPECT_EQ(outcome("g", kOpportunistic).outcome, wire::Outcome::kApplied);
  pass(1s);
  EXPECT_GT(limit(other), 300_MiB);
}

// --- what is measured ---------------------------------------------------------------------------

TEST_F(JobClassTest, ItsBaselineBeginsAnew) {
  Process& process = join("j", kGuaranteed, 10);
  std::uint64_t number = 1;
  const auto steps = [&](int count, Duration length) {
    for (int i = 0; i < count; ++i) {
      now_ += length;
      step(process, number++, length);
      node_->sample(now_);
    }
    exchange();
  };
  steps(10, 20ms);
  ASSERT_EQ(status("j")["baseline_seconds"], 0.02);
  ASSERT_EQ(outcome("j", kOpportunistic).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(status("j")["baseline_steps"], 0);
  steps(10, 50ms);  // beside others, or with less memory
  ASSERT_EQ(outcome("j", kGuaranteed).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(status("j")["baseline_steps"], 0);
  steps(10, 30ms);
  EXPECT_EQ(status("j")["baseline_seconds"], 0.03);
}

TEST_F(JobClassTest, ExplainTellsWhenAndWhy) {
  join("o", kOpportunistic, 10);
  pass(1s);
  ASSERT_EQ(outcome("o", kGuaranteed).outcome, wire::Outcome::kApplied);
  pass(1s);
  const json told = node_->explain(node_->find_told("o"), 10s, false, now_);
  EXPECT_EQ(told["job"]["class"], "guaranteed");
  std::vector<std::string> lines;
  for (const json& decision : told["decisions"]) {
    if (decision["kind"] == "class") lines.push_back(decision["text"]);
  }
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(lines[1], HasSubstr("guaranteed, law open: upgraded where it runs"));
}

TEST_F(JobClassTest, HowItsProcessesRunStaysWhateverItsClass) {
  Process process;
  process.hello.job_id = process.hello.name = "o";
  process.hello.pid = 10;
  process.hello.start_ticks = 1;
  process.hello.role = "main";
  process.hello.terms.idle_class = process.hello.terms.affinity = false;
  process.hello.terms.sm_share = 0.5;
  join(std::move(process));
  for (const JobClass to : {kGuaranteed, kOpportunistic}) {
    ASSERT_EQ(outcome("o", to).outcome, wire::Outcome::kApplied);
    const wire::JobTerms& terms = job("o").terms;
    EXPECT_FALSE(terms.idle_class);
    EXPECT_FALSE(terms.affinity);
    EXPECT_EQ(terms.sm_share, 0.5);
  }
}

// --- several devices ----------------------------------------------------------------------------

TEST_F(JobClassTest, ItChangesOnAllItsDevicesOrOnNone) {
  node_->add_device(device("GPU-a"), now_);
  node_->add_device(device("GPU-b"), now_);
  const auto on = [this](const std::string& name, JobClass job_class, std::int64_t pid,
                         const std::string& where, Bytes min, int world_size) -> Process& {
    Process process;
    process.hello.job_id = process.hello.name = name;
    process.hello.job_class = process.in_force = job_class;
    process.hello.pid = pid;
    process.hello.start_ticks = 1;
    process.hello.role = world_size > 1 ? "rank" : "main";
    process.hello.rank = static_cast<int>(pid % 10);
    process.hello.world_size = world_size;
    process.hello.devices.front().device = where;
    process.hello.terms.memory.min = min;
    return join(std::move(process));
  };
  on("o", kOpportunistic, 10, "GPU-a", 0_B, 2);
  on("o", kOpportunistic, 11, "GPU-b", 0_B, 2);
  on("g", kGuaranteed, 20, "GPU-b", 700_MiB, 1);
  EXPECT_EQ(outcome("o", kGuaranteed, [](auto& r) { at_least(r, 400_MiB); }).outcome,
            wire::Outcome::kRefused);
  for (const Job* const each : node_->jobs()) {
    if (each->id.str() == "o") {
      EXPECT_EQ(each->job_class, kOpportunistic);
    }
  }
  EXPECT_EQ(outcome("o", kGuaranteed, [](auto& r) { at_least(r, 200_MiB); }).outcome,
            wire::Outcome::kApplied);
  for (const Job* const each : node_->jobs()) {
    EXPECT_EQ(each->job_class, kGuaranteed) << each->id.str();
  }
  // A rank that comes later, as the first one began, on a device of its own.
  node_->add_device(device("GPU-c"), now_);
  Process& late = on("o", kOpportunistic, 12, "GPU-c", 0_B, 3);
  EXPECT_EQ(late.in_force, kGuaranteed);
  for (const Job* const each : node_->jobs()) {
    EXPECT_EQ(each->job_class, kGuaranteed) << each->id.str();
  }
}

// --- laws ---------------------------------------------------------------------------------------

TEST_F(JobClassTest, TheLedgerHoldsThroughAnySequenceOfChanges) {
  const unsigned seed = 20260101;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random{seed};
  const auto below = [&](unsigned bound) { return static_cast<std::int64_t>(random() % bound); };
  for (std::int64_t pid = 10; pid < 50; pid += 10) {
    join("j" + std::to_string(pid), pid == 10 ? kGuaranteed : kOpportunistic, pid);
  }
  for (int i = 0; i < 600; ++i) {
    Process& process = processes_.at(10 * (1 + below(4)));
    process.answers = below(4) != 0;
    process.refuses = below(8) == 0 ? "not now" : "";
    if (below(3) == 0) {
      pass(std::chrono::milliseconds{below(3000)});
    } else {
      const JobClass wanted = below(2) == 0 ? kGuaranteed : kOpportunistic;
      (void)ask(process.hello.job_id, wanted, [&](auto& request) {
        // Of one that is guaranteed already others give the rest back later.
        const bool is_so = job(request.job).job_class == kGuaranteed;
        if (wanted == kGuaranteed && !is_so && below(2) == 0)
          at_least(request, Bytes{static_cast<std::uint64_t>(below(500)) << 20U});
      });
    }
    const Ledger& ledger = node_->host().ledger();
    ASSERT_LE(ledger.total_charged(), ledger.capacity()) << "operation " << i;
    Bytes floors;
    for (const Job* const each : node_->jobs()) {
      if (each->job_class != kGuaranteed) continue;
      floors += each->terms.memory.min;
      Bytes granted;
      for (const Member& member : each->members) granted += ledger.limit(each->key(member));
      ASSERT_GE(granted, each->terms.memory.min) << each->id.str() << " after operation " << i;
    }
    ASSERT_LE(floors, ledger.capacity());
  }
  for (auto& [pid, process] : processes_) {
    process.answers = true;
    process.refuses.clear();
  }
  for (int i = 0; i < 10; ++i) pass(3s);
  for (const auto& [pid, process] : processes_) {
    EXPECT_EQ(process.in_force, job(process.hello.job_id).job_class) << pid;
    EXPECT_TRUE(status(process.hello.job_id)["class_change"].is_null()) << pid;
  }
}

}  // namespace
}  // namespace commensal::node::job_class_test

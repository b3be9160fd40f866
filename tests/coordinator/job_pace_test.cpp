// SPDX-License-Identifier: Apache-2.0
// How the node coordinator paces jobs: laws and SLOs that users choose, and turns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "coordinator/node/node_coordinator.h"
#include "coordinator/wire/laws.h"

namespace commensal::node::job_pace_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class JobPaceTest : public ::testing::Test {
 protected:
  static Device device() {
    Device device;
    device.capacity = 1000_MiB;
    device.cores = 2;
    return device;
  }
  static wire::Register hello(const std::string& id, JobClass job_class,
                              const std::string& law = "") {
    wire::Register hello;
    hello.job_id = hello.name = id;
    hello.job_class = job_class;
    hello.pid = static_cast<std::int64_t>(std::hash<std::string>{}(id) % 30000 + 1);
    hello.start_ticks = 1;
    hello.role = "main";
    hello.terms.law = law;
    return hello;
  }
  /// @return the reply's reason.
  std::string join(const wire::Register& hello) {
    pids_[hello.job_id] = hello.pid;
    return answer<wire::Registered>(hello.job_id, hello).reason;
  }
  template <typename Reply>
  Reply answer(const std::string& peer, const wire::Message& message) {
    node_.receive(peer, message, now_);
    Reply reply;
    for (const Outgoing& out : node_.take_outgoing()) {
      if (const auto* change = std::get_if<wire::Change>(&out.message)) told_[out.peer] = *change;
      if (const auto* wanted = std::get_if<Reply>(&out.message)) reply = *wanted;
    }
    return reply;
  }
  wire::SetReply set(const std::string& job, const std::function<void(wire::SetRequest&)>& change) {
    wire::SetRequest request;
    request.job = job;
    change(request);
    return answer<wire::SetReply>("cli", request);
  }
  wire::SetReply set_law(const std::string& job, const std::string& law) {
    return set(job, [&](auto& request) { request.terms.law = law; });
  }
  [[nodiscard]] PageEntry entry(const std::string& job) const {
    for (const PageEntry& entry : node_.host().page_entries(now_)) {
      if (entry.job_id == job) return entry;
    }
    ADD_FAILURE() << "no entry of " << job;
    return {};
  }
  /// Shows what a job's page says.
  void show(const std::string& job, std::uint64_t step, bool waits) {
    PageReading page;
    page.heartbeat = now_;
    page.step_number = step;
    page.step_last = 50ms;
    page.waits = waits;
    node_.observe_page(JobId{job}, pids_.at(job), page, now_);
  }
  [[nodiscard]] bool has_turn(const std::string& job) const { return entry(job).turn_until > now_; }
  /// Passes time in samples. @return the part of it that each job had the turn.
  std::map<std::string, double> run(Duration time) {
    std::map<std::string, double> parts;
    const auto count = time / kSample;
    for (int i = 0; i < count; ++i) {
      now_ += kSample;
      node_.sample(now_);
      for (const auto& [job, pid] : pids_) {
        if (has_turn(job)) parts[job] += 1.0 / static_cast<double>(count);
      }
    }
    return parts;
  }

  static constexpr Duration kSample = 10ms;
  TimePoint now_{1h};
  NodeCoordinator node_{CoordinatorConfig{}, device(), 77, 5, now_};
  std::map<std::string, wire::Change> told_;
  std::map<std::string, std::int64_t> pids_;
};

TEST_F(JobPaceTest, EveryLawCanBeAskedForAndChanged) {
  for (const wire::LawId law : wire::kLaws) {
    const std::string name{wire::to_string(law)};
    join(hello("o-" + name, JobClass::kOpportunistic, name));
    EXPECT_EQ(entry("o-" + name).law, name);
  }
  join(hello("o", JobClass::kOpportunistic));
  for (const wire::LawId law : wire::kLaws) {
    const std::string name{wire::to_string(law)};
    EXPECT_EQ(set_law("o", name).outcome, wire::Outcome::kApplied);
    EXPECT_EQ(told_.at("o").terms.law, name);
    EXPECT_EQ(entry("o").law, name);
  }
}

TEST_F(JobPaceTest, WhatCannotBeIsRefusedWithTheValueAndChangesNothing) {
  join(hello("o", JobClass::kOpportunistic));
  join(hello("g", JobClass::kGuaranteed));
  const auto refused = [&](const std::string& job,
                           const std::function<void(wire::SetRequest&)>& change) {
    told_.clear();
    const wire::SetReply reply = set(job, change);
    EXPECT_EQ(reply.outcome, wire::Outcome::kRefused);
    EXPECT_TRUE(told_.empty());
    return reply.reason;
  };
  EXPECT_THAT(refused("o", [](auto& r) { r.terms.law = "jungle"; }),
              HasSubstr("no pacing law 'jungle' (gap, duty_cycle, antman"));
  for (const double slo : {0.0, -0.01, 0.51, 7.0}) {
    EXPECT_THAT(refused("g", [&](auto& r) { r.terms.slo = slo; }),
                HasSubstr("slo must be above 0 and at most 50 %: "));
  }
  EXPECT_THAT(refused("g", [](auto& r) { r.terms.slo = 0.51; }), HasSubstr("51 %"));
  EXPECT_THAT(refused("o", [](auto& r) { r.terms.slo = 0.02; }), HasSubstr("opportunistic"));
  EXPECT_THAT(refused("g", [](auto& r) { r.terms.idle_class = true; }), HasSubstr("stays out"));
  EXPECT_THAT(refused("g", [](auto& r) { r.terms.affinity = true; }), HasSubstr("all its cores"));
  EXPECT_THAT(refused("g", [](auto& r) { r.terms.sm_share = 0.5; }),
              HasSubstr("all multiprocessors"));
  for (const double share : {0.0, -0.5, 1.5}) {
    EXPECT_THAT(refused("o", [&](auto& r) { r.terms.sm_share = share; }), HasSubstr("at most 1: "));
  }
  EXPECT_EQ(entry("o").law, "gap");
  EXPECT_EQ(entry("o").slo, 0.01);
  // All or nothing: a wrong law keeps a right share from being applied.
  (void)refused("o", [](auto& r) {
    r.terms.share = ShareRange{0.0, 0.5};
    r.terms.law = "jungle";
  });
  EXPECT_EQ(entry("o").share_max, 1.0);
}

TEST_F(JobPaceTest, TheStrictestGuaranteedJobSetsTheSlo) {
  join(hello("o", JobClass::kOpportunistic));
  EXPECT_EQ(entry("o").slo, 0.01) << "the coordinator's own";
  wire::Register lenient = hello("g", JobClass::kGuaranteed);
  lenient.terms.slo = 0.05;
  join(lenient);
  EXPECT_EQ(entry("o").slo, 0.05);
  wire::Register strict = hello("h", JobClass::kGuaranteed);
  strict.terms.slo = 0.02;
  join(strict);
  EXPECT_EQ(entry("o").slo, 0.02);
  EXPECT_EQ(set("h", [](auto& r) { r.terms.slo = 0.1; }).reason, "slo 10 %");
  EXPECT_EQ(told_.at("h").terms.slo, 0.1) << "says it again when it registers again";
  EXPECT_EQ(entry("o").slo, 0.05);
  EXPECT_EQ(node_.status("g", now_)["jobs"][0]["slo"], 0.05);
  EXPECT_TRUE(node_.status("o", now_)["jobs"][0]["slo"].is_null());
}

TEST_F(JobPaceTest, AnSloThatCannotBeIsToldAndNotTaken) {
  wire::Register wrong = hello("g", JobClass::kGuaranteed);
  wrong.terms.slo = 0.7;
  EXPECT_THAT(join(wrong), HasSubstr("70 %"));
  EXPECT_EQ(node_.status("g", now_)["jobs"][0]["slo"], 0.01);
  wrong = hello("o", JobClass::kOpportunistic);
  wrong.terms.slo = 0.02;
  EXPECT_THAT(join(wrong), HasSubstr("opportunistic"));
}

TEST_F(JobPaceTest, TwoGuaranteedJobsAreBothProtectedAndToldSo) {
  EXPECT_EQ(join(hello("g", JobClass::kGuaranteed)), "");
  EXPECT_THAT(join(hello("h", JobClass::kGuaranteed)), HasSubstr("another guaranteed job, 'g'"));
  join(hello("o", JobClass::kOpportunistic));
  EXPECT_GT(entry("g").lease_until, now_);
  EXPECT_GT(entry("h").lease_until, now_);
  EXPECT_EQ(join(hello("p", JobClass::kOpportunistic)), "");
}

TEST_F(JobPaceTest, TheIdleClassIsChangedByAMessage) {
  join(hello("o", JobClass::kOpportunistic));
  EXPECT_EQ(set("o", [](auto& r) { r.terms.idle_class = false; }).reason, "idle_class off");
  EXPECT_EQ(told_.at("o").terms.idle_class, false);
  EXPECT_EQ(set("o", [](auto& r) { r.terms.affinity = false; }).reason, "affinity off");
  EXPECT_EQ(told_.at("o").terms.affinity, false);
  EXPECT_EQ(set("o", [](auto& r) { r.terms.affinity = true; }).reason, "affinity on");
  EXPECT_FALSE(told_.at("o").terms.law);
}

TEST_F(JobPaceTest, TheShareOfTheMultiprocessorsIsChangedByAMessage) {
  join(hello("o", JobClass::kOpportunistic));
  EXPECT_EQ(set("o", [](auto& r) { r.terms.sm_share = 0.25; }).reason, "sm_share 0.25");
  EXPECT_EQ(told_.at("o").terms.sm_share, 0.25);
}

TEST_F(JobPaceTest, OnlyTheGapLawIsClosedForABaseline) {
  join(hello("g", JobClass::kGuaranteed));
  join(hello("o", JobClass::kOpportunistic, "rate_aimd"));
  std::uint64_t step = 0;
  const auto some_window_closes = [&] {
    bool closed = false;
    for (int i = 0; i < 2000; ++i) {
      now_ += 50ms;
      show("g", ++step, false);
      node_.sample(now_);
      closed = closed || entry("o").share_max == 0.0;
    }
    return closed;
  };
  EXPECT_FALSE(some_window_closes());
  EXPECT_EQ(entry("o").share_min, 0.0) << "no trickle of the controller's";
  EXPECT_THAT(node_.status("o", now_)["jobs"][0]["share"]["reason"], "paced by its own law");
  set_law("o", "gap");
  EXPECT_TRUE(some_window_closes());
}

// --- how often is looked
// ---------------------------------------------------------------------------

TEST_F(JobPaceTest, JobsThatDoNothingAreLookedAtLessOften) {
  join(hello("g", JobClass::kGuaranteed));
  join(hello("o", JobClass::kOpportunistic));
  show("g", 1, false);
  EXPECT_EQ(node_.sampling_period(now_), 20ms);
  now_ += 900ms;
  show("g", 1, false);
  EXPECT_EQ(node_.sampling_period(now_), 20ms);
  now_ += 100ms;
  show("g", 1, false);
  EXPECT_EQ(node_.sampling_period(now_), 100ms) << "its heartbeat is no news";
  show("g", 1, true);
  EXPECT_EQ(node_.sampling_period(now_), 20ms) << "it waits";
  now_ += 1s;
  show("g", 2, true);
  EXPECT_EQ(node_.sampling_period(now_), 20ms) << "a step";
  now_ += 1s;
  show("o", 7, true);
  EXPECT_EQ(node_.sampling_period(now_), 100ms)
      << "what an opportunistic one does is its own matter";
}

TEST_F(JobPaceTest, WindowsAndTurnsAndGangsAreLookedAtOften) {
  join(hello("g", JobClass::kGuaranteed));
  join(hello("o", JobClass::kOpportunistic));
  bool closed = false;
  for (std::uint64_t step = 1; step < 200 && !closed; ++step) {
    show("g", step, false);
    (void)run(50ms);
    closed = entry("o").share_max == 0.0;
  }
  ASSERT_TRUE(closed);
  now_ += 1s;
  EXPECT_EQ(node_.sampling_period(now_), 20ms) << "a window ends by itself";
  for (int i = 0; i < 1000 && entry("o").share_max == 0.0; ++i) (void)run(20ms);
  now_ += 1s;
  EXPECT_EQ(node_.sampling_period(now_), 100ms);
  wire::Register rank = hello("gang", JobClass::kOpportunistic);
  rank.world_size = 2;
  join(rank);
  EXPECT_EQ(node_.sampling_period(now_), 20ms) << "its ranks stop together";
}

// --- turns ---------------------------------------------------------------------------------------

TEST_F(JobPaceTest, TurnsAreGivenAmongThoseWhoseLawNeedsThem) {
  for (const char* id : {"a", "b"}) {
    wire::Register job = hello(id, JobClass::kOpportunistic, "token_window");
    job.terms.share = {id[0] == 'a' ? 0.7 : 0.3, 1.0};
    join(job);
  }
  join(hello("c", JobClass::kOpportunistic, "gap"));
  run(10s);
  EXPECT_TRUE(node_.wants_sampling());
  const auto parts = run(20s);
  EXPECT_NEAR(parts.at("a"), 0.7, 0.06);
  EXPECT_NEAR(parts.at("b"), 0.3, 0.06);
  EXPECT_EQ(parts.count("c"), 0U);
  EXPECT_EQ(entry("c").turn_until, TimePoint{}) << "no turns for other laws";
  const bool one = has_turn("a") != has_turn("b");
  EXPECT_TRUE(one) << "never both";
}

TEST_F(JobPaceTest, WhoIsAloneNeedsNoTurns) {
  join(hello("a", JobClass::kOpportunistic, "token_window"));
  run(1s);
  EXPECT_EQ(entry("a").turn_until, TimePoint{});
  EXPECT_FALSE(node_.wants_sampling());
  join(hello("b", JobClass::kOpportunistic, "token_window"));
  run(1s);
  EXPECT_NE(entry("a").turn_until, TimePoint{});
  set_law("b", "open");
  run(1s);
  EXPECT_EQ(entry("a").turn_until, TimePoint{});
}

TEST_F(JobPaceTest, ALimitHoldsAlone) {
  wire::Register job = hello("a", JobClass::kOpportunistic, "token_window");
  job.terms.share = {0.0, 0.25};
  join(job);
  run(10s);
  EXPECT_NEAR(run(20s).at("a"), 0.25, 0.03);
}

TEST_F(JobPaceTest, AGuaranteedJobTakesTurnsWhileItIsBusy) {
  join(hello("g", JobClass::kGuaranteed));
  join(hello("o", JobClass::kOpportunistic, "token_window"));
  show("g", 1, false);
  run(10s);
  EXPECT_LT(run(5s)["o"], 0.1) << "it requests all that others do not";
  show("g", 2, true);
  EXPECT_GT(run(5s)["o"], 0.9);
  EXPECT_EQ(entry("g").turn_until, TimePoint{}) << "nobody's ops wait there";
}

TEST_F(JobPaceTest, APausedJobGetsNoTurn) {
  join(hello("a", JobClass::kOpportunistic, "token_window"));
  join(hello("b", JobClass::kOpportunistic, "token_window"));
  set("a", [](auto& r) { r.paused = true; });
  const auto parts = run(5s);
  EXPECT_EQ(parts.count("a"), 0U);
  EXPECT_GT(parts.at("b"), 0.95);
}

}  // namespace
}  // namespace commensal::node::job_pace_test

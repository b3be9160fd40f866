// SPDX-License-Identifier: Apache-2.0
// Asking a node to change a job's class: what each answer means, and that nobody waits for it.
#include "coordinator/cluster/node_classes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/wire/control_client.h"

namespace commensal::cluster::node_classes_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

JobRecord job_7() {
  JobRecord job;
  job.id = JobId{"7"};
  job.attempt = 2;
  job.placement = {{"n1", 0}};
  return job;
}

wire::SetReply reply(wire::Outcome outcome, const std::string& reason) {
  return {.job_id = "job-7.2", .revision = 1, .outcome = outcome, .reason = reason};
}

/// Asks for an upgrade of job 7 and waits for what comes of it.
ClassChanger::Outcome outcome_of(NodeClasses::Ask ask, int tries = 3) {
  NodeClasses classes{std::move(ask), 1ms, tries};
  classes.change(job_7(), JobClass::kGuaranteed);
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (std::chrono::steady_clock::now() < deadline) {
    auto outcomes = classes.outcomes();
    if (!outcomes.empty()) return outcomes.front();
    std::this_thread::sleep_for(1ms);
  }
  ADD_FAILURE() << "no outcome";
  return {};
}

TEST(NodeClassesTest, AsksForTheAttemptByItsNameAtTheNode) {
  wire::SetRequest asked;
  const auto outcome =
      outcome_of([&](const std::string&, const wire::Message& message) -> wire::Message {
        asked = std::get<wire::SetRequest>(message);
        return reply(wire::Outcome::kApplied, "");
      });
  EXPECT_EQ(asked.job, "job-7.2");
  EXPECT_EQ(asked.job_class, JobClass::kGuaranteed);
  EXPECT_TRUE(outcome.changed);
  EXPECT_EQ(outcome.attempt, (Attempt{JobId{"7"}, 2}));
  EXPECT_FALSE(outcome.reason.empty());
}

TEST(NodeClassesTest, AsksAgainWhileTheNodeDefersAndNotForEver) {
  std::atomic<int> asked = 0;
  const auto applied = outcome_of([&](const std::string&, const wire::Message&) -> wire::Message {
    return ++asked < 3 ? reply(wire::Outcome::kDeferred, "memory is on its way")
                       : reply(wire::Outcome::kApplied, "");
  });
  EXPECT_TRUE(applied.changed);
  EXPECT_EQ(asked, 3);
  const auto given_up = outcome_of([&](const std::string&, const wire::Message&) -> wire::Message {
    return reply(wire::Outcome::kDeferred, "memory is on its way");
  });
  EXPECT_FALSE(given_up.changed);
  EXPECT_EQ(given_up.reason, "memory is on its way");
}

TEST(NodeClassesTest, ARefusalHasTheNodesReason) {
  const auto refused = outcome_of([](const std::string&, const wire::Message&) -> wire::Message {
    return reply(wire::Outcome::kRefused, "8 GiB never fit");
  });
  EXPECT_FALSE(refused.changed);
  EXPECT_EQ(refused.reason, "8 GiB never fit");
  const auto failed = outcome_of([](const std::string&, const wire::Message&) -> wire::Message {
    return wire::Error{.code = "malformed", .what = "no such field"};
  });
  EXPECT_FALSE(failed.changed);
  EXPECT_EQ(failed.reason, "no such field");
}

/// What becomes of a refusal by a node that shows these jobs.
wire::SetReply refused_beside(const nlohmann::json& jobs) {
  wire::SetRequest change;
  change.job = "job-7.2";
  const auto answer = ask_patiently(
      [&](const wire::Message& asked) -> wire::Message {
        if (std::holds_alternative<wire::StatusRequest>(asked)) {
          EXPECT_EQ(std::get<wire::StatusRequest>(asked).job, "job-7.2");
          return wire::StatusReply{{{"jobs", jobs}}};
        }
        return wire::SetReply{"job-7.2", 0, wire::Outcome::kRefused, "no, for a reason"};
      },
      change);
  return std::get<wire::SetReply>(answer);
}

TEST(NodeClassesTest, AJobThatItsNodeDoesNotKnowYetIsAskedForAgain) {
  const nlohmann::json other{{"job", {{"id", "job-7.1"}}}, {"ended", false}};
  const nlohmann::json over{{"job", {{"id", "job-7.2"}}}, {"ended", true}};
  const nlohmann::json runs{{"job", {{"id", "job-7.2"}}}, {"ended", false}};
  for (const auto& jobs : {nlohmann::json::array(), nlohmann::json::array({other, over})}) {
    EXPECT_EQ(refused_beside(jobs).outcome, wire::Outcome::kDeferred) << jobs;
    EXPECT_THAT(refused_beside(jobs).reason, HasSubstr("has not imported PyTorch"));
  }
  EXPECT_EQ(refused_beside(nlohmann::json::array({runs})).outcome, wire::Outcome::kRefused);
  EXPECT_EQ(refused_beside(nlohmann::json::array({other, runs})).reason, "no, for a reason");
}

TEST(NodeClassesTest, WhatIsNoRefusalIsHandedOnAsItIs) {
  int asked = 0;
  const auto answer = ask_patiently(
      [&](const wire::Message&) -> wire::Message {
        ++asked;
        return wire::SetReply{"job-7.2", 3, wire::Outcome::kApplied, ""};
      },
      wire::SetRequest{});
  EXPECT_EQ(std::get<wire::SetReply>(answer).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(asked, 1);
}

TEST(NodeClassesTest, AJobThatTheNodeDoesNotKnowIsChargedOtherwiseOnly) {
  const auto outcome = outcome_of([](const std::string&, const wire::Message&) -> wire::Message {
    return wire::Error{.code = "unknown_job", .what = "no job job-7.2"};
  });
  EXPECT_TRUE(outcome.changed);
  EXPECT_THAT(outcome.reason, HasSubstr("only its charge changes"));
}

TEST(NodeClassesTest, ANodeThatDoesNotAnswerIsAskedAgainThenGivenUp) {
  std::atomic<int> asked = 0;
  const auto outcome = outcome_of([&](const std::string&, const wire::Message&) -> wire::Message {
    ++asked;
    throw wire::CoordinatorUnreachable("nobody listens");
  });
  EXPECT_FALSE(outcome.changed);
  EXPECT_EQ(outcome.reason, "nobody listens");
  EXPECT_EQ(asked, 3);
}

/// Asks for another class of a job on three nodes.
ClassChanger::Outcome outcome_on_three(NodeClasses::Ask ask,
                                       JobClass job_class = JobClass::kGuaranteed) {
  NodeClasses classes{std::move(ask), 1ms, 3};
  JobRecord job = job_7();
  job.placement = {{"n1", 0}, {"n1", 1}, {"n2", 0}, {"n3", 0}};
  classes.change(job, job_class);
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (std::chrono::steady_clock::now() < deadline) {
    auto outcomes = classes.outcomes();
    if (!outcomes.empty()) return outcomes.front();
    std::this_thread::sleep_for(1ms);
  }
  ADD_FAILURE() << "no outcome";
  return {};
}

std::string asked_of(const std::string& node, const wire::Message& message) {
  return node + ' ' + std::string{to_string(std::get<wire::SetRequest>(message).job_class.value())};
}

TEST(NodeClassesTest, EachNodeOfAJobIsAskedOnceThoughOneDefers) {
  std::vector<std::string> asked;
  const auto outcome =
      outcome_on_three([&](const std::string& node, const wire::Message& message) -> wire::Message {
        asked.push_back(asked_of(node, message));
        return asked.size() == 2 ? reply(wire::Outcome::kDeferred, "wait")
                                 : reply(wire::Outcome::kApplied, "");
      });
  EXPECT_TRUE(outcome.changed);
  EXPECT_FALSE(outcome.reason.empty());
  EXPECT_EQ(asked, (std::vector<std::string>{"n1 guaranteed", "n2 guaranteed", "n2 guaranteed",
                                             "n3 guaranteed"}));
}

TEST(NodeClassesTest, OneThatGoesDownStaysDownWhereANodeCouldBeTold) {
  std::vector<std::string> asked;
  const auto outcome = outcome_on_three(
      [&](const std::string& node, const wire::Message& message) -> wire::Message {
        asked.push_back(asked_of(node, message));
        return node == "n2" ? reply(wire::Outcome::kRefused, "not now")
                            : reply(wire::Outcome::kApplied, "");
      },
      JobClass::kOpportunistic);
  EXPECT_FALSE(outcome.changed);
  EXPECT_EQ(outcome.asked, JobClass::kOpportunistic);
  EXPECT_EQ(outcome.reason, "node n2: not now");
  EXPECT_EQ(asked, (std::vector<std::string>{"n1 opportunistic", "n2 opportunistic"}));
}

TEST(NodeClassesTest, WhereOneNodeRefusesTheOthersGoBack) {
  std::vector<std::string> asked;
  const auto outcome =
      outcome_on_three([&](const std::string& node, const wire::Message& message) -> wire::Message {
        asked.push_back(asked_of(node, message));
        if (node == "n3") return reply(wire::Outcome::kRefused, "8 GiB never fit");
        const bool back = std::get<wire::SetRequest>(message).job_class == JobClass::kOpportunistic;
        return back && node == "n2" ? reply(wire::Outcome::kRefused, "not now")
                                    : reply(wire::Outcome::kApplied, "");
      });
  EXPECT_FALSE(outcome.changed);
  EXPECT_EQ(outcome.reason, "node n3: 8 GiB never fit; node n2 stays: not now");
  EXPECT_EQ(asked, (std::vector<std::string>{"n1 guaranteed", "n2 guaranteed", "n3 guaranteed",
                                             "n1 opportunistic", "n2 opportunistic"}));
}

TEST(NodeClassesTest, AskingTwiceIsAskingOnce) {
  std::atomic<int> asked = 0;
  std::atomic<bool> go = false;
  NodeClasses classes{[&](const std::string&, const wire::Message&) -> wire::Message {
                        ++asked;
                        while (!go) std::this_thread::yield();
                        return reply(wire::Outcome::kApplied, "");
                      },
                      1ms, 3};
  classes.change(job_7(), JobClass::kGuaranteed);
  classes.change(job_7(), JobClass::kGuaranteed);
  while (asked == 0) std::this_thread::yield();
  EXPECT_TRUE(classes.outcomes().empty()) << "nobody waits for a node";
  go = true;
  std::size_t count = 0;
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (count == 0 && std::chrono::steady_clock::now() < deadline) {
    count += classes.outcomes().size();
    std::this_thread::yield();
  }
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(asked, 1);
}

TEST(NodeClassesTest, GoesWithoutWaitingForItsTries) {
  NodeClasses classes{[](const std::string&, const wire::Message&) -> wire::Message {
                        return reply(wire::Outcome::kDeferred, "x");
                      },
                      1h, 1'000};
  classes.change(job_7(), JobClass::kGuaranteed);
}

}  // namespace
}  // namespace commensal::cluster::node_classes_test

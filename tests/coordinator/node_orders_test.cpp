// SPDX-License-Identifier: Apache-2.0
// Orders that go out with answers to heartbeats: repeated, replaced, answered, forgotten.
#include "coordinator/cluster/node_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/cluster/node_exchange.h"
#include "coordinator/cluster/node_reports.h"

namespace commensal::cluster::node_orders_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;

class HeldClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return at; }
  TimePoint at{1h};
};

json report(const std::vector<std::string>& jobs) {
  json list = json::array();
  for (const std::string& job : jobs) list.push_back({{"id", job}});
  return {{"devices", json::array()}, {"jobs", std::move(list)}};
}

class NodeOrdersTest : public ::testing::Test {
 protected:
  json beat(const std::string& node, json results = json::array(),
            const std::vector<std::string>& jobs = {"job-7.1", "job-8.1"}) {
    return orders_.exchange(node, report(jobs),
                            {{"beat", ++beat_}, {"run", "r1"}, {"results", std::move(results)}});
  }
  wire::SetReply ask(const std::string& job = "job-7.1",
                     JobClass job_class = JobClass::kGuaranteed) {
    return orders_.ask("n1", job, job_class, 0ms);
  }
  static json result(const json& answer, const std::string& outcome, const std::string& reason) {
    return json::array({{{"number", answer.at("list").at(0).at("number")},
                         {"outcome", outcome},
                         {"reason", reason}}});
  }

  HeldClock clock_;
  NodeOrders orders_{"r1", clock_};
  unsigned beat_ = 0;
};

TEST_F(NodeOrdersTest, AnOrderIsRepeatedUntilItsResultHasCome) {
  EXPECT_EQ(beat("n1")["list"], json::array());
  EXPECT_EQ(ask().outcome, wire::Outcome::kDeferred);
  const json first = beat("n1");
  ASSERT_EQ(first["list"].size(), 1U);
  EXPECT_EQ(first["run"], "r1");
  EXPECT_EQ(first["beat"], 2);
  EXPECT_EQ(first["list"][0]["job"], "job-7.1");
  EXPECT_EQ(first["list"][0]["class"], "guaranteed");
  EXPECT_EQ(beat("n1")["list"], first["list"]);
  EXPECT_EQ(ask().outcome, wire::Outcome::kDeferred) << "to ask again is the same order";
  EXPECT_EQ(beat("n1")["list"], first["list"]);
  EXPECT_EQ(beat("n1", result(first, "applied", "it has its floor"))["list"], json::array());
  const wire::SetReply done = ask();
  EXPECT_EQ(done.outcome, wire::Outcome::kApplied);
  EXPECT_EQ(done.reason, "it has its floor");
  EXPECT_EQ(orders_.size(), 0U) << "its end is told once";
}

TEST_F(NodeOrdersTest, WhatANodePutOffIsAskedForUntilItIsDecided) {
  (void)beat("n1");
  (void)ask();
  const json first = beat("n1");
  EXPECT_EQ(beat("n1", result(first, "deferred", "waits for 2 GiB"))["list"], first["list"]);
  EXPECT_EQ(ask().reason, "waits for 2 GiB");
  (void)beat("n1", result(first, "refused", "8 GiB never fit"));
  EXPECT_EQ(ask().outcome, wire::Outcome::kRefused);
}

TEST_F(NodeOrdersTest, OnlyTheNodeThatWasAskedMayAnswer) {
  (void)beat("n1");
  (void)beat("n2");
  (void)ask();
  const json order = beat("n1");
  EXPECT_EQ(beat("n2")["list"], json::array());
  (void)beat("n2", result(order, "applied", "so I say"));
  EXPECT_EQ(ask().outcome, wire::Outcome::kDeferred);
}

TEST_F(NodeOrdersTest, ANewerOrderTakesThePlaceOfTheOlderOne) {
  (void)beat("n1");
  (void)ask();
  const json older = beat("n1");
  (void)ask("job-7.1", JobClass::kOpportunistic);
  const json newer = beat("n1", result(older, "applied", "guaranteed now"));
  ASSERT_EQ(newer["list"].size(), 1U);
  EXPECT_EQ(newer["list"][0]["class"], "opportunistic");
  EXPECT_GT(newer["list"][0]["number"], older["list"][0]["number"]);
  EXPECT_EQ(ask("job-7.1", JobClass::kOpportunistic).outcome, wire::Outcome::kDeferred)
      << "the answer to the older one is none to this one";
}

TEST_F(NodeOrdersTest, AResultOfAnotherRunMeansNothing) {
  (void)beat("n1");
  (void)ask();
  const json order = beat("n1");
  json told{{"beat", 9U}, {"run", "r0"}, {"results", result(order, "applied", "before")}};
  (void)orders_.exchange("n1", report({"job-7.1"}), told);
  EXPECT_EQ(ask().outcome, wire::Outcome::kDeferred);
}

TEST_F(NodeOrdersTest, SaysWhyANodeIsNotReached) {
  EXPECT_THAT(ask().reason, HasSubstr("n1 does not report"));
  EXPECT_EQ(orders_.size(), 0U);
  EXPECT_EQ(orders_.exchange("n1", report({"job-7.1"}), nullptr), nullptr);
  EXPECT_THAT(ask().reason, HasSubstr("takes no orders")) << "an older program";
  (void)beat("n1");
  EXPECT_TRUE(orders_.reaches("n1", "job-7.1"));
  EXPECT_THAT(orders_.why_not("n1", "job-9.1"), HasSubstr("reports no job job-9.1"));
  EXPECT_EQ(ask("job-9.1").outcome, wire::Outcome::kDeferred);
  clock_.at += NodeReports::kSilent;
  EXPECT_FALSE(orders_.reaches("n1", "job-7.1"));
  EXPECT_THAT(ask().reason, HasSubstr("silent for 5 s"));
  EXPECT_EQ(orders_.size(), 0U);
  EXPECT_EQ(ask(std::string(wire::kLongestOrderedJob + 1, 'x')).outcome, wire::Outcome::kRefused);
}

TEST_F(NodeOrdersTest, OfANodeThatFallsSilentTheReasonSaysSo) {
  (void)beat("n1");
  EXPECT_THAT(ask().reason, HasSubstr("told with its heartbeats"));
  clock_.at += NodeReports::kSilent;
  EXPECT_THAT(ask().reason, HasSubstr("silent for 5 s"));
  EXPECT_EQ(beat("n1")["list"].size(), 1U) << "it is told when it comes back";
}

TEST_F(NodeOrdersTest, OrdersOfANodeAreBounded) {
  std::vector<std::string> jobs;
  for (std::size_t i = 0; i <= wire::kMostOrders; ++i) jobs.push_back("j" + std::to_string(i));
  (void)beat("n1", json::array(), jobs);
  for (std::size_t i = 0; i < wire::kMostOrders; ++i) (void)ask(jobs[i]);
  EXPECT_THAT(ask(jobs.back()).reason, HasSubstr("64 other changes wait"));
  EXPECT_EQ(orders_.size(), wire::kMostOrders);
  EXPECT_EQ(beat("n1", json::array(), jobs)["list"].size(), wire::kMostOrders);
}

TEST_F(NodeOrdersTest, WhatNobodyAsksForAnyMoreIsForgotten) {
  (void)beat("n1");
  (void)ask();
  (void)ask("job-8.1");
  clock_.at += NodeOrders::kKept - 1ns;
  (void)beat("n1");
  (void)ask("job-8.1");
  clock_.at += 1ns;
  orders_.expire();
  EXPECT_EQ(orders_.size(), 1U);
  EXPECT_EQ(beat("n1")["list"][0]["job"], "job-8.1");
  clock_.at += NodeReports::kForgotten;
  orders_.expire();
  EXPECT_EQ(orders_.size(), 0U);
  EXPECT_THAT(ask().reason, HasSubstr("does not report"));
}

TEST_F(NodeOrdersTest, WhatIsNoResultIsRefusedAndChangesNothing) {
  (void)beat("n1");
  (void)ask();
  const json order = beat("n1");
  const json number = order["list"][0]["number"];
  json many = json::array();
  for (std::size_t i = 0; i <= wire::kMostOrders; ++i) {
    many.push_back({{"number", i}, {"outcome", "applied"}, {"reason", ""}});
  }
  const auto results = [](json list) {
    return json{{"beat", 1U}, {"run", "r1"}, {"results", std::move(list)}};
  };
  for (const json& bad :
       {json(7), json("x"), json::array(), json::object(),
        json{{"beat", -1}, {"run", "r1"}, {"results", json::array()}},
        json{{"beat", 1U}, {"run", 3}, {"results", json::array()}}, results(3),
        results(json::array({3})), results(many),
        results(json::array({{{"number", number}, {"outcome", "done"}, {"reason", ""}}})),
        results(json::array({{{"number", "1"}, {"outcome", "applied"}, {"reason", ""}}})),
        results(json::array({{{"number", number}, {"outcome", "applied"}}})),
        results(json::array({{{"number", number},
                              {"outcome", "applied"},
                              {"reason", std::string(wire::kLongestOrderReason + 1, 'x')}}}))}) {
    EXPECT_THROW((void)orders_.exchange("n1", report({}), bad), std::invalid_argument)
        << bad.dump();
    EXPECT_THROW((void)orders_.exchange("n9", report({}), bad), std::invalid_argument);
  }
  EXPECT_TRUE(orders_.reaches("n1", "job-7.1")) << "the report of before counts";
  EXPECT_THAT(orders_.why_not("n9", "x"), HasSubstr("does not report"));
  EXPECT_EQ(ask().outcome, wire::Outcome::kDeferred);
}

TEST_F(NodeOrdersTest, WhoWaitsHearsTheResultWhenItComes) {
  (void)beat("n1");
  std::thread node([this] {
    json answer = beat("n1");
    while (answer["list"].empty()) {
      std::this_thread::yield();
      answer = beat("n1");
    }
    (void)beat("n1", result(answer, "applied", "done"));
  });
  EXPECT_EQ(orders_.ask("n1", "job-7.1", JobClass::kGuaranteed, 1h).outcome,
            wire::Outcome::kApplied);
  node.join();
}

TEST_F(NodeOrdersTest, NobodyWaitsForANodeOnceItIsStopped) {
  (void)beat("n1");
  std::thread stops([this] { orders_.stop(); });
  EXPECT_EQ(orders_.ask("n1", "job-7.1", JobClass::kGuaranteed, 1h).outcome,
            wire::Outcome::kDeferred);
  stops.join();
}

TEST_F(NodeOrdersTest, WhoWaitsForAnOrderThatIsReplacedIsRefused) {
  (void)beat("n1");
  std::thread other([this] {
    while (beat("n1")["list"].empty()) std::this_thread::yield();
    (void)ask("job-7.1", JobClass::kOpportunistic);
    orders_.stop();
  });
  EXPECT_EQ(orders_.ask("n1", "job-7.1", JobClass::kGuaranteed, 1h).outcome,
            wire::Outcome::kRefused);
  other.join();
}

TEST(NewRunTest, NoTwoAreTheSame) { EXPECT_NE(new_run(), new_run()); }

}  // namespace
}  // namespace commensal::cluster::node_orders_test

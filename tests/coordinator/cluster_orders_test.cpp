// SPDX-License-Identifier: Apache-2.0
// Orders at a node: once each, none that is old, and what came of them told until it is known.
#include "coordinator/node/cluster_orders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace commensal::node::cluster_orders_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json order(std::uint64_t number, const std::string& job = "job-7.1",
           const std::string& job_class = "guaranteed") {
  return {{"number", number}, {"job", job}, {"class", job_class}};
}

json list(json::initializer_list_t entries) { return json::array(entries); }

class ClusterOrdersTest : public ::testing::Test {
 protected:
  /// What is to be done when these orders come with the answer to the next heartbeat.
  std::vector<wire::NodeOrder> take(const json& entries, const std::string& run = "r1") {
    beat_ = orders_.tell().at("beat");
    orders_.take(part(entries, run));
    return orders_.to_carry_out();
  }
  [[nodiscard]] json part(const json& entries, const std::string& run = "r1") const {
    return {{"run", run}, {"beat", beat_}, {"list", entries}};
  }
  json results() {
    const json told = orders_.tell();
    beat_ = told.at("beat");
    return told.at("results");
  }

  ClusterOrders orders_;
  std::uint64_t beat_ = 0;
};

TEST_F(ClusterOrdersTest, AnOrderIsDoneOnceThoughItComesAgain) {
  const auto first = take(list({order(4)}));
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].number, 4U);
  EXPECT_EQ(first[0].job, "job-7.1");
  EXPECT_EQ(first[0].job_class, JobClass::kGuaranteed);
  EXPECT_TRUE(take(list({order(4)})).empty()) << "while it is under way";
  EXPECT_EQ(results(), json::array()) << "nothing is known yet";
  orders_.heard(4, wire::Outcome::kApplied, "done");
  EXPECT_EQ(results(), list({{{"number", 4}, {"outcome", "applied"}, {"reason", "done"}}}));
  EXPECT_TRUE(take(list({order(4)})).empty()) << "the result was lost: it is told again";
  EXPECT_EQ(results().size(), 1U);
  EXPECT_TRUE(take(json::array()).empty());
  EXPECT_EQ(results(), json::array()) << "the coordinator knows it";
}

TEST_F(ClusterOrdersTest, WhatWasPutOffIsTriedAgainEachTimeItComes) {
  ASSERT_EQ(take(list({order(1)})).size(), 1U);
  orders_.heard(1, wire::Outcome::kDeferred, "waits for 2 GiB");
  EXPECT_EQ(results()[0]["outcome"], "deferred");
  EXPECT_EQ(take(list({order(1)})).size(), 1U);
  EXPECT_TRUE(take(list({order(1)})).empty()) << "one question at a time";
  orders_.heard(1, wire::Outcome::kApplied, "");
  EXPECT_TRUE(take(list({order(1)})).empty());
}

TEST_F(ClusterOrdersTest, AnOlderOrderNeverUndoesANewerOne) {
  ASSERT_EQ(take(list({order(5)})).size(), 1U);
  orders_.heard(5, wire::Outcome::kApplied, "");
  EXPECT_TRUE(take(list({order(3, "job-7.1", "opportunistic")})).empty());
  const json told = results();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0]["number"], 3);
  EXPECT_EQ(told[0]["outcome"], "refused");
  EXPECT_THAT(told[0]["reason"].get<std::string>(), HasSubstr("order 3 is older"));
  EXPECT_EQ(take(list({order(4, "job-8.1")})).size(), 1U) << "of another job it is none";
}

TEST_F(ClusterOrdersTest, AnAnswerThatIsSentAgainIsRefused) {
  ASSERT_EQ(take(list({order(1)})).size(), 1U);
  const json old = part(list({order(9, "job-8.1")}));
  EXPECT_THROW(orders_.take(old), std::invalid_argument) << "that heartbeat is answered";
  EXPECT_TRUE(take(json::array()).empty());
  EXPECT_THROW(orders_.take(old), std::invalid_argument);
  EXPECT_TRUE(orders_.to_carry_out().empty());
  json future = part(list({order(9)}));
  future["beat"] = beat_ + 1;
  EXPECT_THROW(orders_.take(future), std::invalid_argument) << "nobody has asked for it";
}

TEST_F(ClusterOrdersTest, AnswersMayComeLateAndInOrder) {
  const json first = orders_.tell().at("beat");
  const json second = orders_.tell().at("beat");
  orders_.take({{"run", "r1"}, {"beat", first}, {"list", list({order(1)})}});
  orders_.take({{"run", "r1"}, {"beat", second}, {"list", list({order(1)})}});
  EXPECT_EQ(orders_.to_carry_out().size(), 1U);
}

TEST_F(ClusterOrdersTest, NumbersBeginAnewWithTheCoordinator) {
  ASSERT_EQ(take(list({order(7)})).size(), 1U);
  orders_.heard(7, wire::Outcome::kApplied, "");
  EXPECT_EQ(take(list({order(1)}), "r2").size(), 1U);
  EXPECT_EQ(results(), json::array()) << "results of the former one mean nothing to it";
  orders_.heard(7, wire::Outcome::kRefused, "late");
  EXPECT_EQ(results(), json::array());
  EXPECT_EQ(orders_.tell().at("run"), "r2");
}

TEST_F(ClusterOrdersTest, WithoutAnswersNothingHappens) {
  orders_.take(nullptr);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(results(), json::array());
  EXPECT_TRUE(orders_.to_carry_out().empty());
}

TEST_F(ClusterOrdersTest, WhatIsNoOrderIsRefusedAndChangesNothing) {
  ASSERT_EQ(take(list({order(1)})).size(), 1U);
  beat_ = orders_.tell().at("beat");
  json many = json::array();
  for (std::size_t i = 0; i <= wire::kMostOrders; ++i) many.push_back(order(i + 2));
  for (const json& bad :
       {json(3), json("x"), json::array(), json::object(), part(3), part(list({3})), part(many),
        part(list({order(0)})), part(list({order(2), order(3, "")})),
        part(list({order(2, "job-7.1", "king")})),
        part(list({order(2, std::string(wire::kLongestOrderedJob + 1, 'x'))})),
        part(list({{{"number", -2}, {"job", "j"}, {"class", "guaranteed"}}})),
        part(list({{{"number", 2U}, {"job", 7}, {"class", "guaranteed"}}})),
        part(list({{{"number", 2U}, {"job", "j"}}})),
        part(list({order(2)}), std::string(65, 'r'))}) {
    EXPECT_THROW(orders_.take(bad), std::invalid_argument) << bad.dump();
  }
  EXPECT_TRUE(orders_.to_carry_out().empty());
  orders_.take(part(list({order(2)})));
  EXPECT_EQ(orders_.to_carry_out().size(), 1U) << "a good answer to the same heartbeat counts";
}

TEST_F(ClusterOrdersTest, LongReasonsAreCut) {
  ASSERT_EQ(take(list({order(1)})).size(), 1U);
  orders_.heard(1, wire::Outcome::kRefused, std::string(10'000, 'x'));
  EXPECT_EQ(results()[0]["reason"].get<std::string>().size(), ClusterOrders::kLongestReason);
}

TEST_F(ClusterOrdersTest, MemoryIsBoundedAndWhatIsForgottenStaysOld) {
  for (std::uint64_t number = 1; number <= 2000; ++number) {
    ASSERT_EQ(take(list({order(number, "j" + std::to_string(number))})).size(), 1U);
    orders_.heard(number, wire::Outcome::kApplied, "");
  }
  EXPECT_TRUE(take(list({order(1, "j1")})).empty());
  EXPECT_EQ(results()[0]["outcome"], "refused");
}

// Whatever is lost on the way: each order is done, once, and its result arrives.
TEST_F(ClusterOrdersTest, ThroughANetworkThatLosesMuchEachOrderIsDoneOnce) {
  constexpr unsigned kSeed = 7;
  std::mt19937 random{kSeed};
  const auto lost = [&random] { return random() % 3 == 0; };
  std::set<std::uint64_t> open;
  std::multiset<std::uint64_t> done;
  std::uint64_t last = 0;
  for (int round = 0; round < 2000 || !open.empty(); ++round) {
    ASSERT_LT(round, 10'000) << "seed " << kSeed;
    if (round < 2000 && open.size() < 5) open.insert(++last);
    const json told = orders_.tell();
    if (lost()) continue;  // the heartbeat
    for (const json& entry : told.at("results")) {
      if (entry.at("outcome") == "applied") open.erase(entry.at("number").get<std::uint64_t>());
    }
    json wanted = json::array();
    for (const std::uint64_t number : open) {
      wanted.push_back(order(number, "j" + std::to_string(number)));
    }
    if (lost()) continue;  // its answer
    orders_.take({{"run", "r1"}, {"beat", told.at("beat")}, {"list", std::move(wanted)}});
    for (const auto& due : orders_.to_carry_out()) {
      const bool later = random() % 4 == 0;
      orders_.heard(due.number, later ? wire::Outcome::kDeferred : wire::Outcome::kApplied, "");
      if (!later) done.insert(due.number);
    }
  }
  for (std::uint64_t number = 1; number <= last; ++number) {
    EXPECT_EQ(done.count(number), 1U) << number << ", seed " << kSeed;
  }
}

}  // namespace
}  // namespace commensal::node::cluster_orders_test

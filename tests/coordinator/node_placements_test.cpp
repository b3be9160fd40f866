// SPDX-License-Identifier: Apache-2.0
// Lists of placements on their way to nodes: whole while they are new, a number alone from then on,
// and made when something has changed, not with each heartbeat.
#include "coordinator/cluster/node_placements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/node_reports.h"
#include "coordinator/node/cluster_placements.h"

namespace commensal::cluster::node_placements_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;
using wire::Placement;

Placement placed(const std::string& job, JobClass job_class = JobClass::kGuaranteed) {
  Placement placement;
  placement.id = "job-" + job + ".1";
  placement.job = job;
  placement.attempt = 1;
  placement.job_class = job_class;
  placement.devices = {"host"};
  return placement;
}

class FakeSource final : public PlacementSource {
 public:
  [[nodiscard]] std::uint64_t placement_revision(const std::string& node) const override {
    const auto found = revisions.find(node);
    return found == revisions.end() ? 1 : found->second;
  }
  [[nodiscard]] std::optional<std::vector<Placement>> placements_on(
      const std::string& node) const override {
    ++asked;
    if (!known) return std::nullopt;
    const auto found = lists.find(node);
    return found == lists.end() ? std::vector<Placement>{} : found->second;
  }
  void set(const std::string& node, std::vector<Placement> list) {
    lists[node] = std::move(list);
    revisions[node] = ++last;
  }

  std::map<std::string, std::vector<Placement>> lists;
  std::map<std::string, std::uint64_t> revisions;
  std::uint64_t last = 1;
  bool known = true;
  mutable int asked = 0;
};

class NodePlacementsTest : public ::testing::Test {
 protected:
  json beat(const std::string& node, std::uint64_t number, const std::string& run = "r1") {
    return placements_.exchange(node, {{"beat", ++beat_}, {"run", run}, {"number", number}}, now_);
  }
  std::string problem_with(const json& told) {
    try {
      (void)placements_.exchange("n1", told, now_);
    } catch (const std::invalid_argument& problem) {
      return problem.what();
    }
    return "none";
  }
  json shown(const std::string& node) {
    json answer{{"nodes", {{{"name", node}, {"report", json::object()}}, {{"name", "quiet"}}}}};
    placements_.add_to(answer);
    EXPECT_FALSE(answer["nodes"][1].contains("report"));
    return answer["nodes"][0]["report"]["placements"];
  }

  TimePoint now_{1h};
  FakeSource source_;
  NodePlacements placements_{source_, "r1"};
  std::uint64_t beat_ = 0;
};

TEST_F(NodePlacementsTest, AListGoesOutUntilItsNumberHasComeBack) {
  source_.set("n1", {placed("7")});
  const json first = beat("n1", 0, "");
  EXPECT_EQ(first["run"], "r1");
  EXPECT_EQ(first["beat"], 1);
  ASSERT_EQ(first["list"].size(), 1U);
  EXPECT_EQ(first["list"][0]["id"], "job-7.1");
  EXPECT_EQ(first["left_out"], 0);
  EXPECT_EQ(beat("n1", 0, "")["list"], first["list"]) << "the answer was lost";
  const json known = beat("n1", first["number"]);
  EXPECT_EQ(known["number"], first["number"]);
  EXPECT_FALSE(known.contains("list")) << "it costs nothing";
}

TEST_F(NodePlacementsTest, ANodeWithoutPlacementsIsToldSo) {
  const json answer = beat("n9", 0, "");
  EXPECT_EQ(answer["list"], json::array());
  EXPECT_FALSE(beat("n9", answer["number"]).contains("list"));
}

TEST_F(NodePlacementsTest, AListIsMadeWhenSomethingHasChanged) {
  source_.set("n1", {placed("7")});
  const json first = beat("n1", 0, "");
  for (int i = 0; i < 1000; ++i) (void)beat("n1", first["number"]);
  EXPECT_EQ(source_.asked, 1) << "not with each heartbeat";
  source_.set("n2", {placed("8")});
  (void)beat("n1", first["number"]);
  EXPECT_EQ(source_.asked, 1) << "what is on another node is no change";
  source_.set("n1", {placed("7")});
  EXPECT_EQ(beat("n1", first["number"])["number"], first["number"]) << "it is the same after all";
  EXPECT_EQ(source_.asked, 2);
  source_.set("n1", {placed("7", JobClass::kOpportunistic)});
  const json second = beat("n1", first["number"]);
  EXPECT_GT(second["number"], first["number"]);
  EXPECT_EQ(second["list"][0]["class"], "opportunistic");
}

TEST_F(NodePlacementsTest, EachNodeHasItsOwn) {
  source_.set("n1", {placed("7")});
  source_.set("n2", {placed("8")});
  EXPECT_EQ(beat("n1", 0, "")["list"][0]["job"], "7");
  EXPECT_EQ(beat("n2", 0, "")["list"][0]["job"], "8");
}

TEST_F(NodePlacementsTest, ANumberOfAnotherRunMeansNothing) {
  const json first = beat("n1", 0, "");
  EXPECT_FALSE(beat("n1", first["number"]).contains("list"));
  EXPECT_TRUE(beat("n1", first["number"], "r0").contains("list"));
  EXPECT_TRUE(beat("n1", 1'000'000, "r0").contains("list"));
}

TEST_F(NodePlacementsTest, WhileNothingIsKnownOfNodesNothingIsSaid) {
  source_.known = false;
  EXPECT_EQ(beat("n1", 0, ""), nullptr);
  EXPECT_EQ(shown("n1"), (json{{"number", 0}, {"known", 0}}));
  source_.known = true;
  source_.set("n1", {placed("7")});
  const json first = beat("n1", 0, "");
  source_.known = false;
  source_.set("n1", {});
  const json still = beat("n1", first["number"]);
  EXPECT_EQ(still["number"], first["number"]) << "what was told stays";
  source_.known = true;
  EXPECT_EQ(beat("n1", first["number"])["list"], json::array()) << "it is looked at again";
}

TEST_F(NodePlacementsTest, WhatIsNoWordOfANodeIsRefusedAndChangesNothing) {
  source_.set("n1", {placed("7")});
  const json first = beat("n1", 0, "");
  const json known = shown("n1");
  const json good{{"beat", 2U}, {"run", "r1"}, {"number", first["number"]}};
  const auto with = [&](const char* field, json value) {
    json told = good;
    told[field] = std::move(value);
    return told;
  };
  for (const json& bad : {json(3), json("x"), json::array(), json::object(), with("beat", -1),
                          with("beat", "x"), with("run", 7), with("run", std::string(65, 'r')),
                          with("number", -1), with("number", "1"), with("number", nullptr)}) {
    EXPECT_THAT(problem_with(bad), HasSubstr("'placements")) << bad;
  }
  EXPECT_THAT(problem_with(with("number", 99U)), HasSubstr("knows list 99"));
  EXPECT_EQ(shown("n1"), known);
  EXPECT_EQ(problem_with(good), "none");
}

TEST_F(NodePlacementsTest, SaysWhichListANodeKnows) {
  source_.set("n1", {placed("7")});
  EXPECT_EQ(shown("n1"), nullptr) << "it has not reported";
  const json first = beat("n1", 0, "");
  EXPECT_EQ(shown("n1"), (json{{"number", first["number"]}, {"known", 0}}));
  (void)beat("n1", first["number"]);
  EXPECT_EQ(shown("n1"), (json{{"number", first["number"]}, {"known", first["number"]}}));
  source_.set("n1", {});
  const json behind = shown("n1");
  EXPECT_GT(behind["number"], first["number"]) << "as it is now, reported since or not";
  EXPECT_EQ(behind["known"], first["number"]);
  EXPECT_EQ(placements_.exchange("n1", nullptr, now_), nullptr);
  EXPECT_EQ(shown("n1"), nullptr) << "an older program";
}

TEST_F(NodePlacementsTest, ALongListIsCutAndSaysSo) {
  std::vector<Placement> many;
  for (int i = 0; i < 200; ++i) many.push_back(placed(std::to_string(i)));
  source_.set("n1", many);
  const json answer = beat("n1", 0, "");
  EXPECT_EQ(answer["list"].size(), wire::kMostPlacements);
  EXPECT_EQ(answer["left_out"], 200 - wire::kMostPlacements);
}

TEST_F(NodePlacementsTest, NodesThatHaveLeftAreForgottenAndNumbersGrowOn) {
  source_.set("n1", {placed("7")});
  const json first = beat("n1", 0, "");
  now_ += NodeReports::kForgotten / 2;
  (void)beat("n2", 0, "");
  now_ += NodeReports::kForgotten / 2;
  placements_.expire(now_);
  EXPECT_EQ(placements_.size(), 1U);
  const json again = beat("n1", first["number"]);
  EXPECT_GT(again["number"], first["number"]) << "or the node would take it for an old one";
  EXPECT_EQ(again["list"], first["list"]);
}

// Both ends, and a network that loses, repeats and delays: no node ever goes back to an older list,
// and once all is quiet it has the newest.
TEST_F(NodePlacementsTest, ThroughABadNetworkANodeHasTheNewestListInTheEnd) {
  constexpr unsigned kSeed = 5;
  std::mt19937 random{kSeed};
  node::ClusterPlacements there;
  std::vector<json> answers;
  std::uint64_t newest = 0;
  int taken = 0;
  const auto take = [&](const json& answer) {
    try {
      taken += there.take(answer) ? 1 : 0;
    } catch (const std::invalid_argument&) {  // an old one, or one that came before
    }
    ASSERT_GE(there.number(), newest) << "seed " << kSeed;
    newest = there.number();
  };
  for (int round = 0; round < 3000; ++round) {
    if (random() % 5 == 0) source_.set("n1", {placed(std::to_string(random() % 9))});
    const json told = there.tell();
    if (random() % 4 == 0) continue;  // the heartbeat is lost
    answers.push_back(placements_.exchange("n1", told, now_));
    if (random() % 4 == 0) continue;  // its answer is late
    take(answers[random() % answers.size()]);
    if (answers.size() > 8) answers.erase(answers.begin());
  }
  for (int i = 0; i < 2; ++i) take(placements_.exchange("n1", there.tell(), now_));
  EXPECT_EQ(there.list(), source_.lists["n1"]) << "seed " << kSeed;
  EXPECT_GT(taken, 100);
  EXPECT_EQ(shown("n1")["number"], shown("n1")["known"]);
}

}  // namespace
}  // namespace commensal::cluster::node_placements_test

// SPDX-License-Identifier: Apache-2.0
// Reports of nodes: shown, silent, forgotten.
#include "coordinator/cluster/node_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>

namespace commensal::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;

json report(int number = 1) {
  return {{"devices", {{{"id", "host"}, {"type", "cpu"}}}},
          {"jobs", {{{"id", "j" + std::to_string(number)}, {"tenant", "t"}}}},
          {"cores", 8},
          {"memory_mib", 1024}};
}

json engine_answer() {
  return {{"coordinator", {{"pid", 1}}},
          {"nodes", {{{"name", "n1"}, {"state", "drained"}, {"reason", "disk"}}}}};
}

class NodeReportsTest : public ::testing::Test {
 protected:
  json nodes() {
    json answer = engine_answer();
    reports_.add_to(answer, now_);
    return answer["nodes"];
  }

  NodeReports reports_;
  TimePoint now_{1000s};
};

TEST_F(NodeReportsTest, WithoutReportsAnAnswerStaysAsItIs) {
  json answer = engine_answer();
  reports_.add_to(answer, now_);
  EXPECT_EQ(answer, engine_answer());
}

TEST_F(NodeReportsTest, TheEnginesNodeKeepsItsStateAndGetsTheReport) {
  reports_.take("n1", report(), now_);
  const json shown = nodes();
  ASSERT_EQ(shown.size(), 1U);
  EXPECT_EQ(shown[0]["state"], "drained");
  EXPECT_EQ(shown[0]["report"]["state"], "up");
  EXPECT_EQ(shown[0]["report"]["jobs"][0]["id"], "j1");
  EXPECT_FALSE(shown[0].contains("only_reports"));
}

TEST_F(NodeReportsTest, ANodeThatTheEngineDoesNotKnowIsShownAsOneThatReports) {
  reports_.take("n2", report(), now_);
  const json node = nodes().at(1);
  EXPECT_EQ(node["name"], "n2");
  EXPECT_EQ(node["state"], "up");
  EXPECT_EQ(node["only_reports"], true);
  EXPECT_EQ(node["cores"], 8);
  EXPECT_EQ(node["devices"][0]["id"], "host");
  EXPECT_EQ(node["devices"][0]["jobs"], json::array());
}

TEST_F(NodeReportsTest, ASilentNodeIsDownUntilItSpeaksAgain) {
  reports_.take("n2", report(), now_);
  now_ += NodeReports::kSilent - 1ns;
  EXPECT_EQ(nodes().at(1)["state"], "up");
  now_ += 1ns;
  EXPECT_EQ(nodes().at(1)["state"], "down");
  EXPECT_EQ(nodes().at(1)["report"]["state"], "silent");
  EXPECT_EQ(nodes().at(1)["report"]["silent_seconds"], 5.0);
  EXPECT_THAT(nodes().at(1)["reason"].get<std::string>(), HasSubstr("silent for 5 s"));
  reports_.take("n2", report(2), now_);
  EXPECT_EQ(nodes().at(1)["state"], "up");
  EXPECT_EQ(nodes().at(1)["report"]["jobs"].size(), 1U);
  EXPECT_EQ(nodes().at(1)["report"]["jobs"][0]["id"], "j2") << "the newest report alone counts";
}

TEST_F(NodeReportsTest, NodesLeaveByExpiry) {
  reports_.take("n2", report(), now_);
  now_ += 1s;
  reports_.take("n3", report(), now_);
  now_ += NodeReports::kForgotten - 1s - 1ns;
  reports_.expire(now_);
  EXPECT_EQ(reports_.size(), 2U);
  now_ += 1ns;
  reports_.expire(now_);
  EXPECT_EQ(reports_.size(), 1U);
  EXPECT_EQ(nodes().at(1)["name"], "n3");
  now_ += 1s;
  reports_.expire(now_);
  EXPECT_EQ(reports_.size(), 0U);
}

TEST_F(NodeReportsTest, AReportThatIsNoneLeavesTheLastOne) {
  reports_.take("n2", report(), now_);
  for (const json& bad :
       {json{}, json::array(), json{{"devices", json::array()}}, json{{"jobs", json::array()}},
        json{{"devices", {1}}, {"jobs", json::array()}},
        json{{"devices", json::array()}, {"jobs", {"x"}}},
        json{{"devices", json::object()}, {"jobs", json::array()}}}) {
    EXPECT_THROW(reports_.take("n2", bad, now_), std::invalid_argument) << bad.dump();
    EXPECT_THROW(reports_.take("n9", bad, now_), std::invalid_argument) << bad.dump();
  }
  EXPECT_EQ(reports_.size(), 1U);
  EXPECT_EQ(nodes().at(1)["report"]["jobs"][0]["id"], "j1");
}

TEST_F(NodeReportsTest, OddFieldsOfAReportDoNoHarm) {
  json odd = report();
  odd["cores"] = "many";
  odd["devices"][0]["id"] = 7;
  odd["state"] = "king";
  reports_.take("n2", odd, now_);
  const json node = nodes().at(1);
  EXPECT_EQ(node["cores"], 0.0);
  EXPECT_EQ(node["devices"][0]["id"], "");
  EXPECT_EQ(node["state"], "up");
  EXPECT_EQ(node["report"]["state"], "up");
}

}  // namespace
}  // namespace commensal::cluster

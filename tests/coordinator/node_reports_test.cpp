// SPDX-License-Identifier: Apache-2.0
// Reports of nodes: shown, silent, forgotten.
#include "coordinator/cluster/node_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>

#include "coordinator/cluster/node_picture.h"

namespace commensal::cluster::node_reports_test {
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
  EXPECT_EQ(reports_.size(), 2U) << "it has just looked";
  now_ += NodeReports::kLook - 1ns;
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

TEST_F(NodeReportsTest, ThePageShowsNodesWithJobsFirst) {
  json idle = report();
  idle["jobs"] = json::array();
  reports_.take("a", idle, now_);
  reports_.take("b", report(), now_);
  now_ += NodeReports::kSilent + 2s;
  reports_.take("c", idle, now_);
  reports_.take("d", report(), now_);
  const json picture = reports_.picture(now_, 3, 3);
  ASSERT_EQ(picture["nodes"].size(), 3U);
  EXPECT_EQ(picture["left_out"], 1);
  EXPECT_EQ(picture["nodes"][0]["name"], "b");
  EXPECT_EQ(picture["nodes"][0]["state"], "silent");
  EXPECT_EQ(picture["nodes"][0]["silent_seconds"], 7);
  EXPECT_EQ(picture["nodes"][0]["status"]["jobs"][0]["job"]["id"], "j1") << "as it was last";
  EXPECT_EQ(picture["nodes"][1]["name"], "d");
  EXPECT_EQ(picture["nodes"][1]["state"], "up");
  EXPECT_EQ(picture["nodes"][1]["job_count"], 1);
  EXPECT_EQ(picture["nodes"][2]["name"], "a");
}

TEST_F(NodeReportsTest, OfVeryManyNodesThePageShowsSoManyInDetail) {
  for (int i = 0; i < 2000; ++i) reports_.take("n" + std::to_string(i), report(), now_);
  const json picture = reports_.picture(now_);
  EXPECT_EQ(picture["nodes"].size(), 500U);
  EXPECT_EQ(picture["left_out"], 1500);
  EXPECT_TRUE(picture["nodes"][23]["status"].is_object());
  EXPECT_TRUE(picture["nodes"][24]["status"].is_null());
  EXPECT_LT(picture.dump().size(), 256U << 10U);
  EXPECT_TRUE(NodeReports{}.picture(now_)["nodes"].empty());
}

json full_report() {
  json told = report();
  told["devices"][0].update({{"capacity_bytes", 100},
                             {"held_bytes", 50},
                             {"granted_bytes", 60},
                             {"outside_bytes", 5},
                             {"name", "cores"},
                             {"use", {{"guaranteed_share", 0.5}}}});
  told["jobs"][0].update({{"name", "train"},
                          {"class", "guaranteed"},
                          {"slowdown", 0.01},
                          {"slowdown_reason", "r"},
                          {"paused", true},
                          {"devices", {"host", "GPU-1"}},
                          {"step", {{"number", 3}, {"median_seconds", 0.1}}},
                          {"memory", {{"device_bytes", 40}, {"host_bytes", 10}}},
                          {"leases", json::array({{{"device", "host"}, {"held_bytes", 40}}})},
                          {"share", {{"now", 0.25}}},
                          {"gate", {{"law", "gap"}, {"state", "open"}}}});
  return told;
}

TEST(NodePictureTest, ShowsMemoryByTierAndGates) {
  const json shown = node_picture(full_report());
  const json& device = shown["devices"].at(0);
  EXPECT_EQ(device["id"], "host");
  EXPECT_EQ(device["capacity_bytes"], 100);
  EXPECT_EQ(device["use"]["guaranteed_share"], 0.5);
  EXPECT_EQ(device["use"]["oracle_share"], nullptr) << "not known";
  const json& job = shown["jobs"].at(0);
  EXPECT_EQ(job["job"], (json{{"id", "j1"}, {"name", "train"}, {"class", "guaranteed"}}));
  EXPECT_EQ(job["memory"]["device_bytes"], 40);
  EXPECT_EQ(job["memory"]["host_bytes"], 10);
  EXPECT_EQ(job["memory"]["parked_bytes"], nullptr);
  EXPECT_EQ(job["gate"], (json{{"law", "gap"}, {"state", "open"}}));
  EXPECT_EQ(job["leases"].at(0)["held_bytes"], 40);
  EXPECT_EQ(job["share"]["now"], 0.25);
  EXPECT_EQ(job["paused"], true);
  EXPECT_EQ(job["slowdown"], 0.01);
  EXPECT_EQ(job["slowdown_reason"], "r");
}

// A page that hears of text where it counts would not be drawn any more, for nobody.
TEST(NodePictureTest, WhateverANodeSendsEachFieldHasItsOwnType) {
  const json good = node_picture(full_report()).flatten();
  for (const json& odd : {json(nullptr), json("x"), json(7), json(true), json::array({1}),
                          json{{"a", 1}}, json(std::string(100'000, 'x'))}) {
    json told = full_report();
    for (const char* list : {"devices", "jobs"}) {
      for (auto& [name, value] : told[list][0].items()) value = odd;
    }
    told["jobs"].push_back(odd);
    told["devices"].push_back(odd);
    const json shown = node_picture(told);
    EXPECT_LT(shown.dump().size(), 8'000U);
    const json flat = shown.flatten();
    for (const auto& [path, value] : good.items()) {
      if (!flat.contains(path)) continue;  // a list that is empty now
      const json& now = flat.at(path);
      EXPECT_TRUE(now.is_null() || now.is_number() == value.is_number() || value.is_null())
          << path << " " << now;
      EXPECT_TRUE(!value.is_string() || now.is_string()) << path << " " << now;
    }
  }
}

TEST(NodePictureTest, IsBounded) {
  json told = full_report();
  for (int i = 0; i < 1000; ++i) {
    told["jobs"].push_back(told["jobs"][0]);
    told["devices"].push_back(told["devices"][0]);
    told["jobs"][0]["leases"].push_back({{"device", "host"}, {"held_bytes", i}});
    told["jobs"][0]["devices"].push_back("host");
  }
  const json shown = node_picture(told);
  EXPECT_EQ(shown["jobs"].size(), kShownJobs);
  EXPECT_EQ(shown["devices"].size(), kShownDevices);
  EXPECT_EQ(shown["jobs"][0]["leases"].size(), kShownDevices);
  EXPECT_EQ(shown["jobs"][0]["devices"].size(), kShownDevices);
}

}  // namespace
}  // namespace commensal::cluster::node_reports_test

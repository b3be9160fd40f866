// SPDX-License-Identifier: Apache-2.0
// A state that was written down, put through policies: what they decide, and what is refused.
#include "coordinator/engines/simulator/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/engines/simulator/state_file.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::simulator::replay_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Two nodes of two GPUs: `long` runs on n0, `sweep` beside it; `gang` and `late` wait.
json a_state() {
  return json::parse(R"({
    "now": 1000,
    "nodes": [{"name": "n0", "devices": [{"id": "a"}, {"id": "b"}]},
              {"name": "n1", "devices": [{"id": "a"}, {"id": "b"}]}],
    "tenants": [{"name": "vision", "quota": 4}],
    "jobs": [
      {"id": "late", "tenant": "vision", "submit": 900, "gpus": 1, "duration": 60},
      {"id": "long", "tenant": "vision", "phase": "running", "submit": 0, "gpus": 2,
       "attained": 1000, "duration": 90000,
       "placement": [{"node": "n0", "device": "a"}, {"node": "n0", "device": "b"}]},
      {"id": "sweep", "class": "opportunistic", "phase": "running", "submit": 10, "busy": 0.5,
       "attained": 900, "duration": 2000, "placement": [{"node": "n0", "device": "b"}]},
      {"id": "gang", "tenant": "vision", "submit": 500, "gpus": 3, "duration": 600}]})");
}

class ReplayTest : public ::testing::Test {
 protected:
  ReplayTest() {
    std::string name = (std::filesystem::temp_directory_path() / "replay-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder: " + name);
    folder_ = name;
  }
  ~ReplayTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string write(const json& state) const {
    std::ofstream(folder_ / "state.json") << state;
    return folder_ / "state.json";
  }
  [[nodiscard]] json plan(const json& state, const std::string& policy) const {
    RunOptions options;
    options.state = write(state);
    options.policy = policy;
    return replay(options);
  }
  /// What reading a changed state says.
  template <typename Change>
  void expect_refused(const Change& change, const std::string& place, const std::string& value) {
    json state = a_state();
    change(state);
    const std::string file = write(state);
    EXPECT_THAT([&] { (void)read_state(file); },
                ThrowsMessage<BadCluster>(
                    AllOf(HasSubstr("state.json"), HasSubstr(place), HasSubstr(value))));
  }

  std::filesystem::path folder_;
};

const json* decision_of(const json& plan, const std::string& job) {
  for (const json& decision : plan.at("plan").at("decisions")) {
    if (decision.at("job") == job) return &decision;
  }
  return nullptr;
}

TEST_F(ReplayTest, WhoRunsGoesOnAndTheHeadOfTheQueueKeepsOthersBack) {
  const json answer = plan(a_state(), "fifo");
  EXPECT_TRUE(answer["plan"]["decisions"].empty()) << "the gang needs three of two free GPUs";
  EXPECT_EQ(answer["waits"], (json{"gang", "late"}));
  EXPECT_EQ(answer["goes_on"], (json{"long", "sweep"}));
}

TEST_F(ReplayTest, WhoFitsStartsWhereItIsFreeWithAReason) {
  const json answer = plan(a_state(), "fit-first");
  const json* late = decision_of(answer, "late");
  ASSERT_NE(late, nullptr);
  EXPECT_EQ((*late)["action"], "start");
  EXPECT_EQ((*late)["placement"][0]["node"], "n1");
  EXPECT_EQ((*late)["reason"], "first in the queue that fits into 2 GPUs");
  EXPECT_EQ(answer["waits"], json{"gang"});
}

TEST_F(ReplayTest, APolicyThatStopsOthersSeesWhoRuns) {
  const json answer = plan(a_state(), "srtf");
  ASSERT_NE(decision_of(answer, "long"), nullptr);
  EXPECT_EQ((*decision_of(answer, "long"))["action"], "stop") << "it has most left";
  ASSERT_NE(decision_of(answer, "late"), nullptr);
}

/// Two nodes with a GPU each, and two that have their cores alone.
json a_mixed_state(int gpus) {
  json state = json::parse(R"({
    "nodes": [{"name": "c0", "devices": [{"id": "host", "type": "cpu"}]},
              {"name": "g0", "devices": [{"id": "a", "type": "v100"}]},
              {"name": "c1", "devices": [{"id": "host", "type": "cpu"}]},
              {"name": "c2", "devices": [{"id": "host", "type": "cpu"}]},
              {"name": "g1", "devices": [{"id": "a", "type": "v100"}]}],
    "jobs": [{"id": "gang", "submit": 0, "duration": 60}]})");
  state["jobs"][0]["gpus"] = gpus;
  return state;
}

std::vector<std::string> nodes_of(const json& decision) {
  std::vector<std::string> nodes;
  for (const json& part : decision["placement"]) nodes.push_back(part["node"]);
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

TEST_F(ReplayTest, AGangIsPlacedOnGpusOrOnCoresAsByTheCoordinator) {
  for (const char* policy : {"fifo", "fit-first", "srtf", "antman"}) {
    const json two = plan(a_mixed_state(2), policy);
    ASSERT_NE(decision_of(two, "gang"), nullptr) << policy;
    EXPECT_EQ(nodes_of(*decision_of(two, "gang")), (std::vector<std::string>{"g0", "g1"}))
        << policy;
    const json three = plan(a_mixed_state(3), policy);
    ASSERT_NE(decision_of(three, "gang"), nullptr) << policy;
    EXPECT_EQ(nodes_of(*decision_of(three, "gang")), (std::vector<std::string>{"c0", "c1", "c2"}))
        << policy;
    EXPECT_TRUE(three["never_fits"].empty());
  }
}

TEST_F(ReplayTest, WhoFitsOnNeitherKindIsToldOfInTheCoordinatorsWords) {
  const json answer = plan(a_mixed_state(4), "fifo");
  EXPECT_EQ(decision_of(answer, "gang"), nullptr);
  EXPECT_EQ(answer["waits"], json{"gang"});
  EXPECT_EQ(answer["never_fits"],
            (json{{{"job", "gang"},
                   {"reason",
                    "the job asks for 4 devices, all GPUs or none, and the cluster has 2 GPUs and "
                    "3 nodes' cores"}}}));
  EXPECT_TRUE(plan(a_mixed_state(6), "fifo")["never_fits"].empty())
      << "nodes that are drained are not in a state: more than all may be there again";
}

/// Starts whatever arrives, as a policy that adopts nobody may.
class StartsArrived final : public policies::ClusterPolicy {
 public:
  explicit StartsArrived(bool adopts) : adopts_(adopts) {}
  [[nodiscard]] bool adopts_running() const noexcept override { return adopts_; }
  void decide(const policies::ClusterView& view, policies::Notes& /*notes*/,
              policies::ClusterPlan& plan) const override {
    for (const policies::JobIndex job : view.arrived) {
      plan.decisions.push_back({job, policies::Action::kStart, {}, {"it arrived"}});
    }
  }

 private:
  bool adopts_;
};

TEST_F(ReplayTest, WhoRunsArrivesOnlyWhereAPolicyAdoptsIt) {
  json waiting = a_state();
  waiting["jobs"].erase(3);
  const policies::CountedPlacer placer;
  RecordedState recorded = read_state(write(waiting));
  const auto plan = recorded.state.decide(StartsArrived(false), placer, {}, recorded.now);
  ASSERT_EQ(plan.decisions.size(), 1U);
  EXPECT_EQ(recorded.jobs[plan.decisions[0].job], "late");
  RecordedState again = read_state(write(waiting));
  EXPECT_THROW((void)again.state.decide(StartsArrived(true), placer, {}, again.now),
               std::logic_error)
      << "who runs cannot start";
}

TEST_F(ReplayTest, ServiceBeforeTheRestartCounts) {
  json state = a_state();
  EXPECT_EQ(decision_of(plan(state, "2d-las"), "long"), nullptr) << "first in its queue";
  state["jobs"][1]["attained"] = 50000;  // far beyond the last queue's limit
  const json answer = plan(state, "2d-las");
  ASSERT_NE(decision_of(answer, "long"), nullptr);
  EXPECT_EQ((*decision_of(answer, "long"))["action"], "stop");
  ASSERT_NE(decision_of(answer, "gang"), nullptr);
}

TEST_F(ReplayTest, AntManKeepsWhatIsThereForAGang) {
  const json answer = plan(a_state(), "antman");
  EXPECT_EQ(decision_of(answer, "gang"), nullptr) << "its tenant's quota is 4, and 2 are in use";
  json state = a_state();
  state["tenants"][0]["quota"] = 8;
  state["jobs"][3]["gpus"] = 4;
  const json reserved = plan(state, "antman");
  ASSERT_NE(decision_of(reserved, "gang"), nullptr);
  EXPECT_EQ((*decision_of(reserved, "gang"))["action"], "reserve");
  EXPECT_EQ((*decision_of(reserved, "gang"))["placement"].size(), 2U);
}

TEST_F(ReplayTest, MinimaCountWhereTheyAreStated) {
  json state = a_state();
  json& late = state["jobs"][0];
  late["class"] = "opportunistic";
  late["min_share"] = 0.6;
  state["jobs"][2]["min_share"] = 0.6;  // `sweep`, on b of n0
  const json beside = plan(state, "antman");
  ASSERT_NE(decision_of(beside, "late"), nullptr);
  late["min_gpu_memory_mib"] = 40'000;
  for (const std::size_t large : {0U, 1U}) {
    state["nodes"][large]["gpu_memory_mib"] = 80'000;
    state["nodes"][1 - large]["gpu_memory_mib"] = 16'000;
    const json answer = plan(state, "antman");
    ASSERT_NE(decision_of(answer, "late"), nullptr) << large;
    const json place = (*decision_of(answer, "late"))["placement"][0];
    EXPECT_EQ(place["node"], large == 0 ? "n0" : "n1");
    EXPECT_NE(place["node"].get<std::string>() + place["device"].get<std::string>(), "n0b")
        << "there it would not have its share";
  }
}

TEST_F(ReplayTest, AMinimumThatNoDeviceHasIsRefused) {
  expect_refused(
      [](json& state) {
        for (json& node : state["nodes"]) node["gpu_memory_mib"] = 16'000;
        state["jobs"][0]["min_gpu_memory_mib"] = 40'000;
      },
      "jobs[0]", "40000");
  expect_refused([](json& state) { state["jobs"][0]["min_share"] = 1.5; }, "jobs[0]", "1.5");
}

TEST_F(ReplayTest, EveryPolicyKeepsTheRulesOnAStateWithoutNotes) {
  for (const policies::PolicyEntry& entry : policies::all_policies()) {
    if (policies::needs_models(entry.name)) {
      EXPECT_THROW((void)plan(a_state(), std::string(entry.name)), std::invalid_argument)
          << entry.name;
      continue;
    }
    json answer;
    EXPECT_NO_THROW(answer = plan(a_state(), std::string(entry.name))) << entry.name;
    EXPECT_EQ(answer, plan(a_state(), std::string(entry.name))) << entry.name;
  }
}

/// As `commensal status --json` answers.
json a_status() {
  return json::parse(R"({
    "coordinator": {"instance": "default"},
    "devices": [{"id": "host", "kind": "host", "cores": 8},
                {"id": "GPU-1", "kind": "gpu", "name": "T4"}],
    "jobs": [
      {"job": {"id": "prod-1", "class": "guaranteed", "tenant": "vision"}, "devices": ["GPU-1"],
       "started_seconds_ago": 300.0, "ended": false},
      {"job": {"id": "more-2", "class": "guaranteed", "tenant": "vision"}, "devices": ["GPU-1"],
       "started_seconds_ago": 30.0, "ended": false},
      {"job": {"id": "sweep-3", "class": "opportunistic"}, "devices": ["host"],
       "started_seconds_ago": 20.0, "ended": false},
      {"job": {"id": "old-4", "class": "guaranteed"}, "ended": true}]})");
}

TEST_F(ReplayTest, ANodesStatusIsAState) {
  const json answer = plan(a_status(), "antman");
  EXPECT_EQ(answer["state"]["kind"], "node");
  EXPECT_EQ(answer["state"]["running"], 3) << "without the one that ended";
  EXPECT_EQ(answer["state"]["nodes"], 2) << "the host's cores are no GPU";
  EXPECT_EQ(answer["goes_on"], (json{"prod-1", "more-2", "sweep-3"}));
  EXPECT_THAT(answer["assumed"].dump(), AllOf(HasSubstr("of 3 jobs no duration"),
                                              HasSubstr("1 devices have several guaranteed")));
}

TEST_F(ReplayTest, AStatusThatCannotBeIsNamed) {
  json status = a_status();
  status["jobs"][2].erase("job");
  const std::string nameless = write(status);
  EXPECT_THAT([&] { (void)read_state(nameless); },
              ThrowsMessage<BadCluster>(HasSubstr("jobs[2].job is no object = null")));
  status = a_status();
  status["jobs"][0]["devices"][0] = "GPU-9";
  const std::string file = write(status);
  EXPECT_THAT([&] { (void)read_state(file); },
              ThrowsMessage<BadCluster>(AllOf(HasSubstr("jobs[0]"), HasSubstr("\"GPU-9\""))));
}

TEST_F(ReplayTest, WhatIsWrongIsNamedByPlaceKeyAndValue) {
  using State = json;
  expect_refused([](State& s) { s["node"] = 1; }, "has a key that does not exist", "node = 1");
  expect_refused([](State& s) { s["nodes"] = json::array(); }, "needs a node with a device", "0");
  expect_refused([](State& s) { s["nodes"][1]["name"] = "n0"; }, "nodes[1]", "name = \"n0\"");
  expect_refused([](State& s) { s["nodes"][1]["devices"][1]["id"] = "a"; }, "nodes[1].devices[1]",
                 "id = \"a\"");
  expect_refused([](State& s) { s["nodes"][0]["devices"][1]["type"] = "t4"; }, "of the type",
                 "type = \"t4\"");
  expect_refused([](State& s) { s["tenants"][0]["quota"] = -1; }, "tenants[0]", "quota = -1");
  expect_refused([](State& s) { s["jobs"][0].erase("id"); }, "jobs[0] lacks a key", "\"id\"");
  expect_refused(
      [](State& s) {
        s["jobs"][0]["id"] = "late";
        s["jobs"][1]["id"] = "late";
      },
      "jobs[1] has the id of another", "\"late\"");
  expect_refused([](State& s) { s["jobs"][0]["phase"] = "run"; }, "did you mean running?",
                 "phase = \"run\"");
  expect_refused([](State& s) { s["jobs"][0]["gpus"] = 0; }, "jobs[0]", "gpus = 0");
  expect_refused([](State& s) { s["jobs"][0]["submit"] = "now"; }, "jobs[0]", "submit = \"now\"");
  expect_refused([](State& s) { s["jobs"][0]["busy"] = 2; }, "jobs[0]", "busy = 2");
  expect_refused([](State& s) { s["jobs"][0]["gpu_types"] = {"v100"}; }, "jobs[0]", "\"v100\"");
  expect_refused([](State& s) { s["jobs"][1]["placement"][0]["device"] = "z"; },
                 "jobs[1].placement[0]", "device = \"z\"");
  expect_refused([](State& s) { s["jobs"][1]["placement"][0]["node"] = "n9"; },
                 "jobs[1].placement[0]", "node = \"n9\"");
  expect_refused([](State& s) { s["jobs"][1]["placement"][1]["device"] = "a"; }, "names a device",
                 "device = \"a\"");
  expect_refused([](State& s) { s["jobs"][1]["gpus"] = 3; }, "another number of devices", "= 2");
  expect_refused([](State& s) { s["jobs"][1].erase("placement"); }, "runs, and is nowhere", "= 0");
}

TEST_F(ReplayTest, MoreThanADeviceHasIsRefused) {
  expect_refused([](json& s) { s["jobs"][2]["runs_as"] = "guaranteed"; }, "jobs[2], sweep", "");
}

TEST_F(ReplayTest, AFileThatIsNoJsonIsNamed) {
  std::ofstream(folder_ / "state.json") << "{";
  EXPECT_THAT([&] { (void)read_state(folder_ / "state.json"); },
              ThrowsMessage<BadCluster>(HasSubstr("is not JSON")));
  EXPECT_THAT([&] { (void)read_state(folder_ / "absent.json"); },
              ThrowsMessage<BadCluster>(HasSubstr("cannot be opened")));
}

TEST_F(ReplayTest, AnUnknownPolicyIsNamedWithTheNearest) {
  EXPECT_THAT([&] { (void)plan(a_state(), "srtff"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("did you mean srtf?")));
}

}  // namespace
}  // namespace commensal::simulator::replay_test

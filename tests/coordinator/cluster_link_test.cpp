// SPDX-License-Identifier: Apache-2.0
// What a node tells the cluster's coordinator, also while that one is away, silent or unwilling.
#include "coordinator/node/cluster_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/cluster/remote_socket.h"
#include "coordinator/keys/key_folder.h"
#include "coordinator/node/node_coordinator.h"
#include "tests/coordinator/key_world.h"

namespace commensal::node::cluster_link_test {
namespace {

using namespace std::chrono_literals;
using cluster::RemoteSocket;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

json job(const std::string& id, bool ended = false) {
  return {{"job",
           {{"id", id},
            {"name", "train"},
            {"tenant", "vision"},
            {"class", "guaranteed"},
            {"world_size", 1},
            {"pid", 7}}},
          {"ended", ended},
          {"memory", {{"device_bytes", 5}, {"tags", json::array()}}},
          {"lease", {{"state", "granted"}, {"granted_bytes", 9}, {"reason", "r"}}},
          {"gate", {{"state", "open"}, {"share", 1.0}}},
          {"step", {{"number", 3}, {"median_seconds", 0.1}}},
          {"slowdown", 0.01},
          {"slowdown_reason", "r"},
          {"paused", false},
          {"started_seconds_ago", 2.0}};
}

json status(std::vector<json> jobs) {
  return {{"coordinator", {{"instance", "default"}, {"pid", 1}, {"version", "1"}, {"socket", "s"}}},
          {"devices",
           {{{"id", "host"},
             {"kind", "host"},
             {"name", "cores"},
             {"cores", 8.0},
             {"capacity_bytes", 1U << 30U},
             {"granted_bytes", 9}},
            {{"id", "GPU-1"},
             {"kind", "gpu"},
             {"name", "card"},
             {"cores", nullptr},
             {"capacity_bytes", 1U << 30U},
             {"granted_bytes", 0}}}},
          {"jobs", std::move(jobs)}};
}

TEST(NodeReportTest, TellsDevicesAndLiveJobsWithTheirSteps) {
  const json report = node_report(status({job("a"), job("b", true), job("c")}));
  EXPECT_EQ(report["cores"], 8.0);
  EXPECT_EQ(report["memory_mib"], 1024.0);
  ASSERT_EQ(report["devices"].size(), 2U);
  EXPECT_EQ(report["devices"][1]["id"], "GPU-1");
  EXPECT_EQ(report["devices"][1]["type"], "gpu");
  ASSERT_EQ(report["jobs"].size(), 2U);
  const json& first = report["jobs"][0];
  EXPECT_EQ(first["id"], "a");
  EXPECT_EQ(first["tenant"], "vision");
  EXPECT_EQ(first["class"], "guaranteed");
  EXPECT_EQ(first["step"]["number"], 3);
  EXPECT_EQ(first["slowdown"], 0.01);
  EXPECT_EQ(first["slowdown_reason"], "r");
  EXPECT_EQ(first["memory"], (json{{"device_bytes", 5}}));
  EXPECT_EQ(first["gate"]["state"], "open");
  EXPECT_EQ(report["jobs"][1]["id"], "c");
  EXPECT_EQ(report["jobs_left_out"], 0);
}

TEST(NodeReportTest, TellsWhatThePageShowsOfDevicesAndGates) {
  json told = job("a");
  told["gate"]["law"] = "gap";
  told["share"] = {{"now", 0.5}, {"reason", "r"}};
  told["devices"] = json::array();
  told["leases"] = json::array();
  for (int i = 0; i < 40; ++i) {
    told["devices"].push_back("GPU-" + std::to_string(i));
    told["leases"].push_back({{"device", "GPU-" + std::to_string(i)}, {"held_bytes", i}, {"x", 1}});
  }
  json with_use = status({told});
  with_use["devices"][1]["use"] = {{"guaranteed_share", 0.2}, {"windows", 3}};
  with_use["devices"][1]["outside_bytes"] = 7;
  const json report = node_report(with_use);
  EXPECT_EQ(report["devices"][1]["outside_bytes"], 7);
  EXPECT_EQ(report["devices"][1]["use"], (json{{"guaranteed_share", 0.2}}));
  const json& shown = report["jobs"][0];
  EXPECT_EQ(shown["gate"]["law"], "gap");
  EXPECT_EQ(shown["share"], (json{{"now", 0.5}}));
  ASSERT_EQ(shown["leases"].size(), 16U) << "bounded";
  EXPECT_EQ(shown["leases"][1], (json{{"device", "GPU-1"}, {"held_bytes", 1}}));
  EXPECT_EQ(shown["devices"].size(), 16U);
}

TEST(NodeReportTest, OfManyJobsSomeAreCounted) {
  std::vector<json> jobs;
  for (int i = 0; i < 100; ++i) jobs.push_back(job(std::to_string(i)));
  const json report = node_report(status(jobs), 10);
  EXPECT_EQ(report["jobs"].size(), 10U);
  EXPECT_EQ(report["jobs_left_out"], 90);
  EXPECT_LT(report.dump().size(), 16U << 10U);
}

TEST(NodeReportTest, TakesTheStatusOfANodeAsItIs) {
  Device host;
  host.id = kHostId;
  host.capacity = Bytes{1ULL << 30U};
  host.cores = 4;
  NodeCoordinator node{CoordinatorConfig{}, host, 1, 1, TimePoint{1s}};
  const json report = node_report(node.status("", TimePoint{2s}));
  EXPECT_EQ(report["cores"], 4.0);
  EXPECT_EQ(report["devices"][0]["id"], kHostId);
  EXPECT_TRUE(report["jobs"].empty());
}

class ClusterLinkTest : public ::testing::Test {
 protected:
  ClusterLinkTest() {
    own_ = folder_.create("node");
    server_ = folder_.coordinator_pair();
    log_->set_level(spdlog::level::debug);
  }

  void listen(const std::string& address = "tcp://127.0.0.1:0") {
    socket_ = std::make_unique<RemoteSocket>(address, server_,
                                             [this](const keys::Key&) { return admits_; });
    address_ = socket_->address();
  }
  void begin() {
    link_.emplace(ClusterLink::Options{address_, folder_.path(), "node"}, log_, now_);
  }
  /// Lets a second pass for the node, and a moment for the network.
  void beat() {
    now_ += ClusterLink::kPeriod;
    link_->beat([this] { return json{{"number", ++made_}}; }, now_);
    std::this_thread::sleep_for(20ms);  // as long as ten of them it may take to connect
  }
  /// Answers what has arrived.
  void serve(const std::string& answer) {
    socket_->admit_newcomers();
    RemoteSocket::Received message;
    while (socket_->receive(message)) {
      senders_.push_back(message.sender);
      received_.push_back(json::parse(message.frames.at(0)));
      (void)socket_->send(message.peer, answer);
    }
  }
  /// Beats and serves until something is so.
  bool until(const std::function<bool()>& so, const json& answer = {{"type", "heartbeat"}}) {
    return until_by_frames(so, answer.dump());
  }
  bool until_by_frames(const std::function<bool()>& so, const std::string& answer) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    while (!so()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      beat();
      if (socket_) serve(answer);
    }
    return true;
  }
  [[nodiscard]] std::string said() const { return text_.str(); }

  keys::TestFolder outside_;
  keys::KeyFolder folder_{outside_.path() / "keys"};
  keys::Key own_;
  keys::KeyPair server_;
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> log_ = std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_st>(text_));
  bool admits_ = true;
  std::unique_ptr<RemoteSocket> socket_;
  std::string address_;
  TimePoint now_{1h};
  std::optional<ClusterLink> link_;
  int made_ = 0;
  std::vector<json> received_;
  std::vector<keys::Key> senders_;
};

TEST_F(ClusterLinkTest, ReportsArriveWithTheNodesKey) {
  listen();
  begin();
  ASSERT_TRUE(until([&] { return received_.size() >= 3; }));
  EXPECT_EQ(received_[0]["type"], "heartbeat");
  EXPECT_EQ(received_[0]["v"], 1);
  EXPECT_EQ(received_[0]["report"]["number"], 1);
  for (const keys::Key& sender : senders_) EXPECT_EQ(sender, own_);
  ASSERT_TRUE(until([&] { return said().find("takes reports") != std::string::npos; }));
}

TEST_F(ClusterLinkTest, AnswersThatNestOrAreLongAreRefused) {
  listen();
  begin();
  const std::size_t depth = 500'000;
  const std::string nested = std::string(depth, '[') + std::string(depth, ']');
  const auto problems = [&] {
    const std::string text = said();
    std::size_t found = 0;
    for (std::size_t at = text.find("no JSON object"); at != std::string::npos;
         at = text.find("no JSON object", at + 1)) {
      ++found;
    }
    return found;
  };
  for (const char* field : {"type", "what", "orders", "placements"}) {
    const std::string frame =
        R"({"type":"heartbeat",")" + std::string{field} + R"(":)" + nested + '}';
    const std::size_t before = problems();
    ASSERT_TRUE(until_by_frames([&] { return problems() > before; }, frame)) << field;
    ASSERT_TRUE(until([&] { return said().ends_with("takes reports\n"); }));
  }
}

TEST_F(ClusterLinkTest, OneReportAPeriod) {
  listen();
  begin();
  ASSERT_TRUE(until([&] { return !received_.empty(); }));
  const auto sent = link_->sent();
  const int made = made_;
  for (int i = 0; i < 50; ++i) {
    now_ += ClusterLink::kPeriod / 100;
    link_->beat([this] { return json{{"number", ++made_}}; }, now_);
  }
  EXPECT_EQ(link_->sent(), sent);
  EXPECT_EQ(made_, made);
}

TEST_F(ClusterLinkTest, WithoutACoordinatorNothingIsMadeOrKept) {
  {
    const RemoteSocket once{"tcp://127.0.0.1:0", server_, [](const keys::Key&) { return true; }};
    address_ = once.address();
  }
  begin();
  for (int i = 0; i < 100; ++i) beat();
  EXPECT_EQ(link_->sent(), 0U);
  EXPECT_EQ(link_->dropped(), 100U);
  EXPECT_EQ(made_, 0);
  EXPECT_THAT(said(), AllOf(HasSubstr("is silent"), HasSubstr(own_.hex())));
  EXPECT_EQ(said().find("is silent"), said().rfind("is silent")) << "it is said once";
}

TEST_F(ClusterLinkTest, ACoordinatorThatDoesNotReadIsNotWaitedFor) {
  listen();
  begin();
  ASSERT_TRUE(until([&] { return !received_.empty(); }));
  const std::string large(200'000, 'x');
  for (int i = 0; i < 200; ++i) {  // nobody serves: 40 MB would wait
    now_ += ClusterLink::kPeriod;
    link_->beat([&] { return json(large); }, now_);
  }
  EXPECT_GT(link_->dropped(), 0U);
  EXPECT_THAT(said(), HasSubstr("is silent"));
  ASSERT_TRUE(until([&] { return said().rfind("takes reports") > said().rfind("is silent"); }));
}

TEST_F(ClusterLinkTest, AfterARestartOfTheCoordinatorReportsComeAgain) {
  listen();
  begin();
  ASSERT_TRUE(until([&] { return !received_.empty(); }));
  socket_.reset();
  ASSERT_TRUE(until([&] { return link_->dropped() > 0; }));
  const std::size_t before = received_.size();
  listen(address_);
  ASSERT_TRUE(until([&] { return received_.size() > before; }));
}

TEST_F(ClusterLinkTest, ARefusalIsLoggedOnce) {
  listen();
  begin();
  const json refusal{{"type", "error"}, {"what", "this key is not allowed any more"}};
  ASSERT_TRUE(
      until([&] { return said().find("not allowed any more") != std::string::npos; }, refusal));
  const std::size_t more = received_.size() + 5;
  ASSERT_TRUE(until([&] { return received_.size() >= more; }, refusal));
  EXPECT_EQ(said().find("refuses reports"), said().rfind("refuses reports"));
  ASSERT_TRUE(until([&] { return said().rfind("takes reports") > said().rfind("refuses"); }));
}

TEST_F(ClusterLinkTest, AnOrderComesWithAnAnswerAndItsResultGoesWithTheNextReport) {
  listen();
  begin();
  ASSERT_TRUE(until([&] { return !received_.empty(); }));
  const auto answered = [this] {  // to the newest heartbeat
    const json list = json::array({{{"number", 1}, {"job", "job-7.1"}, {"class", "guaranteed"}}});
    return json{{"type", "heartbeat"},
                {"orders",
                 {{"run", "r1"},
                  {"beat", received_.back()["orders"]["beat"]},
                  {"list", json::parse(list.dump())}}}};
  };
  std::vector<wire::NodeOrder> due;
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (due.empty() && std::chrono::steady_clock::now() < deadline) {
    beat();
    socket_->admit_newcomers();
    RemoteSocket::Received message;
    while (socket_->receive(message)) {
      received_.push_back(json::parse(message.frames.at(0)));
      (void)socket_->send(message.peer, answered().dump());
    }
    due = link_->orders().to_carry_out();
  }
  ASSERT_EQ(due.size(), 1U);
  EXPECT_EQ(due[0].job, "job-7.1");
  link_->orders().heard(1, wire::Outcome::kApplied, "done");
  const auto results = [this] { return received_.back()["orders"]["results"]; };
  ASSERT_TRUE(until([&] { return !results().empty(); }));
  EXPECT_EQ(results()[0]["outcome"], "applied");
  EXPECT_EQ(received_.back()["orders"]["run"], "r1");
}

TEST_F(ClusterLinkTest, WhatIsNoOrderIsSaidOnceAndNotDone) {
  listen();
  begin();
  const json bad{{"type", "heartbeat"}, {"orders", {{"run", "r1"}, {"list", 3}}}};
  ASSERT_TRUE(until(
      [&] { return said().find("sends orders that are refused") != std::string::npos; }, bad));
  const std::size_t more = received_.size() + 5;
  ASSERT_TRUE(until([&] { return received_.size() >= more; }, bad));
  EXPECT_EQ(said().find("sends orders"), said().rfind("sends orders"));
  EXPECT_TRUE(link_->orders().to_carry_out().empty());
}

TEST_F(ClusterLinkTest, AKeyThatIsNotAllowedSendsNothing) {
  admits_ = false;
  listen();
  begin();
  ASSERT_TRUE(until([&] { return said().find("does not allow the key") != std::string::npos; }));
  EXPECT_TRUE(received_.empty());
  EXPECT_EQ(link_->sent(), 0U);
  admits_ = true;
  EXPECT_TRUE(until([&] { return !received_.empty(); })) << "it is tried again";
}

TEST_F(ClusterLinkTest, AMissingKeySaysHowToMakeIt) {
  listen();
  EXPECT_THAT(keys::problem_of<keys::KeyProblem>([&] {
                ClusterLink link(ClusterLink::Options{address_, folder_.path(), "n9"}, log_, now_);
              }),
              HasSubstr("commensal keys create n9"));
  std::filesystem::remove(folder_.public_file("coordinator"));
  EXPECT_THAT(
      keys::problem_of<keys::KeyProblem>([&] {
        ClusterLink link(ClusterLink::Options{address_, folder_.path(), "node"}, log_, now_);
      }),
      AllOf(HasSubstr("coordinator.pub"), Not(HasSubstr("node.key"))));
}

}  // namespace
}  // namespace commensal::node::cluster_link_test

// SPDX-License-Identifier: Apache-2.0
// One machine as four nodes: four node coordinators, the cluster's coordinator with the local
// engine, and jobs that are real processes. What users see of classes, quotas, dead nodes and a
// coordinator that is killed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/cluster/command_line.h"
#include "coordinator/cluster/local_cluster.h"
#include "coordinator/engines/local/attempt_folder.h"
#include "coordinator/engines/local/process.h"
#include "tests/coordinator/fake_job.h"

namespace commensal::cluster::local_nodes_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using node::DaemonFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = 1 << 20U;

bool eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + 1min;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    ::usleep(20'000);
  }
  return true;
}

class LocalNodesTest : public ::testing::Test {
 protected:
  LocalNodesTest() {
    std::filesystem::create_directory(work_ = home_.path() / "work");
    for (const DaemonFolder& node : nodes_) begin_node(node);
    begin();
  }
  ~LocalNodesTest() override {
    end();
    std::error_code ignored;
    if (!std::filesystem::exists(engine_state(), ignored)) return;
    for (const Attempt& attempt : local::attempts_in(engine_state())) kill_keeper(attempt);
  }

  static void begin_node(const DaemonFolder& node) {
    std::vector<std::string> words{"--memory-budget", "1000MiB",           "--budget-covers", "all",
                                   "--runtime-dir",   node.path().native()};
    const node::Finished started = DaemonFolder::run(std::move(words));
    ASSERT_EQ(started.code, 0) << started.output;
  }
  void begin() {
    std::vector<std::string> words{COMMENSAL_COORDINATOR,
                                   "--foreground",
                                   "--runtime-dir",
                                   (home_.path() / "run").native(),
                                   "--state-dir",
                                   state().native(),
                                   "--keeper",
                                   COMMENSAL_KEEPER,
                                   "--commensal",
                                   COMMENSAL_STAND_IN,
                                   "--http",
                                   "off",
                                   "--grace",
                                   "1",
                                   "--first-retry",
                                   "0"};
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      words.insert(words.end(), {"--node", name(i) + '=' + nodes_[i].path().native()});
    }
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    coordinator_ = ::fork();
    if (coordinator_ == 0) {
      const int nowhere = ::open("/dev/null", O_RDWR);
      ::dup2(nowhere, STDERR_FILENO);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ASSERT_TRUE(eventually([this] {
      try {
        return ask({{"type", "nodes"}})["type"] == "nodes";
      } catch (const wire::CoordinatorUnreachable&) {
        return false;
      }
    }));
  }
  void end() {
    ::kill(coordinator_, SIGKILL);
    ::waitpid(coordinator_, nullptr, 0);
  }

  [[nodiscard]] std::filesystem::path state() const { return home_.path() / "state"; }
  [[nodiscard]] std::filesystem::path engine_state() const { return state() / "local"; }
  static std::string name(std::size_t node) { return "n" + std::to_string(node + 1); }
  [[nodiscard]] const DaemonFolder& folder(const std::string& node) const {
    return nodes_.at(static_cast<std::size_t>(node.at(1) - '1'));
  }

  json ask(json request) const {
    request["v"] = 1;
    const wire::ControlClient client{home_.path() / "run" / "cluster-default.sock", 60s};
    return json::parse(client.request_frame(request.dump()));
  }
  /// A job that runs until `finish`.
  std::string submit(const std::string& asked, const std::string& tenant = "default",
                     std::uint64_t memory = 0) {
    const std::string own = (work_ / "$COMMENSAL_CLUSTER_JOB").native();
    json job{{"name", asked},
             {"tenant", tenant},
             {"class", asked},
             {"gpus", 1},
             {"cpu_milli", 0},
             {"host_memory_mib", 0},
             {"environment", json::object()},
             {"command",
              {"/bin/sh", "-c",
               "echo $COMMENSAL_CLUSTER_NODE >> " + own + ".starts; while [ ! -e " + own +
                   ".go ]; do sleep 0.05; done"}},
             {"directory", work_.native()}};
    if (memory > 0) job["memory"] = {{"min_bytes", memory}, {"max_bytes", memory}};
    const json answer = ask({{"type", "submit"}, {"job", job}});
    EXPECT_EQ(answer["type"], "submit") << answer;
    return answer["id"];
  }
  void finish(const std::string& id) const { std::ofstream{work_ / (id + ".go")}; }
  json job(const std::string& id) const {
    const json answer = ask({{"type", "explain"}, {"id", id}});
    return answer["job"];
  }
  [[nodiscard]] bool is(const std::string& id, const std::string& state) const {
    return eventually([&] { return job(id)["state"] == state; });
  }
  [[nodiscard]] std::string place(const std::string& id) const {
    return job(id)["placement"][0]["node"];
  }
  /// Nodes on which it was started, in their order.
  [[nodiscard]] std::vector<std::string> starts(const std::string& id) const {
    std::ifstream file{work_ / (id + ".starts")};
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }
  [[nodiscard]] json cluster_node(const std::string& node) const {
    const json answer = ask({{"type", "nodes"}});
    for (const json& one : answer["nodes"]) {
      if (one["name"] == node) return one;
    }
    return {};
  }
  /// What its node's coordinator says of a job; null: nothing.
  [[nodiscard]] json at_node(const std::string& id) const {
    const json status = folder(place(id)).status("job-" + id + ".1");
    return status["jobs"].empty() ? json{} : status["jobs"][0];
  }
  [[nodiscard]] bool granted(const std::string& id, std::uint64_t bytes) const {
    return eventually([&] {
      const json found = at_node(id);
      return !found.is_null() && found["lease"]["granted_bytes"] == bytes;
    });
  }
  void kill_keeper(const Attempt& attempt) const {
    const auto keeper = local::AttemptFolder{engine_state(), attempt}.keeper();
    if (!keeper) return;
    const wire::UniqueFd pidfd = local::open_process(keeper->process);
    if (pidfd) (void)local::send_signal(pidfd.get(), SIGKILL);
  }

  const DaemonFolder home_;
  const std::array<DaemonFolder, 4> nodes_;
  std::filesystem::path work_;
  pid_t coordinator_ = -1;
};

TEST_F(LocalNodesTest, ClassesQuotasDeadNodesAndAKilledCoordinator) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) EXPECT_EQ(cluster_node(name(i))["state"], "up");
  ask({{"type", "quota"}, {"tenant", "vision"}, {"quota", 1}});

  // A guaranteed job starts at once, an opportunistic one on a node that is less loaded.
  const std::string first = submit("guaranteed", "vision", 400 * kMiB);
  ASSERT_TRUE(is(first, "running"));
  ASSERT_TRUE(granted(first, 400 * kMiB));
  const std::string beside = submit("opportunistic");
  ASSERT_TRUE(is(beside, "running"));
  const std::string node = place(beside);
  EXPECT_NE(node, place(first));
  ASSERT_TRUE(granted(beside, 1000 * kMiB));

  // It shrinks when a guaranteed one arrives on its node.
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (name(i) != node) ask({{"type", "drain"}, {"node", name(i)}});
  }
  const std::string arrives = submit("guaranteed", "default", 400 * kMiB);
  ASSERT_TRUE(is(arrives, "running"));
  EXPECT_EQ(place(arrives), node);
  EXPECT_TRUE(granted(arrives, 400 * kMiB));
  EXPECT_TRUE(granted(beside, 600 * kMiB));
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (name(i) != node) ask({{"type", "undrain"}, {"node", name(i)}});
  }

  // An auto job begins beside others and is upgraded where it runs when quota frees.
  const std::string automatic = submit("auto", "vision");
  ASSERT_TRUE(is(automatic, "running"));
  EXPECT_EQ(job(automatic)["class"], "opportunistic");
  ASSERT_TRUE(eventually([&] { return !at_node(automatic).is_null(); }));
  finish(first);
  ASSERT_TRUE(is(first, "finished"));
  EXPECT_TRUE(eventually([&] { return job(automatic)["class"] == "guaranteed"; }));
  EXPECT_TRUE(eventually([&] { return at_node(automatic)["job"]["class"] == "guaranteed"; }));

  // The coordinator is killed: everything runs on, and the next one finds it.
  end();
  begin();
  for (const std::string& id : {beside, arrives, automatic}) {
    EXPECT_TRUE(is(id, "running"));
    EXPECT_EQ(job(id)["attempt"], 1);
    EXPECT_EQ(starts(id).size(), 1U);
  }
  EXPECT_EQ(job(automatic)["class"], "guaranteed");

  // A node's coordinator dies: its jobs run on, and it is given no more.
  ASSERT_TRUE(folder(node).stop(SIGKILL));
  ASSERT_TRUE(eventually([&] { return cluster_node(node)["state"] == "down"; }));
  EXPECT_THAT(
      cluster_node(node)["reason"].get<std::string>(),
      AllOf(HasSubstr("no coordinator listens on"), HasSubstr(folder(node).path().native())));
  EXPECT_EQ(job(beside)["state"], "running");
  const std::string elsewhere = submit("guaranteed");
  ASSERT_TRUE(is(elsewhere, "running"));
  EXPECT_NE(place(elsewhere), node);

  // The rest of the node dies, too: its job is started once more, on another one.
  kill_keeper({JobId{beside}, 1});
  ASSERT_TRUE(eventually([&] { return job(beside)["attempt"] == 2; }));
  ASSERT_TRUE(is(beside, "running"));
  EXPECT_NE(place(beside), node);
  ASSERT_TRUE(eventually([&] { return starts(beside).size() == 2; }));
  EXPECT_EQ(starts(beside)[0], node);
  EXPECT_EQ(starts(beside)[1], place(beside));

  // It comes back, and finds the job that has run on.
  begin_node(folder(node));
  EXPECT_TRUE(eventually([&] { return cluster_node(node)["state"] == "up"; }));
  EXPECT_TRUE(granted(arrives, 400 * kMiB));
  for (const std::string& id : {arrives, automatic, beside, elsewhere}) {
    finish(id);
    EXPECT_TRUE(is(id, "finished"));
  }
}

std::string refused(const std::vector<std::string>& words) {
  const CommandLine line = parse_command_line(words, "0");
  EXPECT_FALSE(line.options.has_value());
  EXPECT_EQ(line.code, node::ExitCode::kUsage);
  return line.text;
}

TEST(LocalNodesOptions, AreReadAndWrongOnesNamed) {
  const DaemonFolder folder;
  const std::string good = "n1=" + folder.path().native();
  const CommandLine line = parse_command_line({"--node", good, "--node", "n2=/tmp"}, "0");
  ASSERT_TRUE(line.options.has_value()) << line.text;
  ASSERT_EQ(line.options->nodes.size(), 2U);
  EXPECT_EQ(line.options->nodes[0].name, "n1");
  EXPECT_EQ(line.options->nodes[0].folder, folder.path());
  for (const char* word : {"n1", "=/tmp", "n1="}) {
    EXPECT_THAT(refused({"--node", word}), HasSubstr("NAME=FOLDER, not \"" + std::string{word}));
  }
  EXPECT_THAT(refused({"--node", good, "--node", good}), HasSubstr("two nodes are named \"n1\""));
  EXPECT_THAT(refused({"--node", "n1=/no/such/folder"}), HasSubstr("/no/such/folder"));
  EXPECT_THAT(refused({"--engine", "slurm", "--node", good}), HasSubstr("engine local"));
}

TEST(LocalNodesOptions, OneMachineIsOneNodeUnlessSaid) {
  ClusterOptions options;
  options.runtime_dir = "/run/mine";
  options.commensal = "commensal";
  const EngineNode machine{"host", {"host", "host"}, "cpu", 1000, 1000, true, ""};
  EXPECT_EQ(local_nodes(options, machine), std::vector{machine});
  EXPECT_TRUE(node_variables(options, "host").empty());
  EXPECT_EQ(node_folder(options, "host"), "/run/mine");
  const auto words = run_prefix(options, {JobId{"7"}, 1}, JobClass::kGuaranteed, {});
  EXPECT_THAT(words, ::testing::Contains("/run/mine"));

  const DaemonFolder nobody;
  options.nodes = {{"n1", nobody.path()}};
  const auto nodes = local_nodes(options, machine);
  ASSERT_EQ(nodes.size(), 1U);
  EXPECT_EQ(nodes[0].name, "n1");
  EXPECT_EQ(nodes[0].devices, machine.devices);
  EXPECT_FALSE(nodes[0].up);
  EXPECT_THAT(nodes[0].reason, HasSubstr(nobody.path().native()));
  EXPECT_EQ(node_variables(options, "n1").at("COMMENSAL_RUNTIME_DIR"), nobody.path().native());
  const auto own = run_prefix(options, {JobId{"7"}, 1}, JobClass::kGuaranteed, {});
  EXPECT_THAT(own, ::testing::Not(::testing::Contains("--runtime-dir")));
}

}  // namespace
}  // namespace commensal::cluster::local_nodes_test

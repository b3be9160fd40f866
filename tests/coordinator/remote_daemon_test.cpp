// SPDX-License-Identifier: Apache-2.0
// commensal-coordinator as it runs, and what others on the network may do to it: floods that it
// refuses without growing, keys that are revoked while they are connected, nodes that come and go.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "coordinator/keys/allowed_keys.h"
#include "coordinator/keys/remote_client.h"
#include "coordinator/wire/control_client.h"
#include "coordinator/wire/handover.h"
#include "tests/coordinator/fake_job.h"
#include "tests/coordinator/holding_proxy.h"
#include "tests/coordinator/key_world.h"
#include "tests/sanitizers.h"

namespace commensal::cluster::remote_daemon_test {
namespace {

using namespace std::chrono_literals;
using keys::AllowedKey;
using keys::KeyPair;
using keys::Role;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr auto kPatience = 60s;
constexpr std::size_t kMiB = 1U << 20U;

bool eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(20ms);
  }
  return true;
}

class RemoteDaemonTest : public ::testing::Test {
 protected:
  /// @param address  on which its coordinator listens.
  explicit RemoteDaemonTest(std::string address = "tcp://127.0.0.1:0")
      : address_(std::move(address)) {
    begin();
  }
  /// Starts the coordinator; listens where it did before, if it did.
  void begin(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{COMMENSAL_COORDINATOR,
                                   "--foreground",
                                   "--runtime-dir",
                                   folder_.path() / "run",
                                   "--state-dir",
                                   folder_.path() / "state",
                                   "--keys-dir",
                                   own_.folder().path(),
                                   "--listen",
                                   address_};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      const int log = open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
      dup2(log, STDERR_FILENO);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    EXPECT_TRUE(eventually([this] {
      try {
        address_ = here({{"type", "nodes"}})["coordinator"]["address"];
        return true;
      } catch (const wire::CoordinatorUnreachable&) {
        return false;
      }
    }));
    server_ = own_.folder().load_public("coordinator");
  }
  void end() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ~RemoteDaemonTest() override { end(); }

  /// Asks by the local socket.
  json here(json request) {
    request["v"] = 1;
    const wire::ControlClient client{folder_.path() / "run" / "cluster-default.sock", kPatience};
    return json::parse(client.request_frame(request.dump()));
  }
  /// Makes a pair and allows it.
  KeyPair allowed(const std::string& name, Role role) {
    const KeyPair pair = keys::make_key_pair();
    const AllowedKey key{.name = name,
                         .key = pair.public_key,
                         .role = role,
                         .tenants = role == Role::kUser ? std::vector<std::string>{"vision"}
                                                        : std::vector<std::string>{},
                         .created_ms = 1,
                         .revoked_ms = std::nullopt};
    own_.change([&](keys::AllowedKeys list) { return keys::with_allowed(std::move(list), key); });
    return pair;
  }
  std::unique_ptr<zmq::socket_t> connected(const KeyPair& own) {
    auto socket = std::make_unique<zmq::socket_t>(context_, zmq::socket_type::dealer);
    socket->set(zmq::sockopt::linger, 0);
    socket->set(zmq::sockopt::rcvtimeo, static_cast<int>(kPatience / 1ms));
    keys::use_keys(*socket, own, server_);
    socket->connect(address_);
    return socket;
  }
  static json answer_of(zmq::socket_t& socket) {
    zmq::message_t reply;
    if (!socket.recv(reply)) return {{"type", "nothing"}};
    return json::parse(reply.to_string());
  }
  static json ask(zmq::socket_t& socket, json request) {
    request["v"] = 1;
    const std::string frame = request.dump();
    (void)socket.send(zmq::buffer(frame));
    return answer_of(socket);
  }
  [[nodiscard]] std::size_t resident() const {
    std::ifstream file{"/proc/" + std::to_string(pid_) + "/statm"};
    std::size_t size = 0;
    std::size_t pages = 0;
    file >> size >> pages;
    return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  }
  /// How many lines of its log say that.
  [[nodiscard]] std::ptrdiff_t logged(const std::string& text) const {
    std::ifstream log{log_path_};
    std::ptrdiff_t lines = 0;
    for (std::string line; std::getline(log, line);) lines += line.find(text) != line.npos ? 1 : 0;
    return lines;
  }
  static void expect_flat(std::size_t before, std::size_t after) {
    if (testing::kSanitized) GTEST_SKIP() << "the sanitizer keeps freed memory";
    EXPECT_GT(before, kMiB);
    EXPECT_LT(after, before + 16 * kMiB);
  }

  keys::TestFolder folder_;
  std::filesystem::path log_path_ = folder_.path() / "log";
  keys::AllowedStore own_{keys::KeyFolder{folder_.path() / "keys"}};
  pid_t pid_ = -1;
  std::string address_;
  keys::Key server_;
  zmq::context_t context_{1};
};

/// What is no request, of about a KiB, so that any that were kept would show.
std::vector<std::string> malformed() {
  const std::string filling(1000, 'x');
  return {filling,
          "",
          "[" + std::string(1000, '['),
          json{filling}.dump(),
          json{{"v", 1}}.dump(),
          json{{"v", 2}, {"type", "queue"}, {"x", filling}}.dump(),
          json{{"v", 1}, {"type", "no such thing"}, {"x", filling}}.dump(),
          json{{"v", 1}, {"type", filling}}.dump(),
          json{{"v", 1}, {"type", 7}, {"x", filling}}.dump(),
          json{{"v", 1}, {"type", "submit"}, {"job", filling}}.dump(),
          json{{"v", 1}, {"type", "submit"}, {"job", {{"command", filling}}}}.dump(),
          json{{"v", 1}, {"type", "cancel"}, {"id", filling}}.dump(),
          json{{"v", 1}, {"type", "quota"}, {"tenant", 1}, {"x", filling}}.dump(),
          json{{"v", 1}, {"type", "heartbeat"}, {"report", filling}}.dump(),
          "{\"v\":1,\"type\":\"queue\",\"all\":\"\xff\xfe" + filling + "\"}"};
}

TEST_F(RemoteDaemonTest, AHundredThousandMalformedMessagesAreRefusedWithoutGrowth) {
  const auto boss = connected(allowed("boss", Role::kOperator));
  const std::vector<std::string> bad = malformed();
  const auto flood = [&](int count) {
    constexpr int kAtOnce = 30;  // under way
    int refused = 0;
    for (int sent = 0; sent < count; sent += kAtOnce) {
      for (int i = 0; i < kAtOnce; ++i) {
        const std::string& frame = bad[static_cast<std::size_t>(sent + i) % bad.size()];
        const bool two = (sent + i) % 7 == 0;
        if (two) (void)boss->send(zmq::buffer(frame), zmq::send_flags::sndmore);
        (void)boss->send(zmq::buffer(frame));
      }
      for (int i = 0; i < kAtOnce; ++i) refused += answer_of(*boss)["type"] == "error" ? 1 : 0;
    }
    return refused;
  };
  EXPECT_EQ(flood(9'990), 9'990);
  const std::size_t before = resident();
  constexpr int kMore = testing::kSanitized ? 30 : 90'030;
  EXPECT_EQ(flood(kMore), kMore);
  EXPECT_EQ(ask(*boss, {{"type", "queue"}, {"all", true}})["jobs"], json::array());
  expect_flat(before, resident());
}

TEST_F(RemoteDaemonTest, NoKeyEndsTheCoordinatorByAMessageThatNests) {
  const std::size_t depth = (wire::kMaxFrameBytes - 200) / 2;
  for (const Role role : {Role::kUser, Role::kNode, Role::kOperator}) {
    const auto peer = connected(allowed("peer-" + std::string{to_string(role)}, role));
    for (const char* begin :
         {R"({"v":)", R"({"v":1,"type":)", R"({"v":1,"type":"submit","job":)",
          R"({"v":1,"type":"heartbeat","report":)", R"({"v":1,"type":"heartbeat","orders":)"}) {
      const std::string frame = begin + std::string(depth, '[') + std::string(depth, ']') + '}';
      (void)peer->send(zmq::buffer(frame));
      EXPECT_EQ(answer_of(*peer)["what"], "a message nests deeper than 32") << begin;
    }
  }
}

TEST_F(RemoteDaemonTest, OversizedFramesEndTheirConnectionAndAreNotKept) {
  const KeyPair boss = allowed("boss", Role::kOperator);
  const std::string huge(2 * kMiB, 'x');
  const auto flood = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const auto socket = connected(boss);
      EXPECT_EQ(ask(*socket, {{"type", "queue"}})["type"], "queue");
      (void)socket->send(zmq::buffer(huge));
      (void)ask(*connected(boss), {{"type", "queue"}});  // it has come that far by then
    }
  };
  flood(10);
  const std::size_t before = resident();
  flood(testing::kSanitized ? 5 : 60);  // 120 MiB
  EXPECT_EQ(ask(*connected(boss), {{"type", "queue"}})["type"], "queue");
  expect_flat(before, resident());
}

TEST_F(RemoteDaemonTest, AMessageWithoutAnEndEndsItsConnectionAndIsNotKept) {
  const KeyPair boss = allowed("boss", Role::kOperator);
  const auto beside = connected(boss);
  EXPECT_EQ(ask(*beside, {{"type", "queue"}})["type"], "queue");
  const std::string direct = address_;
  const std::string part(512U << 10U, 'x');
  std::size_t before = 0;
  const auto ended = [this] { return logged("ended 1 connections that sent a message without"); };
  const int rounds = testing::kSanitized ? 1 : 3;
  for (int round = 0; round < rounds; ++round) {
    // ZeroMQ sends nothing of a message before it is whole: so its end is held back on the way.
    const HoldingProxy proxy{std::stoi(direct.substr(direct.rfind(':') + 1)), 40 * kMiB};
    address_ = proxy.address();
    const auto endless = connected(boss);
    for (int i = 0; i < 100; ++i) {
      (void)endless->send(zmq::buffer(part), zmq::send_flags::sndmore);
    }
    (void)endless->send(zmq::str_buffer("end"));
    EXPECT_TRUE(eventually([&] { return proxy.ended(); }));
    // Whoever is silent for half a minute is cut off, too: this one was for what it sent.
    EXPECT_TRUE(eventually([&] { return ended() == round + 1; }));
    EXPECT_EQ(ask(*beside, {{"type", "queue"}})["type"], "queue") << "others are answered";
    if (round == 0) before = resident();
  }
  address_ = direct;
  EXPECT_EQ(ask(*connected(boss), {{"type", "queue"}})["type"], "queue") << "the key is good";
  EXPECT_EQ(ended(), rounds) << "each once";
  // What it had sent is given back a moment after its connection.
  if (!testing::kSanitized) (void)eventually([&] { return resident() < before + 16 * kMiB; });
  expect_flat(before, resident());
}

TEST_F(RemoteDaemonTest, LongMessagesThatWaitTogetherAreNoneWithoutAnEnd) {
  const auto boss = connected(allowed("boss", Role::kOperator));
  json request{{"v", 1}, {"type", "queue"}, {"x", std::string(900U << 10U, 'x')}};
  const std::string frame = request.dump();
  constexpr int kMessages = 50;  // 44 MiB; 64 answers may wait
  for (int i = 0; i < kMessages; ++i) (void)boss->send(zmq::buffer(frame));
  for (int i = 0; i < kMessages; ++i) EXPECT_EQ(answer_of(*boss)["type"], "queue") << i;
}

TEST_F(RemoteDaemonTest, StrangersAreRefusedWithoutGrowth) {
  const auto flood = [&](int count) {
    for (int i = 0; i < count; ++i) {
      const keys::RemoteClient stranger{address_, keys::make_key_pair(), server_, kPatience};
      EXPECT_THROW((void)stranger.request_frame("{}"), keys::KeyRefused);
    }
  };
  flood(100);
  const std::size_t before = resident();
  flood(testing::kSanitized ? 20 : 500);
  const auto boss = connected(allowed("boss", Role::kOperator));
  EXPECT_EQ(ask(*boss, {{"type", "queue"}})["type"], "queue");
  expect_flat(before, resident());
}

TEST_F(RemoteDaemonTest, ARevokedKeyIsRefusedOnItsOpenConnection) {
  const auto boss = connected(allowed("boss", Role::kOperator));
  const auto other = connected(allowed("other", Role::kOperator));
  EXPECT_EQ(ask(*boss, {{"type", "quota"}, {"tenant", "t"}, {"quota", 3}})["quota"], 3);
  EXPECT_EQ(ask(*other, {{"type", "queue"}})["type"], "queue");
  own_.change(
      [](keys::AllowedKeys list) { return keys::with_revoked(std::move(list), "boss", 2); });
  const json refused = ask(*boss, {{"type", "quota"}, {"tenant", "t"}, {"quota", 9}});
  EXPECT_EQ(refused["code"], "forbidden");
  EXPECT_THAT(refused["what"].get<std::string>(), HasSubstr("not allowed any more"));
  const json told = ask(*other, {{"type", "tenants"}});
  for (const json& tenant : told["tenants"]) {
    EXPECT_TRUE(tenant["name"] != "t" || tenant["quota"] == 3);
  }
}

TEST_F(RemoteDaemonTest, AListOfKeysThatOthersCouldReadAllowsNobody) {
  const auto boss = connected(allowed("boss", Role::kOperator));
  EXPECT_EQ(ask(*boss, {{"type", "queue"}})["type"], "queue");
  std::filesystem::permissions(own_.file(), std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  EXPECT_EQ(ask(*boss, {{"type", "queue"}})["code"], "forbidden");
  std::filesystem::permissions(own_.file(), std::filesystem::perms::others_read,
                               std::filesystem::perm_options::remove);
  EXPECT_EQ(ask(*boss, {{"type", "queue"}})["type"], "queue");
}

TEST_F(RemoteDaemonTest, ManyNodesReportAndAreShown) {
  constexpr int kNodes = 200;
  std::vector<std::unique_ptr<zmq::socket_t>> nodes;
  for (int i = 0; i < kNodes; ++i) {
    nodes.push_back(connected(allowed("n" + std::to_string(i), Role::kNode)));
  }
  const json report{{"devices", {{{"id", "host"}, {"type", "cpu"}}}},
                    {"jobs", {{{"id", "j"}, {"tenant", "t"}, {"step", {{"number", 4}}}}}},
                    {"cores", 8}};
  const auto beat = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (const auto& node : nodes) {
        const std::string frame = json{{"v", 1}, {"type", "heartbeat"}, {"report", report}}.dump();
        (void)node->send(zmq::buffer(frame));
      }
      for (const auto& node : nodes) EXPECT_EQ(answer_of(*node)["type"], "heartbeat");
    }
  };
  beat(10);
  const std::size_t before = resident();
  beat(testing::kSanitized ? 2 : 50);
  int shown = 0;
  const json answer = here({{"type", "nodes"}});
  for (const json& node : answer["nodes"]) {
    if (!node.contains("only_reports")) continue;
    ++shown;
    EXPECT_EQ(node["state"], "up");
    EXPECT_EQ(node["report"]["jobs"][0]["step"]["number"], 4);
  }
  EXPECT_EQ(shown, kNodes);
  EXPECT_EQ(ask(*nodes[0], {{"type", "queue"}})["code"], "forbidden");
  expect_flat(before, resident());
}

/// commensald of a machine that is reached by its key alone, with a job.
class ReportingNodeTest : public RemoteDaemonTest {
 protected:
  explicit ReportingNodeTest(const std::string& address = "tcp://127.0.0.1:0")
      : RemoteDaemonTest(address) {
    const AllowedKey key{.name = "n1",
                         .key = keys_.create("node"),
                         .role = Role::kNode,
                         .tenants = {},
                         .created_ms = 1,
                         .revoked_ms = std::nullopt};
    own_.change([&](keys::AllowedKeys list) { return keys::with_allowed(std::move(list), key); });
    std::filesystem::copy_file(own_.folder().public_file("coordinator"),
                               keys_.public_file("coordinator"));
    const auto started = node_.start({"--memory-budget", "1000MiB", "--idle-exit", "0",
                                      "--coordinator", address_, "--keys-dir", keys_.path()});
    EXPECT_EQ(started.code, 0) << started.output;
  }
  json set_class(const std::string& job, const std::string& job_class) {
    return here({{"type", "set_class"}, {"node", "n1"}, {"job", job}, {"class", job_class}});
  }
  [[nodiscard]] std::string class_of(const std::string& job) const {
    const json status = node_.status(job);
    return status["jobs"].empty() ? "" : status["jobs"][0]["job"]["class"].get<std::string>();
  }

  keys::KeyFolder keys_{folder_.path() / "node-keys"};
  node::DaemonFolder node_;
  node::FakeJob job_{node_, node::registration("train", JobClass::kOpportunistic, 0, 100 * kMiB)};
};

TEST_F(ReportingNodeTest, AChangeOfClassReachesItByItsHeartbeats) {
  json said;
  ASSERT_TRUE(eventually([&] {
    said = set_class("train", "guaranteed");
    return said.contains("outcome") && said["outcome"] != "deferred";
  }));
  EXPECT_EQ(said["outcome"], "applied") << said;
  EXPECT_EQ(class_of("train"), "guaranteed");
  EXPECT_TRUE(eventually([&] {
    const json nodes = here({{"type", "nodes"}})["nodes"];
    return std::any_of(nodes.begin(), nodes.end(), [](const json& node) {
      return node["name"] == "n1" && node["report"]["jobs"][0]["class"] == "guaranteed";
    });
  })) << "the next report shows it";
  ASSERT_TRUE(eventually([&] {
    said = set_class("train", "opportunistic");
    return said.contains("outcome") && said["outcome"] != "deferred";
  }));
  EXPECT_EQ(said["outcome"], "applied") << said;
  EXPECT_EQ(class_of("train"), "opportunistic");
}

TEST_F(ReportingNodeTest, WhatCannotBeOrderedIsRefusedWithAReason) {
  ASSERT_TRUE(eventually([&] { return set_class("train", "opportunistic").contains("outcome"); }));
  EXPECT_THAT(set_class("other", "guaranteed")["what"].get<std::string>(),
              HasSubstr("node n1 reports no job other"));
  EXPECT_THAT(set_class("train", "king")["what"].get<std::string>(), HasSubstr("\"king\""));
  EXPECT_EQ(set_class("", "guaranteed")["code"], "malformed");
  EXPECT_EQ(here({{"type", "set_class"},
                  {"node", "n9"},
                  {"job", "train"},
                  {"class", "guaranteed"}})["code"],
            "unavailable");
  EXPECT_EQ(class_of("train"), "opportunistic");
}

/// A port that one coordinator after the other can listen on, and that nobody else is given
/// meanwhile: a socket is bound to it, and does not listen.
class ReservedPort {
 public:
  ReservedPort() {
    const int yes = 1;
    sockaddr_in address{};
    socklen_t size = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
    EXPECT_EQ(bind(socket_.get(), plain, sizeof address), 0);
    EXPECT_EQ(getsockname(socket_.get(), plain, &size), 0);
    port_ = ntohs(address.sin_port);
  }
  [[nodiscard]] std::string address() const { return "tcp://127.0.0.1:" + std::to_string(port_); }

 private:
  wire::UniqueFd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int port_ = 0;
};

/// The same node, on which the cluster's engine starts jobs.
class PlacedNodeTest : private ReservedPort, public ReportingNodeTest {
 protected:
  PlacedNodeTest() : ReportingNodeTest(ReservedPort::address()) { begin_again(); }
  ~PlacedNodeTest() override {
    if (submitted_.empty()) return;
    (void)here({{"type", "cancel"}, {"id", submitted_}});
    EXPECT_TRUE(eventually([this] {
      return here({{"type", "explain"}, {"id", submitted_}})["job"]["state"] == "cancelled";
    }));
  }
  /// The coordinator ends, and the next one begins.
  void begin_again() {
    end();
    begin({"--node", "n1=" + node_.path().native(), "--keeper", COMMENSAL_KEEPER, "--http", "off",
           "--grace", "1"});
  }
  /// A guaranteed job whose process does not register: the test does it.
  void submit() {
    submitted_ = here({{"type", "submit"},
                       {"job",
                        {{"name", "placed"},
                         {"tenant", "default"},
                         {"class", "guaranteed"},
                         {"gpus", 1},
                         {"cpu_milli", 0},
                         {"host_memory_mib", 0},
                         {"memory", {{"min_bytes", 400 * kMiB}}},
                         {"environment", json::object()},
                         {"command", {"sleep", "1000"}},
                         {"directory", folder_.path()}}}})["id"];
  }
  [[nodiscard]] json expected() const { return node_.status()["expected"]; }
  [[nodiscard]] std::uint64_t granted(const std::string& job) const {
    const json status = node_.status(job);
    return status["jobs"].empty()
               ? 0
               : status["jobs"][0]["lease"]["granted_bytes"].get<std::uint64_t>();
  }
  /// What the cluster says of its list for the node: null while it does not report.
  json told() {
    const json answer = here({{"type", "nodes"}});
    for (const json& node : answer["nodes"]) {
      if (node["name"] == "n1" && node.contains("report")) return node["report"]["placements"];
    }
    return nullptr;
  }
  bool acknowledged() {
    return eventually([this] {
      const json list = told();
      return !list.is_null() && list["number"] != 0 && list["number"] == list["known"];
    });
  }

  std::string submitted_;
  node::FakeJob beside_{node_, node::registration("beside", JobClass::kOpportunistic, 0)};
};

TEST_F(PlacedNodeTest, APlacementIsKnownBeforeItsJobComesAndOutlivesTheCoordinator) {
  ASSERT_TRUE(eventually([this] { return granted("beside") > 800 * kMiB; }));
  submit();
  ASSERT_TRUE(eventually([this] { return expected().size() == 1; }));
  EXPECT_EQ(expected()[0]["job"]["id"], "job-" + submitted_ + ".1");
  EXPECT_EQ(expected()[0]["job"]["class"], "guaranteed");
  EXPECT_EQ(expected()[0]["devices"], json::array({"host"}));
  EXPECT_TRUE(eventually([this] { return granted("beside") <= 600 * kMiB; })) << "it makes room";
  EXPECT_TRUE(acknowledged());

  end();  // silent: what was told stays
  const std::string id = "job-" + submitted_ + ".1";
  const node::FakeJob other{node_, node::registration(id, JobClass::kOpportunistic, 0)};
  ASSERT_TRUE(eventually([&] { return class_of(id) == "guaranteed"; }));
  EXPECT_THAT(node_.status(id)["jobs"][0]["job"]["reason"].get<std::string>(),
              HasSubstr("the cluster placed it with guaranteed"));
  EXPECT_TRUE(eventually([&] { return granted(id) >= 400 * kMiB; }));
  EXPECT_EQ(expected(), json::array());

  begin_again();  // another one tells its list anew
  EXPECT_TRUE(acknowledged());
  EXPECT_EQ(expected(), json::array());
  EXPECT_EQ(class_of(id), "guaranteed");
}

/// Not a test but a measurement: prints what 2,000 nodes cost that report each second. Run it with
/// --gtest_also_run_disabled_tests --gtest_filter=*TwoThousand*
TEST_F(RemoteDaemonTest, DISABLED_TwoThousandNodesASecond) {
  constexpr int kNodes = 2000;
  constexpr int kSeconds = 20;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  context_.set(zmq::ctxopt::max_sockets, 2 * kNodes);
  keys::AllowedKeys list;
  std::vector<KeyPair> pairs;
  for (int i = 0; i < kNodes; ++i) {
    pairs.push_back(keys::make_key_pair());
    list.push_back({"n" + std::to_string(i), pairs.back().public_key, Role::kNode, {}, 1, {}});
  }
  own_.change([&](const keys::AllowedKeys& /*none*/) { return list; });
  std::vector<std::unique_ptr<zmq::socket_t>> nodes;
  for (const KeyPair& pair : pairs) nodes.push_back(connected(pair));
  json jobs = json::array();
  for (int i = 0; i < 4; ++i) {
    jobs.push_back({{"id", "job-" + std::to_string(i)},
                    {"name", "train"},
                    {"tenant", "t"},
                    {"class", "opportunistic"},
                    {"step", {{"number", 4}, {"median_seconds", 0.1}}},
                    {"memory", {{"device_bytes", 1}, {"host_bytes", 2}, {"live_bytes", 3}}},
                    {"gate", {{"state", "open"}, {"share", 0.5}}}});
  }
  const json report{{"devices", {{{"id", "host"}, {"type", "cpu"}}}}, {"jobs", jobs}, {"cores", 8}};
  const std::string frame = json{{"v", 1}, {"type", "heartbeat"}, {"report", report}}.dump();
  const auto beat = [&] {
    for (const auto& node : nodes) (void)node->send(zmq::buffer(frame));
    for (const auto& node : nodes) EXPECT_EQ(answer_of(*node)["type"], "heartbeat");
  };
  const auto cpu_seconds = [this] {
    std::ifstream file{"/proc/" + std::to_string(pid_) + "/stat"};
    const std::string text{std::istreambuf_iterator<char>{file}, {}};
    std::istringstream fields{text.substr(text.rfind(')') + 2)};
    std::string word;
    for (int i = 0; i < 11; ++i) fields >> word;
    double user = 0;
    double system = 0;
    fields >> user >> system;
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  };
  beat();
  const double before = cpu_seconds();
  const std::size_t memory = resident();
  auto next = std::chrono::steady_clock::now();
  for (int i = 0; i < kSeconds; ++i) {
    beat();
    next += 1s;
    std::this_thread::sleep_until(next);
  }
  std::cout << kNodes << " nodes, reports of " << frame.size()
            << " bytes: " << 100 * (cpu_seconds() - before) / kSeconds << " % of a core, "
            << memory / kMiB << " MiB, " << resident() / kMiB << " MiB after " << kSeconds
            << " s\n";
}

}  // namespace
}  // namespace commensal::cluster::remote_daemon_test

// SPDX-License-Identifier: Apache-2.0
// The line to the coordinator: absent, refusing, dying, coming back, talking nonsense.
#include "torch_ext/runtime/coordinator_client.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>

#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "tests/torch_ext/runtime/page_file.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal::coordinator_client_test {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::FakeCoordinator;
using testing::TemporaryFolder;

/// Writes down what the client tells it.
class RecordingHost final : public ClientHost {
 public:
  wire::Register registration() override {
    wire::Register hello;
    hello.job_id = "job-1";
    hello.name = "job";
    hello.tenant = "default";
    hello.role = "main";
    hello.pid = ::getpid();
    return hello;
  }
  nlohmann::json statistics() override { return {{"schema", 1}}; }
  void on_registered(const wire::Registered&) override { ++registered; }
  void on_change(const wire::Change& change) override { changes = change.revision; }
  void on_set_reply(const wire::SetReply&) override {}
  void on_error(const wire::Error& error) override {
    if (error.code == "unknown_job") throw std::runtime_error(error.what);
    ++errors;
  }
  void on_disconnected() override { ++disconnected; }
  void on_device_page(wire::MappedPage) override { ++device_pages; }
  void on_peer_added(std::int64_t, wire::MappedPage) override { ++peers_added; }
  void on_peer_gone(std::int64_t) override { ++peers_gone; }
  Duration on_tick() override {
    ++ticks;
    return milliseconds{20};
  }

  std::atomic<int> registered{0};
  std::atomic<std::uint64_t> changes{0};
  std::atomic<int> errors{0};
  std::atomic<int> disconnected{0};
  std::atomic<int> device_pages{0};
  std::atomic<int> peers_added{0};
  std::atomic<int> peers_gone{0};
  std::atomic<int> ticks{0};
};

class CoordinatorClientTest : public ::testing::Test {
 protected:
  [[nodiscard]] ClientOptions options() const {
    ClientOptions options;
    options.runtime_dir = folder_.path();
    options.instance = "default";
    options.page_fd = page_.fd();
    options.connect_timeout = milliseconds{300};
    options.retry = milliseconds{50};
    return options;
  }

  TemporaryFolder folder_;
  OwnPage page_{JobId{"job-1"}, JobClass::kOpportunistic, 0};
  RecordingHost host_;
};

TEST_F(CoordinatorClientTest, WithoutAFolderItOnlyTicks) {
  ClientOptions alone = options();
  alone.runtime_dir.clear();
  CoordinatorClient client(alone, host_);
  client.start();
  EXPECT_FALSE(client.connected());
  EXPECT_EQ(client.status().reason, "not asked for");
  EXPECT_TRUE(eventually([&] { return host_.ticks.load() > 3; }));
}

TEST_F(CoordinatorClientTest, AnAbsentCoordinatorIsNoError) {
  CoordinatorClient client(options(), host_);
  client.start();
  EXPECT_NE(client.status().reason.find("no coordinator 'default' in"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return host_.ticks.load() > 3; }));
}

TEST_F(CoordinatorClientTest, RegistersAndHandsItsPageOver) {
  FakeCoordinator coordinator(folder_.path());
  CoordinatorClient client(options(), host_);
  client.start();
  EXPECT_TRUE(client.connected());
  EXPECT_EQ(client.status().coordinator_pid, 4242);
  EXPECT_EQ(host_.registered, 1);
  EXPECT_TRUE(eventually([&] { return host_.device_pages == 1; }));
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  EXPECT_STREQ(coordinator.job_page().job_id, "job-1");
  const auto stats = coordinator.next<wire::Stats>();
  ASSERT_TRUE(stats);
  EXPECT_FALSE(stats->final);
  client.stop();
  EXPECT_TRUE(coordinator.next_if<wire::Stats>([](const auto& s) { return s.final; }));
}

TEST_F(CoordinatorClientTest, ARefusalIsKeptAsTheReason) {
  FakeCoordinator::Behaviour behaviour;
  behaviour.refuses = "the device page is full";
  FakeCoordinator coordinator(folder_.path(), behaviour);
  CoordinatorClient client(options(), host_);
  client.start();
  EXPECT_FALSE(client.connected());
  EXPECT_EQ(client.status().reason, "coordinator 'default' refused: the device page is full");
}

TEST_F(CoordinatorClientTest, ACoordinatorThatSaysNothingIsGivenUpInTime) {
  FakeCoordinator::Behaviour behaviour;
  behaviour.answers = false;
  FakeCoordinator coordinator(folder_.path(), behaviour);
  CoordinatorClient client(options(), host_);
  client.start();
  EXPECT_EQ(client.status().reason, "coordinator 'default' did not answer within 300 ms");
}

TEST_F(CoordinatorClientTest, MalformedFramesAreCountedAndIgnored) {
  FakeCoordinator coordinator(folder_.path());
  CoordinatorClient client(options(), host_);
  client.start();
  coordinator.send_frame("{");
  coordinator.send_frame(R"({"v":99,"type":"change"})");
  coordinator.send(wire::StatusRequest{});  // not for a job
  wire::Change change;
  change.job_id = "job-1";
  change.revision = 7;
  coordinator.send(change);
  EXPECT_TRUE(eventually([&] { return host_.changes == 7; }));
  EXPECT_EQ(client.status().malformed_frames, 3U);
  EXPECT_TRUE(client.connected());
}

TEST_F(CoordinatorClientTest, ANewDaemonIsFoundAfterTheOldOneDied) {
  auto coordinator = std::make_unique<FakeCoordinator>(folder_.path());
  CoordinatorClient client(options(), host_);
  client.start();
  ASSERT_TRUE(client.connected());
  coordinator.reset();
  EXPECT_TRUE(eventually([&] { return host_.disconnected == 1; }));
  EXPECT_FALSE(client.connected());
  EXPECT_FALSE(client.status().reason.empty());
  coordinator = std::make_unique<FakeCoordinator>(folder_.path());
  EXPECT_TRUE(eventually([&] { return client.connected(); }));
  EXPECT_EQ(host_.registered, 2);
  client.post(wire::AskMemory{.job_id = "job-1", .pid = 1, .needed_bytes = 5, .held_bytes = 0});
  EXPECT_TRUE(coordinator->next<wire::AskMemory>());
}

TEST_F(CoordinatorClientTest, ADaemonThatForgotTheJobIsToldAgain) {
  FakeCoordinator coordinator(folder_.path());
  CoordinatorClient client(options(), host_);
  client.start();
  ASSERT_TRUE(coordinator.next<wire::Register>());
  coordinator.send(wire::Error{"unknown_job", "not registered here"});
  EXPECT_TRUE(coordinator.next<wire::Register>());
}

TEST_F(CoordinatorClientTest, APeersDeathIsSeenWithoutAMessage) {
  FakeCoordinator coordinator(folder_.path());
  CoordinatorClient client(options(), host_);
  client.start();
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const OwnPage peer{JobId{"other"}, JobClass::kGuaranteed, 0};
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  coordinator.add_peer(child, file_of(peer).get());
  EXPECT_TRUE(eventually([&] { return host_.peers_added == 1; }));
  EXPECT_EQ(host_.peers_gone, 0);
  ::kill(child, SIGKILL);
  EXPECT_TRUE(eventually([&] { return host_.peers_gone == 1; }));
  ::waitpid(child, nullptr, 0);
}

TEST_F(CoordinatorClientTest, ItsThreadBlocksSignalsAndHasAName) {
  CoordinatorClient client(options(), host_);
  client.start();
  const std::string task = "/proc/self/task/" + std::to_string(client.thread_id());
  std::string name;
  std::getline(std::ifstream(task + "/comm"), name);
  EXPECT_EQ(name, "commensal-coord");
  std::string line;
  std::ifstream status(task + "/status");
  while (std::getline(status, line) && !line.starts_with("SigBlk:")) {
  }
  ASSERT_TRUE(line.starts_with("SigBlk:"));
  const std::uint64_t blocked = std::stoull(line.substr(8), nullptr, 16);
  EXPECT_NE(blocked & (1ULL << (SIGINT - 1)), 0U);
  EXPECT_FALSE(client.on_client_thread());
}

TEST_F(CoordinatorClientTest, StoppingTwiceDoesNothing) {
  CoordinatorClient client(options(), host_);
  client.start();
  client.stop();
  client.stop();
  EXPECT_FALSE(client.connected());
}

}  // namespace
}  // namespace commensal::coordinator_client_test

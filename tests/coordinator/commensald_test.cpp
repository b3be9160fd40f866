// SPDX-License-Identifier: Apache-2.0
// The daemon as it runs: real processes, real sockets, real deaths.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <fstream>
#include <zmq.hpp>

#include "coordinator/wire/control_client.h"
#include "coordinator/wire/pages.h"
#include "coordinator/wire/paths.h"
#include "tests/coordinator/fake_job.h"

namespace commensal::node::commensald_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr std::uint64_t kMiB = 1U << 20U;

class CommensaldTest : public ::testing::Test {
 protected:
  void begin(std::vector<std::string> more = {}) {
    more.insert(more.end(), {"--memory-budget", "1000MiB"});
    const Finished started = folder_.start(std::move(more));
    ASSERT_EQ(started.code, 0) << started.output;
  }
  /// The job's object of the status; null while it is not there.
  [[nodiscard]] json job(const std::string& id, const std::string& instance = "default") const {
    const json status = folder_.status(id, instance);
    return status["jobs"].empty() ? json{} : status["jobs"][0];
  }
  [[nodiscard]] std::uint64_t granted(const std::string& id,
                                      const std::string& instance = "default") const {
    const json found = job(id, instance);
    return found.is_null() ? 0 : found["lease"]["granted_bytes"].get<std::uint64_t>();
  }
  [[nodiscard]] bool answers() const {
    try {
      return !folder_.status().is_null();
    } catch (const wire::CoordinatorUnreachable&) {
      return false;
    }
  }
  bool reaches(const std::string& id, std::uint64_t bytes) {
    return eventually([&] {
      const json found = job(id);
      return !found.is_null() && found["lease"]["granted_bytes"] == bytes &&
             found["lease"]["charged_bytes"] == bytes;
    });
  }

  DaemonFolder folder_;
};

TEST_F(CommensaldTest, JobsRegisterAndShareTheDevice) {
  begin();
  const FakeJob opportunistic{folder_, registration("o", JobClass::kOpportunistic, 0)};
  EXPECT_TRUE(reaches("o", 1000 * kMiB));
  const FakeJob guaranteed{folder_,
                           registration("g", JobClass::kGuaranteed, 400 * kMiB, 400 * kMiB)};
  EXPECT_TRUE(reaches("g", 400 * kMiB));
  EXPECT_TRUE(reaches("o", 600 * kMiB));
  const json status = folder_.status();
  EXPECT_EQ(status["devices"][0]["granted_bytes"], 1000 * kMiB);
  EXPECT_EQ(status["coordinator"]["pid"], folder_.pid());
  EXPECT_EQ(job("o")["members"][0]["pid"], opportunistic.pid());
}

TEST_F(CommensaldTest, AKilledJobsLeaseComesBack) {
  begin();
  const FakeJob opportunistic{folder_, registration("o", JobClass::kOpportunistic, 0)};
  FakeJob guaranteed{folder_, registration("g", JobClass::kGuaranteed, 400 * kMiB, 400 * kMiB)};
  EXPECT_TRUE(reaches("o", 600 * kMiB));
  EXPECT_TRUE(reaches("g", 400 * kMiB));
  guaranteed.kill();
  EXPECT_TRUE(reaches("o", 1000 * kMiB));
  EXPECT_EQ(job("g")["ended"], true);
}

/// P26 with real memory: what a job says that it gave back is granted when the kernel shows it.
TEST_F(CommensaldTest, P26_TheNeighbourGetsWhatTheKernelShowsToBeFree) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "what the sanitizer keeps of freed memory counts as the process's";
#endif
  ASSERT_EQ(folder_.start({"--memory-budget", "400MiB", "--budget-covers", "all"}).code, 0);
  const FakeJob o{folder_, registration("o", JobClass::kOpportunistic, 0), "default",
                  Holding::kFalse};
  const auto resident = [&] {
    const json found = job("o");
    return found.is_null() || found["lease"]["resident_bytes"].is_null()
               ? 0
               : found["lease"]["resident_bytes"].get<std::uint64_t>();
  };
  // By then it is known what the process usually holds beside its managed memory.
  ASSERT_TRUE(eventually([&] {
    return resident() > 300 * kMiB && job("o")["started_seconds_ago"].get<double>() > 5;
  }));
  const FakeJob g{folder_, registration("g", JobClass::kGuaranteed, 200 * kMiB, 200 * kMiB),
                  "default", Holding::kHonest};
  // It says that it holds its new limit; the kernel shows another number, and the reason says so.
  ASSERT_TRUE(eventually([&] {
    const json lease = job("o")["lease"];
    return lease["reason"].get<std::string>().find("the kernel shows") != std::string::npos ||
           lease["unmanaged_bytes"].get<std::uint64_t>() > 100 * kMiB;
  }));
  const auto in_use = [&] {
    const json lease = job("o")["lease"];
    return lease["charged_bytes"].get<std::uint64_t>() +
           lease["unmanaged_bytes"].get<std::uint64_t>();
  };
  EXPECT_GE(in_use(), resident() - 32 * kMiB) << "the ledger charges what is there";
  ASSERT_EQ(::kill(o.pid(), SIGUSR1), 0);
  EXPECT_TRUE(reaches("g", 200 * kMiB));
  EXPECT_TRUE(eventually([&] { return resident() < 250 * kMiB; }));
}

TEST_F(CommensaldTest, AStoppedJobIsChargedWhatItHoldsUntilItGoesOn) {
  begin();
  const FakeJob o{folder_, registration("o", JobClass::kOpportunistic, 0), "default",
                  Holding::kHalf};
  ASSERT_TRUE(reaches("o", 1000 * kMiB));
  ASSERT_TRUE(eventually([&] { return job("o")["lease"]["held_bytes"] == 500 * kMiB; }));
  ASSERT_EQ(::kill(o.pid(), SIGSTOP), 0);
  const FakeJob g{folder_, registration("g", JobClass::kGuaranteed, 500 * kMiB, 500 * kMiB)};
  EXPECT_TRUE(reaches("g", 500 * kMiB)) << "what the stopped one does not hold";
  const json lease = job("o")["lease"];
  EXPECT_EQ(lease["charged_bytes"], 500 * kMiB);
  EXPECT_EQ(folder_.status()["devices"][0]["beyond_budget_bytes"], 0);
  ASSERT_EQ(::kill(o.pid(), SIGCONT), 0);
  EXPECT_TRUE(eventually([&] { return job("o")["lease"]["held_bytes"] == 250 * kMiB; }))
      << "it goes on with its new limit";
}

TEST_F(CommensaldTest, AJobsMemoryBesideWhatItManagesIsMeasured) {
  begin();
  const FakeJob o{folder_, registration("o", JobClass::kOpportunistic, 0, 200 * kMiB), "default",
                  Holding::kHonest};
  EXPECT_TRUE(eventually([&] {
    const json found = job("o");
    return !found.is_null() && found["lease"]["measured_by"] == "process" &&
           found["lease"]["resident_bytes"].get<std::uint64_t>() >= 200 * kMiB;
  }));
  const json device = folder_.status()["devices"][0];
  EXPECT_EQ(device["covers"], "managed");
  EXPECT_GT(device["available_bytes"].get<std::uint64_t>(), 0U);
}

TEST_F(CommensaldTest, AFolderThatIsRemovedAndMadeAnewHasTheSameCoordinator) {
  begin();
  const FakeJob before{folder_,
                       registration("before", JobClass::kGuaranteed, 600 * kMiB, 600 * kMiB)};
  ASSERT_TRUE(reaches("before", 600 * kMiB));
  const pid_t daemon = folder_.pid();
  std::filesystem::remove_all(folder_.path());  // what a last logout does, or a cleaner
  std::filesystem::create_directory(folder_.path());
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::owner_all);
  const Finished second = folder_.start({"--memory-budget", "1000MiB"});
  EXPECT_EQ(second.code, 3) << second.output;
  EXPECT_THAT(second.output, HasSubstr("already (pid " + std::to_string(daemon) + ")"));
  ASSERT_TRUE(eventually([&] { return answers() && folder_.pid() == daemon; }));
  const FakeJob after{folder_, registration("after", JobClass::kOpportunistic, 0)};
  EXPECT_TRUE(reaches("after", 400 * kMiB)) << "what the first one left, and no more";
  EXPECT_EQ(granted("before"), 600 * kMiB) << "still known";
  EXPECT_LE(folder_.status()["devices"][0]["granted_bytes"], 1000 * kMiB);
  EXPECT_EQ(folder_.status()["coordinator"]["pid"], daemon);
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "default.log"));
  for (const char* name : {"default.sock", "default.pages", "default.lock"}) {
    std::filesystem::remove(folder_.path() / name);
    // It makes all of them again, one after the other.
    EXPECT_TRUE(eventually([&] {
      return std::filesystem::exists(folder_.path() / name) && answers();
    })) << name;
  }
  EXPECT_EQ(granted("before"), 600 * kMiB);
}

TEST_F(CommensaldTest, OneWithoutAJobLeavesWithItsFolder) {
  const std::filesystem::path parent = folder_.path() / "gone";
  std::filesystem::create_directory(parent);
  ASSERT_EQ(DaemonFolder::run({"--runtime-dir", (parent / "run").native()}).code, 0);
  std::ifstream lock{parent / "run/default.lock"};
  pid_t daemon = 0;
  ASSERT_TRUE(lock >> daemon);
  std::filesystem::remove_all(parent);
  EXPECT_TRUE(eventually([&] { return ::kill(daemon, 0) != 0; }));
  EXPECT_FALSE(std::filesystem::exists(parent));
}

TEST_F(CommensaldTest, AKilledDaemonIsRebuiltFromItsJobs) {
  begin();
  const FakeJob opportunistic{folder_, registration("o", JobClass::kOpportunistic, 0)};
  const FakeJob guaranteed{folder_,
                           registration("g", JobClass::kGuaranteed, 400 * kMiB, 400 * kMiB)};
  EXPECT_TRUE(reaches("o", 600 * kMiB));
  EXPECT_TRUE(reaches("g", 400 * kMiB));
  const auto revision = job("o")["lease"]["revision"].get<Revision>();
  ASSERT_TRUE(folder_.stop(SIGKILL));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "default.sock")) << "a stale socket stays";
  begin();
  EXPECT_TRUE(reaches("g", 400 * kMiB));
  EXPECT_TRUE(reaches("o", 600 * kMiB));
  EXPECT_GE(job("o")["lease"]["revision"].get<Revision>(), revision);
}

TEST_F(CommensaldTest, ASecondOneOfTheSameNameSaysSo) {
  begin();
  const Finished second = folder_.start();
  EXPECT_EQ(second.code, 3);
  EXPECT_THAT(second.output, HasSubstr(std::to_string(folder_.pid())));
  EXPECT_EQ(folder_.status()["coordinator"]["pid"], folder_.pid()) << "the first goes on";
}

TEST_F(CommensaldTest, TwoInstancesRunSideBySide) {
  begin();
  begin({"--instance", "two"});
  EXPECT_NE(folder_.pid(), folder_.pid("two"));
  const FakeJob job_of_two{folder_, registration("o", JobClass::kOpportunistic, 0), "two"};
  EXPECT_TRUE(eventually([&] { return granted("o", "two") == 1000 * kMiB; }));
  EXPECT_TRUE(folder_.status()["jobs"].empty());
}

TEST_F(CommensaldTest, UnusableFramesAreCountedAndAnswered) {
  begin();
  const wire::ControlClient client = folder_.client();
  const auto code = [&](std::string_view frame) {
    return std::get<wire::Error>(wire::decode(client.request_frame(frame))).code;
  };
  EXPECT_EQ(code("nonsense"), "malformed");
  EXPECT_EQ(code(""), "malformed");
  EXPECT_EQ(code(R"({"v":2,"type":"status_request","job":""})"), "version");
  EXPECT_EQ(code(R"({"v":1,"type":"dance"})"), "unknown_type");
  EXPECT_EQ(code(std::string(wire::kMaxFrameBytes + 1, 'x')), "oversized");
  EXPECT_EQ(code(wire::encode(wire::SetReply{})), "unknown_type");
  EXPECT_EQ(folder_.status()["coordinator"]["malformed_frames_total"], 6);
}

TEST_F(CommensaldTest, WhatIsNoSingleFrameOfASensibleSizeHarmsNobodyElse) {
  begin();
  zmq::context_t context{1};
  const auto dealer = [&] {
    zmq::socket_t socket{context, zmq::socket_type::dealer};
    socket.set(zmq::sockopt::linger, 0);
    socket.connect(wire::ipc_endpoint(wire::control_socket_path(folder_.path(), "default")));
    return socket;
  };
  zmq::socket_t twice = dealer();
  const std::string frame = wire::encode(wire::StatusRequest{});
  twice.send(zmq::buffer(frame), zmq::send_flags::sndmore);
  twice.send(zmq::buffer(frame), zmq::send_flags::none);
  zmq::message_t reply;
  ASSERT_TRUE(twice.recv(reply));
  EXPECT_THAT(std::get<wire::Error>(wire::decode(reply.to_string())).what,
              HasSubstr("one frame, not 2"));
  zmq::socket_t huge = dealer();
  huge.send(zmq::buffer(std::string(17U << 20U, 'x')), zmq::send_flags::none);
  EXPECT_EQ(folder_.status()["coordinator"]["malformed_frames_total"], 1);
}

/// Without a pidfd (another pid namespace, no page) a process lives as long as it says something.
TEST_F(CommensaldTest, AProcessThatCannotBeWatchedIsGoneWhenItFallsSilent) {
  begin({"--silence", "3"});
  const wire::ControlClient client = folder_.client();
  const auto enter = [&](const char* job, std::int64_t pid) {
    auto hello = registration(job, JobClass::kOpportunistic, 0, 300 * kMiB);
    hello.pid = pid;  // and no start_ticks: it cannot be told what the pid means here
    ASSERT_TRUE(std::holds_alternative<wire::Registered>(client.request(hello)));
  };
  enter("silent", 1000001);
  enter("talks", 1000002);
  // A process that is watched may be silent: it is only stopped.
  FakeJob stopped{folder_, registration("stopped", JobClass::kOpportunistic, 0, 100 * kMiB)};
  ASSERT_TRUE(reaches("stopped", 100 * kMiB));
  ::kill(stopped.pid(), SIGSTOP);
  EXPECT_TRUE(eventually([&] {
    const auto reply = client.request(wire::AskMemory{"talks", 1000002, 1, 0});
    EXPECT_TRUE(std::holds_alternative<wire::Change>(reply)) << "it is still registered";
    return job("silent")["ended"] == true;
  }));
  EXPECT_EQ(job("silent")["exit_reason"], "no sign of life");
  EXPECT_EQ(job("talks")["ended"], false);
  EXPECT_EQ(job("stopped")["ended"], false);
  EXPECT_EQ(granted("stopped"), 100 * kMiB);
}

TEST_F(CommensaldTest, HandoversThatCannotBeUsedAreRefusedWithAText) {
  begin();
  const auto refusal = [&](wire::Handover hello) {
    const wire::UniqueFd socket =
        wire::connect_handover(wire::pages_socket_path(folder_.path(), "default").native());
    wire::send_handover(socket.get(), hello);
    const auto answer = wire::receive_handover(socket.get());
    return answer && answer->kind == wire::HandoverKind::kRefused ? answer->text : "";
  };
  wire::Handover empty_page;
  empty_page.job_id = "x";
  empty_page.pid = getpid();
  empty_page.fds.push_back(wire::make_page_memfd("p"));
  empty_page.fds.push_back(wire::open_pidfd(getpid()));
  EXPECT_THAT(refusal(std::move(empty_page)), HasSubstr("magic"));
  wire::Handover unsealed;
  unsealed.job_id = "x";
  unsealed.pid = getpid();
  std::ofstream{folder_.path() / "plain"} << std::string(wire::kPageSize, '\0');
  unsealed.fds.emplace_back(open((folder_.path() / "plain").c_str(), O_RDWR | O_CLOEXEC));
  unsealed.fds.push_back(wire::open_pidfd(getpid()));
  EXPECT_THAT(refusal(std::move(unsealed)), HasSubstr("sealed"));
  wire::Handover wrong_kind;
  wrong_kind.kind = wire::HandoverKind::kPeerGone;
  EXPECT_THAT(refusal(std::move(wrong_kind)), HasSubstr("hello"));
  EXPECT_EQ(folder_.status()["schema"], 1) << "it goes on";
}

TEST_F(CommensaldTest, AProcessGetsTheDevicePageAndItsPeers) {
  begin();
  const FakeJob guaranteed{folder_,
                           registration("g", JobClass::kGuaranteed, 400 * kMiB, 400 * kMiB)};
  EXPECT_TRUE(reaches("g", 400 * kMiB));
  wire::UniqueFd memfd = wire::make_page_memfd("o");
  const wire::MappedPage own{memfd.get(), wire::kPageSize, true};
  own.as<wire::JobPage>()->header = {wire::kJobPageMagic, wire::kPageVersion, wire::kPageSize, 0,
                                     0};
  own.as<wire::JobPage>()->job_id[0] = 'o';
  const wire::UniqueFd socket =
      wire::connect_handover(wire::pages_socket_path(folder_.path(), "default").native());
  wire::Handover hello;
  hello.job_id = "o";
  hello.pid = getpid();
  hello.fds.push_back(std::move(memfd));
  hello.fds.push_back(wire::open_pidfd(getpid()));
  wire::send_handover(socket.get(), hello);
  const auto device = wire::receive_handover(socket.get());
  ASSERT_TRUE(device && device->kind == wire::HandoverKind::kDevicePage);
  EXPECT_THROW((wire::MappedPage{device->fds[0].get(), sizeof(wire::DevicePage), true}),
               std::system_error)
      << "read only";
  const wire::MappedPage mapped{device->fds[0].get(), sizeof(wire::DevicePage), false};
  const auto* page = mapped.as<wire::DevicePage>();
  EXPECT_STREQ(wire::check_page(page, wire::kPageSize, wire::kDevicePageMagic), "");
  EXPECT_TRUE(eventually([&] { return page->guaranteed_alive.load() == 1; }));
  EXPECT_EQ(page->memory_capacity.load(), 1000 * kMiB);
  const std::uint64_t beat = page->heartbeat_ns.load();
  EXPECT_TRUE(eventually([&] { return page->heartbeat_ns.load() > beat; }));

  auto me = registration("o", JobClass::kOpportunistic, 0);
  me.pid = getpid();
  const auto reply = std::get<wire::Registered>(folder_.client().request(me));
  EXPECT_EQ(reply.limit_bytes, 600 * kMiB);
  const auto peer = wire::receive_handover(socket.get());
  ASSERT_TRUE(peer && peer->kind == wire::HandoverKind::kPeerAdded);
  EXPECT_EQ(peer->job_id, "g");
  EXPECT_EQ(peer->pid, guaranteed.pid());
  EXPECT_TRUE(eventually([&] { return std::string{page->entries[1].job_id} == "o"; }));
  EXPECT_EQ(page->entries[1].share_min_ppm.load(), 10000U) << "its trickle";
  kill(guaranteed.pid(), SIGKILL);
  const auto gone = wire::receive_handover(socket.get());
  ASSERT_TRUE(gone && gone->kind == wire::HandoverKind::kPeerGone);
  EXPECT_EQ(gone->pid, peer->pid);
  EXPECT_TRUE(eventually([&] { return page->guaranteed_alive.load() == 0; }));
}

TEST_F(CommensaldTest, AChangeOfTheClassReachesJobPageAndPeers) {
  begin();
  const FakeJob changing{folder_, registration("c", JobClass::kOpportunistic, 0)};
  EXPECT_TRUE(reaches("c", 1000 * kMiB));
  wire::UniqueFd memfd = wire::make_page_memfd("o");
  const wire::MappedPage own{memfd.get(), wire::kPageSize, true};
  own.as<wire::JobPage>()->header = {wire::kJobPageMagic, wire::kPageVersion, wire::kPageSize, 0,
                                     0};
  own.as<wire::JobPage>()->job_id[0] = 'o';
  const wire::UniqueFd socket =
      wire::connect_handover(wire::pages_socket_path(folder_.path(), "default").native());
  wire::Handover hello;
  hello.job_id = "o";
  hello.pid = getpid();
  hello.fds.push_back(std::move(memfd));
  hello.fds.push_back(wire::open_pidfd(getpid()));
  wire::send_handover(socket.get(), hello);
  const auto device = wire::receive_handover(socket.get());
  ASSERT_TRUE(device && device->kind == wire::HandoverKind::kDevicePage);
  const wire::MappedPage mapped{device->fds[0].get(), sizeof(wire::DevicePage), false};
  const auto* page = mapped.as<wire::DevicePage>();
  auto me = registration("o", JobClass::kOpportunistic, 0);
  me.pid = getpid();
  EXPECT_TRUE(std::holds_alternative<wire::Registered>(folder_.client().request(me)));
  const auto set = [&](const std::string& job, JobClass job_class) {
    wire::SetRequest request;
    request.job = job;
    request.job_class = job_class;
    return std::get<wire::SetReply>(folder_.client().request(request)).outcome;
  };
  const auto hears = [&](wire::HandoverKind kind) {
    const auto message = wire::receive_handover(socket.get());
    return message && message->kind == kind && message->job_id == "c";
  };
  EXPECT_EQ(set("c", JobClass::kGuaranteed), wire::Outcome::kApplied);
  EXPECT_TRUE(hears(wire::HandoverKind::kPeerAdded)) << "others look at its page now";
  EXPECT_TRUE(eventually([&] { return page->guaranteed_alive.load() == 1; }));
  EXPECT_EQ(set("c", JobClass::kOpportunistic), wire::Outcome::kApplied);
  EXPECT_TRUE(hears(wire::HandoverKind::kPeerGone));
  EXPECT_TRUE(eventually([&] { return page->guaranteed_alive.load() == 0; }));
  EXPECT_EQ(set("c", JobClass::kGuaranteed), wire::Outcome::kApplied);
  EXPECT_TRUE(hears(wire::HandoverKind::kPeerAdded));
  // This process answers nothing: it is deferred, and looks at nobody meanwhile.
  EXPECT_EQ(set("o", JobClass::kGuaranteed), wire::Outcome::kDeferred);
  EXPECT_TRUE(hears(wire::HandoverKind::kPeerGone));
  EXPECT_EQ(job("o")["class_change"]["waits_for"], "processes");
  EXPECT_TRUE(eventually([&] { return page->guaranteed_alive.load() == 2; }));
}

TEST_F(CommensaldTest, SetAndPauseReachTheJob) {
  begin();
  const FakeJob opportunistic{folder_, registration("o", JobClass::kOpportunistic, 0)};
  EXPECT_TRUE(reaches("o", 1000 * kMiB));
  wire::SetRequest request;
  request.job = "name-o";
  request.terms.memory = MemoryRange{{}, Bytes{300 * kMiB}};
  request.paused = true;
  const auto reply = std::get<wire::SetReply>(folder_.client().request(request));
  EXPECT_EQ(reply.outcome, wire::Outcome::kApplied);
  EXPECT_TRUE(reaches("o", 300 * kMiB));
  EXPECT_EQ(job("o")["paused"], true);
  request = {};
  request.job = "nobody";
  const auto refused = std::get<wire::SetReply>(folder_.client().request(request));
  EXPECT_EQ(refused.outcome, wire::Outcome::kRefused);
  EXPECT_THAT(refused.reason, HasSubstr("o (name-o)"));
}

TEST_F(CommensaldTest, LeavesWhenIdle) {
  begin({"--idle-exit", "0.3"});
  EXPECT_TRUE(eventually([&] { return folder_.pid() == 0; }));
  EXPECT_TRUE(
      eventually([&] { return !std::filesystem::exists(folder_.path() / "default.sock"); }));
}

TEST_F(CommensaldTest, LeavesCleanlyOnASignal) {
  begin();
  struct stat info {};
  ASSERT_EQ(stat((folder_.path() / "default.pages").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  const pid_t daemon = folder_.pid();
  EXPECT_EQ(getsid(daemon) == getsid(0), false) << "a session of its own";
  ASSERT_TRUE(folder_.stop(SIGTERM));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "default.sock"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "default.pages"));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "default.log"));
}

TEST_F(CommensaldTest, SaysWhatIsWrongBeforeItStarts) {
  const auto usage = [&](std::vector<std::string> arguments, const char* part) {
    const Finished finished = folder_.start(std::move(arguments));
    EXPECT_EQ(finished.code, 2) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr(part));
  };
  usage({"--bogus"}, "--bogus");
  usage({"--slo", "7"}, "7");
  usage({"--memory-budget", "much"}, "'much'");
  usage({"--instance", "a/b"}, "'a/b'");
  usage({"--law", "jungle"}, "jungle");
  usage({"--config", "/nonexistent.ini"}, "/nonexistent.ini");
  const std::string config = folder_.path() / "c.ini";
  std::ofstream{config} << "slo=0.02\ncolour=red\n";
  usage({"--config", config}, "colour");
  std::ofstream{config} << "slo=lots\n";
  usage({"--config", config}, "lots");
  EXPECT_EQ(folder_.pid(), 0) << "none of them started";
}

TEST_F(CommensaldTest, ReadsItsConfiguration) {
  const std::string config = folder_.path() / "c.ini";
  std::ofstream{config} << "; ours\nslo=0.03\nmemory-budget=64MiB\nidle-exit=30\n";
  EXPECT_EQ(folder_.start({"--config", config, "--check-config"}).code, 0);
  EXPECT_EQ(folder_.start({"--last-resort", "end", "--check-config"}).code, 0);
  EXPECT_EQ(folder_.start({"--last-resort", "kill", "--check-config"}).code, 2);
  EXPECT_EQ(folder_.pid(), 0) << "checking starts nothing";
  ASSERT_EQ(folder_.start({"--config", config}).code, 0);
  const json status = folder_.status();
  EXPECT_EQ(status["devices"][0]["capacity_bytes"], 64 * kMiB);
  EXPECT_DOUBLE_EQ(status["coordinator"]["slo"].get<double>(), 0.03);
}

TEST_F(CommensaldTest, RefusesAFolderThatOthersCanEnter) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms{0755});
  const Finished finished = folder_.start();
  EXPECT_EQ(finished.code, 4);
  EXPECT_THAT(finished.output, HasSubstr("0755"));
  const Finished deep =
      DaemonFolder::run({"--runtime-dir", folder_.path() / std::string(120, 'd')});
  EXPECT_EQ(deep.code, 4);
  EXPECT_THAT(deep.output, HasSubstr("too long"));
}

TEST_F(CommensaldTest, TellsItsVersion) {
  const Finished finished = DaemonFolder::run({"--version"});
  EXPECT_EQ(finished.code, 0);
  EXPECT_THAT(finished.output, HasSubstr("commensald "));
}

}  // namespace
}  // namespace commensal::node::commensald_test

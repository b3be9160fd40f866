// SPDX-License-Identifier: Apache-2.0
// Real processes and real kill -9, in the middle of a grant and out of it; stops longer than every
// lease; daemons that race for a name. tests/faults/grant_faults_test.cpp tries every step.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "coordinator/wire/pages.h"
#include "coordinator/wire/paths.h"
#include "tests/coordinator/fake_job.h"

namespace commensal::node::kill_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr std::uint64_t kMiB = 1U << 20U;

class KillTest : public ::testing::Test {
 protected:
  void SetUp() override { begin(); }
  void begin() {
    const Finished started = folder_.start({"--memory-budget", "1000MiB"});
    ASSERT_EQ(started.code, 0) << started.output;
  }
  [[nodiscard]] static wire::Register opportunistic() {
    return registration("o", JobClass::kOpportunistic, 0);
  }
  [[nodiscard]] static wire::Register guaranteed() {
    return registration("g", JobClass::kGuaranteed, 400 * kMiB, 400 * kMiB);
  }
  struct Lease {
    std::uint64_t granted = 0;
    std::uint64_t charged = 0;
    bool operator==(const Lease&) const = default;
  };
  /// What of the budget a job has; zero for one that is not there or has ended.
  [[nodiscard]] Lease lease(const std::string& id) const {
    const json status = folder_.status();
    for (const json& job : status["jobs"]) {
      if (job["job"]["id"] != id || job["ended"] == true) continue;
      const auto bytes = [&](const char* name) { return job["lease"][name].get<std::uint64_t>(); };
      const std::uint64_t beyond = bytes("beyond_budget_bytes");
      return {bytes("granted_bytes") - beyond, bytes("charged_bytes") - beyond};
    }
    return {};
  }
  bool settles(const std::string& id, std::uint64_t mib) {
    return eventually([&] {
      const json device = folder_.status()["devices"][0];
      EXPECT_LE(device["granted_bytes"].get<std::uint64_t>(),
                device["capacity_bytes"].get<std::uint64_t>() +
                    device["beyond_budget_bytes"].get<std::uint64_t>());
      return lease(id) == Lease{mib * kMiB, mib * kMiB};
    });
  }
  /// Brings a grant to its middle: the guaranteed job is there, the other one, which is stopped,
  /// has been told to make room and has not answered.
  void stop_in_the_middle(const FakeJob& stopped) {
    ASSERT_EQ(::kill(stopped.pid(), SIGSTOP), 0);
    second_.emplace(folder_, guaranteed());
    ASSERT_TRUE(eventually([&] { return lease("o") == Lease{600 * kMiB, 1000 * kMiB}; }));
    EXPECT_EQ(lease("g").granted, 0U) << "nothing is granted that is not released";
  }

  DaemonFolder folder_;
  std::optional<FakeJob> second_;
};

TEST_F(KillTest, Law3_TheJobThatMakesRoomIsKilledInTheMiddleOfAGrant) {
  FakeJob first{folder_, opportunistic()};
  ASSERT_TRUE(settles("o", 1000));
  stop_in_the_middle(first);
  first.kill();
  EXPECT_TRUE(settles("g", 400)) << "a death releases at once";
  const FakeJob again{folder_, opportunistic()};
  EXPECT_TRUE(settles("o", 600));
}

TEST_F(KillTest, Law3_TheJobThatWaitsIsKilledInTheMiddleOfAGrant) {
  const FakeJob first{folder_, opportunistic()};
  ASSERT_TRUE(settles("o", 1000));
  stop_in_the_middle(first);
  second_->kill();
  ASSERT_EQ(::kill(first.pid(), SIGCONT), 0);
  EXPECT_TRUE(settles("o", 1000)) << "what it was asked for is not needed any more";
  const FakeJob again{folder_, guaranteed()};
  EXPECT_TRUE(settles("g", 400));
  EXPECT_TRUE(settles("o", 600));
}

TEST_F(KillTest, Law3_TheDaemonIsKilledInTheMiddleOfAGrant) {
  const FakeJob first{folder_, opportunistic()};
  ASSERT_TRUE(settles("o", 1000));
  stop_in_the_middle(first);
  ASSERT_TRUE(folder_.stop(SIGKILL));
  begin();
  EXPECT_TRUE(eventually([&] { return folder_.status()["jobs"].size() == 1; }));
  ASSERT_EQ(::kill(first.pid(), SIGCONT), 0);
  EXPECT_TRUE(settles("g", 400));
  EXPECT_TRUE(settles("o", 600));
}

TEST_F(KillTest, Law3_DaemonAndJobAreKilledInTheMiddleOfAGrant) {
  FakeJob first{folder_, opportunistic()};
  ASSERT_TRUE(settles("o", 1000));
  stop_in_the_middle(first);
  ASSERT_TRUE(folder_.stop(SIGKILL));
  first.kill();
  begin();
  EXPECT_TRUE(settles("g", 400)) << "rebuilt from the job that lives";
  const FakeJob again{folder_, opportunistic()};
  EXPECT_TRUE(settles("o", 600));
}

TEST_F(KillTest, TheDaemonIsKilledAgainAndAgain) {
  const FakeJob first{folder_, opportunistic()};
  const FakeJob second{folder_, guaranteed()};
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(settles("g", 400));
    ASSERT_TRUE(settles("o", 600));
    ASSERT_TRUE(folder_.stop(SIGKILL));
    begin();
  }
  EXPECT_TRUE(settles("g", 400));
  EXPECT_TRUE(settles("o", 600));
}

// Longer than the lease of an entry on the device page and than the silence after which a job takes
// its coordinator for dead (3 s and 2 s). What is waited for is that time itself.
constexpr auto kLongStop = 3500ms;

TEST_F(KillTest, AStoppedJobKeepsItsLeaseAndObeysWhenItGoesOn) {
  const FakeJob first{folder_, opportunistic()};
  ASSERT_TRUE(settles("o", 1000));
  stop_in_the_middle(first);
  std::this_thread::sleep_for(kLongStop);
  EXPECT_EQ(lease("o"), (Lease{600 * kMiB, 1000 * kMiB})) << "it may still hold all of it";
  EXPECT_EQ(lease("g").granted, 0U);
  ASSERT_EQ(::kill(first.pid(), SIGCONT), 0);
  EXPECT_TRUE(settles("g", 400));
  EXPECT_TRUE(settles("o", 600));
}

TEST_F(KillTest, AStoppedDaemonGoesOnWithTheSameLeases) {
  const FakeJob first{folder_, opportunistic()};
  FakeJob second{folder_, guaranteed()};
  ASSERT_TRUE(settles("g", 400));
  ASSERT_TRUE(settles("o", 600));
  const pid_t daemon = folder_.pid();
  ASSERT_EQ(::kill(daemon, SIGSTOP), 0);
  std::this_thread::sleep_for(kLongStop);
  second.kill();  // nobody is there to see it
  ASSERT_EQ(::kill(daemon, SIGCONT), 0);
  EXPECT_TRUE(settles("o", 1000)) << "the death is noticed late, but it is";
  const FakeJob third{folder_, guaranteed()};
  EXPECT_TRUE(settles("g", 400));
  EXPECT_TRUE(settles("o", 600));
  EXPECT_EQ(folder_.pid(), daemon);
}

// A suspended machine: everybody stops, and everybody's deadlines have passed when they go on.
TEST_F(KillTest, AllStopAndGoOnTogether) {
  const FakeJob first{folder_, opportunistic()};
  const FakeJob second{folder_, guaranteed()};
  ASSERT_TRUE(settles("g", 400));
  ASSERT_TRUE(settles("o", 600));
  const std::array<pid_t, 3> all{first.pid(), second.pid(), folder_.pid()};
  for (const pid_t pid : all) ASSERT_EQ(::kill(pid, SIGSTOP), 0);
  std::this_thread::sleep_for(kLongStop);
  for (const pid_t pid : all) ASSERT_EQ(::kill(pid, SIGCONT), 0);
  EXPECT_TRUE(settles("g", 400));
  EXPECT_TRUE(settles("o", 600));
  EXPECT_EQ(folder_.pid(), all[2]);
  wire::SetRequest request;
  request.job = "o";
  request.terms.memory = MemoryRange{{}, Bytes{300 * kMiB}};
  (void)folder_.client().request(request);
  EXPECT_TRUE(settles("o", 300));
}

TEST_F(KillTest, ASecondDaemonOfTheNameTouchesNoLeaseAndServesWhenTheFirstIsGone) {
  const FakeJob first{folder_, opportunistic()};
  const FakeJob second{folder_, guaranteed()};
  ASSERT_TRUE(settles("g", 400));
  ASSERT_TRUE(settles("o", 600));
  const pid_t daemon = folder_.pid();
  for (int round = 0; round < 3; ++round) EXPECT_EQ(folder_.start().code, 3);
  EXPECT_EQ(folder_.pid(), daemon);
  EXPECT_EQ(lease("g"), (Lease{400 * kMiB, 400 * kMiB}));
  EXPECT_EQ(lease("o"), (Lease{600 * kMiB, 600 * kMiB}));
  ASSERT_TRUE(folder_.stop(SIGKILL));
  begin();
  EXPECT_NE(folder_.pid(), daemon);
  EXPECT_TRUE(settles("g", 400));
  EXPECT_TRUE(settles("o", 600));
}

TEST(DaemonRace, OfManyThatStartAtOnceUnderOneNameOneServes) {
  DaemonFolder folder;
  std::vector<int> codes(6, -1);
  std::vector<std::thread> starters;
  for (int& code : codes) starters.emplace_back([&] { code = folder.start().code; });
  for (std::thread& starter : starters) starter.join();
  EXPECT_EQ(std::count(codes.begin(), codes.end(), 0), 1);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), 3), 5) << "the others say that one runs";
  EXPECT_EQ(folder.status()["coordinator"]["pid"], folder.pid());
  ASSERT_TRUE(folder.stop(SIGTERM));
  EXPECT_EQ(folder.start().code, 0) << "a loser may try again";
}

}  // namespace
}  // namespace commensal::node::kill_test

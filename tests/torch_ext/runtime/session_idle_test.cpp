// SPDX-License-Identifier: Apache-2.0
// A job that does nothing is parked, and is back at its next op. One session a process.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/session.h"

namespace commensal::session_idle_test {
namespace {

using testing::eventually;
using testing::FakeCoordinator;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

OpDuration g_add;

// A line goes into another regular file than the one that the process began with only if that one
// is appended to.
void capture_stderr() {
  ::testing::internal::CaptureStderr();
  ASSERT_EQ(::fcntl(STDERR_FILENO, F_SETFL, O_APPEND), 0);
}

class SessionIdleTest : public ::testing::Test {
 protected:
  [[nodiscard]] static SessionConfig config() {
    SessionConfig config;
    config.job_id = JobId{"job-1"};
    config.name = "test";
    config.terms.idle_class = false;
    config.quiet = true;
    return config;
  }
  [[nodiscard]] SessionConfig connected() const {
    SessionConfig with = config();
    with.runtime_dir = folder_.path();
    with.connect_timeout = std::chrono::seconds{10};
    return with;
  }
  static nlohmann::json stats(const Session& session) {
    return nlohmann::json::parse(session.stats_json());
  }
  [[nodiscard]] static SessionConfig parking(SessionConfig with) {
    with.park_idle = std::chrono::seconds{1};
    return with;
  }
  static void op(Session& session) {
    if (!session.gate().try_enter_op(g_add)) session.gate().wait_op(g_add);
    session.gate().leave_op(g_add);
  }
  /// Looks twice a second: the text of all statistics is work too, and the sanitizers' builds
  /// take milliseconds for it, where a twentieth of a core counts as a job that works.
  static bool is_soon(const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds{500});
    }
    return true;
  }
  static bool is_parked(const Session& session) {
    return is_soon([&] { return stats(session)["activity"]["state"] == "parked"; });
  }
  static bool is_filled(const void* block, Bytes size, char with) {
    const auto* bytes = static_cast<const char*>(block);
    for (std::size_t i = 0; i < size.count(); ++i) {
      if (bytes[i] != with) return false;
    }
    return true;
  }

  TemporaryFolder folder_;
};

TEST_F(SessionIdleTest, IsParkedAndBackAtItsNextOp) {
  Session& session = Session::start(parking(config()));
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 7, (24_MiB).count());
  EXPECT_FALSE(session.gate().wants_callback()) << "nothing is parked: ops cost nothing";
  capture_stderr();
  ASSERT_TRUE(is_parked(session));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "it is quiet";
  const AllocatorStats saved = session.allocator().stats();
  EXPECT_TRUE(saved.device.is_zero());
  EXPECT_GE(saved.parked, 24_MiB);
  EXPECT_TRUE(session.gate().wants_callback());
  EXPECT_EQ(stats(session)["memory"]["wanted_bytes"], 0) << "others may have it";
  op(session);
  // The op was let in when its memory was back, not before.
  const AllocatorStats back = session.allocator().stats();
  EXPECT_GE(back.device, 24_MiB);
  EXPECT_TRUE((back.parked + back.host).is_zero());
  EXPECT_TRUE(is_filled(block, 24_MiB, 7));
  EXPECT_NE(stats(session)["activity"]["state"], "parked");
  EXPECT_TRUE(eventually([&] { return !session.gate().wants_callback(); }));
  session.allocator().deallocate(block);
}

TEST_F(SessionIdleTest, IsParkedAgainAfterTheNextRest) {
  Session& session = Session::start(parking(config()));
  void* const block = session.allocator().allocate(4_MiB);
  for (int round = 0; round < 2; ++round) {
    std::memset(block, round, (4_MiB).count());
    ASSERT_TRUE(is_parked(session)) << round;
    op(session);
    EXPECT_TRUE(is_filled(block, 4_MiB, static_cast<char>(round)));
  }
  session.allocator().deallocate(block);
}

TEST_F(SessionIdleTest, WhatReachesParkedMemoryOtherwiseBringsItBackToo) {
  Session& session = Session::start(parking(config()));
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 9, (24_MiB).count());
  ASSERT_TRUE(is_parked(session));
  EXPECT_TRUE(is_filled(block, 24_MiB, 9)) << "the kernel serves it where it lies";
  static_cast<char*>(block)[5] = 1;
  EXPECT_TRUE(eventually([&] { return session.allocator().stats().device >= 24_MiB; }));
  EXPECT_EQ(static_cast<char*>(block)[5], 1);
  EXPECT_EQ(static_cast<char*>(block)[6], 9);
  session.allocator().deallocate(block);
}

TEST_F(SessionIdleTest, AnAllocationOrAStepBringsItBack) {
  Session& session = Session::start(parking(config()));
  void* const block = session.allocator().allocate(24_MiB);
  ASSERT_TRUE(is_parked(session));
  void* const other = session.allocator().allocate(64_KiB);
  EXPECT_TRUE(eventually([&] { return session.allocator().stats().device >= 24_MiB; }));
  ASSERT_TRUE(is_parked(session));
  session.step();
  EXPECT_TRUE(eventually([&] { return session.allocator().stats().device >= 24_MiB; }));
  session.allocator().deallocate(block);
  session.allocator().deallocate(other);
}

// The coordinator of this test is a thread of the job: where its own work comes to a twentieth of a
// core, as in the sanitizers' builds on a busy machine, the job counts as one that works. Then it
// is tried again.
TEST_F(SessionIdleTest, MoreRoomIsNoReasonToComeBack) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(parking(connected()));
  void* const block = session.allocator().allocate(24_MiB);
  bool stays = false;
  for (Revision revision = 2; revision < 12 && !stays; ++revision) {
    ASSERT_TRUE(is_parked(session));
    wire::Change more;
    more.job_id = "job-1";
    more.revision = revision;
    more.limit_bytes = (1_GiB * revision).count();
    coordinator.send(more);
    ASSERT_TRUE(
        coordinator.next_if<wire::Answer>([&](const auto& a) { return a.revision == revision; }));
    for (int report = 0; report < 3; ++report) ASSERT_TRUE(coordinator.next<wire::Stats>());
    stays = session.allocator().stats().parked >= 24_MiB;
  }
  EXPECT_TRUE(stays);
  session.allocator().deallocate(block);
}

TEST_F(SessionIdleTest, WhatOthersTookMeanwhileIsAskedForAndTheOpDoesNotWaitForIt) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(parking(connected()));
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 5, (24_MiB).count());
  ASSERT_TRUE(is_parked(session));
  wire::Change less;
  less.job_id = "job-1";
  less.revision = 2;
  less.limit_bytes = (8_MiB).count();
  coordinator.send(less);
  ASSERT_TRUE(coordinator.next_if<wire::Answer>([](const auto& a) { return a.revision == 2; }));
  op(session);
  EXPECT_TRUE(is_filled(block, 24_MiB, 5));
  const auto asked = coordinator.next<wire::AskMemory>();
  ASSERT_TRUE(asked);
  EXPECT_EQ(asked->held_bytes + asked->needed_bytes, (24_MiB).count());
  less.revision = 3;
  less.limit_bytes = (64_MiB).count();
  coordinator.send(less);
  EXPECT_TRUE(eventually([&] {
    op(session);  // or it may be parked again by then
    return session.allocator().stats().device >= 24_MiB;
  }));
  session.allocator().deallocate(block);
}

TEST_F(SessionIdleTest, AJobThatCannotBeSavedIsNotHeldUp) {
  SessionConfig with = parking(config());
  with.host_cap = Bytes{};
  Session& session = Session::start(with);
  void* const block = session.allocator().allocate(4_MiB);
  ASSERT_TRUE(is_soon([&] {
    return stats(session)["memory"]["notes"].dump().find("the idle job could not be parked") !=
           std::string::npos;
  }));
  EXPECT_TRUE(eventually([&] { return !session.gate().dozing(); }));
  op(session);
  EXPECT_NE(stats(session)["activity"]["state"], "parked");
  session.allocator().deallocate(block);
}

TEST_F(SessionIdleTest, ABusyJobIsNotParked) {
  Session& session = Session::start(parking(config()));
  void* const block = session.allocator().allocate(4_MiB);
  // Three such times of work that the allocator sees nothing of.
  bool starved = false;
  for (int part = 0; part < 6; ++part) {
    const auto began = std::chrono::steady_clock::now();
    const std::clock_t used = std::clock();
    while (std::chrono::steady_clock::now() < began + std::chrono::milliseconds{500}) {
      std::memset(block, 1, (4_MiB).count());
    }
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began;
    const double ran = static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC;
    starved = starved || ran < passed.count() / 5;
  }
  const std::uint64_t moves = session.allocator().stats().moves;
  session.allocator().deallocate(block);
  if (starved) GTEST_SKIP() << "other processes left it less than a fifth of a core";
  EXPECT_EQ(moves, 0U);
}

TEST_F(SessionIdleTest, AnEndedSessionHoldsNoOpUp) {
  Session& session = Session::start(parking(config()));
  void* const block = session.allocator().allocate(4_MiB);
  std::memset(block, 6, (4_MiB).count());
  ASSERT_TRUE(is_parked(session));
  session.shutdown();
  op(session);
  EXPECT_TRUE(is_filled(block, 4_MiB, 6));
  session.allocator().deallocate(block);
}

TEST_F(SessionIdleTest, SaysWhenItIsParkedAndWhenItIsBack) {
  SessionConfig with = parking(config());
  with.quiet = false;
  Session& session = Session::start(with);
  void* const block = session.allocator().allocate(24_MiB);
  capture_stderr();
  ASSERT_TRUE(is_parked(session));
  op(session);
  ASSERT_TRUE(eventually([&] { return session.allocator().stats().parked.is_zero(); }));
  session.shutdown();  // its lines are written
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("commensal: idle for "));
  EXPECT_THAT(said, HasSubstr(": parked, 24 MiB saved to the slower tier\n"));
  EXPECT_THAT(said, HasSubstr("commensal: back from parking: 24 MiB in "));
  session.allocator().deallocate(block);
}

TEST_F(SessionIdleTest, OffByDefault) { EXPECT_FALSE(SessionConfig{}.park_idle.has_value()); }

}  // namespace
}  // namespace commensal::session_idle_test

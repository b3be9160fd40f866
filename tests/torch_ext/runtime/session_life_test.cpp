// SPDX-License-Identifier: Apache-2.0
// A session's beginning without an answer, a helper that becomes a rank, threads that are equipped
// to be stopped. One session a process: ctest runs each case alone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "allocator/host/thread_stopper.h"
#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "torch_ext/runtime/session.h"

namespace commensal::session_life_test {
namespace {

using testing::eventually;
using testing::FakeCoordinator;
using testing::TemporaryFolder;

class SessionLifeTest : public ::testing::Test {
 protected:
  [[nodiscard]] SessionConfig config(MemberRole role = MemberRole::kMain) const {
    SessionConfig config;
    config.job_id = JobId{"job-1"};
    config.role = role;
    config.terms.idle_class = false;
    config.runtime_dir = folder_.path();
    config.connect_timeout = std::chrono::seconds{20};
    return config;
  }
  static nlohmann::json stats(const Session& session) {
    return nlohmann::json::parse(session.stats_json());
  }
  /// Trains for three steps in a session of its own thread.
  static void train(const SessionConfig& with) {
    Session& session = Session::start(with);
    void* const block = session.allocator().allocate(1_MiB);
    for (int i = 0; i < 3; ++i) {
      std::memset(block, i, 1U << 20U);
      session.step();
    }
    session.allocator().deallocate(block);
  }

  TemporaryFolder folder_;
};

// --- law 6 -----------------------------------------------------------------------------------

TEST_F(SessionLifeTest, Law6_TrainsWithoutADaemon) {
  train(config());
  EXPECT_EQ(stats(*Session::current())["step"]["number"], 3);
}

/// A daemon that takes the registration and never answers.
FakeCoordinator::Behaviour silent() {
  FakeCoordinator::Behaviour behaviour;
  behaviour.answers = false;
  return behaviour;
}

TEST_F(SessionLifeTest, Law6_TrainsBesideADaemonThatNeverAnswers) {
  FakeCoordinator coordinator(folder_.path(), silent());
  SessionConfig with = config();
  with.connect_timeout = std::chrono::milliseconds{100};
  train(with);
  EXPECT_EQ(stats(*Session::current())["step"]["number"], 3);
  EXPECT_TRUE(coordinator.next<wire::Register>()) << "it had been asked";
}

TEST_F(SessionLifeTest, Law6_BreaksWhenNothingEndsTheWaitForAnAnswer) {
  FakeCoordinator coordinator(folder_.path(), silent());
  SessionConfig with = config();
  with.connect_timeout = std::chrono::hours{1};  // as good as none
  std::atomic<bool> trained{false};
  std::thread job([&] {
    train(with);
    trained.store(true);
  });
  ASSERT_TRUE(coordinator.next<wire::Register>());
  EXPECT_FALSE(trained.load()) << "the daemon, who has not answered, decides whether it trains";
  wire::Registered answer;
  answer.job_id = "job-1";
  answer.law = "gap";
  coordinator.send(answer);
  job.join();
  EXPECT_TRUE(trained.load());
}

// --- a helper that trains ----------------------------------------------------------------------

TEST_F(SessionLifeTest, AHelperFollowsNoLimitUntilItIsARank) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(config(MemberRole::kHelper));
  auto hello = coordinator.next<wire::Register>();
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->role, "helper");
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  const auto activity = [&] {
    return static_cast<wire::Activity>(coordinator.job_page().activity.load());
  };
  EXPECT_EQ(activity(), wire::Activity::kWaiting) << "it is in nobody's way";
  EXPECT_EQ(session.allocator().stats().limit, Bytes{UINT64_MAX});

  session.become_rank(1, 2);
  hello = coordinator.next<wire::Register>();
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->role, "rank");
  EXPECT_EQ(hello->rank, 1);
  EXPECT_EQ(hello->world_size, 2);
  EXPECT_EQ(activity(), wire::Activity::kUnknown) << "busy until it shows otherwise";
  EXPECT_EQ(session.allocator().stats().limit, 1_GiB) << "it has its part already";
  const auto job = stats(session)["job"];
  EXPECT_EQ(job["role"], "rank");
  EXPECT_EQ(job["rank"], 1);
  EXPECT_EQ(job["world_size"], 2);
}

TEST_F(SessionLifeTest, ARankThatHadNoCoordinatorIsARankToALaterOne) {
  Session& session = Session::start(config(MemberRole::kHelper));
  session.become_rank(0, 2);
  FakeCoordinator coordinator(folder_.path());
  const auto hello = coordinator.next<wire::Register>();
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->role, "rank");
}

TEST_F(SessionLifeTest, WhatAHelperHoldsCountsOnceItIsARank) {
  Session& session = Session::start(config(MemberRole::kHelper));
  void* const block = session.allocator().allocate(8_MiB);
  {
    FakeCoordinator coordinator(folder_.path());
    const auto hello = coordinator.next<wire::Register>();
    ASSERT_TRUE(hello);
    EXPECT_EQ(hello->devices[0].held_bytes, 0U);
    EXPECT_FALSE(hello->devices[0].limit_bytes);
    session.become_rank(0, 1);
    const auto again = coordinator.next<wire::Register>();
    ASSERT_TRUE(again);
    EXPECT_GE(again->devices[0].held_bytes, (8_MiB).count());
  }
  EXPECT_TRUE(session.allocator().deallocate(block));
}

TEST_F(SessionLifeTest, WithoutACoordinatorAHelpersOwnLimitHoldsOnceItIsARank) {
  auto bounded = config(MemberRole::kHelper);
  bounded.terms.memory.max = 4_MiB;
  Session& session = Session::start(bounded);
  EXPECT_EQ(session.allocator().stats().limit, Bytes{UINT64_MAX});
  session.become_rank(0, 1);
  EXPECT_EQ(session.allocator().stats().limit, 4_MiB);
}

TEST_F(SessionLifeTest, OnlyAHelperBecomesARankAndOnlyOneOfTheWorld) {
  Session& session = Session::start(config(MemberRole::kHelper));
  for (const auto& [rank, world_size] : {std::pair{2, 2}, {-1, 2}, {0, 0}}) {
    EXPECT_THROW(session.become_rank(rank, world_size), std::invalid_argument);
  }
  EXPECT_EQ(stats(session)["job"]["role"], "helper");
  session.become_rank(0, 2);
  try {
    session.become_rank(1, 2);
    FAIL() << "no exception";
  } catch (const SessionError& error) {
    EXPECT_STREQ(error.what(), "only a helper can become a rank, this process is a rank");
  }
  EXPECT_EQ(stats(session)["job"]["rank"], 0);
}

// --- threads -----------------------------------------------------------------------------------

/// A thread that runs without a pause and has no alternate signal stack: it cannot be stopped at
/// any place in its code.
class StacklessRunner {
 public:
  StacklessRunner() {
    thread_ = std::thread([this] {
      stack_t none{};
      none.ss_flags = SS_DISABLE;
      stack_t before{};  // a sanitizer's, which it wants back at the thread's end
      ::sigaltstack(&none, &before);
      runs_.store(true);
      while (!end_.load(std::memory_order_relaxed)) {
      }
      ::sigaltstack(&before, nullptr);
    });
    while (!runs_.load()) std::this_thread::yield();
  }
  ~StacklessRunner() {
    end_.store(true);
    thread_.join();
  }
  StacklessRunner(const StacklessRunner&) = delete;
  StacklessRunner& operator=(const StacklessRunner&) = delete;

 private:
  std::atomic<bool> runs_{false};
  std::atomic<bool> end_{false};
  std::thread thread_;
};

/// A thread that is just being started blocks signals for a moment.
bool all_can_be_stopped_anywhere() {
  return eventually(
      [] { return ThreadStopper::existing()->obstacle(StopPoint::kAnywhere).empty(); });
}

TEST_F(SessionLifeTest, AThreadThatCannotBeStoppedAnywhereIsEquippedBetweenTwoSteps) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(config());
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 7, 24U << 20U);
  session.step();  // from here on this thread is the one that trains
  ThreadStopper* const stopper = ThreadStopper::existing();
  ASSERT_NE(stopper, nullptr);
  const StacklessRunner runner;
  wire::Change shrink;
  shrink.job_id = "job-1";
  shrink.revision = 2;
  shrink.limit_bytes = (8_MiB).count();
  coordinator.send(shrink);
  // No step comes, so the client's thread tries: it cannot know what the runner is doing.
  ASSERT_TRUE(eventually([&] { return stopper->stacks_wanted(); }));
  EXPECT_GT(session.allocator().stats().device, 8_MiB);
  const auto applied = [&] {
    session.step();
    return session.allocator().stats().device <= 8_MiB;
  };
  EXPECT_TRUE(eventually(applied)) << session.allocator().stats().deferred_reason;
  EXPECT_FALSE(stopper->stacks_wanted());
  EXPECT_TRUE(all_can_be_stopped_anywhere()) << stopper->obstacle(StopPoint::kAnywhere);
  EXPECT_EQ(static_cast<unsigned char*>(block)[12'345'678], 7);
  session.allocator().deallocate(block);
}

/// Lets the default action of the signal that stops threads stand in the place of its handler.
void take_the_handler_away() { ::signal(ThreadStopper::existing()->signal_number(), SIG_DFL); }

constexpr const char* kStays =
    "memory in use stays where it is: the program has changed the handler";

bool has_note(const nlohmann::json& stats) {
  const nlohmann::json& notes = stats["memory"]["notes"];
  return std::any_of(notes.begin(), notes.end(), [](const nlohmann::json& note) {
    return note.get<std::string>().starts_with(kStays);
  });
}

TEST_F(SessionLifeTest, WhatKeepsMemoryInItsPlaceIsSaidOnceWhenItShows) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(config());
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 7, 24U << 20U);
  session.step();
  EXPECT_FALSE(has_note(stats(session)));
  take_the_handler_away();
  ::testing::internal::CaptureStderr();
  // As a log that takes the place of standard error: our lines go to no other kind of file.
  ASSERT_EQ(::fcntl(STDERR_FILENO, F_SETFL, O_APPEND), 0);
  wire::Change shrink;
  shrink.job_id = "job-1";
  for (shrink.revision = 2; shrink.revision < 4; ++shrink.revision) {
    shrink.limit_bytes = (8_MiB).count();
    coordinator.send(shrink);
    EXPECT_TRUE(eventually([&] {
      session.step();
      return has_note(stats(session));
    }));
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::size_t first = said.find(kStays);
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find(kStays, first + 1), std::string::npos) << said;
  EXPECT_EQ(static_cast<unsigned char*>(block)[12'345'678], 7);
  session.allocator().deallocate(block);
}

TEST_F(SessionLifeTest, WhatKeepsMemoryInItsPlaceIsANoteAtTheStartAndALineOfAQuietJob) {
  FakeCoordinator coordinator(folder_.path());
  ThreadStopper::instance();
  take_the_handler_away();
  SessionConfig quiet = config();
  quiet.quiet = true;
  ::testing::internal::CaptureStderr();
  const Session& session = Session::start(quiet);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find(kStays), std::string::npos);
  EXPECT_TRUE(has_note(stats(session)));
}

TEST_F(SessionLifeTest, BeforeTheFirstStepTheFirstThreadIsTheOneThatTrains) {
  Session& session = Session::start(config());
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 7, 24U << 20U);
  const StacklessRunner runner;
  // This thread has done no step; it is between ops, so the runner may be stopped where it is.
  const LimitTicket ticket = session.set_memory_limit(8_MiB);
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_TRUE(all_can_be_stopped_anywhere());
  session.allocator().deallocate(block);
}

}  // namespace
}  // namespace commensal::session_life_test

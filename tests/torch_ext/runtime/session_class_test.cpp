// SPDX-License-Identifier: Apache-2.0
// The class of a running session is changed. One session a process.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>

#include "allocator/deferred_source.h"
#include "tests/allocator/moving_source.h"
#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "tests/torch_ext/runtime/page_file.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/job_page.h"
#include "torch_ext/runtime/session.h"

namespace commensal::session_class_test {
namespace {

using testing::eventually;
using testing::FakeCoordinator;
using testing::TemporaryFolder;

constexpr JobClass kGuaranteed = JobClass::kGuaranteed;
constexpr JobClass kOpportunistic = JobClass::kOpportunistic;
OpDuration g_add;

std::unique_ptr<MemorySource> make_offered(const SessionConfig& /*config*/, bool (*)()) {
  return std::make_unique<DeferredSource>([] { return std::make_unique<MovingSource>(); }, 64_KiB,
                                          [] { return MoveRisk{}; });
}

class SessionClassTest : public ::testing::Test {
 protected:
  Session& start(JobClass job_class, const std::function<void(SessionConfig&)>& adjust = nullptr) {
    FakeCoordinator::Behaviour behaviour;
    behaviour.job_class = job_class;
    behaviour.law = job_class == kGuaranteed ? "open" : "gap";
    coordinator_.emplace(folder_.path(), behaviour);
    SessionConfig config;
    config.job_id = JobId{"job-1"};
    config.name = "test";
    config.job_class = job_class;
    config.terms.idle_class = false;
    config.runtime_dir = folder_.path();
    config.connect_timeout = std::chrono::seconds{10};
    if (adjust) adjust(config);
    return Session::start(config);
  }
  /// Another coordinator in place of the present one, which dies.
  wire::Register restart(JobClass job_class) {
    FakeCoordinator::Behaviour behaviour;
    behaviour.job_class = job_class;
    coordinator_.reset();
    coordinator_.emplace(folder_.path(), behaviour);
    return coordinator_->next<wire::Register>().value_or(wire::Register{});
  }
  static wire::Change change(Revision revision, JobClass job_class) {
    wire::Change message;
    message.job_id = "job-1";
    message.revision = revision;
    message.job_class = job_class;
    message.terms.law = job_class == kGuaranteed ? "open" : "gap";
    message.reason = "the test wants it";
    return message;
  }
  wire::Answer tell(const wire::Change& message) {
    coordinator_->send(message);
    return coordinator_
        ->next_if<wire::Answer>([&](const auto& a) { return a.revision == message.revision; })
        .value_or(wire::Answer{});
  }
  static nlohmann::json stats(const Session& session) {
    return nlohmann::json::parse(session.stats_json());
  }
  static void step(Session& session) {
    session.range_begin("Optimizer.step#SGD.step");
    session.range_end("Optimizer.step#SGD.step");
  }

  TemporaryFolder folder_;
  std::optional<FakeCoordinator> coordinator_;
};

TEST_F(SessionClassTest, AnUpgradeIsTakenAndAnswered) {
  Session& session = start(kOpportunistic);
  const auto answer = tell(change(2, kGuaranteed));
  EXPECT_EQ(answer.outcome, wire::Outcome::kApplied);
  EXPECT_EQ(answer.job_class, kGuaranteed);
  EXPECT_EQ(stats(session)["job"]["class"], "guaranteed");
  EXPECT_EQ(stats(session)["gate"]["law"], "open");
  EXPECT_EQ(session.active_line().substr(0, 10), "guaranteed");
}

TEST_F(SessionClassTest, EveryAnswerTellsTheClassInForce) {
  start(kOpportunistic);
  wire::Change other;
  other.job_id = "job-1";
  other.revision = 2;
  other.terms.share = ShareRange{0.0, 0.5};
  EXPECT_EQ(tell(other).job_class, kOpportunistic);
}

TEST_F(SessionClassTest, TheReverseIsTakenAndAnswered) {
  Session& session = start(kGuaranteed, [](auto& c) { c.terms.slo = 0.02; });
  const auto answer = tell(change(2, kOpportunistic));
  EXPECT_EQ(answer.outcome, wire::Outcome::kApplied);
  EXPECT_EQ(answer.job_class, kOpportunistic);
  EXPECT_EQ(stats(session)["gate"]["law"], "gap");
  const wire::Register hello = restart(kOpportunistic);
  EXPECT_EQ(hello.job_class, kOpportunistic);
  EXPECT_FALSE(hello.terms.slo) << "which an opportunistic job has not";
}

TEST_F(SessionClassTest, TheClassInForceIsSaidToTheNextCoordinator) {
  start(kOpportunistic);
  wire::Change upgrade = change(2, kGuaranteed);
  upgrade.terms.memory = MemoryRange{64_MiB, 128_MiB};
  upgrade.terms.slo = 0.03;
  ASSERT_EQ(tell(upgrade).outcome, wire::Outcome::kApplied);
  const wire::Register hello = restart(kGuaranteed);
  EXPECT_EQ(hello.job_class, kGuaranteed);
  EXPECT_EQ(hello.terms.memory.min, 64_MiB);
  EXPECT_EQ(hello.terms.memory.max, 128_MiB);
  EXPECT_EQ(hello.terms.slo, 0.03);
  EXPECT_EQ(hello.terms.law, "open");
}

TEST_F(SessionClassTest, WhatACoordinatorDidNotGrantIsAskedForAgain) {
  start(kGuaranteed, [](auto&) {});
  const wire::Register hello = restart(kOpportunistic);  // runs as opportunistic there
  EXPECT_EQ(hello.job_class, kGuaranteed);
  EXPECT_EQ(restart(kGuaranteed).job_class, kGuaranteed);
}

TEST_F(SessionClassTest, TheSameAgainDoesNothing) {
  Session& session = start(kOpportunistic);
  ASSERT_EQ(tell(change(2, kGuaranteed)).outcome, wire::Outcome::kApplied);
  const auto notes = stats(session)["memory"]["notes"];
  for (const Revision revision : {Revision{2}, Revision{3}}) {
    const auto again = tell(change(revision, kGuaranteed));
    EXPECT_EQ(again.outcome, wire::Outcome::kApplied);
    EXPECT_EQ(again.job_class, kGuaranteed);
  }
  EXPECT_EQ(stats(session)["memory"]["notes"], notes);
}

TEST_F(SessionClassTest, AnOlderChangeIsStaleAndChangesNothing) {
  Session& session = start(kOpportunistic);
  ASSERT_EQ(tell(change(5, kGuaranteed)).outcome, wire::Outcome::kApplied);
  const auto answer = tell(change(4, kOpportunistic));
  EXPECT_EQ(answer.outcome, wire::Outcome::kStale);
  EXPECT_EQ(answer.job_class, kGuaranteed);
  EXPECT_EQ(stats(session)["job"]["class"], "guaranteed");
}

TEST_F(SessionClassTest, AnUnknownLawIsRefusedWithTheClass) {
  Session& session = start(kOpportunistic);
  wire::Change wrong = change(2, kGuaranteed);
  wrong.terms.law = "anarchy";
  const auto answer = tell(wrong);
  EXPECT_EQ(answer.outcome, wire::Outcome::kRefused);
  EXPECT_NE(answer.reason.find("anarchy"), std::string::npos) << answer.reason;
  EXPECT_EQ(answer.job_class, kOpportunistic);
  EXPECT_EQ(stats(session)["job"]["class"], "opportunistic");
  EXPECT_EQ(stats(session)["gate"]["law"], "gap");
}

// Law 4: an op that waits at the gate of an opportunistic job passes when the job is guaranteed.
TEST_F(SessionClassTest, AnUpgradeOpensTheGateForWhoWaitsAtIt) {
  Session& session = start(kOpportunistic);
  OwnPage neighbour{JobId{"other"}, kGuaranteed, 0};
  neighbour.page().activity.store(static_cast<std::uint64_t>(wire::Activity::kBusy));
  ASSERT_TRUE(eventually([&] { return coordinator_->has_job_page(); }));
  coordinator_->page().guaranteed_alive.store(1);
  coordinator_->add_peer(::getpid(), file_of(neighbour).get());
  ASSERT_TRUE(eventually([&] { return session.gate().wants_callback(); }));
  std::atomic<bool> passed{false};
  std::thread op([&] {
    if (!session.gate().try_enter_op(g_add)) session.gate().wait_op(g_add);
    session.gate().leave_op(g_add);
    passed.store(true);
  });
  ASSERT_TRUE(eventually([&] { return stats(session)["gate"]["state"] == "closed"; }));
  EXPECT_FALSE(passed.load());
  EXPECT_EQ(tell(change(2, kGuaranteed)).outcome, wire::Outcome::kApplied);
  EXPECT_TRUE(eventually([&] { return passed.load(); })) << "though the neighbour is still busy";
  op.join();
  EXPECT_TRUE(eventually([&] { return !session.gate().wants_callback(); }))
      << "a guaranteed job pays for no callback";
  EXPECT_EQ(tell(change(3, kOpportunistic)).outcome, wire::Outcome::kApplied);
  EXPECT_TRUE(eventually([&] { return session.gate().wants_callback(); }));
  EXPECT_FALSE(session.gate().try_enter_op(g_add)) << "and it yields again";
}

TEST_F(SessionClassTest, AGuaranteedJobKeepsNoShareOfItsMultiprocessors) {
  Session& session = start(kOpportunistic, [](auto& c) { c.terms.sm_share = 0.25; });
  EXPECT_EQ(stats(session)["multiprocessors"]["share"], 0.25);
  ASSERT_EQ(tell(change(2, kGuaranteed)).outcome, wire::Outcome::kApplied);
  EXPECT_TRUE(stats(session)["multiprocessors"]["share"].is_null());
  ASSERT_EQ(tell(change(3, kOpportunistic)).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(stats(session)["multiprocessors"]["share"], 0.25);
}

TEST_F(SessionClassTest, OneThatDoesNotTrainLooksForRequestsWhileItIsGuaranteed) {
  Session& session = start(kOpportunistic);
  const auto looks = [&] {  // a synchronisation is no pause while requests are looked for
    session.synchronised();
    return stats(session)["activity"]["state"] != "waiting";
  };
  ASSERT_EQ(tell(change(2, kGuaranteed)).outcome, wire::Outcome::kApplied);
  EXPECT_TRUE(looks());
  ASSERT_EQ(tell(change(3, kOpportunistic)).outcome, wire::Outcome::kApplied);
  EXPECT_FALSE(looks());
}

TEST_F(SessionClassTest, OneThatTrainsGoesOnToTellItsWaits) {
  Session& session = start(kOpportunistic);
  step(session);
  ASSERT_EQ(tell(change(2, kGuaranteed)).outcome, wire::Outcome::kApplied);
  session.touch();
  std::this_thread::sleep_for(std::chrono::milliseconds{1});  // pauses in a row are not all told
  step(session);
  EXPECT_EQ(stats(session)["activity"]["state"], "waiting") << "the border of a step";
}

TEST_F(SessionClassTest, OnAGpuWhatBeganAsGuaranteedSaysThatItCannotGiveWay) {
  Session::offer_memory("made-up", &make_offered);
  Session& session = start(kGuaranteed, [](auto& c) { c.device = "made-up"; });
  const auto answer = tell(change(2, kOpportunistic));
  EXPECT_EQ(answer.outcome, wire::Outcome::kRefused);
  EXPECT_EQ(answer.job_class, kGuaranteed);
  EXPECT_NE(answer.reason.find("began as guaranteed"), std::string::npos) << answer.reason;
  EXPECT_EQ(stats(session)["gate"]["law"], "open");
  EXPECT_EQ(tell(change(3, kGuaranteed)).outcome, wire::Outcome::kApplied);
}

TEST_F(SessionClassTest, OnAGpuWhatBeganAsOpportunisticChangesBothWays) {
  Session::offer_memory("made-up", &make_offered);
  start(kOpportunistic, [](auto& c) { c.device = "made-up"; });
  EXPECT_EQ(tell(change(2, kGuaranteed)).job_class, kGuaranteed);
  EXPECT_EQ(tell(change(3, kOpportunistic)).job_class, kOpportunistic);
}

// --- the kernel's idle class --------------------------------------------------------------------

/// Whether the kernel lets this process leave the idle class: tried in a child.
bool may_leave_idle_class() {
  const pid_t child = ::fork();
  if (child == 0) {
    const sched_param normal{};
    const bool in = ::sched_setscheduler(0, SCHED_IDLE, &normal) == 0;
    ::_exit(in && ::sched_setscheduler(0, SCHED_OTHER, &normal) == 0 ? 0 : 1);
  }
  int status = 1;
  return child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
}

TEST_F(SessionClassTest, ThreadsLeaveTheIdleClassAndComeBack) {
  if (!may_leave_idle_class()) GTEST_SKIP() << "the kernel lets nobody here leave the idle class";
  Session& session = start(kOpportunistic, [](auto& c) { c.terms.idle_class = true; });
  EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
  ASSERT_EQ(tell(change(2, kGuaranteed)).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
  EXPECT_EQ(stats(session)["gate"]["idle_class"], false);
  ASSERT_EQ(tell(change(3, kOpportunistic)).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
}

TEST_F(SessionClassTest, ForkedChildrenFollow) {
  if (!may_leave_idle_class()) GTEST_SKIP() << "the kernel lets nobody here leave the idle class";
  start(kOpportunistic, [](auto& c) { c.terms.idle_class = true; });
  std::array<int, 2> end{};
  ASSERT_EQ(::pipe(end.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {  // a worker: it ends with its parent's word
    (void)::close(end[1]);
    char byte = 0;
    (void)!::read(end[0], &byte, 1);
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  EXPECT_EQ(::sched_getscheduler(child), SCHED_IDLE) << "inherited";
  EXPECT_EQ(tell(change(2, kGuaranteed)).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(::sched_getscheduler(child), SCHED_OTHER);
  EXPECT_EQ(tell(change(3, kOpportunistic)).outcome, wire::Outcome::kApplied);
  EXPECT_EQ(::sched_getscheduler(child), SCHED_IDLE);
  (void)::close(end[1]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  (void)::close(end[0]);
}

TEST_F(SessionClassTest, WhoWasStartedInTheIdleClassLeavesItToo) {
  if (!may_leave_idle_class()) GTEST_SKIP() << "the kernel lets nobody here leave the idle class";
  const sched_param normal{};
  ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &normal), 0);
  // The job was upgraded before this process registered.
  FakeCoordinator::Behaviour behaviour;
  behaviour.job_class = kGuaranteed;
  behaviour.law = "open";
  coordinator_.emplace(folder_.path(), behaviour);
  SessionConfig config;
  config.job_id = JobId{"job-1"};
  config.runtime_dir = folder_.path();
  config.connect_timeout = std::chrono::seconds{10};
  Session& session = Session::start(config);
  EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
  EXPECT_EQ(stats(session)["job"]["class"], "guaranteed");
}

TEST_F(SessionClassTest, WhoCannotLeaveTheIdleClassIsNotUpgraded) {
  // As an ordinary user without RLIMIT_NICE: in a process that has given up root.
  if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) {
    GTEST_SKIP() << "this process cannot become an ordinary user's";
  }
  if (may_leave_idle_class()) GTEST_SKIP() << "the kernel lets this user leave the idle class";
  const TemporaryFolder folder;
  FakeCoordinator coordinator{folder.path()};
  SessionConfig config;
  config.job_id = JobId{"job-1"};
  config.runtime_dir = folder.path();
  config.connect_timeout = std::chrono::seconds{10};
  Session& session = Session::start(config);
  ASSERT_EQ(::sched_getscheduler(0), SCHED_IDLE);
  coordinator.send(change(2, kGuaranteed));
  const auto answer =
      coordinator.next_if<wire::Answer>([](const auto& a) { return a.revision == 2; });
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->outcome, wire::Outcome::kRefused);
  EXPECT_EQ(answer->job_class, kOpportunistic);
  EXPECT_NE(answer->reason.find("cannot leave the kernel's idle class: sched_setscheduler"),
            std::string::npos)
      << answer->reason;
  EXPECT_EQ(stats(session)["job"]["class"], "opportunistic");
  EXPECT_EQ(stats(session)["gate"]["law"], "gap") << "it is still paced";
  EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
}

}  // namespace
}  // namespace commensal::session_class_test

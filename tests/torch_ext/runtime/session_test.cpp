// SPDX-License-Identifier: Apache-2.0
// The whole session against a fake coordinator. One session a process: ctest runs each case alone.
#include "torch_ext/runtime/session.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>

#include "allocator/host/own_threads.h"
#include "coordinator/wire/laws.h"
#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "tests/torch_ext/runtime/page_file.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/job_page.h"

namespace commensal::session_test {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::FakeCoordinator;
using testing::TemporaryFolder;

constexpr std::string_view kStep = "Optimizer.step#SGD.step";
constexpr std::string_view kFetch = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
OpDuration g_add;

wire::Change change(Revision revision) {
  wire::Change message;
  message.job_id = "job-1";
  message.revision = revision;
  message.reason = "the test wants it";
  return message;
}

wire::Change limit_change(Revision revision, Bytes limit) {
  wire::Change message = change(revision);
  message.limit_bytes = limit.count();
  return message;
}

class SessionTest : public ::testing::Test {
 protected:
  [[nodiscard]] SessionConfig config(JobClass job_class = JobClass::kOpportunistic) const {
    SessionConfig config;
    config.job_id = JobId{"job-1"};
    config.name = "test";
    config.job_class = job_class;
    config.terms.idle_class = false;
    return config;
  }
  [[nodiscard]] SessionConfig connected(JobClass job_class = JobClass::kOpportunistic) const {
    SessionConfig with = config(job_class);
    with.runtime_dir = folder_.path();
    with.connect_timeout = std::chrono::seconds{10};
    return with;
  }
  static void step(Session& session) {
    session.range_begin(kStep);
    session.range_end(kStep);
  }
  static std::string activity(const Session& session) {
    return stats(session)["activity"]["state"].get<std::string>();
  }
  static nlohmann::json stats(const Session& session) {
    return nlohmann::json::parse(session.stats_json());
  }
  static Bytes resident(const Session& session) {
    const auto memory = stats(session).at("memory");
    return Bytes{memory.at("device_bytes").get<std::uint64_t>() +
                 memory.at("host_touched_bytes").get<std::uint64_t>()};
  }

  TemporaryFolder folder_;
};

TEST_F(SessionTest, APauseEndsWhereAnOptimizerBegins) {
  Session& session = Session::start(config());
  step(session);
  EXPECT_EQ(activity(session), "waiting");
  session.range_begin(kStep);  // a fused one allocates nothing
  EXPECT_EQ(activity(session), "busy");
  std::this_thread::sleep_for(std::chrono::milliseconds{1});  // pauses in a row are not all told
  session.range_end(kStep);
  EXPECT_EQ(activity(session), "waiting");
  session.optimizer_step_begin();  // one that is no range
  EXPECT_EQ(activity(session), "busy");
  session.optimizer_step_end();
}

TEST_F(SessionTest, StartsAloneAndSaysSo) {
  Session& session = Session::start(config());
  EXPECT_EQ(Session::current(), &session);
  EXPECT_EQ(session.active_line(),
            "opportunistic, no memory limit, gate gap, no coordinator: not asked for");
  void* const block = session.allocator().allocate(1_MiB);
  ASSERT_NE(block, nullptr);
  std::memset(block, 1, 1U << 20U);
  EXPECT_TRUE(session.allocator().deallocate(block));
  const auto now = stats(session);
  EXPECT_EQ(now["job"]["class"], "opportunistic");
  EXPECT_EQ(now["gate"]["state"], "off");
  EXPECT_EQ(now["memory"]["allocations_total"], 1);
}

TEST_F(SessionTest, AnAbsentCoordinatorIsNamedWithItsFolder) {
  Session& session = Session::start(connected());
  EXPECT_NE(session.active_line().find("no coordinator: no coordinator 'default' in " +
                                       folder_.path().string()),
            std::string::npos)
      << session.active_line();
}

TEST_F(SessionTest, AJobThatWaitsForItsFirstMemorySaysSo) {
  FakeCoordinator::Behaviour behaviour;
  behaviour.limit_bytes = 0;
  const FakeCoordinator coordinator{folder_.path(), behaviour};
  const Session& session = Session::start(connected());
  EXPECT_EQ(session.active_line(), "opportunistic, 0 B so far, gate gap, coordinator 4242");
}

TEST_F(SessionTest, SaysWhereItsMemoryLiesWhenItIsAsked) {
  FakeCoordinator coordinator{folder_.path()};
  Session& session = Session::start(connected());
  const TagId tag = session.open_tag("weights", TagOptions{.keep = true});
  void* const block = session.allocator().allocate(3_MiB, 0, {Phase::kUnknown, tag});
  ASSERT_TRUE(session.park_tag("weights").complete());
  coordinator.send(wire::MapRequest{"job-1", ::getpid(), "0a0b"});
  const auto reply = coordinator.next<wire::MapReply>();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->ticket, "0a0b");
  EXPECT_EQ(reply->job_id, "job-1");
  EXPECT_EQ(reply->pid, ::getpid());
  const auto& segment = reply->map.at("segments").at(0);
  EXPECT_EQ(segment.at("tag"), "weights");
  EXPECT_EQ(segment.at("address"), reinterpret_cast<std::uintptr_t>(block));
  // Two chunks: one is full, of the other a half is used.
  EXPECT_EQ(segment.at("chunks"), nlohmann::json::parse(R"([[0, 2097152, "parked", 2097152],
                                      [2097152, 2097152, "parked", 1048576]])"));
  const auto told = nlohmann::json::parse(session.memory_map_json(true));
  EXPECT_EQ(told.at("segments").at(0).at("blocks").at(0),
            nlohmann::json::array({segment.at("address"), 3145728, 3145728}));
  EXPECT_TRUE(session.wake_tag("weights").complete());
  EXPECT_EQ(stats(session)["memory"]["tags"][0]["device_bytes"], 4U << 20U);
  EXPECT_THROW((void)session.drop_tag("weight"), std::invalid_argument);
  EXPECT_TRUE(session.allocator().deallocate(block));
}

TEST_F(SessionTest, TwiceIsOneClearSentence) {
  Session::start(config());
  try {
    Session::start(config());
    FAIL() << "no exception";
  } catch (const SessionError& error) {
    EXPECT_STREQ(error.what(), "commensal is active already in this process: job 'job-1'");
  }
}

TEST_F(SessionTest, WrongValuesAreNamedAndChangeNothing) {
  SessionConfig wrong = config();
  wrong.terms.share = {0.5, 0.2};
  EXPECT_THROW(Session::start(wrong), std::invalid_argument);
  wrong = config();
  wrong.terms.share = {0.0, 1.5};
  EXPECT_THROW(Session::start(wrong), std::invalid_argument);
  wrong = config();
  wrong.terms.memory = {2_GiB, 1_GiB};
  EXPECT_THROW(Session::start(wrong), std::invalid_argument);
  wrong = config();
  wrong.terms.law = "fast";
  EXPECT_THROW(Session::start(wrong), std::invalid_argument);
  wrong = config();
  wrong.rank = 2;
  wrong.world_size = 2;
  EXPECT_THROW(Session::start(wrong), std::invalid_argument);
  EXPECT_EQ(Session::current(), nullptr);
  Session& session = Session::start(config());
  EXPECT_THROW(session.set_compute_share(1.5), std::invalid_argument);
  EXPECT_THROW(session.set_compute_share(-0.1), std::invalid_argument);
}

TEST_F(SessionTest, RangesAndHooksBecomeSteps) {
  Session& session = Session::start(config());
  for (int i = 0; i < 3; ++i) step(session);
  session.optimizer_step_begin();
  session.optimizer_step_end();
  EXPECT_EQ(stats(session)["step"]["number"], 4);
  EXPECT_EQ(stats(session)["step"]["source"], "hook");
  session.step();
  step(session);
  EXPECT_EQ(stats(session)["step"]["number"], 5);
  EXPECT_EQ(stats(session)["step"]["source"], "user");
  session.range_begin("some.other#range");
  session.range_end("some.other#range");
}

TEST_F(SessionTest, AFetchIsPublishedAsAWait) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected(JobClass::kGuaranteed));
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  const auto activity = [&] {
    return static_cast<wire::Activity>(coordinator.job_page().activity.load());
  };
  EXPECT_EQ(activity(), wire::Activity::kUnknown);
  session.range_begin(kFetch);
  EXPECT_EQ(activity(), wire::Activity::kWaiting);
  std::thread([&] { session.touch(); }).join();
  session.range_end(kFetch);
  EXPECT_EQ(activity(), wire::Activity::kBusy);
  step(session);
  session.touch();
  EXPECT_EQ(activity(), wire::Activity::kBusy);
  std::thread([&] {  // a thread that only prefetches
    session.range_begin(kFetch);
    EXPECT_EQ(activity(), wire::Activity::kBusy);
    session.range_end(kFetch);
  })
      .join();
  EXPECT_EQ(stats(session)["activity"]["waits_total"], 1);
  EXPECT_GT(coordinator.job_page().heartbeat_ns.load(), 0U);
}

TEST_F(SessionTest, C19_AGuaranteedJobThatDoesNothingForSecondsIsSeenToWait) {
  FakeCoordinator::Behaviour behaviour;
  behaviour.job_class = JobClass::kGuaranteed;
  FakeCoordinator coordinator(folder_.path(), behaviour);
  Session& session = Session::start(connected(JobClass::kGuaranteed));
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  const auto activity = [&] {
    return static_cast<wire::Activity>(coordinator.job_page().activity.load());
  };
  session.range_begin(kStep);
  session.range_end(kStep);
  session.range_begin(kFetch);
  session.range_end(kFetch);
  ASSERT_EQ(activity(), wire::Activity::kBusy);
  for (int i = 0; i < 120 && activity() != wire::Activity::kWaiting; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds{500});  // to look often is work, too
  }
  EXPECT_EQ(activity(), wire::Activity::kWaiting);
  session.touch();
  EXPECT_EQ(activity(), wire::Activity::kBusy);
}

TEST_F(SessionTest, PhasesOfWaitsComeFromRangesAndHooksAlone) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected(JobClass::kGuaranteed));
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  const auto phase = [&] {
    return static_cast<wire::GapPhase>(coordinator.job_page().wait_phase.load());
  };
  const auto activity = [&] {
    return static_cast<wire::Activity>(coordinator.job_page().activity.load());
  };
  session.range_begin(kFetch);
  EXPECT_EQ(phase(), wire::GapPhase::kLoader);
  session.batch_awaited();
  EXPECT_EQ(activity(), wire::Activity::kWaiting);
  session.batch_arrived();
  EXPECT_EQ(activity(), wire::Activity::kBusy) << "it has come, and is unpacked";
  session.range_end(kFetch);
  session.optimizer_step_begin();  // compiled: hooks without a range
  session.optimizer_step_end();
  EXPECT_EQ(phase(), wire::GapPhase::kBoundary);
  EXPECT_EQ(activity(), wire::Activity::kWaiting);
  ASSERT_TRUE(session.checkpoint_begin());
  EXPECT_EQ(phase(), wire::GapPhase::kCheckpoint);
  session.checkpoint_end();
  EXPECT_EQ(activity(), wire::Activity::kWaiting);
  for (int batch = 0; batch < 2; ++batch) {
    session.range_begin(kFetch);
    session.range_end(kFetch);
  }
  EXPECT_EQ(phase(), wire::GapPhase::kEvaluation);
  EXPECT_EQ(stats(session)["activity"]["phase"], "evaluation");
  std::set<std::string> told;
  const nlohmann::json gaps = stats(session)["activity"]["gaps"];
  for (const auto& gap : gaps) {
    if (gap["waits_total"] > 0) told.insert(gap["phase"].get<std::string>());
  }
  EXPECT_EQ(told, (std::set<std::string>{"loader", "boundary", "checkpoint", "evaluation"}));
}

TEST_F(SessionTest, ACheckpointOrABatchOfAnotherThreadIsNoWait) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected(JobClass::kGuaranteed));
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  step(session);
  session.touch();
  session.range_begin(kFetch);
  std::thread([&] {
    EXPECT_FALSE(session.checkpoint_begin());
    session.batch_arrived();
  }).join();
  EXPECT_EQ(coordinator.job_page().activity.load(),
            static_cast<std::uint64_t>(wire::Activity::kWaiting));
  session.range_end(kFetch);
}

TEST_F(SessionTest, ABatchThatAThreadHandsOverEndsTheWaitForIt) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected(JobClass::kGuaranteed));
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  const auto activity = [&] {
    return static_cast<wire::Activity>(coordinator.job_page().activity.load());
  };
  const auto hand_over = [&] { std::thread([&] { session.batch_handed_over(); }).join(); };
  step(session);
  session.range_begin(kFetch);
  EXPECT_EQ(activity(), wire::Activity::kWaiting);
  hand_over();
  EXPECT_EQ(activity(), wire::Activity::kBusy);
  session.batch_awaited();
  EXPECT_EQ(activity(), wire::Activity::kWaiting) << "it was not the next one";
  session.range_end(kFetch);
  hand_over();
  EXPECT_EQ(activity(), wire::Activity::kBusy) << "ahead of the next fetch";
  ASSERT_TRUE(session.checkpoint_begin());
  hand_over();
  EXPECT_EQ(activity(), wire::Activity::kWaiting) << "for a file";
  session.checkpoint_end();
}

std::atomic<int> g_released{0};
std::thread::id g_trainer;

TEST_F(SessionTest, ALimitIsAppliedAtTheStepsEndOnTheTrainingThread) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected());
  g_trainer = std::this_thread::get_id();
  session.on_wait(
      [] {
        if (std::this_thread::get_id() == g_trainer) ++g_released;
        return static_cast<void*>(&g_released);
      },
      [](void*) {});
  constexpr std::size_t kSize = 24U << 20U;
  auto* const block = static_cast<std::uint8_t*>(session.allocator().allocate(Bytes{kSize}));
  for (std::size_t i = 0; i < kSize; i += 64) block[i] = static_cast<std::uint8_t>(i / 64);
  coordinator.send(limit_change(2, 8_MiB));
  ASSERT_TRUE(eventually([&] {  // steps go on all the time: the client's thread leaves it to them
    step(session);
    return g_released.load() > 0;
  }));
  const auto answer = coordinator.next<wire::Answer>();
  ASSERT_TRUE(answer);
  std::optional<wire::Answer> applied = answer;
  while (applied && !(applied->revision == 2 && applied->outcome == wire::Outcome::kApplied)) {
    step(session);
    applied = coordinator.next<wire::Answer>();
  }
  ASSERT_TRUE(applied);
  EXPECT_LE(applied->held_bytes, (8_MiB).count());
  EXPECT_LE(resident(session), 8_MiB);
  for (std::size_t i = 0; i < kSize; i += 64) {
    ASSERT_EQ(block[i], static_cast<std::uint8_t>(i / 64)) << "at " << i;
  }
  EXPECT_TRUE(session.allocator().deallocate(block));
}

TEST_F(SessionTest, ALimitIsAppliedWithoutAnyStep) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected());
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 7, 24U << 20U);
  coordinator.send(limit_change(2, 8_MiB));
  const auto applied = coordinator.next_if<wire::Answer>([](const auto& answer) {
    return answer.revision == 2 && answer.outcome == wire::Outcome::kApplied;
  });
  ASSERT_TRUE(applied);
  EXPECT_LE(applied->held_bytes, (8_MiB).count());
  EXPECT_EQ(static_cast<unsigned char*>(block)[12'345'678], 7);
  coordinator.send(limit_change(1, 16_MiB));
  const auto stale = coordinator.next_if<wire::Answer>(
      [](const auto& answer) { return answer.outcome == wire::Outcome::kStale; });
  ASSERT_TRUE(stale);
  EXPECT_EQ(stale->revision, 1U);
  EXPECT_TRUE(session.allocator().deallocate(block));
}

TEST_F(SessionTest, SetMemoryLimitIsASafePointAndIsToldToTheCoordinator) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected());
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 7, 24U << 20U);
  const LimitTicket ticket = session.set_memory_limit(8_MiB);
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_LE(resident(session), 8_MiB);
  const auto told = coordinator.next<wire::SetRequest>();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->job, "job-1");
  ASSERT_TRUE(told->terms.memory);
  EXPECT_EQ(told->terms.memory->max, 8_MiB);
  EXPECT_TRUE(session.allocator().deallocate(block));
}

TEST_F(SessionTest, OutOfMemoryIsAConversation) {
  FakeCoordinator::Behaviour behaviour;
  behaviour.limit_bytes = (16_MiB).count();
  FakeCoordinator coordinator(folder_.path(), behaviour);
  Session& session = Session::start(connected());
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  ASSERT_TRUE(eventually([&] { return stats(session)["memory"]["limit_bytes"] == 16U << 20U; }));
  std::atomic<bool> done{false};
  std::thread arbiter([&] {
    const auto asked = coordinator.next<wire::AskMemory>();
    if (asked) coordinator.send(limit_change(2, 128_MiB));
    done.store(asked.has_value());
  });
  // The device page comes by another socket than the registration; without it nobody is asked.
  void* block = nullptr;
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(session.allocator().deallocate(block));  // null at first, which is no error
    block = session.allocator().allocate(48_MiB);
    return done.load();
  }));
  arbiter.join();
  EXPECT_TRUE(eventually([&] { return stats(session)["memory"]["limit_bytes"] == 128U << 20U; }));
  EXPECT_TRUE(session.allocator().deallocate(block));
}

TEST_F(SessionTest, ARefusedAskIsServedFromTheSlowerTier) {
  FakeCoordinator::Behaviour behaviour;
  behaviour.limit_bytes = (16_MiB).count();
  FakeCoordinator coordinator(folder_.path(), behaviour);
  Session& session = Session::start(connected());
  std::thread arbiter([&] {
    if (coordinator.next<wire::AskMemory>()) coordinator.send(wire::Error{"no_memory", "full"});
  });
  void* block = nullptr;
  std::atomic<bool> asked{false};
  std::thread joiner([&] {
    arbiter.join();
    asked.store(true);
  });
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(session.allocator().deallocate(block));  // null at first, which is no error
    block = session.allocator().allocate(48_MiB);
    return asked.load();
  }));
  joiner.join();
  EXPECT_EQ(session.allocator().stats().limit, 16_MiB);
  std::memset(block, 3, 48U << 20U);
  EXPECT_TRUE(session.allocator().deallocate(block));
}

std::atomic<int> g_on{0};
std::atomic<int> g_off{0};

TEST_F(SessionTest, TheCallbackFollowsTheGuaranteedJob) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected());
  session.on_callback_switch([](bool on) { ++(on ? g_on : g_off); });
  EXPECT_EQ(g_off, 1);
  OwnPage peer{JobId{"other"}, JobClass::kGuaranteed, 0};
  peer.page().activity.store(static_cast<std::uint64_t>(wire::Activity::kBusy));
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  coordinator.page().guaranteed_alive.store(1);
  coordinator.add_peer(::getpid(), file_of(peer).get());
  ASSERT_TRUE(eventually([] { return g_on.load() == 1; }));
  EXPECT_FALSE(session.gate().try_enter_op(g_add));
  EXPECT_EQ(stats(session)["gate"]["state"], "closed");
  coordinator.page().guaranteed_alive.store(0);
  session.gate().wait_op(g_add);  // opens
  session.gate().leave_op(g_add);
  EXPECT_TRUE(eventually([] { return g_off.load() == 2; }));
  EXPECT_EQ(stats(session)["gate"]["ops_gated_total"], 1);
}

TEST_F(SessionTest, ThePeerThatDiesLeavesTheGateToTheLease) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected());
  session.on_callback_switch([](bool on) { ++(on ? g_on : g_off); });
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const OwnPage peer{JobId{"other"}, JobClass::kGuaranteed, 0};
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  coordinator.page().guaranteed_alive.store(1);
  coordinator.add_peer(child, file_of(peer).get());
  ASSERT_TRUE(eventually([] { return g_on.load() == 1; }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  coordinator.page().guaranteed_alive.store(0);  // the coordinator sees the pidfd too
  session.gate().wait_op(g_add);
  session.gate().leave_op(g_add);
  EXPECT_TRUE(eventually([] { return g_off.load() == 2; }));
}

TEST_F(SessionTest, PausingByTheCoordinatorClosesTheGate) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected());
  wire::Change pause = change(2);
  pause.paused = true;
  coordinator.send(pause);
  ASSERT_TRUE(eventually([&] { return stats(session)["gate"]["state"] == "paused"; }));
  EXPECT_FALSE(session.gate().try_enter_op(g_add));
  wire::Change resume = change(3);
  resume.paused = false;
  coordinator.send(resume);
  session.gate().wait_op(g_add);
  session.gate().leave_op(g_add);
  EXPECT_TRUE(coordinator.next_if<wire::Answer>([](const auto& answer) {
    return answer.revision == 3 && answer.outcome == wire::Outcome::kApplied;
  }));
}

TEST_F(SessionTest, ParkingSavesAllMemoryUntilTheJobIsWoken) {
  auto coordinator = std::make_unique<FakeCoordinator>(folder_.path());
  Session& session = Session::start(connected());
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 7, (24_MiB).count());
  wire::Change park = change(2);
  park.paused = park.parked = true;
  park.limit_bytes = 0;
  coordinator->send(park);
  ASSERT_TRUE(eventually([&] { return session.allocator().stats().parked >= 24_MiB; }));
  EXPECT_TRUE(session.allocator().stats().device.is_zero());
  EXPECT_FALSE(session.gate().try_enter_op(g_add));
  wire::Change wake = limit_change(3, 512_MiB);
  wake.paused = wake.parked = false;
  coordinator->send(wake);
  ASSERT_TRUE(eventually([&] { return session.allocator().stats().device >= 24_MiB; }));
  session.gate().wait_op(g_add);
  session.gate().leave_op(g_add);
  EXPECT_EQ(static_cast<const char*>(block)[(24_MiB).count() - 1], 7);
  // Whoever is parked when its coordinator dies is not forgotten.
  park.revision = 4;
  coordinator->send(park);
  ASSERT_TRUE(eventually([&] { return session.allocator().stats().parked >= 24_MiB; }));
  coordinator.reset();
  ASSERT_TRUE(eventually([&] {
    const bool open = session.gate().try_enter_op(g_add);
    if (open) session.gate().leave_op(g_add);
    return open;
  }));
  session.allocator().deallocate(block);
}

TEST_F(SessionTest, AHelpersMemoryIsNotParked) {
  FakeCoordinator coordinator(folder_.path());
  SessionConfig helper = connected();
  helper.role = MemberRole::kHelper;
  Session& session = Session::start(helper);
  void* const block = session.allocator().allocate(24_MiB);
  wire::Change park = change(2);
  park.paused = park.parked = true;
  park.limit_bytes = 0;
  coordinator.send(park);
  for (const Revision later :
       {Revision{3}, Revision{4}}) {  // it would be parked between two answers
    coordinator.send(change(later));
    ASSERT_TRUE(coordinator.next_if<wire::Answer>(
        [&](const auto& answer) { return answer.revision == later; }));
  }
  EXPECT_EQ(session.allocator().stats().parked, 0_B);
  EXPECT_GE(session.allocator().stats().device, 24_MiB);
  session.allocator().deallocate(block);
}

TEST_F(SessionTest, AnUnknownLawIsRefused) {
  FakeCoordinator coordinator(folder_.path());
  Session::start(connected());
  wire::Change wrong = change(2);
  wrong.terms.law = "fast";
  coordinator.send(wrong);
  const auto answer = coordinator.next_if<wire::Answer>(
      [](const auto& reply) { return reply.outcome == wire::Outcome::kRefused; });
  ASSERT_TRUE(answer);
  EXPECT_NE(answer->reason.find("'fast'"), std::string::npos);
}

TEST_F(SessionTest, ItsPaceChangesWhileItRunsAndIsKeptForTheNextDaemon) {
  auto coordinator = std::make_unique<FakeCoordinator>(folder_.path());
  Session& session = Session::start(connected());
  ASSERT_TRUE(coordinator->next<wire::Register>());
  wire::Change pace = change(2);
  pace.terms.law = "rate_aimd";
  pace.terms.idle_class = false;
  coordinator->send(pace);
  ASSERT_TRUE(eventually([&] { return stats(session)["gate"]["law"] == "rate_aimd"; }));
  EXPECT_TRUE(eventually([&] {
    return coordinator->job_page().gate_law.load() ==
           static_cast<std::uint64_t>(wire::LawId::kRateAimd);
  }));
  coordinator.reset();
  coordinator = std::make_unique<FakeCoordinator>(folder_.path());
  const auto hello = coordinator->next<wire::Register>();
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->terms.law, "rate_aimd");
}

TEST_F(SessionTest, AnSloIsSaidAndSaidAgain) {
  FakeCoordinator::Behaviour behaviour;
  behaviour.job_class = JobClass::kGuaranteed;
  behaviour.law = "open";
  auto coordinator = std::make_unique<FakeCoordinator>(folder_.path(), behaviour);
  SessionConfig wanted = connected();
  wanted.job_class = JobClass::kGuaranteed;
  wanted.terms.slo = 0.02;
  Session::start(wanted);
  const auto first = coordinator->next<wire::Register>();
  ASSERT_TRUE(first && first->terms.slo);
  EXPECT_EQ(*first->terms.slo, 0.02);
  wire::Change lenient = change(2);
  lenient.terms.slo = 0.05;
  coordinator->send(lenient);
  ASSERT_TRUE(coordinator->next_if<wire::Answer>([](const auto& a) { return a.revision == 2; }));
  coordinator.reset();
  coordinator = std::make_unique<FakeCoordinator>(folder_.path(), behaviour);
  const auto again = coordinator->next<wire::Register>();
  ASSERT_TRUE(again && again->terms.slo);
  EXPECT_EQ(*again->terms.slo, 0.05);
}

TEST_F(SessionTest, AnSloThatCannotBeIsRefusedWithItsValue) {
  SessionConfig wrong = config(JobClass::kGuaranteed);
  for (const double slo : {0.0, -0.1, 0.51}) {
    wrong.terms.slo = slo;
    EXPECT_THROW(Session::start(wrong), std::invalid_argument) << slo;
  }
  wrong = config();
  wrong.terms.slo = 0.02;
  EXPECT_THROW(Session::start(wrong), std::invalid_argument) << "of an opportunistic job";
}

TEST_F(SessionTest, StepsWithPausesAndWithoutAnOptimizerAreRequests) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected());
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  const wire::JobPage& page = coordinator.job_page();
  const auto is = [&](wire::StepKind kind) {
    return page.step_kind.load() == static_cast<std::uint64_t>(kind);
  };
  for (int i = 0; i < 12; ++i) {
    session.step();
    EXPECT_EQ(page.activity.load(), static_cast<std::uint64_t>(wire::Activity::kWaiting));
    std::this_thread::sleep_for(milliseconds{3});
    session.touch();
    EXPECT_EQ(page.activity.load(), static_cast<std::uint64_t>(wire::Activity::kBusy));
    std::this_thread::sleep_for(milliseconds{1});
  }
  session.step();
  EXPECT_TRUE(is(wire::StepKind::kRequests));
  EXPECT_GE(page.step_last_ns.load(), 1'000'000U) << "a latency";
  EXPECT_EQ(page.step_number.load(), 13U);
  step(session);  // an optimizer: it trains after all
  session.step();
  EXPECT_TRUE(is(wire::StepKind::kTraining));
}

TEST_F(SessionTest, PauseAndResumeWorkWithoutADaemon) {
  Session& session = Session::start(config(JobClass::kGuaranteed));
  EXPECT_TRUE(session.gate().try_enter_op(g_add));
  session.gate().leave_op(g_add);
  session.pause();
  EXPECT_FALSE(session.gate().try_enter_op(g_add));
  EXPECT_EQ(stats(session)["activity"]["state"], "paused");
  session.resume();
  EXPECT_TRUE(session.gate().try_enter_op(g_add));
  session.gate().leave_op(g_add);
}

TEST_F(SessionTest, AShareWithoutADaemonGetsALawThatHoldsIt) {
  Session& session = Session::start(config(JobClass::kGuaranteed));
  EXPECT_EQ(stats(session)["gate"]["law"], "open");
  session.set_compute_share(0.5);
  EXPECT_EQ(stats(session)["gate"]["law"], "duty_cycle");
  EXPECT_EQ(stats(session)["gate"]["share"], 0.5);
  EXPECT_TRUE(session.gate().wants_callback());
}

TEST_F(SessionTest, TrainingGoesOnWhenTheDaemonDiesAndANewOneIsTold) {
  auto coordinator = std::make_unique<FakeCoordinator>(folder_.path());
  Session& session = Session::start(connected());
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 1, 24U << 20U);
  coordinator->send(limit_change(5, 512_MiB));
  ASSERT_TRUE(coordinator->next_if<wire::Answer>([](const auto& a) { return a.revision == 5; }));
  coordinator.reset();
  ASSERT_TRUE(eventually([&] { return stats(session)["job"]["coordinator_pid"] == 0; }));
  step(session);
  EXPECT_TRUE(session.gate().try_enter_op(g_add));
  session.gate().leave_op(g_add);
  EXPECT_EQ(session.allocator().stats().limit, 512_MiB) << "the last grant holds";
  FakeCoordinator::Behaviour behaviour;
  behaviour.revision = 5;
  coordinator.reset();
  coordinator = std::make_unique<FakeCoordinator>(folder_.path(), behaviour);
  const auto again = coordinator->next<wire::Register>();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->devices[0].revision, 5U);
  EXPECT_GE(again->devices[0].held_bytes, (24_MiB).count());
  ASSERT_TRUE(again->devices[0].limit_bytes);
  EXPECT_EQ(*again->devices[0].limit_bytes, (512_MiB).count());
  EXPECT_GT(again->start_ticks, 0U);
  EXPECT_TRUE(session.allocator().deallocate(block));
}

TEST_F(SessionTest, AForkedChildIsInert) {
#ifdef __SANITIZE_ADDRESS__
  // GCC's ASan does not take its own locks around fork(): a child of a process with threads that
  // allocate may wait for ever inside malloc.
  GTEST_SKIP() << "ASan's allocator cannot be used in a forked child of a process with threads";
#endif
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(connected());
  session.pause();
  const pid_t child = ::fork();
  if (child == 0) {
    int wrong = 0;
    if (Session::current() != nullptr) wrong |= 1;
    if (!session.gate().try_enter_op(g_add)) wrong |= 2;
    session.gate().leave_op(g_add);
    session.range_begin(kStep);
    session.range_end(kStep);
    session.range_begin(kFetch);
    session.range_end(kFetch);
    session.step();
    session.touch();
    session.shutdown();
    void* const block = session.allocator().allocate(1_MiB);
    if (block == nullptr) wrong |= 4;
    session.allocator().deallocate(block);
    try {
      Session::start(SessionConfig{});
      wrong |= 8;
    } catch (const SessionError&) {
    }
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(Session::current(), &session);
  EXPECT_EQ(stats(session)["step"]["number"], 0);
  EXPECT_EQ(stats(session)["job"]["coordinator_pid"], 4242) << "the line is the parent's";
}

TEST_F(SessionTest, ShutdownSaysGoodbyeAndWritesTheSummaryOnce) {
  FakeCoordinator coordinator(folder_.path());
  SessionConfig with = connected();
  with.summary_file = folder_.path() / "summary.json";
  Session& session = Session::start(with);
  step(session);
  session.shutdown();
  session.shutdown();
  EXPECT_TRUE(coordinator.next_if<wire::Stats>([](const auto& report) { return report.final; }));
  std::ifstream file(with.summary_file);
  const auto summary = nlohmann::json::parse(file);
  EXPECT_EQ(summary["schema"], 1);
  EXPECT_EQ(summary["step"]["number"], 1);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 3)
      << "two sockets and the summary, no temporary file";
}

TEST_F(SessionTest, OpportunisticThreadsEnterTheIdleClassButTheClientDoesNot) {
  FakeCoordinator coordinator(folder_.path());
  SessionConfig with = connected();
  with.terms.idle_class = true;
  const int before = ::sched_getscheduler(0);
  std::promise<int> named;
  std::promise<void> end;
  std::thread like_ours([&] {
    ::pthread_setname_np(::pthread_self(), "commensal-mover");
    named.set_value(::gettid());
    end.get_future().wait();
  });
  const int named_like_ours = named.get_future().get();
  Session& session = Session::start(with);
  const int its_class = ::sched_getscheduler(named_like_ours);
  end.set_value();
  like_ours.join();
  if (before != SCHED_OTHER) GTEST_SKIP() << "this process is in scheduling class " << before;
  EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
  EXPECT_EQ(its_class, SCHED_IDLE) << "what a thread is called decides nothing";
  EXPECT_EQ(stats(session)["gate"]["idle_class"], true);
  std::thread([] { EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE); }).join();
  int others = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name != "commensal-coord" && name != "commensal-zmq") continue;
    const int tid = std::stoi(task.path().filename());
    EXPECT_TRUE(is_own_thread(tid)) << name;
    EXPECT_EQ(::sched_getscheduler(tid), SCHED_OTHER) << name;
    ++others;
  }
  EXPECT_EQ(others, 3) << "the client's, and two of ZeroMQ's";
}

TEST_F(SessionTest, AGuaranteedJobStaysOutOfTheIdleClass) {
  SessionConfig with = config(JobClass::kGuaranteed);
  with.terms.idle_class = true;
  Session& session = Session::start(with);
  EXPECT_EQ(stats(session)["gate"]["idle_class"], false);
  EXPECT_NE(::sched_getscheduler(0), SCHED_IDLE);
}

}  // namespace
}  // namespace commensal::session_test

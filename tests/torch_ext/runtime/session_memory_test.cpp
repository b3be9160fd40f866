// SPDX-License-Identifier: Apache-2.0
// What a session says and does when memory runs out, and its memory policies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "allocator/deferred_source.h"
#include "tests/allocator/moving_source.h"
#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/peer_observer.h"
#include "torch_ext/runtime/session.h"

namespace commensal::session_memory_test {
namespace {

using std::chrono::milliseconds;
using testing::eventually;
using testing::FakeCoordinator;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

constexpr std::string_view kStep = "Optimizer.step#SGD.step";

class SessionMemoryTest : public ::testing::Test {
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
  static std::string out_of_memory(Session& session, Bytes size) {
    try {
      session.allocator().deallocate(session.allocator().allocate(size));
      return "served";
    } catch (const OutOfMemory& error) {
      return error.what();
    }
  }
  /// A coordinator that grants 16 MiB to a job without a slower tier.
  [[nodiscard]] FakeCoordinator::Behaviour little() const {
    FakeCoordinator::Behaviour behaviour;
    behaviour.limit_bytes = (16_MiB).count();
    return behaviour;
  }
  [[nodiscard]] SessionConfig without_slower_tier() const {
    SessionConfig with = connected();
    with.host_cap = Bytes{};
    return with;
  }
  // The device page comes by another socket than the registration; without it nobody is asked.
  static bool is_asked(FakeCoordinator& coordinator, Session& session) {
    return eventually([&] {
      return coordinator.has_job_page() &&
             out_of_memory(session, 48_MiB).find("no sign of life") == std::string::npos;
    });
  }

  TemporaryFolder folder_;
};

TEST_F(SessionMemoryTest, ARefusalIsPartOfTheStory) {
  FakeCoordinator coordinator(folder_.path(), little());
  Session& session = Session::start(without_slower_tier());
  ASSERT_TRUE(eventually([&] { return stats(session)["memory"]["limit_bytes"] == 16U << 20U; }));
  std::atomic<bool> ended{false};
  std::thread arbiter([&] {
    while (!ended.load()) {
      if (coordinator.next<wire::AskMemory>()) {
        coordinator.send(wire::Error{"no_memory", "needs 48 MiB: it may have 16 MiB (full)"});
      }
    }
  });
  ASSERT_TRUE(is_asked(coordinator, session));
  const std::string story = out_of_memory(session, 48_MiB);
  ended.store(true);
  (void)out_of_memory(session, 48_MiB);  // the question that ends the thread's wait
  arbiter.join();
  EXPECT_THAT(story, HasSubstr("out of memory: asked 48 MiB, limit 16 MiB, in use 0 B (live 0 B), "
                               "slower tier 0 B of 0 B"));
  EXPECT_THAT(story, HasSubstr("tried: 1. own cache: 0 B released, needs 48 MiB more on the device;"
                               " 2. others: the coordinator refused: needs 48 MiB: it may have "
                               "16 MiB (full); 3. slower tier: no slower tier: "));
}

TEST_F(SessionMemoryTest, WhoWouldDieOtherwiseAsksACoordinatorThatHangs) {
  FakeCoordinator coordinator(folder_.path(), little());
  Session& session = Session::start(without_slower_tier());
  ASSERT_TRUE(eventually([&] { return stats(session)["memory"]["limit_bytes"] == 16U << 20U; }));
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  coordinator.fall_silent();
  std::this_thread::sleep_for(2 * PeerObserver::kSilence);
  std::thread arbiter([&] {
    (void)coordinator.next<wire::AskMemory>();
    wire::Change grant;
    grant.job_id = "job-1";
    grant.revision = 2;
    grant.limit_bytes = (128_MiB).count();
    coordinator.send(grant);
  });
  void* const block = session.allocator().allocate(48_MiB);
  arbiter.join();
  EXPECT_NE(block, nullptr);
  session.allocator().deallocate(block);
}

TEST_F(SessionMemoryTest, AndDiesWithTheStoryIfItNeverAnswers) {
  FakeCoordinator coordinator(folder_.path(), little());
  Session& session = Session::start(without_slower_tier());
  ASSERT_TRUE(eventually([&] { return stats(session)["memory"]["limit_bytes"] == 16U << 20U; }));
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  coordinator.fall_silent();
  std::this_thread::sleep_for(2 * PeerObserver::kSilence);
  EXPECT_THAT(out_of_memory(session, 48_MiB),
              HasSubstr("2. others: the coordinator did not grant 48 MiB more within 6000 ms, and "
                        "shows no sign of life; 3. "));
}

TEST_F(SessionMemoryTest, WithoutACoordinatorTheStorySaysSo) {
  SessionConfig with = without_slower_tier();
  with.terms.memory.max = 16_MiB;
  Session& session = Session::start(with);
  EXPECT_THAT(out_of_memory(session, 48_MiB),
              HasSubstr("2. others: no coordinator: no coordinator 'default' in "));
}

TEST_F(SessionMemoryTest, AJobAtItsOwnBoundIsNotHelpedByOthers) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = Session::start(without_slower_tier());
  (void)session.set_memory_limit(16_MiB);
  EXPECT_THAT(out_of_memory(session, 48_MiB), HasSubstr("the limit is the job's own"));
}

TEST_F(SessionMemoryTest, TheWaitEndsAndTheSlowerTierServes) {
  FakeCoordinator coordinator(folder_.path(), little());  // answers nothing to a question
  SessionConfig with = connected();
  with.ask_wait = milliseconds{1};
  Session& session = Session::start(with);
  ASSERT_TRUE(eventually([&] { return stats(session)["memory"]["limit_bytes"] == 16U << 20U; }));
  void* const block = session.allocator().allocate(48_MiB);
  EXPECT_GE(session.allocator().stats().host, 32_MiB);
  std::memset(block, 3, (48_MiB).count());
  session.allocator().deallocate(block);
}

TEST_F(SessionMemoryTest, AnAllocationIsServedByWhatComesWithinTheWait) {
  FakeCoordinator coordinator(folder_.path(), little());
  SessionConfig with = connected();
  with.ask_wait = std::chrono::minutes{5};  // a slow machine must not look like a short wait
  Session& session = Session::start(with);
  ASSERT_TRUE(eventually([&] { return stats(session)["memory"]["limit_bytes"] == 16U << 20U; }));
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  std::atomic<bool> asked{false};
  std::thread arbiter([&] {
    asked.store(coordinator.next<wire::AskMemory>().has_value());
    wire::Change grant;
    grant.job_id = "job-1";
    grant.revision = 2;
    grant.limit_bytes = (128_MiB).count();
    coordinator.send(grant);
  });
  void* block = nullptr;
  ASSERT_TRUE(eventually([&] {
    session.allocator().deallocate(block);
    block = session.allocator().allocate(48_MiB);
    return asked.load();
  }));
  arbiter.join();
  EXPECT_TRUE(session.allocator().stats().host.is_zero()) << "it waited for the grant";
  session.allocator().deallocate(block);
}

TEST_F(SessionMemoryTest, TheAntmanPolicyMovesNoLiveMemoryAndSaysSo) {
  SessionConfig with = config();
  with.memory_policy = MemoryPolicy::kAntman;
  Session& session = Session::start(with);
  EXPECT_THAT(session.active_line(), HasSubstr(", memory policy antman"));
  EXPECT_EQ(stats(session)["memory"]["policy"], "antman");
  void* const block = session.allocator().allocate(24_MiB);
  std::memset(block, 7, (24_MiB).count());
  const LimitTicket ticket = session.set_memory_limit(8_MiB);
  EXPECT_GE(ticket.deferred, 16_MiB);
  EXPECT_EQ(ticket.reason, "live memory stays: memory policy antman");
  void* const overflow = session.allocator().allocate(8_MiB);
  EXPECT_GE(session.allocator().stats().host, 8_MiB);
  session.allocator().deallocate(block);
  session.range_begin(kStep);
  session.range_end(kStep);
  EXPECT_LE(session.allocator().stats().device, 8_MiB);
  EXPECT_EQ(stats(session)["memory"]["moved_bytes_total"], 0);
  session.allocator().deallocate(overflow);
}

TEST_F(SessionMemoryTest, TheElasticPolicyIsTheDefault) {
  Session& session = Session::start(config());
  EXPECT_EQ(stats(session)["memory"]["policy"], "elastic");
  EXPECT_EQ(session.active_line().find("policy"), std::string::npos);
}

TEST_F(SessionMemoryTest, ALimitAboveTheDeviceIsDoubtedWithBothValues) {
  SessionConfig with = config();
  with.terms.memory.max = Bytes{std::uint64_t{1} << 50U};
  Session& session = Session::start(with);
  EXPECT_THAT(stats(session)["memory"]["notes"].dump(),
              HasSubstr("memory limit above the device: 1 PiB > "));
  EXPECT_THAT(session.set_memory_limit(Bytes{std::uint64_t{1} << 49U}).reason,
              HasSubstr("memory limit above the device: 512 TiB > "));
  EXPECT_EQ(session.set_memory_limit(1_GiB).reason, "");
}

TEST_F(SessionMemoryTest, ALimitBelowTheFloorChangesNothing) {
  SessionConfig with = config();
  with.terms.memory = {64_MiB, 128_MiB};
  Session& session = Session::start(with);
  try {
    (void)session.set_memory_limit(32_MiB);
    FAIL() << "no exception";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "memory limit below the job's minimum: 32 MiB < 64 MiB");
  }
  EXPECT_EQ(session.allocator().stats().limit, 128_MiB);
}

struct WrongConfig {
  const char* name;
  void (*spoil)(SessionConfig& config);
  const char* says;
};

class SessionConfigTest : public ::testing::TestWithParam<WrongConfig> {};

TEST_P(SessionConfigTest, AWrongValueIsNamedAndNothingStarts) {
  SessionConfig config;
  GetParam().spoil(config);
  try {
    Session::start(config);
    FAIL() << "no exception";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr(GetParam().says));
  }
  EXPECT_EQ(Session::current(), nullptr);
  Session::start(SessionConfig{});  // as if nothing had been
}

INSTANTIATE_TEST_SUITE_P(
    Table, SessionConfigTest,
    ::testing::Values(
        WrongConfig{"MinAboveMax",
                    [](SessionConfig& c) {
                      c.terms.memory = {2_GiB, 1_GiB};
                    },
                    "memory minimum above maximum: 2 GiB > 1 GiB"},
        WrongConfig{"NegativeWait", [](SessionConfig& c) { c.ask_wait = milliseconds{-1}; },
                    "wait for memory outside 0 to 3600000 ms: -1 ms"},
        WrongConfig{"EndlessWait", [](SessionConfig& c) { c.ask_wait = milliseconds{3'600'001}; },
                    "3600001 ms"},
        WrongConfig{"NoMultiprocessors", [](SessionConfig& c) { c.terms.sm_share = 0.0; },
                    "sm_share must be above 0 and at most 1: 0"},
        WrongConfig{"ParkedAtOnce", [](SessionConfig& c) { c.park_idle = milliseconds{0}; },
                    "park-idle outside 1 s to 365 d: 0 ms"},
        WrongConfig{"NegativeParkIdle", [](SessionConfig& c) { c.park_idle = milliseconds{-5000}; },
                    "-5000 ms"},
        WrongConfig{"ParkIdleOfAYear",
                    [](SessionConfig& c) { c.park_idle = std::chrono::hours{24 * 366}; },
                    "31622400000 ms"},
        WrongConfig{"ParkIdleOfAntman",
                    [](SessionConfig& c) {
                      c.park_idle = std::chrono::minutes{1};
                      c.memory_policy = MemoryPolicy::kAntman;
                    },
                    "park-idle moves live memory, which the memory policy antman does not"},
        WrongConfig{"NoSuchDevice", [](SessionConfig& c) { c.device = "tpu"; },
                    "no memory of a device 'tpu' (there is: host)"}),
    [](const auto& row) { return std::string(row.param.name); });

// Memory of a device that the runtime knows nothing of, as the CUDA adaptor offers it.
std::unique_ptr<MemorySource> make_offered(const SessionConfig& /*config*/, bool (*between_ops)()) {
  const auto risk = [between_ops] {
    return between_ops() ? MoveRisk{} : MoveRisk{false, "not between two steps"};
  };
  return std::make_unique<DeferredSource>([] { return std::make_unique<MovingSource>(); }, 64_KiB,
                                          risk);
}

class OfferedMemoryTest : public SessionMemoryTest {
 protected:
  static Session& start(std::optional<Bytes> host_cap = std::nullopt) {
    Session::offer_memory("made-up", &make_offered);
    SessionConfig with = config();
    with.device = "made-up";
    with.host_cap = host_cap;
    return Session::start(with);
  }
};

TEST_F(OfferedMemoryTest, IsTheSessionsAndAligned) {
  Session& session = start();
  EXPECT_EQ(stats(session).at("memory").at("device_bytes"), 0);
  void* const block = session.allocator().allocate(1000_B);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 512, 0U);
  EXPECT_GT(stats(session).at("memory").at("device_bytes"), 0);
  EXPECT_TRUE(session.allocator().deallocate(block));
  session.shutdown();
}

TEST_F(OfferedMemoryTest, MovesAtTheEndsOfStepsOfTheThreadThatTrains) {
  Session& session = start();
  auto* const block = static_cast<unsigned char*>(session.allocator().allocate(8_MiB));
  std::memset(block, 7, (8_MiB).count());
  const auto step = [&] {
    session.range_begin(kStep);
    session.range_end(kStep);
  };
  step();
  LimitTicket elsewhere;
  std::thread([&] { elsewhere = session.allocator().set_limit(4_MiB); }).join();
  EXPECT_GE(elsewhere.deferred, 4_MiB);
  EXPECT_THAT(elsewhere.reason, HasSubstr("not between two steps"));
  EXPECT_GE(session.allocator().stats().device, 8_MiB);
  step();
  EXPECT_LE(session.allocator().stats().device, 4_MiB);
  EXPECT_EQ(block[(8_MiB).count() - 1], 7);
  EXPECT_TRUE(session.allocator().deallocate(block));
  session.shutdown();
}

int g_lock_taken = 0;
bool g_lock_held = false;
void* take_lock() {
  ++g_lock_taken;
  g_lock_held = true;
  return &g_lock_held;
}
void give_lock(void* token) { *static_cast<bool*>(token) = false; }
bool g_moved_with_lock = false;
std::unique_ptr<MemorySource> make_watched(const SessionConfig& /*config*/, bool (*)()) {
  const auto risk = [] {
    g_moved_with_lock = g_lock_held;
    return MoveRisk{};
  };
  return std::make_unique<DeferredSource>([] { return std::make_unique<MovingSource>(); }, 64_KiB,
                                          risk);
}

TEST_F(OfferedMemoryTest, MovesWithThePythonLockHeldWhoeverAsks) {
  Session::offer_memory("watched", &make_watched);
  SessionConfig with = config();
  with.device = "watched";
  with.background_rate.reset();  // nobody but who asks here
  Session& session = Session::start(with);
  session.on_move(&take_lock, &give_lock);
  const TagId tag = session.open_tag("weights", {});
  void* const plain = session.allocator().allocate(8_MiB);
  void* const tagged = session.allocator().allocate(8_MiB, 0, {Phase::kUnknown, tag});
  const auto moves = [&](const char* what, const auto& call) {
    g_moved_with_lock = false;
    call();
    EXPECT_TRUE(g_moved_with_lock) << what;
    EXPECT_FALSE(g_lock_held) << what;
  };
  moves("a limit", [&] { (void)session.set_memory_limit(8_MiB); });
  (void)session.set_memory_limit(64_MiB);
  moves("a tag parked", [&] { (void)session.park_tag("weights"); });
  moves("a tag woken", [&] { (void)session.wake_tag("weights"); });
  session.allocator().post_limit(8_MiB);
  moves("a step", [&] { session.step(); });
  (void)session.set_memory_limit(8_MiB);
  session.allocator().post_limit(64_MiB);
  moves("memory that is to stay", [&] {
    EXPECT_EQ(session.keep_in_place({static_cast<std::byte*>(plain), 8_MiB}, "RDMA"), 8_MiB);
  });
  EXPECT_EQ(stats(session).at("memory").at("kept").at(0).at("reason"), "RDMA");
  session.may_move({static_cast<std::byte*>(plain), 8_MiB}, "RDMA");
  // The twin: where no live memory may move, nobody waits for the lock.
  const int taken = g_lock_taken;
  std::thread([&] {
    (void)session.allocator().post_limit(8_MiB), session.wake_tag("weights");
  }).join();
  EXPECT_EQ(g_lock_taken, taken);
  EXPECT_TRUE(session.allocator().deallocate(plain));
  EXPECT_TRUE(session.allocator().deallocate(tagged));
  session.shutdown();
}

// Looks seldom: that is work, too.
bool is_soon(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds{500});
  }
  return true;
}

class IdleOnDeviceTest : public SessionMemoryTest {
 protected:
  static Session& start(JobClass job_class) {
    Session::offer_memory("made-up", &make_offered);
    SessionConfig with = config();
    with.device = "made-up";
    with.job_class = job_class;
    with.park_idle = std::chrono::seconds{1};
    return Session::start(with);
  }
};

TEST_F(IdleOnDeviceTest, AJobIsParkedAndBackAtItsNextOp) {
  Session& session = start(JobClass::kOpportunistic);
  void* const block = session.allocator().allocate(8_MiB);
  ASSERT_TRUE(is_soon([&] { return stats(session)["activity"]["state"] == "parked"; }));
  EXPECT_EQ(session.allocator().stats().device, 0_B);
  OpDuration op;
  if (!session.gate().try_enter_op(op)) session.gate().wait_op(op);
  session.gate().leave_op(op);
  EXPECT_EQ(session.allocator().stats().device, 8_MiB);
  EXPECT_TRUE(session.allocator().deallocate(block));
  session.shutdown();
}

TEST_F(IdleOnDeviceTest, AGuaranteedJobStaysAsItsLaunchesPassNoGate) {
  Session& session = start(JobClass::kGuaranteed);
  void* const block = session.allocator().allocate(8_MiB);
  EXPECT_TRUE(is_soon([&] {
    return stats(session)["memory"]["notes"].dump().find(
               "the idle job could not be parked: not between two steps") != std::string::npos;
  }));
  EXPECT_EQ(session.allocator().stats().device, 8_MiB);
  EXPECT_FALSE(session.gate().dozing());
  EXPECT_TRUE(session.allocator().deallocate(block));
  session.shutdown();
}

TEST_F(OfferedMemoryTest, P27_WhatOthersHoldForNothingGoesBeforeLiveMemoryMoves) {
  Session& session = start();
  void* const block = session.allocator().allocate(8_MiB);
  int asked = 0;
  session.before_moves([&] {
    ++asked;
    session.allocator().count_outside({});
  });
  session.allocator().count_outside(8_MiB);
  EXPECT_TRUE(session.set_memory_limit(12_MiB).complete());
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(session.allocator().stats().moved_out.is_zero());
  // The twin: what they need they keep, and live memory moves.
  session.before_moves([] {});
  session.allocator().count_outside(8_MiB);
  EXPECT_TRUE(session.set_memory_limit(12_MiB).complete());
  EXPECT_EQ(session.allocator().stats().moved_out, 4_MiB);
  EXPECT_TRUE(session.allocator().deallocate(block));
  session.shutdown();
}

// A step of the thread that trains, within which something happens.
void step_with(Session& session, const std::function<void()>& work) {
  session.range_begin(kStep);
  work();
  session.range_end(kStep);
}

TEST_F(OfferedMemoryTest, BetweenStepsMemoryMovesOnceAllOpsPassTheGate) {
  Session& session = start();
  session.pause();  // so that ops pass the gate, whatever else is so
  auto* const block = static_cast<unsigned char*>(session.allocator().allocate(8_MiB));
  std::memset(block, 7, (8_MiB).count());
  (void)session.allocator().post_limit(2_MiB);
  std::this_thread::sleep_for(milliseconds{1500});
  EXPECT_EQ(session.allocator().stats().device, 8_MiB) << "an op may have begun without the gate";
  const auto moved = [&] {
    const AllocatorStats stats = session.allocator().stats();
    return stats.device <= 2_MiB && stats.moved_ahead >= 6_MiB;
  };
  // More than one step: that all ops pass the gate is seen by a thread that may come late.
  EXPECT_TRUE(eventually([&] {
    (void)session.allocator().post_limit(64_MiB);  // so that the safe point has nothing to do
    step_with(session, [] {});
    (void)session.allocator().post_limit(2_MiB);
    for (int look = 0; look < 100 && !moved(); ++look)
      std::this_thread::sleep_for(milliseconds{10});
    return moved();
  }));
  EXPECT_EQ(block[0], 7);
  EXPECT_EQ(block[(8_MiB).count() - 1], 7);
  EXPECT_TRUE(session.allocator().deallocate(block));
  session.shutdown();
}

TEST_F(OfferedMemoryTest, OfAGuaranteedJobNothingMovesBetweenSteps) {
  Session::offer_memory("made-up", &make_offered);
  SessionConfig with = config();
  with.device = "made-up";
  with.job_class = JobClass::kGuaranteed;
  Session& session = Session::start(with);
  void* const block = session.allocator().allocate(8_MiB);
  step_with(session, [] {});
  (void)session.allocator().post_limit(2_MiB);
  std::this_thread::sleep_for(milliseconds{1500});
  EXPECT_EQ(session.allocator().stats().device, 8_MiB) << "its launches pass no gate";
  step_with(session, [] {});
  EXPECT_LE(session.allocator().stats().device, 2_MiB);
  EXPECT_TRUE(session.allocator().deallocate(block));
  session.shutdown();
}

TEST_F(OfferedMemoryTest, TellsWhetherACollectiveIsOutstandingAndWhichTagAThreadHas) {
  Session& session = start();
  EXPECT_FALSE(session.collective_outstanding());
  session.collective_begin();
  session.collective_begin();
  session.collective_end();
  EXPECT_TRUE(session.collective_outstanding());
  session.collective_end();
  EXPECT_FALSE(session.collective_outstanding());
  EXPECT_EQ(session.current_tag(), 0U);
  session.on_region([]() noexcept { return TagId{5}; });
  EXPECT_EQ(session.current_tag(), 5U);
  session.shutdown();
}

TEST_F(OfferedMemoryTest, WhoHelpsIsAskedFirst) {
  Session& session = start(Bytes{});
  (void)session.allocator().set_limit(1_MiB);
  std::vector<Bytes> asked;
  session.on_pressure([&](Bytes needed) {
    asked.push_back(needed);
    session.allocator().post_limit(16_MiB);
    return std::string("the helper made room");
  });
  void* const block = session.allocator().allocate(8_MiB);
  EXPECT_THAT(asked, ::testing::ElementsAre(8_MiB));
  EXPECT_TRUE(session.allocator().deallocate(block));
  session.on_pressure([](Bytes) { return std::string("the helper has nothing"); });
  EXPECT_THAT(out_of_memory(session, 64_MiB), HasSubstr("the helper has nothing; "));
  session.shutdown();
}

TEST(MemoryPolicyTest, AnUnknownNameIsNamed) {
  EXPECT_EQ(to_memory_policy("elastic"), MemoryPolicy::kElastic);
  EXPECT_EQ(to_memory_policy("antman"), MemoryPolicy::kAntman);
  for (const char* wrong : {"", "AntMan", "elastic ", "swap"}) {
    try {
      (void)to_memory_policy(wrong);
      FAIL() << wrong;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(),
                "not a memory policy (elastic, antman): '" + std::string(wrong) + "'");
    }
  }
}

}  // namespace
}  // namespace commensal::session_memory_test

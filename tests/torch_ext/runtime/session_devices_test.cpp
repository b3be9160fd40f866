// SPDX-License-Identifier: Apache-2.0
// A session whose process uses a second GPU: its limit is what the coordinator grants there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "allocator/deferred_source.h"
#include "allocator/device_memory.h"
#include "tests/allocator/moving_source.h"
#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "torch_ext/runtime/session.h"

namespace commensal::session_devices_test {
namespace {

using testing::eventually;
using testing::FakeCoordinator;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

std::unique_ptr<MemorySource> make_offered(const SessionConfig& /*config*/, bool (*)()) {
  return std::make_unique<DeferredSource>([] { return std::make_unique<MovingSource>(); }, 64_KiB,
                                          [] { return MoveRisk{}; });
}

/// Memory of the second GPU: bytes that a safe point moves.
class SecondGpu final : public DeviceMemory {
 public:
  LimitTicket post_limit(Bytes limit) override {
    limit_ = limit.count();
    return ticket();
  }
  LimitTicket safe_point() override {
    ++safe_points;
    const std::uint64_t over = held > limit_ ? held - limit_ : 0;
    held -= over;
    LimitTicket done = ticket();
    done.done = Bytes{over};
    return done;
  }
  [[nodiscard]] bool work_pending() const noexcept override { return held > limit_; }
  [[nodiscard]] AllocatorStats stats() const override {
    AllocatorStats stats;
    stats.device = Bytes{held};
    stats.limit = Bytes{limit_};
    return stats;
  }
  [[nodiscard]] Bytes slower_capacity() const override { return 1_GiB; }
  [[nodiscard]] Bytes limit() const { return Bytes{limit_}; }

  std::atomic<std::uint64_t> held{0};
  std::atomic<int> safe_points{0};

 private:
  LimitTicket ticket() {
    return {
        .revision = ++revision_, .limit = Bytes{limit_}, .done = {}, .deferred = {}, .reason = {}};
  }
  std::atomic<std::uint64_t> limit_{UINT64_MAX};
  std::atomic<Revision> revision_{0};
};

class SessionDevicesTest : public ::testing::Test {
 protected:
  Session& start() {
    Session::offer_memory("made-up", &make_offered);
    SessionConfig config;
    config.job_id = JobId{"job-1"};
    config.job_class = JobClass::kOpportunistic;
    config.device = "made-up";
    config.terms.idle_class = false;
    config.quiet = true;
    config.runtime_dir = folder_.path();
    config.connect_timeout = config.ask_wait = std::chrono::seconds{20};
    Session& session = Session::start(config);
    session.use_device("GPU-a");
    return session;
  }
  static nlohmann::json stats(const Session& session) {
    return nlohmann::json::parse(session.stats_json());
  }
  static wire::Change change(Revision revision) {
    wire::Change change;
    change.job_id = "job-1";
    change.revision = revision;
    change.reason = "test";
    return change;
  }
  static wire::Change there(Revision revision) {
    wire::Change of_second = change(revision);
    of_second.device = "GPU-b";
    return of_second;
  }
  static std::optional<wire::Register> next_with_both(FakeCoordinator& coordinator) {
    return coordinator.next_if<wire::Register>(
        [](const wire::Register& hello) { return hello.devices.size() > 1; });
  }

  TemporaryFolder folder_;
  SecondGpu second_;
};

TEST_F(SessionDevicesTest, ItIsRegisteredWhenItIsUsedAndHasItsLimitThen) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = start();
  const auto before = coordinator.next_if<wire::Register>(
      [](const wire::Register& hello) { return hello.devices[0].device == "GPU-a"; });
  ASSERT_TRUE(before);
  EXPECT_EQ(before->devices.size(), 1U);
  second_.held = (3_MiB).count();
  session.add_device(second_, "GPU-b");
  EXPECT_EQ(second_.limit(), 512_MiB) << "before anything is allocated there";
  const auto hello = next_with_both(coordinator);
  ASSERT_TRUE(hello);
  ASSERT_EQ(hello->devices.size(), 2U);
  EXPECT_EQ(hello->devices[0].device, "GPU-a");
  EXPECT_EQ(hello->devices[1].device, "GPU-b");
  EXPECT_EQ(hello->devices[1].held_bytes, (3_MiB).count());
  EXPECT_EQ(hello->devices[1].revision, 0U);
  EXPECT_EQ(session.allocator().stats().limit, 1_GiB);
  const nlohmann::json told = stats(session)["memory"]["devices"];
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0]["limit_bytes"], (512_MiB).count());
  session.shutdown();
}

TEST_F(SessionDevicesTest, AShrinkThereMovesMemoryThereAndIsAnsweredSo) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = start();
  session.add_device(second_, "GPU-b");
  void* const block = session.allocator().allocate(8_MiB);
  second_.held = (64_MiB).count();
  wire::Change shrink = there(2);
  shrink.limit_bytes = (16_MiB).count();
  coordinator.send(shrink);
  ASSERT_TRUE(eventually([&] { return second_.limit() == 16_MiB; }));
  session.step();
  const auto answer =
      coordinator.next_if<wire::Answer>([](const auto& each) { return each.revision == 2; });
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->device, "GPU-b");
  EXPECT_EQ(answer->outcome, wire::Outcome::kApplied);
  EXPECT_EQ(answer->done_bytes, (48_MiB).count());
  EXPECT_EQ(answer->held_bytes, (16_MiB).count());
  EXPECT_EQ(session.allocator().stats().limit, 1_GiB);
  EXPECT_GE(session.allocator().stats().device, 8_MiB);
  // One of the first device says nothing about the second; revisions are each one's own.
  wire::Change first = change(2);
  first.limit_bytes = (32_MiB).count();
  coordinator.send(first);
  const auto other =
      coordinator.next_if<wire::Answer>([](const auto& each) { return each.device == "GPU-a"; });
  ASSERT_TRUE(other);
  EXPECT_EQ(session.allocator().stats().limit, 32_MiB);
  EXPECT_EQ(second_.limit(), 16_MiB);
  wire::Change old = there(1);
  old.limit_bytes = 0;
  coordinator.send(old);
  const auto stale =
      coordinator.next_if<wire::Answer>([](const auto& each) { return each.revision == 1; });
  ASSERT_TRUE(stale);
  EXPECT_EQ(stale->outcome, wire::Outcome::kStale);
  EXPECT_EQ(stale->device, "GPU-b");
  session.allocator().deallocate(block);
  session.shutdown();
}

TEST_F(SessionDevicesTest, MoreIsAskedForOfThatDevice) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = start();
  session.add_device(second_, "GPU-b");
  ASSERT_TRUE(eventually([&] { return coordinator.has_job_page(); }));
  second_.held = (500_MiB).count();
  std::string story;
  std::thread training([&] {
    // The device page comes by another socket; without it nobody is asked.
    (void)eventually([&] {
      story = session.ask_for_memory("GPU-b", 64_MiB);
      return story.find("no sign of life") == std::string::npos;
    });
  });
  const auto ask = coordinator.next<wire::AskMemory>();
  ASSERT_TRUE(ask);
  EXPECT_EQ(ask->device, "GPU-b");
  EXPECT_EQ(ask->held_bytes, (500_MiB).count());
  coordinator.send(wire::Error{"no_memory", "it may have 512 MiB (full)", "GPU-b"});
  training.join();
  EXPECT_EQ(story, "the coordinator refused: it may have 512 MiB (full)");
  EXPECT_EQ(session.ask_for_memory("GPU-c", 1_MiB), "GPU-c is not used yet");
  session.shutdown();
}

TEST_F(SessionDevicesTest, ADeviceThatIsNotThereKeepsTheJobsOwnBound) {
  FakeCoordinator::Behaviour behaviour;
  behaviour.other_limit_bytes.reset();
  FakeCoordinator coordinator(folder_.path(), behaviour);
  Session& session = start();
  std::thread arbiter([&] {
    if (next_with_both(coordinator)) {
      coordinator.send(wire::Error{"no_device", "no device 'GPU-b': there are GPU-a", "GPU-b"});
    }
  });
  session.add_device(second_, "GPU-b");
  arbiter.join();
  EXPECT_EQ(second_.limit(), Bytes{UINT64_MAX});
  const std::string notes = stats(session)["memory"]["notes"].dump();
  EXPECT_THAT(notes,
              HasSubstr("the coordinator says no_device: no device 'GPU-b': there are GPU-a"));
  EXPECT_THAT(notes, ::testing::Not(HasSubstr("did not answer")));
  (void)session.set_memory_limit(32_MiB);
  EXPECT_EQ(second_.limit(), 32_MiB);
  session.shutdown();
}

TEST_F(SessionDevicesTest, ThePauseOfAnyDeviceClosesTheGate) {
  FakeCoordinator coordinator(folder_.path());
  Session& session = start();
  session.add_device(second_, "GPU-b");
  const auto state = [&] { return stats(session)["gate"]["state"].get<std::string>(); };
  wire::Change both = change(2);
  both.paused = true;
  coordinator.send(both);
  both = there(2);
  both.paused = both.parked = true;
  both.limit_bytes = 0;
  second_.held = (16_MiB).count();
  coordinator.send(both);
  ASSERT_TRUE(eventually([&] { return state() == "paused"; }));
  // Parked there: what it holds there goes, with its steps at the gate.
  ASSERT_TRUE(eventually([&] { return second_.held == 0; }));
  EXPECT_GE(second_.safe_points, 1);
  wire::Change resume = change(3);
  resume.paused = false;
  coordinator.send(resume);
  ASSERT_TRUE(coordinator.next_if<wire::Answer>(
      [](const auto& each) { return each.device == "GPU-a" && each.revision == 3; }));
  EXPECT_EQ(state(), "paused") << "the other one's coordinator has not said so";
  resume = there(3);
  resume.paused = resume.parked = false;
  resume.limit_bytes = (512_MiB).count();
  coordinator.send(resume);
  EXPECT_TRUE(eventually([&] { return state() != "paused"; }));
  session.shutdown();
}

TEST_F(SessionDevicesTest, ANewCoordinatorIsToldWhatIsHeldThere) {
  auto coordinator = std::make_unique<FakeCoordinator>(folder_.path());
  Session& session = start();
  session.add_device(second_, "GPU-b");
  second_.held = (40_MiB).count();
  coordinator.reset();
  coordinator = std::make_unique<FakeCoordinator>(folder_.path());
  const auto hello = next_with_both(*coordinator);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->devices[1].held_bytes, (40_MiB).count());
  EXPECT_EQ(hello->devices[1].revision, 1U);
  EXPECT_EQ(hello->devices[1].limit_bytes, (512_MiB).count());
  session.shutdown();
}

}  // namespace
}  // namespace commensal::session_devices_test

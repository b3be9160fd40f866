// SPDX-License-Identifier: Apache-2.0
// A session's threads keep to the cores that the device page leaves it. One session a process.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "torch_ext/runtime/job_page.h"
#include "torch_ext/runtime/session.h"
#include "torch_ext/runtime/thread_cores.h"

namespace commensal::session_cores_test {
namespace {

using testing::eventually;
using testing::FakeCoordinator;
using testing::TemporaryFolder;
using wire::CoreSet;

/// As PyTorch would count its threads.
std::atomic<int> g_threads{2};
std::atomic<int> g_set{0};
int get_threads() { return g_threads; }
void set_threads(int count) {
  g_threads = count;
  ++g_set;
}

class SessionCoresTest : public ::testing::Test {
 protected:
  void SetUp() override {
    own_ = kernel_thread_cores().get(getpid()).value_or(CoreSet{});
    if (own_.count() < 2) GTEST_SKIP() << "this process may use one CPU only";
    part_.add(own_.cpus().back());
    std::strncpy(entry().job_id, "job-1", wire::kIdSize - 1);
    entry().share_max_ppm.store(1'000'000);
    page().guaranteed_alive.store(1);
    page().revision.fetch_add(1);
  }
  Session& start(bool elastic = false, bool affinity = true) {
    SessionConfig config;
    config.job_id = JobId{"job-1"};
    config.name = "test";
    config.job_class = JobClass::kOpportunistic;
    config.terms.idle_class = false;
    config.terms.affinity = affinity;
    config.elastic_threads = elastic;
    config.runtime_dir = folder_.path();
    config.connect_timeout = std::chrono::seconds{10};
    Session& session = Session::start(config);
    session.on_thread_count(&get_threads, &set_threads);
    return session;
  }
  wire::DevicePage& page() { return coordinator_.page(); }
  wire::DeviceEntry& entry() { return page().entries[0]; }
  void leave(const CoreSet& cores) {
    entry().sequence.fetch_add(1);
    for (std::size_t i = 0; i < wire::kCoreWords; ++i) {
      page().core_sets[0].cpus[i].store(cores.words()[i]);
    }
    entry().sequence.fetch_add(1);
  }
  static void step(Session& session) {
    session.range_begin("Optimizer.step#SGD.step");
    session.range_end("Optimizer.step#SGD.step");
  }
  static bool has(const CoreSet& cores) { return kernel_thread_cores().get(getpid()) == cores; }
  static nlohmann::json stats(const Session& session) {
    return nlohmann::json::parse(session.stats_json()).at("cores");
  }

  TemporaryFolder folder_;
  FakeCoordinator coordinator_{folder_.path()};
  CoreSet own_;
  CoreSet part_;
};

TEST_F(SessionCoresTest, KeepsToWhatIsLeftFromTheNextStepOnAndGoesBack) {
  Session& session = start();
  EXPECT_EQ(stats(session)["own"], own_.to_string());
  leave(part_);
  EXPECT_TRUE(eventually([&] {
    step(session);
    return has(part_);
  }));
  EXPECT_EQ(stats(session)["cpus"], part_.to_string());
  EXPECT_EQ(stats(session)["reason"], "guaranteed jobs leave CPUs " + part_.to_string());
  leave({});
  EXPECT_TRUE(eventually([&] {
    step(session);
    return has(own_);
  }));
  EXPECT_EQ(stats(session)["reason"], "");
  EXPECT_EQ(g_set, 0) << "its number of threads is its user's";
}

TEST_F(SessionCoresTest, AJobWithoutStepsIsMovedAllTheSame) {
  Session& session = start();
  leave(part_);
  EXPECT_TRUE(eventually([&] { return has(part_); }));
  EXPECT_EQ(stats(session)["cpus"], part_.to_string());
}

TEST_F(SessionCoresTest, ThreadsMoveAtTheEndOfAStepNotInIt) {
  Session& session = start();
  // The steps of this loop end too often for the client's thread to lose its patience.
  std::atomic<bool> between{false};
  leave(part_);
  EXPECT_TRUE(eventually([&] {
    between = has(own_);  // within a step
    step(session);
    return has(part_);
  }));
  EXPECT_TRUE(between);
}

TEST_F(SessionCoresTest, ADeadCoordinatorsWordStandsUntilTheGuaranteedJobsLeaseEnds) {
  Session& session = start();
  leave(part_);
  ASSERT_TRUE(eventually([&] { return has(part_); }));
  wire::DeviceEntry& guaranteed = page().entries[1];
  guaranteed.job_class.store(static_cast<std::uint64_t>(JobClass::kGuaranteed));
  std::strncpy(guaranteed.job_id, "other", wire::kIdSize - 1);
  const auto lease = [&](Duration left) {
    guaranteed.lease_until_ns.store(to_page_time(SteadyClock::instance().now() + left));
  };
  lease(std::chrono::seconds{50});
  coordinator_.fall_silent();
  EXPECT_TRUE(eventually([&] {
    return stats(session)["reason"] == "no sign of life from the coordinator: as before";
  }));
  EXPECT_TRUE(has(part_));
  lease(Duration{0});
  EXPECT_TRUE(eventually([&] { return has(own_); }));
}

TEST_F(SessionCoresTest, SwitchedOffItKeepsAllItsCoresAndOnAgainItFollows) {
  Session& session = start(false, false);
  leave(part_);
  EXPECT_TRUE(eventually([&] { return stats(session)["reason"] == "switched off by its user"; }));
  EXPECT_TRUE(has(own_));
  wire::Change change;
  change.job_id = "job-1";
  change.revision = 2;
  change.terms.affinity = true;
  coordinator_.send(change);
  EXPECT_TRUE(eventually([&] { return has(part_); }));
  change.revision = 3;
  change.terms.affinity = false;
  coordinator_.send(change);
  EXPECT_TRUE(eventually([&] { return has(own_); }));
}

TEST_F(SessionCoresTest, ItsThreadCountFollowsWhereItsUserLetsIt) {
  Session& session = start(true);
  step(session);
  EXPECT_EQ(g_set, 0);
  leave(part_);
  EXPECT_TRUE(eventually([&] {
    step(session);
    return g_threads == 1;
  }));
  EXPECT_TRUE(has(part_));
  EXPECT_EQ(stats(session)["threads"], 1);
  leave({});
  EXPECT_TRUE(eventually([&] {
    step(session);
    return g_threads == 2;
  }));
  EXPECT_EQ(g_set, 2);
}

TEST_F(SessionCoresTest, AThreadThatItsUserPinnedStaysWhereItIs) {
  std::atomic<int> tid{0};
  std::atomic<bool> ends{false};
  std::thread pinned([&] {
    CoreSet first;
    first.add(own_.cpus().front());
    EXPECT_EQ(kernel_thread_cores().set(0, first), "");
    tid = ::gettid();
    while (!ends) std::this_thread::yield();
  });
  ASSERT_TRUE(eventually([&] { return tid != 0; }));
  Session& session = start();
  leave(part_);
  EXPECT_TRUE(eventually([&] { return has(part_); }));
  EXPECT_EQ(kernel_thread_cores().get(tid)->cpus().front(), own_.cpus().front());
  EXPECT_EQ(stats(session)["threads_left_alone"], 1);
  ends = true;
  pinned.join();
}

}  // namespace
}  // namespace commensal::session_cores_test

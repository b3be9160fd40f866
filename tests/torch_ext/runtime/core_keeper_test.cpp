// SPDX-License-Identifier: Apache-2.0
// On which CPUs a process's threads keep, with a kernel made up, and on this machine.
#include "torch_ext/runtime/core_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "tests/torch_ext/runtime/fake_coordinator.h"
#include "torch_ext/runtime/elastic_threads.h"

namespace commensal::core_keeper_test {
namespace {

using ::testing::HasSubstr;
using wire::CoreSet;

CoreSet set(std::string_view list) { return CoreSet::parse(list).value(); }

/// Threads by id; a new one has what the test gives it.
class FakeThreadCores final : public ThreadCores {
 public:
  struct Known {
    CoreSet cores;
    bool own = false;
  };
  std::vector<Thread> threads() override {
    std::vector<Thread> all;
    for (const auto& [tid, thread] : known) all.push_back({tid, thread.own});
    return all;
  }
  std::optional<CoreSet> get(int tid) override {
    const auto found = known.find(tid);
    return found == known.end() ? std::nullopt : std::optional{found->second.cores};
  }
  std::string set(int tid, const CoreSet& cores) override {
    if (refused == tid) return "thread " + std::to_string(tid) + " was refused";
    known.at(tid).cores = cores;
    if (on_set) std::exchange(on_set, nullptr)();
    return "";
  }
  [[nodiscard]] std::string of(int tid) const { return known.at(tid).cores.to_string(); }

  std::map<int, Known> known;
  int refused = 0;
  std::function<void()> on_set;
};

// --- choice -------------------------------------------------------------------------------------

CoreWish wish(std::string_view left) {
  CoreWish wish;
  wish.own = set("0-3");
  wish.left = set(left);
  wish.coordinator_alive = true;
  wish.guaranteed_present = true;
  return wish;
}

TEST(CoreChoice, KeepsToWhatIsLeft) {
  const CoreChoice choice = choose_cores(wish("2-3"));
  EXPECT_EQ(choice.cores, set("2-3"));
  EXPECT_EQ(choice.reason, "guaranteed jobs leave CPUs 2-3");
}

TEST(CoreChoice, NeverUsesMoreThanItsOwn) {
  EXPECT_EQ(choose_cores(wish("3-7")).cores, set("3"));
  EXPECT_EQ(choose_cores(wish("0-7")).cores, set("0-3"));
  const CoreChoice none = choose_cores(wish("4-7"));
  EXPECT_EQ(none.cores, set("0-3"));
  EXPECT_EQ(none.reason, "guaranteed jobs leave CPUs 4-7, of which it may use none");
}

TEST(CoreChoice, AnOlderCoordinatorLeavesAll) {
  EXPECT_EQ(choose_cores(wish("")).cores, set("0-3"));
}

TEST(CoreChoice, ADeadCoordinatorsWordStandsWhileAGuaranteedJobLives) {
  CoreWish silent = wish("2-3");
  silent.coordinator_alive = false;
  EXPECT_FALSE(choose_cores(silent).cores) << "as before";
  silent.guaranteed_present = false;
  EXPECT_EQ(choose_cores(silent).cores, set("0-3"));
}

TEST(CoreChoice, AGuaranteedJobAndOneThatIsSwitchedOffUseTheirOwn) {
  CoreWish guaranteed = wish("2-3");
  guaranteed.opportunistic = false;
  EXPECT_EQ(choose_cores(guaranteed).cores, set("0-3"));
  CoreWish off = wish("2-3");
  off.wanted = false;
  EXPECT_EQ(choose_cores(off).cores, set("0-3"));
  EXPECT_THAT(choose_cores(off).reason, HasSubstr("switched off"));
}

// --- own cores ----------------------------------------------------------------------------------

TEST(OwnCores, AreThoseThatTheProcessHas) {
  EXPECT_EQ(own_cores(set("0-3"), "", std::nullopt), set("0-3"));
}

TEST(OwnCores, OfAProcessStartedMeanwhileAreItsParents) {
  EXPECT_EQ(own_cores(set("3"), "17:0-3", set("3")), set("0-3"));
  EXPECT_EQ(own_cores(set("3"), "17:0-3:8", set("3")), set("0-3"));
}

TEST(OwnCores, AUsersChoiceIsNeverWidened) {
  EXPECT_EQ(own_cores(set("2"), "17:0-3", set("3")), set("2")) << "taskset in between";
  EXPECT_EQ(own_cores(set("3"), "17:0-3", std::nullopt), set("3")) << "the parent is gone";
  EXPECT_EQ(own_cores(set("4"), "17:0-3", set("4")), set("4")) << "no part of the parent's own";
  for (const char* nonsense : {"17", ":0-3", "x:0-3", "17:", "17::8", "17:x", "-1:0-3", "0:0-3"}) {
    EXPECT_EQ(own_cores(set("3"), nonsense, set("3")), set("3")) << nonsense;
  }
}

TEST(OwnCores, TheParentIsNamedByItsPid) {
  EXPECT_EQ(parent_of("17:0-3"), 17);
  for (const char* nonsense : {"", "17", ":0-3", "x:0", "-1:0", "0:0"}) {
    EXPECT_EQ(parent_of(nonsense), 0) << nonsense;
  }
}

// --- threads ------------------------------------------------------------------------------------

class CoreKeeperTest : public ::testing::Test {
 protected:
  CoreKeeperTest() {
    for (const int tid : {1, 2}) kernel_.known[tid] = {set("0-3")};
  }
  FakeThreadCores kernel_;
  CoreKeeper keeper_{kernel_, set("0-3"), set("0-3")};
};

TEST_F(CoreKeeperTest, MovesAllThreadsThereAndBack) {
  EXPECT_FALSE(keeper_.confined());
  EXPECT_EQ(keeper_.apply(set("2-3")).moved, 2);
  EXPECT_EQ(kernel_.of(1), "2-3");
  EXPECT_EQ(kernel_.of(2), "2-3");
  EXPECT_TRUE(keeper_.confined());
  EXPECT_EQ(keeper_.apply(set("3")).moved, 2);
  EXPECT_EQ(keeper_.apply(set("0-3")).moved, 2);
  EXPECT_EQ(kernel_.of(1), "0-3");
  EXPECT_FALSE(keeper_.confined());
  EXPECT_EQ(keeper_.apply(set("0-3")).moved, 0) << "nothing to do";
}

TEST_F(CoreKeeperTest, AThreadThatItsUserPinnedStays) {
  kernel_.known[3] = {set("1")};
  EXPECT_EQ(keeper_.apply(set("2-3")).left_alone, 1);
  EXPECT_EQ(kernel_.of(3), "1");
  kernel_.known[2].cores = set("2");  // by its user, while the others are kept to 2-3
  EXPECT_EQ(keeper_.apply(set("0-3")).left_alone, 2);
  EXPECT_EQ(kernel_.of(2), "2");
  EXPECT_EQ(kernel_.of(1), "0-3");
}

TEST_F(CoreKeeperTest, AThreadPinnedToJustWhatIsLeftStaysPinned) {
  kernel_.known[3] = {set("2-3")};
  keeper_.apply(set("2-3"));
  keeper_.apply(set("0-3"));
  EXPECT_EQ(kernel_.of(3), "2-3");
}

TEST_F(CoreKeeperTest, AThreadStartedMeanwhileMovesWithTheOthers) {
  keeper_.apply(set("2-3"));
  kernel_.known[3] = {set("2-3")};
  keeper_.apply(set("0-3"));
  EXPECT_EQ(kernel_.of(3), "0-3");
}

TEST_F(CoreKeeperTest, AThreadThatAppearsDuringTheWalkIsMovedToo) {
  kernel_.on_set = [this] { kernel_.known[3] = {set("0-3")}; };
  keeper_.apply(set("2-3"));
  EXPECT_EQ(kernel_.of(3), "2-3");
  kernel_.on_set = [this] { kernel_.known[4] = {set("0-3")}; };  // has inherited it
  keeper_.apply(set("0-3"));
  keeper_.apply(set("1"));
  EXPECT_EQ(kernel_.of(4), "1");
}

TEST_F(CoreKeeperTest, ServiceThreadsAnswerFromEveryCore) {
  kernel_.known[3] = {set("0-3"), true};
  kernel_.known[4] = {set("0-3"), true};
  EXPECT_EQ(keeper_.apply(set("2-3")).moved, 2);
  EXPECT_EQ(kernel_.of(3), "0-3");
  EXPECT_EQ(kernel_.of(4), "0-3");
}

TEST_F(CoreKeeperTest, WhatTheKernelRefusesIsSaidAndTriedAgain) {
  kernel_.refused = 2;
  const CoreKeeper::Result result = keeper_.apply(set("2-3"));
  EXPECT_EQ(result.failed, 1);
  EXPECT_EQ(result.reason, "thread 2 was refused");
  keeper_.apply(set("3"));
  kernel_.refused = 0;
  keeper_.apply(set("1"));
  EXPECT_EQ(kernel_.of(2), "1") << "its user did not pin it";
}

TEST_F(CoreKeeperTest, AThreadThatEndsIsForgotten) {
  kernel_.known[3] = {set("1")};
  keeper_.apply(set("2-3"));
  kernel_.known.erase(3);
  keeper_.apply(set("0-3"));
  kernel_.known[3] = {set("0-3")};  // its id is used again
  EXPECT_EQ(keeper_.apply(set("2-3")).left_alone, 0);
  EXPECT_EQ(kernel_.of(3), "2-3");
}

TEST_F(CoreKeeperTest, AProcessThatBeganConfinedIsWidenedToItsOwn) {
  for (auto& [tid, thread] : kernel_.known) thread.cores = set("3");
  CoreKeeper rank{kernel_, set("0-3"), set("3")};
  EXPECT_TRUE(rank.confined());
  rank.apply(set("0-3"));
  EXPECT_EQ(kernel_.of(1), "0-3");
}

TEST_F(CoreKeeperTest, WithoutKnownCpusNothingMoves) {
  CoreKeeper blind{kernel_, {}, {}};
  EXPECT_EQ(blind.apply(set("3")).moved, 0);
  EXPECT_EQ(kernel_.of(1), "0-3");
}

// Whatever is asked for: threads of the process are all at one place, pinned ones where they were.
TEST_F(CoreKeeperTest, PinnedThreadsNeverMoveAndOthersAlwaysDo) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 dice{seed};
  const auto upto = [&](int most) { return std::uniform_int_distribution<int>{0, most}(dice); };
  const std::vector<CoreSet> places{set("0-3"), set("2-3"), set("3"), set("1-3")};
  std::map<int, CoreSet> pinned;
  int next = 10;
  for (int i = 0; i < 2000; ++i) {
    if (upto(3) == 0) kernel_.known[next++] = {keeper_.now()};
    if (upto(9) == 0) {
      pinned[next] = set("0,2");  // none of the places
      kernel_.known[next++] = {set("0,2")};
    }
    if (upto(9) == 0 && kernel_.known.size() > 3) {
      pinned.erase(kernel_.known.begin()->first);
      kernel_.known.erase(kernel_.known.begin());
    }
    keeper_.apply(places[static_cast<std::size_t>(upto(3))]);
    for (const auto& [tid, thread] : kernel_.known) {
      const auto own = pinned.find(tid);
      EXPECT_EQ(thread.cores, own != pinned.end() ? own->second : keeper_.now()) << tid;
    }
  }
}

// --- this machine -------------------------------------------------------------------------------

class KernelThreadCoresTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto mine = kernel_.get(getpid());
    ASSERT_TRUE(mine);
    own_ = *mine;
    if (own_.count() < 2) GTEST_SKIP() << "this process may use one CPU only";
    part_.add(own_.cpus().back());
  }
  void TearDown() override {
    if (!own_.empty()) {
      EXPECT_EQ(kernel_.set(getpid(), own_), "");
    }
  }
  ThreadCores& kernel_ = kernel_thread_cores();
  CoreSet own_;
  CoreSet part_;
};

TEST_F(KernelThreadCoresTest, ThreadsMoveAndTheirChildrenInherit) {
  std::atomic<int> tid{0};
  std::atomic<bool> ends{false};
  std::thread worker([&] {
    tid = static_cast<int>(::syscall(SYS_gettid));
    while (!ends) std::this_thread::yield();
  });
  ASSERT_TRUE(testing::eventually([&] { return tid != 0; }));
  CoreKeeper keeper{kernel_, own_, own_};
  EXPECT_GE(keeper.apply(part_).moved, 2);
  EXPECT_EQ(kernel_.get(tid), part_);
  EXPECT_EQ(kernel_.get(getpid()), part_);
  std::thread([&] { EXPECT_EQ(kernel_.get(0), part_); }).join();
  keeper.apply(own_);
  EXPECT_EQ(kernel_.get(tid), own_);
  ends = true;
  worker.join();
  // Who waits for a thread goes on a moment before the kernel is done with it.
  EXPECT_TRUE(testing::eventually([&] { return !kernel_.get(tid); })) << "it has ended";
  EXPECT_EQ(kernel_.set(tid, own_), "");
}

TEST_F(KernelThreadCoresTest, AForkedChildMovesWithItsParentAndAnotherProgramDoesNot) {
  const pid_t forked = fork();
  if (forked == 0) {
    pause();
    _exit(0);
  }
  const pid_t other = fork();
  if (other == 0) {
    execlp("sleep", "sleep", "1000", nullptr);
    _exit(1);
  }
  const auto lists = [&](int pid) {
    for (const auto& thread : kernel_.threads()) {
      if (thread.tid == pid) return true;
    }
    return false;
  };
  EXPECT_TRUE(testing::eventually([&] { return lists(forked) && !lists(other); }));
  CoreKeeper keeper{kernel_, own_, own_};
  keeper.apply(part_);
  EXPECT_EQ(kernel_.get(forked), part_);
  EXPECT_EQ(kernel_.get(other), own_);
  keeper.apply(own_);
  EXPECT_EQ(kernel_.get(forked), own_);
  for (const pid_t child : {forked, other}) {
    EXPECT_EQ(kill(child, SIGKILL), 0);
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
  }
}

TEST_F(KernelThreadCoresTest, ThreadsThatEndWhileTheyAreListedAreNoError) {
  std::atomic<bool> ends{false};
  std::thread parent([&] {
    while (!ends) std::thread([] {}).join();
  });
  for (int i = 0; i < 2000; ++i) ASSERT_NO_THROW((void)kernel_.threads());
  ends = true;
  parent.join();
}

TEST_F(KernelThreadCoresTest, ARefusalNamesTheCpus) {
  const std::string why = kernel_.set(getpid(), CoreSet{});
  EXPECT_THAT(why, HasSubstr("sched_setaffinity of thread " + std::to_string(getpid())));
}

// --- threads that PyTorch computes with ---------------------------------------------------------

TEST(ElasticThreads, FollowTheCores) {
  ElasticThreads threads;
  EXPECT_EQ(threads.follow(8, std::nullopt), std::nullopt);
  EXPECT_EQ(threads.follow(8, 3), 3);
  EXPECT_EQ(threads.follow(3, 3), std::nullopt);
  EXPECT_EQ(threads.follow(3, 5), 5);
  EXPECT_EQ(threads.follow(5, std::nullopt), 8);
  EXPECT_EQ(threads.follow(8, std::nullopt), std::nullopt);
}

TEST(ElasticThreads, NeverExceedWhatTheUserSet) {
  ElasticThreads threads;
  EXPECT_EQ(threads.follow(2, 6), std::nullopt);
  EXPECT_EQ(threads.follow(2, 1), 1);
  EXPECT_EQ(threads.follow(4, 6), std::nullopt) << "set by the user meanwhile";
  EXPECT_EQ(threads.follow(4, 3), 3);
  EXPECT_EQ(threads.follow(3, std::nullopt), 4);
}

TEST(ElasticThreads, ThereIsAlwaysOne) {
  ElasticThreads threads;
  EXPECT_EQ(threads.follow(2, 0), 1);
}

}  // namespace
}  // namespace commensal::core_keeper_test

// SPDX-License-Identifier: Apache-2.0
// Forked children: they keep their snapshot, and the parent knows what they hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <vector>

#include "allocator/host/child_watch.h"
#include "allocator/host/host_memory_source.h"
#include "tests/allocator/restless_program.h"
#include "tests/allocator/sanitizer_threads.h"

namespace commensal::host_fork_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// A forked child that does `work` when told to and ends with its result.
class Child {
 public:
  Child(const std::function<void()>& before, const std::function<void()>& in_child,
        const std::function<int()>& work) {
    EXPECT_EQ(::pipe(go_), 0);
    before();
    pid_ = ::fork();
    if (pid_ == 0) {
      in_child();
      ::close(go_[1]);
      char byte = 0;
      while (::read(go_[0], &byte, 1) < 0 && errno == EINTR) {
      }
      ::_exit(work());
    }
    ::close(go_[0]);
  }
  ~Child() {
    if (pid_ > 0) finish();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int finish() {
    EXPECT_EQ(::write(go_[1], "x", 1), 1);  // closing would not do: later children hold it, too
    ::close(go_[1]);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
  }

 private:
  int go_[2] = {-1, -1};
  pid_t pid_ = 0;
};

TEST(ChildWatch, SeesChildrenLiveAndEnd) {
  ChildWatch watch;
  EXPECT_EQ(watch.forks(), 0U);
  EXPECT_FALSE(watch.child_saw(0, 0));
  Child first([&] { watch.prepare(); }, [&] { watch.forget_in_child(); }, [] { return 0; });
  EXPECT_EQ(watch.forks(), 1U);
  EXPECT_TRUE(watch.child_saw(0, 1));
  EXPECT_FALSE(watch.child_saw(1, 1)) << "made after the fork";
  Child second([&] { watch.prepare(); }, [&] { watch.forget_in_child(); }, [] { return 0; });
  EXPECT_TRUE(watch.child_saw(1, 2));
  first.finish();
  EXPECT_FALSE(watch.child_saw(0, 1));
  EXPECT_TRUE(watch.child_saw(0, 2));
  second.finish();
  EXPECT_FALSE(watch.child_saw(0, 2));
}

TEST(ChildWatch, ForksOfOneGenerationEndTogether) {
  ChildWatch watch;
  Child first([&] { watch.prepare(); }, [&] { watch.forget_in_child(); }, [] { return 0; });
  Child second([&] { watch.prepare(); }, [&] { watch.forget_in_child(); }, [] { return 0; });
  first.finish();
  EXPECT_TRUE(watch.child_saw(0, 1)) << "cautious: the generation lives";
  second.finish();
  EXPECT_FALSE(watch.child_saw(0, 2));
}

// As a daemon does, and as `subprocess` does in a child that it has forked.
TEST(ChildWatch, AChildThatClosesAllDescriptorsIsSeenAllTheSame) {
  ChildWatch watch;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const auto close_others = [&] {
    watch.forget_in_child();
    ::dup2(ready[1], 0);
    close_all_descriptors();
    (void)!::write(0, "x", 1);
    ::pause();
  };
  watch.prepare();
  const pid_t child = ::fork();
  if (child == 0) {
    close_others();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_TRUE(watch.child_saw(0, 1));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(watch.child_saw(0, 1));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(ChildWatch, AForkThatFailedLeavesNobody) {
  ChildWatch watch;
  watch.prepare();
  EXPECT_FALSE(watch.child_saw(0, 1));
}

TEST(ChildWatch, AGrandchildCounts) {
  ChildWatch watch;
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  Child child([&] { watch.prepare(); }, [&] { watch.forget_in_child(); },
              [&] {
                ChildWatch own;
                if (::fork() == 0) {
                  ::close(hold[1]);
                  char byte = 0;
                  (void)!::read(hold[0], &byte, 1);
                }
                return 0;
              });
  child.finish();
  EXPECT_TRUE(watch.child_saw(0, 1));
  ::close(hold[1]);
  // It ends by itself; nothing here can wait for it but the pipe.
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  bool lives = true;
  while (lives && std::chrono::steady_clock::now() < deadline) lives = watch.child_saw(0, 1);
  EXPECT_FALSE(lives);
  ::close(hold[0]);
}

class HostFork : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kSize = 2U << 20U;

  explicit HostFork(Bytes cap = 64_MiB) : source_(options(cap)) {
    EXPECT_EQ(source_.host_tier_reason(), "");
    base_ = source_.reserve(Bytes{kSize * 8}).begin;
  }
  static HostMemorySource::Options options(Bytes cap) {
    HostMemorySource::Options options;
    options.host_cap = cap;
    return options;
  }

  std::byte* at(std::uint64_t chunk) { return base_ + chunk * kSize; }
  MemoryHandle filled(std::uint64_t chunk, int value) {
    const MemoryHandle handle = source_.create(Tier::kDevice, Bytes{kSize});
    source_.map(at(chunk), handle);
    std::memset(at(chunk), value, kSize);
    return handle;
  }
  bool all(std::uint64_t chunk, int value) {
    for (std::uint64_t i = 0; i < kSize; ++i) {
      if (at(chunk)[i] != static_cast<std::byte>(value)) return false;
    }
    return true;
  }
  MemoryHandle move(std::uint64_t chunk, MemoryHandle from, Tier tier) {
    const MemoryHandle to = source_.create(tier, Bytes{kSize});
    const CopyTicket ticket = source_.begin_copy(at(chunk), from, to);
    EXPECT_EQ(source_.wait_copy(ticket), CopyState::kDone) << source_.copy_error(ticket);
    EXPECT_TRUE(source_.fence(2s).stopped);
    EXPECT_EQ(source_.swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
    source_.unfence();
    source_.end_copy(ticket);
    source_.release(from);
    return to;
  }
  Child fork_child(const std::function<int()>& work) {
    return Child([&] { source_.prepare_fork(); }, [&] { source_.after_fork_child(); }, work);
  }

  HostMemorySource source_;
  std::byte* base_ = nullptr;
};

TEST_F(HostFork, TheSnapshotOutlivesManyMovesAndRewrites) {
  MemoryHandle cold = move(0, filled(0, 10), Tier::kHost);
  MemoryHandle written = move(1, filled(1, 20), Tier::kHost);
  std::memset(at(1), 21, kSize / 2);  // copies of half of its pages
  MemoryHandle device = filled(2, 30);
  Child child = fork_child([&] {
    int wrong = all(0, 10) ? 0 : 1;
    for (std::uint64_t i = 0; i < kSize; ++i) {
      if (at(1)[i] != static_cast<std::byte>(i < kSize / 2 ? 21 : 20)) wrong |= 2;
    }
    if (!all(2, 30)) wrong |= 4;
    std::memset(at(0), 99, kSize);
    std::memset(at(2), 99, kSize);
    return wrong;
  });
  source_.after_fork_parent();
  for (int round = 0; round < 4; ++round) {
    cold = move(0, cold, Tier::kDevice);
    std::memset(at(0), 100 + round, kSize);
    cold = move(0, cold, Tier::kHost);
    written = move(1, written, Tier::kHost);
    written = move(1, written, Tier::kDevice);
    std::memset(at(1), 110 + round, kSize);
    written = move(1, written, Tier::kHost);
    device = move(2, device, Tier::kHost);
    device = move(2, device, Tier::kDevice);
    std::memset(at(2), 120 + round, kSize);
  }
  EXPECT_EQ(child.finish(), 0) << "1: cold, 2: written, 4: device";
  EXPECT_TRUE(all(0, 103));
  EXPECT_TRUE(all(1, 113));
  EXPECT_TRUE(all(2, 123));
}

class HostForkSmall : public HostFork {
 protected:
  HostForkSmall() : HostFork(4_MiB) {}
};

TEST_F(HostForkSmall, SlotsWaitForTheChildrenThatMaySeeThem) {
  const MemoryHandle first = move(0, filled(0, 1), Tier::kHost);
  Child child = fork_child([&] { return all(0, 1) ? 0 : 1; });
  source_.after_fork_parent();
  (void)move(0, first, Tier::kDevice);
  // One slot is the child's, so only one is left.
  const MemoryHandle second = source_.create(Tier::kHost, Bytes{kSize});
  try {
    (void)source_.create(Tier::kHost, Bytes{kSize});
    ADD_FAILURE() << "the child's slot was given away";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("wait for forked children"));
  }
  source_.release(second);  // made after the fork: free at once
  const MemoryHandle again = source_.create(Tier::kHost, Bytes{kSize});
  EXPECT_EQ(child.finish(), 0);
  EXPECT_NO_THROW((void)source_.create(Tier::kHost, Bytes{kSize}));
  source_.release(again);
}

TEST_F(HostFork, BytesThatChildrenHoldAreNotCountedAsGivenBack) {
  const MemoryHandle unmapped = filled(0, 1);
  const MemoryHandle moved = filled(1, 1);
  EXPECT_EQ(source_.held_by_children(), Bytes{});
  Child child = fork_child([] { return 0; });
  source_.after_fork_parent();
  EXPECT_EQ(source_.held_by_children(), Bytes{});
  source_.unmap(at(0), unmapped);
  EXPECT_EQ(source_.held_by_children(), Bytes{kSize});
  (void)move(1, moved, Tier::kHost);
  EXPECT_EQ(source_.held_by_children(), Bytes{2 * kSize});
  const MemoryHandle later = filled(2, 1);  // the child never saw it
  source_.unmap(at(2), later);
  EXPECT_EQ(source_.held_by_children(), Bytes{2 * kSize});
  child.finish();
  EXPECT_EQ(source_.held_by_children(), Bytes{});
}

TEST_F(HostFork, TheChildIsInert) {
  const MemoryHandle handle = move(0, filled(0, 1), Tier::kHost);
  Child child = fork_child([&] {
    const auto throws = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const std::logic_error&) {
        return true;
      }
      return false;
    };
    int wrong = 0;
    wrong |= throws([&] { (void)source_.create(Tier::kHost, Bytes{kSize}); }) ? 0 : 1;
    wrong |= throws([&] { source_.unmap(at(0), handle); }) ? 0 : 2;
    wrong |= throws([&] { (void)source_.move_risk(); }) ? 0 : 4;
    wrong |= source_.fence(10ms).stopped ? 8 : 0;
    wrong |= source_.trim(at(0), handle).is_zero() ? 0 : 16;
    wrong |= source_.touched(at(0), handle).resident.is_zero() ? 0 : 32;
    source_.unfence();
    return wrong;
  });
  source_.after_fork_parent();
  EXPECT_EQ(child.finish(), 0);
  EXPECT_TRUE(all(0, 1));
}

// A child has a source of its own if it makes one: the old one's state does not stand in its way.
TEST_F(HostFork, AChildCanStopItsOwnThreads) {
  Child child = fork_child([] {
    testing::pass_over_sanitizer_threads();
    HostMemorySource own(options(8_MiB));
    std::byte* address = own.reserve(Bytes{kSize}).begin;
    const MemoryHandle from = own.create(Tier::kDevice, Bytes{kSize});
    own.map(address, from);
    std::memset(address, 1, kSize);
    const MemoryHandle to = own.create(Tier::kHost, Bytes{kSize});
    const CopyTicket ticket = own.begin_copy(address, from, to);
    if (own.wait_copy(ticket) != CopyState::kDone) return 1;
    if (!own.fence(2s).stopped) return 2;
    const SwapResult result = own.swap(ticket, OnChange::kLeave);
    own.unfence();
    own.end_copy(ticket);
    return result == SwapResult::kSwapped && address[kSize - 1] == std::byte{1} ? 0 : 3;
  });
  source_.after_fork_parent();
  EXPECT_EQ(child.finish(), 0);
}

}  // namespace
}  // namespace commensal::host_fork_test

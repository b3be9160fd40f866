// SPDX-License-Identifier: Apache-2.0
// fork(): a child sees a snapshot, allocates from the heap, and touches nothing of its parent's.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/moving_source.h"

namespace commensal::elastic_fork_test {
namespace {

/// Runs `body` in a forked child; returns its answer as the exit status (0: all well).
int in_forked_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);  // a deadlock ends the child, and the test fails
    ::_exit(body());
  }
  EXPECT_GT(child, 0);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(ElasticForkTest, AChildSeesASnapshotAndLeavesTheParentAlone) {
  MovingSource source;
  ElasticAllocator allocator(source, {});
  allocator.install_fork_handlers();
  auto* block = static_cast<unsigned char*>(allocator.allocate(4_MiB));
  std::memset(block, 7, (4_MiB).count());
  (void)allocator.set_limit(2_MiB);
  EXPECT_FALSE(allocator.in_child());

  const int status = in_forked_child([&] {
    if (!allocator.in_child()) return 1;
    for (std::size_t i = 0; i < (4_MiB).count(); i += 4096) {
      if (block[i] != 7) return 2;
    }
    void* own = allocator.allocate(1_MiB);
    if (own == nullptr || allocator.owns(own)) return 3;
    if (reinterpret_cast<std::uintptr_t>(own) % 64 != 0) return 4;
    std::memset(own, 1, (1_MiB).count());
    if (!allocator.deallocate(own)) return 5;
    if (!allocator.deallocate(block)) return 6;
    if (block[0] != 7) return 7;  // nothing happened to it
    if (!allocator.set_limit(0_B).reason.starts_with("this is a forked child")) return 8;
    if (allocator.post_limit(1_B).limit != 2_MiB) return 9;
    (void)allocator.safe_point();
    (void)allocator.shrink(1_GiB);
    (void)allocator.grow(1_GiB);
    (void)allocator.park();
    if (!allocator.release_cached().is_zero()) return 10;
    if (allocator.stats().live != 4_MiB) return 11;
    if (!source.fake().violations().empty()) return 12;
    if (allocator.allocate(0_B) != nullptr) return 13;
    return in_forked_child([&] { return allocator.in_child() ? 0 : 1; });  // a child's child
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(allocator.stats().live, 4_MiB);
  EXPECT_EQ(allocator.size_of(block), 4_MiB);
  EXPECT_TRUE(allocator.set_limit(0_B).complete());
  EXPECT_EQ(block[123456], 7);
  EXPECT_TRUE(allocator.deallocate(block));
  EXPECT_TRUE(source.fake().violations().empty());
}

TEST(ElasticForkTest, ForkInsideOtherThreadsWorkDoesNotDeadlock) {
  MovingSource source;
  ElasticAllocator allocator(source, {});
  allocator.install_fork_handlers();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::vector<void*> blocks;
      for (std::size_t i = 0; !stop; ++i) {
        blocks.push_back(
            allocator.allocate(Bytes{(i * 7919 + static_cast<std::size_t>(t)) % (1U << 20U) + 1}));
        if (blocks.size() > 16) {
          for (void* block : blocks) EXPECT_TRUE(allocator.deallocate(block));
          blocks.clear();
          if (t == 0) (void)allocator.release_cached();
        }
      }
      for (void* block : blocks) EXPECT_TRUE(allocator.deallocate(block));
    });
  }
  threads.emplace_back([&] {
    while (!stop) {
      (void)allocator.set_limit(2_MiB);
      (void)allocator.set_limit(64_MiB);
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(in_forked_child([&] {
                void* block = allocator.allocate(64_KiB);
                return block != nullptr && allocator.deallocate(block) ? 0 : 1;
              }),
              0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(source.fake().violations().empty());
}

}  // namespace
}  // namespace commensal::elastic_fork_test

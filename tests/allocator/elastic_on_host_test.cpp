// SPDX-License-Identifier: Apache-2.0
// The elastic allocator on the machine's own memory and a spill file.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "allocator/host/host_memory_source.h"
#include "tests/allocator/fuzz.h"
#include "tests/allocator/kernel_sigaction.h"
#include "tests/allocator/patterned_blocks.h"
#include "tests/allocator/restless_program.h"

namespace commensal::elastic_on_host_test {
namespace {

class ElasticOnHostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (source_.capacity(Tier::kHost).is_zero()) {
      GTEST_SKIP() << "no slower tier: " << source_.host_tier_reason();
    }
  }
  HostMemorySource source_;
};

// Blocks of up to 2 MiB under limits of up to 24 MiB. Returns whether they were enough for moves.
bool run_random_operations(ElasticAllocator& allocator, std::uint64_t operations) {
  FuzzOptions options;
  options.seed = fuzz_seed();
  options.operations = operations;
  options.largest_block = 2_MiB;
  options.largest_limit = 24_MiB;
  ElasticFuzz(allocator, options).run();
  return operations >= 1'000;
}

TEST_F(ElasticOnHostTest, Law2_LiveDataSurvivesRandomOperations) {
  ElasticAllocator allocator(source_, {.limit = 16_MiB});
  const bool moves = run_random_operations(allocator, fuzz_operations(3'000, 500));
  if (moves) {
    EXPECT_GT(allocator.stats().moved_out, 0_B);
  }
}

// As a program does that means to start a child with a clean slate, or to catch everything: takes
// all handlers away, and puts back what was there, again and again.
void reset_handlers(const std::atomic<bool>& end) {
  std::vector<testing::KernelSigaction> before(static_cast<std::size_t>(SIGRTMAX) + 1);
  const testing::KernelSigaction none;
  while (!end) {
    for (const bool back : {false, true}) {
      for (int signal = 1; signal <= SIGRTMAX; ++signal) {
        if (signal == SIGSEGV || signal == SIGBUS || signal == SIGALRM) continue;  // the test's
        testing::KernelSigaction& kept = before[static_cast<std::size_t>(signal)];
        (void)testing::kernel_sigaction(signal, back ? &kept : &none, back ? nullptr : &kept);
      }
    }
  }
}

TEST_F(ElasticOnHostTest, Law1_Law2_HandlersAndDescriptorsThatAreTakenWithoutPauseCostNothing) {
  ElasticAllocator allocator(source_, {.limit = 16_MiB});
  RestlessProgram program;
  std::atomic<bool> end{false};
  std::thread resets([&] { reset_handlers(end); });
  (void)run_random_operations(allocator, fuzz_operations(3'000, 300));
  end = true;
  resets.join();
  program.stop();
  EXPECT_EQ(program.wrong(), 0U) << "files of the program's that were not as it left them";
}

TEST_F(ElasticOnHostTest, Law2_NothingIsWrittenToWhatAProgramOpensInPlaceOfWhatItClosed) {
  ElasticAllocator allocator(source_, {.limit = 16_MiB});
  RestlessProgram program;
  const bool moves = run_random_operations(allocator, fuzz_operations(1'000, 300));
  while (program.rounds() < 10) std::this_thread::yield();
  program.stop();
  EXPECT_EQ(program.wrong(), 0U) << "files of the program's that were not as it left them";
  EXPECT_EQ(source_.host_tier_reason(), "");
  if (moves) {
    EXPECT_GT(allocator.stats().moved_out, 0_B);
  }
}

TEST_F(ElasticOnHostTest, Law2_StoresOfAnotherThreadAreKeptWhileChunksMove) {
  ElasticAllocator allocator(source_, {});
  constexpr std::size_t kWords = (std::size_t{4} << 20U) / sizeof(std::uint64_t);
  auto* words = static_cast<std::uint64_t*>(allocator.allocate(4_MiB));
  std::memset(words, 0, (4_MiB).count());
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> rounds{0};
  std::uint64_t lost = 0;
  std::thread writer([&] {
    // Only this thread writes, so each word must hold what it put there the round before.
    for (std::uint64_t round = 1; !stop || round < 3; ++round) {
      for (std::size_t i = 0; i < kWords; i += 61) {
        if (words[i] != round - 1) ++lost;
        words[i] = round;
      }
      rounds = round;
    }
  });
  for (int i = 0; i < 10; ++i) {
    // Only the other thread's own check may read the words now.
    while (rounds == 0) std::this_thread::yield();
    (void)allocator.set_limit(0_B);
    (void)allocator.set_limit(64_MiB);
  }
  stop = true;
  writer.join();
  EXPECT_EQ(lost, 0U);
  EXPECT_GT(allocator.stats().moved_out, 0_B);
  EXPECT_GT(allocator.stats().moved_in, 0_B);
  EXPECT_TRUE(allocator.deallocate(words));
}

TEST_F(ElasticOnHostTest, WhatOverflowedIsFastMemoryLaterWithoutAStop) {
  ElasticAllocatorOptions limits;
  limits.limit = 4_MiB;
  ElasticAllocator allocator(source_, limits);
  void* const first = allocator.allocate(4_MiB);
  auto* const over = static_cast<std::byte*>(allocator.allocate(2_MiB));
  std::memset(over, 7, (2_MiB).count());
  ASSERT_EQ(allocator.stats().host, 2_MiB);
  EXPECT_TRUE(allocator.deallocate(first));
  EXPECT_TRUE(allocator.safe_point().complete());
  const AllocatorStats stats = allocator.stats();
  EXPECT_EQ(stats.host, 0_B);
  EXPECT_EQ(stats.moved_in, 2_MiB);
  EXPECT_EQ(stats.moves, 0U) << "threads were stopped";
  EXPECT_EQ(stats.total_pause, Duration::zero());
  EXPECT_EQ(over[12345], std::byte{7});
  EXPECT_TRUE(allocator.deallocate(over));
}

TEST_F(ElasticOnHostTest, P6_AParkedTagIsServedByTheKernelAndComesBackWhenTouched) {
  ElasticAllocator allocator(source_, {});
  const TagId tag = allocator.open_tag("weights");
  const Bytes size = 16_MiB;
  const auto add = [&](TagId of) {
    return static_cast<unsigned char*>(allocator.allocate(size, 0, {Phase::kUnknown, of}));
  };
  unsigned char* weights = add(tag);
  unsigned char* others = add(0);
  std::memset(weights, 11, size.count());
  std::memset(others, 12, size.count());
  for (int round = 0; round < 2; ++round) {
    const TagTicket ticket = allocator.park_tag(tag);
    ASSERT_TRUE(ticket.complete()) << ticket.reason;
    EXPECT_EQ(ticket.done, size);
    EXPECT_EQ(allocator.stats().device, size) << "the others";
    EXPECT_EQ(allocator.stats().parked, size);
    EXPECT_EQ(allocator.stats().host_touched, 0_B);
    EXPECT_EQ(allocator.park_tag(tag).done, 0_B);
    (void)allocator.safe_point();
    EXPECT_EQ(allocator.stats().parked, size) << "nobody touched it";
    if (round == 0) {
      EXPECT_EQ(weights[(5_MiB).count()], 11);  // one read, and all of it comes back
      (void)allocator.safe_point();
    } else {
      EXPECT_EQ(allocator.wake_tag(tag).done, size);
    }
    EXPECT_EQ(allocator.stats().device, size + size);
    EXPECT_EQ(allocator.stats().parked, 0_B);
  }
  for (std::size_t at = 0; at < size.count(); at += 4096) ASSERT_EQ(weights[at], 11);
  EXPECT_EQ(others[0], 12);
  EXPECT_TRUE(allocator.deallocate(weights));
  EXPECT_TRUE(allocator.deallocate(others));
}

TEST_F(ElasticOnHostTest, P29_ADroppedTagHoldsNoMemoryAndReadsAsZeros) {
  ElasticAllocator allocator(source_, {});
  const TagId tag = allocator.open_tag("cache");
  const Bytes size = 16_MiB;
  auto* cache = static_cast<unsigned char*>(allocator.allocate(size, 0, {Phase::kUnknown, tag}));
  std::memset(cache, 7, size.count());
  EXPECT_EQ(allocator.drop_tag(tag).done, size);
  EXPECT_EQ(allocator.stats().device, 0_B);
  EXPECT_EQ(allocator.stats().dropped, size);
  EXPECT_EQ(cache[(9_MiB).count()], 0);
  EXPECT_TRUE(allocator.wake_tag(tag).complete());
  std::memset(cache, 8, size.count());
  EXPECT_EQ(allocator.park_tag(tag).done, size);
  EXPECT_EQ(allocator.drop_tag(tag).done, 0_B);
  EXPECT_EQ(cache[0], 0);
  EXPECT_TRUE(allocator.deallocate(cache));
}

TEST_F(ElasticOnHostTest, ResidentMemoryFollowsTheLimit) {
  ElasticAllocator allocator(source_, {});
  PatternedBlocks blocks(allocator);
  for (int i = 0; i < 4; ++i) ASSERT_NE(blocks.add(16_MiB), nullptr);
  EXPECT_TRUE(allocator.set_limit(32_MiB).complete()) << allocator.stats().deferred_reason;
  EXPECT_LE(allocator.stats().device + allocator.stats().host_touched, 32_MiB);
  blocks.expect_all();  // reads what was spilled: its pages are resident again
  EXPECT_GT(allocator.stats().host_touched, 0_B);
  const LimitTicket ticket = allocator.safe_point();
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_LE(allocator.stats().device + allocator.stats().host_touched, 32_MiB);
  EXPECT_TRUE(allocator.park().complete());
  EXPECT_EQ(allocator.stats().device + allocator.stats().host_touched, 0_B);
  EXPECT_EQ(allocator.stats().parked, 64_MiB);
  blocks.expect_all();
  blocks.remove_all();
}

TEST_F(ElasticOnHostTest, AChildSeesWhatWasSpilled) {
  ElasticAllocator allocator(source_, {});
  allocator.install_fork_handlers();
  auto* block = static_cast<unsigned char*>(allocator.allocate(4_MiB));
  std::memset(block, 3, (4_MiB).count());
  EXPECT_TRUE(allocator.set_limit(2_MiB).complete());
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    char byte = 0;
    if (::read(go[0], &byte, 1) != 1) ::_exit(2);
    for (std::size_t i = 0; i < (4_MiB).count(); ++i) {
      if (block[i] != 3) ::_exit(1);
    }
    ::_exit(0);
  }
  ASSERT_GT(child, 0);
  std::memset(block, 4, (4_MiB).count());
  (void)allocator.set_limit(0_B);
  (void)allocator.set_limit(64_MiB);
  ASSERT_EQ(::write(go[1], "x", 1), 1);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (std::size_t i = 0; i < (4_MiB).count(); ++i) ASSERT_EQ(block[i], 4);
  ::close(go[0]);
  ::close(go[1]);
  EXPECT_TRUE(allocator.deallocate(block));
}

}  // namespace
}  // namespace commensal::elastic_on_host_test

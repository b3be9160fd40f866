// SPDX-License-Identifier: Apache-2.0
// The order of locks is checked where assertions are on, also when nothing waits.
#include <gtest/gtest.h>

#include "allocator/base/mutex.h"

namespace commensal::lock_order_test {
namespace {

struct Locks {
  Mutex moves{LockRank::kMoves};
  Mutex source{LockRank::kSource};
  Mutex blocks{LockRank::kBlocks};
  Mutex lane{LockRank::kLane};
  Mutex other_lane{LockRank::kLane};
  Mutex free;
};

// The analysis of the compiler sees no order between these; that is what this check is for.
void take(Mutex& first, Mutex& second) COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  const MutexLock outer(first);
  const MutexLock inner(second);
}

bool try_to_take(Mutex& mutex) COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  if (!mutex.try_lock()) return false;
  mutex.unlock();
  return true;
}

TEST(LockOrder, P39_TheOrderOfTheAllocatorIsAllowed) {
  Locks locks;
  take(locks.moves, locks.source);
  take(locks.moves, locks.blocks);
  take(locks.blocks, locks.lane);
  take(locks.moves, locks.lane);
  take(locks.lane, locks.free);
  const MutexLock blocks(locks.blocks);
  take(locks.lane, locks.other_lane);
}

TEST(LockOrder, P39_WhatDoesNotWaitMayComeInAnyOrder) {
  Locks locks;
  const MutexLock blocks(locks.blocks);
  EXPECT_TRUE(try_to_take(locks.moves));
}

TEST(LockOrderDeathTest, P39_AWrongOrderIsCaught) {
#ifdef NDEBUG
  GTEST_SKIP() << "the check is compiled out of this build: it needs assertions";
#else
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  Locks locks;
  EXPECT_DEATH(take(locks.blocks, locks.moves), "moves is taken while blocks is held");
  EXPECT_DEATH(take(locks.lane, locks.blocks), "blocks is taken while lane is held");
  EXPECT_DEATH(take(locks.blocks, locks.source), "source is taken while blocks is held")
      << "no block waits for a memory source";
  EXPECT_DEATH(take(locks.lane, locks.other_lane), "lane is taken while lane is held");
#endif
}

}  // namespace
}  // namespace commensal::lock_order_test

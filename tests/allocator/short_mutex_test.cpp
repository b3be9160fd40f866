// SPDX-License-Identifier: Apache-2.0
// A short mutex: one owner at a time, also where owners stay long or outnumber the processors.
#include "allocator/base/short_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

namespace commensal::short_mutex_test {
namespace {

struct Counted {
  ShortMutex mutex;
  long count COMMENSAL_GUARDED_BY(mutex) = 0;
};

TEST(ShortMutexTest, NoIncrementIsLostBetweenManyThreads) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 20'000;
  Counted counted;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kRounds; ++k) {
        const ShortLock lock(counted.mutex);
        ++counted.count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const ShortLock lock(counted.mutex);
  EXPECT_EQ(counted.count, long{kThreads} * kRounds);
}

TEST(ShortMutexTest, WhoeverWaitsForALongOwnerSleepsAndLeavesErrnoAlone) {
  Counted counted;
  std::atomic<bool> waits{false};
  int error = 0;
  long seen = 0;
  std::thread waiter;
  {
    const ShortLock lock(counted.mutex);
    waiter = std::thread{[&] {
      errno = ERANGE;
      waits = true;
      const ShortLock inner(counted.mutex);
      error = errno;
      seen = counted.count;
    }};
    while (!waits) std::this_thread::yield();
    // Long enough that it has stopped spinning; were it not, the test would pass all the same.
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    counted.count = 7;
  }
  waiter.join();
  EXPECT_EQ(error, ERANGE);
  EXPECT_EQ(seen, 7) << "it came in while the lock was held";
}

}  // namespace
}  // namespace commensal::short_mutex_test

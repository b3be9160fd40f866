// SPDX-License-Identifier: Apache-2.0
// A mutex for sections of a few instructions that hardly ever meet.
#pragma once

#include <time.h>

#include <atomic>
#include <thread>

#include "allocator/base/mutex.h"

#if defined(__SANITIZE_THREAD__)
#define COMMENSAL_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define COMMENSAL_TSAN 1
#endif
#endif
#if defined(COMMENSAL_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace commensal {

/// One locked instruction to take and a plain store to let go, where `std::mutex` needs two calls
/// and two locked instructions. Whoever waits spins, then yields, then sleeps longer and longer, at
/// most 1 ms at a time; it is not fair. For sections that are short and whose owner is nearly
/// always alone; a long one (a fork) costs waiters up to 1 ms, not a core.
///
/// Thread safety: all. ThreadSanitizer sees it as a mutex and checks the order of locks.
class COMMENSAL_CAPABILITY("mutex") ShortMutex {
 public:
  ShortMutex() noexcept = default;
  ShortMutex(const ShortMutex&) = delete;
  ShortMutex& operator=(const ShortMutex&) = delete;
#if defined(COMMENSAL_TSAN)
  ~ShortMutex() { __tsan_mutex_destroy(this, __tsan_mutex_not_static); }
#endif

  void lock() noexcept COMMENSAL_ACQUIRE() {
#if defined(COMMENSAL_TSAN)
    __tsan_mutex_pre_lock(this, 0);
#endif
    if (held_.exchange(true, std::memory_order_acquire)) wait();
#if defined(COMMENSAL_TSAN)
    __tsan_mutex_post_lock(this, 0, 0);
#endif
  }
  void unlock() noexcept COMMENSAL_RELEASE() {
#if defined(COMMENSAL_TSAN)
    __tsan_mutex_pre_unlock(this, 0);
#endif
    held_.store(false, std::memory_order_release);
#if defined(COMMENSAL_TSAN)
    __tsan_mutex_post_unlock(this, 0);
#endif
  }

 private:
  static constexpr int kSpins = 64;
  static constexpr int kYields = 32;

  // Takes the lock that somebody else holds.
  void wait() noexcept {
    long nap = 10'000;  // nanoseconds
    for (int tries = 0;; ++tries) {
      if (!held_.load(std::memory_order_relaxed) &&
          !held_.exchange(true, std::memory_order_acquire)) {
        return;
      }
      if (tries < kSpins) {
        pause();
      } else if (tries < kSpins + kYields) {
        std::this_thread::yield();
      } else {
        const timespec time{0, nap};
        // Leaves errno alone; woken early it looks again, as it would later.
        (void)::clock_nanosleep(CLOCK_MONOTONIC, 0, &time, nullptr);
        if (nap < 1'000'000) nap *= 2;
      }
    }
  }
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::atomic<bool> held_{false};
};

/// Holds a `ShortMutex` for a scope.
class COMMENSAL_SCOPED_CAPABILITY ShortLock {
 public:
  explicit ShortLock(ShortMutex& mutex) noexcept COMMENSAL_ACQUIRE(mutex) : mutex_(mutex) {
    mutex_.lock();
  }
  ~ShortLock() COMMENSAL_RELEASE() { mutex_.unlock(); }
  ShortLock(const ShortLock&) = delete;
  ShortLock& operator=(const ShortLock&) = delete;

 private:
  ShortMutex& mutex_;
};

}  // namespace commensal

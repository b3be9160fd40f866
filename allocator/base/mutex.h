// SPDX-License-Identifier: Apache-2.0
// std::mutex with Clang's thread-safety annotations (checked by the preset `clang`), and with an
// order in which several may be taken (checked where assertions are on).
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#if defined(__clang__)
#define COMMENSAL_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define COMMENSAL_THREAD_ANNOTATION(x)
#endif
#define COMMENSAL_CAPABILITY(x) COMMENSAL_THREAD_ANNOTATION(capability(x))
#define COMMENSAL_SCOPED_CAPABILITY COMMENSAL_THREAD_ANNOTATION(scoped_lockable)
#define COMMENSAL_GUARDED_BY(x) COMMENSAL_THREAD_ANNOTATION(guarded_by(x))
#define COMMENSAL_REQUIRES(...) COMMENSAL_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define COMMENSAL_EXCLUDES(...) COMMENSAL_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define COMMENSAL_ACQUIRE(...) COMMENSAL_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define COMMENSAL_RELEASE(...) COMMENSAL_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define COMMENSAL_TRY_ACQUIRE(...) COMMENSAL_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define COMMENSAL_NO_THREAD_SAFETY_ANALYSIS COMMENSAL_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace commensal {

/// Where a mutex stands in the order in which one thread takes several: lower ones first. Two of
/// the same rank are not held together, but for lanes, whose order `kBlocks` makes.
enum class LockRank : std::uint8_t {
  kNone,    ///< not checked
  kMoves,   ///< the allocator's moves; held while the memory source runs
  kSource,  ///< a memory source's own; so `kBlocks` and lanes are never held while one runs
  kBlocks,  ///< the allocator's pools and ledger
  kLane     ///< recently freed blocks; innermost
};

#ifndef NDEBUG
/// The ranks that the calling thread holds. A wrong order ends the process with a message, whether
/// or not another thread would just now have made a deadlock of it.
class LockOrder {
 public:
  static void before_lock(LockRank rank) noexcept {
    if (rank == LockRank::kNone) return;
    for (auto at = static_cast<std::size_t>(rank); at < kRanks; ++at) {
      if (held_[at] == 0 || (rank == LockRank::kLane && holds(LockRank::kBlocks))) continue;
      (void)std::fprintf(stderr, "lock order: %s is taken while %s is held\n", name(rank),
                         name(static_cast<LockRank>(at)));
      std::abort();
    }
  }
  static void locked(LockRank rank) noexcept {
    if (rank != LockRank::kNone) ++held_[static_cast<std::size_t>(rank)];
  }
  static void unlocked(LockRank rank) noexcept {
    if (rank != LockRank::kNone) --held_[static_cast<std::size_t>(rank)];
  }

 private:
  static constexpr std::size_t kRanks = 5;
  static bool holds(LockRank rank) noexcept { return held_[static_cast<std::size_t>(rank)] != 0; }
  static const char* name(LockRank rank) noexcept {
    constexpr std::array<const char*, kRanks> names{"none", "moves", "source", "blocks", "lane"};
    return names[static_cast<std::size_t>(rank)];
  }
  inline static thread_local std::array<std::uint32_t, kRanks> held_{};
};
#else
class LockOrder {
 public:
  static void before_lock(LockRank /*rank*/) noexcept {}
  static void locked(LockRank /*rank*/) noexcept {}
  static void unlocked(LockRank /*rank*/) noexcept {}
};
#endif

/// Guards data marked `COMMENSAL_GUARDED_BY`. Satisfies BasicLockable, so that
/// `std::condition_variable_any` can wait on it.
class COMMENSAL_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  explicit Mutex(LockRank rank) noexcept : rank_(rank) {}

  void lock() COMMENSAL_ACQUIRE() {
    LockOrder::before_lock(rank_);
    mutex_.lock();
    LockOrder::locked(rank_);
  }
  void unlock() COMMENSAL_RELEASE() {
    LockOrder::unlocked(rank_);
    mutex_.unlock();
  }
  /// May be asked for in any order: it does not wait.
  bool try_lock() COMMENSAL_TRY_ACQUIRE(true) {
    if (!mutex_.try_lock()) return false;
    LockOrder::locked(rank_);
    return true;
  }

 private:
  std::mutex mutex_;
  LockRank rank_ = LockRank::kNone;
};

/// Holds a `Mutex` for a scope.
class COMMENSAL_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) COMMENSAL_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() COMMENSAL_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace commensal

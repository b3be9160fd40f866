// SPDX-License-Identifier: Apache-2.0
// std::mutex with Clang's thread-safety annotations (checked by the preset `clang`).
#pragma once

#include <condition_variable>
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

/// Guards data marked `COMMENSAL_GUARDED_BY`. Satisfies BasicLockable, so that
/// `std::condition_variable_any` can wait on it.
class COMMENSAL_CAPABILITY("mutex") Mutex {
 public:
  void lock() COMMENSAL_ACQUIRE() { mutex_.lock(); }
  void unlock() COMMENSAL_RELEASE() { mutex_.unlock(); }
  bool try_lock() COMMENSAL_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
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

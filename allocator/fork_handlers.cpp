// SPDX-License-Identifier: Apache-2.0
// Keeps the allocator whole across fork(): no lock is held and no move runs at that moment.
#include <pthread.h>

#include <mutex>
#include <system_error>

#include "allocator/elastic_core.h"

namespace commensal {
namespace {

std::atomic<ElasticCore*> forking{nullptr};

void prepare() {
  if (ElasticCore* core = forking.load()) core->prepare_fork();
}
void parent() {
  if (ElasticCore* core = forking.load()) core->after_fork(false);
}
void child() {
  if (ElasticCore* core = forking.load()) core->after_fork(true);
}

}  // namespace

void ElasticCore::install_fork_handlers() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (const int error = ::pthread_atfork(prepare, parent, child); error != 0) {
      throw std::system_error(error, std::generic_category(), "pthread_atfork");
    }
  });
  forking.store(this);
}

void ElasticCore::forget_fork_handlers() noexcept {
  ElasticCore* self = this;
  forking.compare_exchange_strong(self, nullptr);
}

// All locks are taken before the fork and let go after it, on both sides: whatever another
// thread was doing is finished then.
void ElasticCore::prepare_fork() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  move_waiters_.fetch_add(1, std::memory_order_relaxed);
  moves_.lock();
  move_waiters_.fetch_sub(1, std::memory_order_relaxed);
  if (!in_child()) abandon_ahead();
  blocks_.lock();
  lanes_.lock_all();
  if (!in_child()) source_.prepare_fork();
}

void ElasticCore::after_fork(bool child) noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
  if (!in_child()) {
    if (child) {
      child_.store(true);
      source_.after_fork_child();
    } else {
      source_.after_fork_parent();
    }
  }
  lanes_.unlock_all();
  blocks_.unlock();
  moves_.unlock();
}

}  // namespace commensal

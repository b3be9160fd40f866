// SPDX-License-Identifier: Apache-2.0
// The numbers of this project's own threads. Built without sanitizers (sources.cmake), with system
// calls past the C library's names: asked while threads are stopped.
#include "allocator/host/own_threads.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace commensal {
namespace {

constexpr int kMostThreads = 256;
std::uint64_t g_threads[kMostThreads];  // process << 32 | thread; 0: free

std::uint64_t mark_of(int tid) noexcept {
  const auto process = static_cast<std::uint32_t>(::syscall(SYS_getpid));
  return std::uint64_t{process} << 32U | static_cast<std::uint32_t>(tid);
}

int enter(int tid) noexcept {
  const std::uint64_t mark = mark_of(tid);
  for (int slot = 0; slot < kMostThreads; ++slot) {
    std::uint64_t free = 0;
    if (__atomic_compare_exchange_n(&g_threads[slot], &free, mark, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
      return slot;
    }
  }
  return -1;
}

// After it is known: who puts threads into the idle class from then on leaves it out.
void leave_idle(int tid) noexcept {
  if (::syscall(SYS_sched_getscheduler, tid) != SCHED_IDLE) return;
  const sched_param usual{};
  (void)::syscall(SYS_sched_setscheduler, tid, SCHED_OTHER, &usual);
}

}  // namespace

OwnThread::OwnThread() noexcept : OwnThread(static_cast<int>(::syscall(SYS_gettid))) {}
OwnThread::OwnThread(int tid) noexcept : slot_(enter(tid)) { leave_idle(tid); }

OwnThread::~OwnThread() {
  if (slot_ >= 0) __atomic_store_n(&g_threads[slot_], std::uint64_t{0}, __ATOMIC_SEQ_CST);
}

bool is_own_thread(int tid) noexcept {
  const std::uint64_t mark = mark_of(tid);
  for (const std::uint64_t& known : g_threads) {
    if (__atomic_load_n(&known, __ATOMIC_SEQ_CST) == mark) return true;
  }
  return false;
}

}  // namespace commensal

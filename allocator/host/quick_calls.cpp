// SPDX-License-Identifier: Apache-2.0
// A thread that makes system calls for others. Built without sanitizers (host/sources.cmake), with
// system calls made past the C library's names: callers may have stopped all other threads.
#include "allocator/host/quick_calls.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "allocator/host/bare_calls.h"
#include "allocator/host/own_descriptors.h"

namespace commensal {
namespace {

QuickCalls* g_published = nullptr;

void wait_while(std::uint32_t& word, std::uint32_t value) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void change(std::uint32_t& word, int wake) noexcept {
  __atomic_fetch_add(&word, 1U, __ATOMIC_SEQ_CST);
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, wake, nullptr, nullptr, 0);
}

}  // namespace

void QuickCalls::publish() noexcept {
  process_ = ::syscall(SYS_getpid);
  __atomic_store_n(&g_published, this, __ATOMIC_SEQ_CST);
}

QuickCalls* QuickCalls::here() noexcept {
  QuickCalls* const published = load(g_published);
  return published != nullptr && published->process_ == ::syscall(SYS_getpid) ? published : nullptr;
}

long QuickCalls::call(Work work, void* context) noexcept {
  Request request{work, context, load(waiting_), 0, 0};
  while (!__atomic_compare_exchange_n(&waiting_, &request.next, &request, false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST)) {
  }
  change(asked_, 1);
  while (true) {
    const std::uint32_t seen = load(answered_);
    if (load(request.done) != 0) return request.result;
    wait_while(answered_, seen);
  }
}

void QuickCalls::serve() noexcept {
  while (true) {
    const std::uint32_t seen = load(asked_);
    Request* request = __atomic_exchange_n(&waiting_, nullptr, __ATOMIC_SEQ_CST);
    if (request == nullptr) wait_while(asked_, seen);
    while (request != nullptr) {
      Request* const next = request->next;
      request->result = request->work(request->context);
      // Who asked may be gone from here on.
      __atomic_store_n(&request->done, 1U, __ATOMIC_SEQ_CST);
      change(answered_, INT32_MAX);
      request = next;
    }
  }
}

namespace own_descriptors {

long quick(QuickCalls::Work work, void* context) noexcept {
  QuickCalls* const calls = QuickCalls::here();
  return calls == nullptr ? -EBADF : calls->call(work, context);
}

long call_words(long number, long a, long b, long c, long d, long e, long f) noexcept {
  return quick([&]() noexcept -> long {
    const long got = ::syscall(number, a, b, c, d, e, f);
    return got == -1 ? -errno : got;
  });
}

}  // namespace own_descriptors
}  // namespace commensal

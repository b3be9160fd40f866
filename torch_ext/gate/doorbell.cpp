// SPDX-License-Identifier: Apache-2.0
// Sleeping at one word, or at two, by the kernel's futexes.
#include "torch_ext/gate/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <climits>
#include <ctime>

namespace commensal {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the lower half of a word lies at its address");

timespec to_timespec(Duration time) noexcept {
  constexpr Duration::rep kSecond = std::nano::den;
  timespec result{};
  result.tv_sec = static_cast<decltype(result.tv_sec)>(time.count() / kSecond);
  result.tv_nsec = static_cast<decltype(result.tv_nsec)>(time.count() % kSecond);
  return result;
}

#ifdef SYS_futex_waitv
/// Returns false if the kernel does not know how, or a sandbox forbids it.
bool sleep_at_both(const std::atomic<std::uint32_t>& generation, std::uint32_t seen,
                   const Doorbell& bell, Duration time) noexcept {
  std::array<futex_waitv, 2> words{};
  words[0] = {seen, reinterpret_cast<std::uintptr_t>(&generation), FUTEX_32 | FUTEX_PRIVATE_FLAG,
              0};
  words[1] = {bell.seen, reinterpret_cast<std::uintptr_t>(bell.word), FUTEX_32, 0};
  timespec until{};
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  until = to_timespec(std::chrono::seconds{until.tv_sec} + Duration{until.tv_nsec} + time);
  const long woken =
      ::syscall(SYS_futex_waitv, words.data(), words.size(), 0, &until, CLOCK_MONOTONIC);
  return woken >= 0 || (errno != ENOSYS && errno != EPERM);
}
#else
bool sleep_at_both(const std::atomic<std::uint32_t>&, std::uint32_t, const Doorbell&,
                   Duration) noexcept {
  return false;
}
#endif

}  // namespace

void ring(const std::atomic<std::uint64_t>& word) noexcept {
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void sleep_until_rung(const std::atomic<std::uint32_t>& generation, std::uint32_t seen,
                      const Doorbell& bell, Duration time) noexcept {
  static std::atomic<bool> deaf{false};
  if (bell) {
    if (!deaf.load(std::memory_order_relaxed)) {
      if (sleep_at_both(generation, seen, bell, time)) return;
      deaf.store(true, std::memory_order_relaxed);
    }
    time = std::min(time, kDeafSleep);
  }
  const timespec timeout = to_timespec(time);
  // EAGAIN (changed meanwhile), EINTR and ETIMEDOUT all mean the same to the caller: look again.
  (void)::syscall(SYS_futex, &generation, FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
}

}  // namespace commensal

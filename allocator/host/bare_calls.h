// SPDX-License-Identifier: Apache-2.0
// What code uses that runs while threads are stopped: system calls past the C library, and words
// that threads share. For files that are built without sanitizers (sources.cmake) alone.
#pragma once

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace commensal {

inline constexpr std::uint64_t kNanosecondsASecond = 1'000'000'000;

/// Makes a system call. Returns what the kernel returns: a negative errno for an error. On x86-64
/// `errno` is left alone.
inline long bare_call(long number, long a = 0, long b = 0, long c = 0, long d = 0) noexcept {
#if defined(__x86_64__)
  long result = number;
  register long fourth asm("r10") = d;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(fourth)
               : "rcx", "r11", "memory");
  return result;
#else
  const long result = ::syscall(number, a, b, c, d);
  return result == -1 ? -errno : result;
#endif
}

/// A pointer as a word of a system call.
template <typename Pointed>
long word_of(Pointed* pointer) noexcept {
  return static_cast<long>(reinterpret_cast<std::uintptr_t>(pointer));
}

/// Returns the nanoseconds of CLOCK_MONOTONIC.
inline std::uint64_t bare_now() noexcept {
  timespec time{};
  bare_call(SYS_clock_gettime, CLOCK_MONOTONIC, word_of(&time));
  return static_cast<std::uint64_t>(time.tv_sec) * kNanosecondsASecond +
         static_cast<std::uint64_t>(time.tv_nsec);
}

template <typename T>
T load(const T& word) noexcept {
  return __atomic_load_n(&word, __ATOMIC_SEQ_CST);
}
template <typename T>
void store(T& word, T value) noexcept {
  __atomic_store_n(&word, value, __ATOMIC_SEQ_CST);
}

}  // namespace commensal

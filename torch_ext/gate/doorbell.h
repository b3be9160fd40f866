// SPDX-License-Identifier: Apache-2.0
// How a process sleeps until another one's page says something else, without looking again and
// again: the writer of a word rings after it has changed it.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/base/clock.h"

namespace commensal {

/// A word of a shared page that somebody rings, and what its reader saw there. Of a word the lower
/// half counts; who sleeps at a bell may have the page mapped read-only.
struct Doorbell {
  const std::atomic<std::uint64_t>* word = nullptr;  ///< null: nobody rings
  std::uint32_t seen = 0;
  [[nodiscard]] explicit operator bool() const noexcept { return word != nullptr; }
};

/// Wakes all that sleep at a word, in this process and in others. One system call, of some hundred
/// nanoseconds where nobody sleeps.
void ring(const std::atomic<std::uint64_t>& word) noexcept;

/// Sleeps until `generation` was woken or is not `seen`, the bell rang or its word is not what was
/// seen, or the time is over. May return earlier than that.
/// @param generation  a word of this process alone.
/// Kernels before 5.16 cannot sleep at two words: there a bell shortens the sleep to
/// `kDeafSleep`.
void sleep_until_rung(const std::atomic<std::uint32_t>& generation, std::uint32_t seen,
                      const Doorbell& bell, Duration time) noexcept;
inline constexpr Duration kDeafSleep = std::chrono::milliseconds{1};

}  // namespace commensal

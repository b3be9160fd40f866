// SPDX-License-Identifier: Apache-2.0
// Finds the requests of a server that marks none: bursts of work between which its thread waits.
#pragma once

#include <cstdint>
#include <optional>

#include "allocator/base/clock.h"

namespace commensal {

/// What a thread did since it began, as the kernel counts it.
struct ThreadUse {
  Duration ran{};      ///< on a core
  Duration delayed{};  ///< ready to run, and waiting for a core
};
/// Reads it for the calling thread; some microseconds. `delayed` stays zero where the kernel does
/// not count it (/proc/thread-self/schedstat).
[[nodiscard]] ThreadUse read_thread_use() noexcept;

/// A request that has ended: from its first sign of work until its thread went to wait.
struct FoundRequest {
  Duration length{};  ///< waiting for a core included
  TimePoint ended;
  Duration waited{};  ///< until the next one
};

/// Is told of the longer pauses between signs of work (allocations), and decides which of them are
/// waits for a request: those in which the thread was blocked. One in which it ran was an op that
/// allocates nothing, one in which it was ready to run was a neighbour's doing, and part of the
/// request. Requests that several threads serve at once count as one. Not thread-safe.
class RequestFinder {
 public:
  static constexpr Duration kLeastPause = std::chrono::milliseconds{1};
  /// Of that many the job is taken to be a server: fewer may be anything (imports, weights).
  static constexpr std::uint64_t kBefore = 32;

  /// Notes a pause. @param last  the sign of work before it. @param now  the one that ends it.
  /// @param thread  names the calling thread. @param use  of it.
  /// @return the request that ended when the wait began, if this was one.
  std::optional<FoundRequest> note(TimePoint last, TimePoint now, const void* thread,
                                   const ThreadUse& use) noexcept;

  [[nodiscard]] std::uint64_t found() const noexcept { return found_; }
  /// After so long without a sign of work the server waits, as far as can be told from outside:
  /// twice the longest pause within requests of late. Zero: not known.
  [[nodiscard]] Duration quiet() const noexcept;

 private:
  const void* thread_ = nullptr;  // that was asked last
  ThreadUse use_;                 // what it said
  TimePoint asked_;
  TimePoint began_;     // of the present request; zero: not seen
  Duration longest_{};  // pause within a request, forgotten slowly
  std::uint64_t found_ = 0;
};

}  // namespace commensal

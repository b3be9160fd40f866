// SPDX-License-Identifier: Apache-2.0
// A thread that makes system calls for others, also while they are stopped.
#pragma once

#include <cstdint>

namespace commensal {

/// Hands short pieces of work to the one thread that runs `serve`: own_descriptors.h.
///
/// Neither side takes a lock or allocates: a thread that is stopped in the middle of a call holds
/// nobody up. The work must do so too: system calls that end soon, no more. Built without
/// sanitizers, as everything that runs while threads are stopped. Thread safety: `call` from any
/// thread.
class QuickCalls {
 public:
  using Work = long (*)(void* context) noexcept;

  /// Returns the one that is published in this process; null: none.
  [[nodiscard]] static QuickCalls* here() noexcept;
  /// Has the serving thread do `work`, waits, and returns its result.
  long call(Work work, void* context) noexcept;
  /// Serves for ever, on the thread that calls it.
  [[noreturn]] void serve() noexcept;
  /// Makes this the one that `own_descriptors::quick` uses in this process.
  void publish() noexcept;

 private:
  struct Request {
    Work work;
    void* context;
    Request* next;
    long result;
    std::uint32_t done;
  };

  long process_ = 0;
  Request* waiting_ = nullptr;  // the newest first
  std::uint32_t asked_ = 0;     // futex: changes with each request
  std::uint32_t answered_ = 0;  // futex: changes with each answer
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Stops every thread of this process for a moment, by a signal, without any privilege.
#pragma once

#include <cstdint>
#include <string>

#include "allocator/base/clock.h"

namespace commensal {

/// What the process does when its threads are to be stopped.
enum class StopPoint : std::uint8_t {
  kBetweenOps,  ///< no thread computes: any may be signalled
  kAnywhere     ///< a thread may be inside generated code that is no place for a signal's frame
};

/// Holds all other threads of the process inside a signal handler between `stop` and `resume`.
///
/// A stopped thread has finished its system call or will restart it, direct reads included, so
/// nothing that it does can write memory meanwhile. (What the kernel does without a thread can:
/// kernel_io.h.) `epoll_wait`, `poll` and `nanosleep` return EINTR, as at any handled signal.
/// A thread that blocks the signal is held by ptrace instead, where the kernel allows that
/// (thread_tracer.h); else nobody is stopped. Exempt are the caller and this project's own threads
/// (own_threads.h).
///
/// The signal is one that does nothing to a program without a handler. The handler is looked at
/// before each stop: where it is not in its place any more, nobody is signalled, and it is not put
/// back. A signal that came just then is lost, and sent again.
///
/// Every thread that is stopped has an alternate signal stack from then on, its own or ours: only
/// then can a signal interrupt any code (signal_stacks.h). At `kAnywhere` a thread that has none
/// yet is signalled while it sleeps in a system call, after all others are held; if it runs, the
/// stop is refused, `stacks_wanted` is true, and a stop between ops gives it one.
///
/// Threads of the idle scheduling class (SCHED_IDLE) are in the usual one from when they are
/// signalled until they go on, where the kernel allows that; else a busy neighbour delays the stop.
/// Who is started meanwhile (in the kernel's ticks, 10 ms) and inherits the usual class is put into
/// the idle one with them.
///
/// There is one a process, because a signal handler has no other place for its state. Thread
/// safety: two threads may call `stop`; the second waits for the first one's `resume`.
/// Between `stop` and `resume` the caller must not take locks or allocate, see memory_source.h.
class ThreadStopper {
 public:
  struct Result {
    bool stopped = false;
    const char* reason = "";  ///< why not; valid until the next `stop`
    Duration held{};          ///< since the first thread was signalled; before that all ran
  };

  /// While one lives, nobody stops threads: for who changes their scheduling class. Not inside a
  /// stop. Waits for the `resume` of one in progress.
  class NoStops {
   public:
    NoStops() noexcept;
    ~NoStops();
    NoStops(const NoStops&) = delete;
    NoStops& operator=(const NoStops&) = delete;
  };

  /// Returns the one instance; the first call takes a free signal, SIGURG or SIGWINCH.
  /// @throws SourceError if both have a handler already.
  static ThreadStopper& instance();
  /// Returns the instance if there is one; null: `instance` was not called, or failed.
  static ThreadStopper* existing() noexcept;

  ThreadStopper(const ThreadStopper&) = delete;
  ThreadStopper& operator=(const ThreadStopper&) = delete;

  /// Stops all threads. When one cannot be stopped (it blocks the signal and cannot be traced) or
  /// does not stop before the deadline, all go on and the reason names it.
  [[nodiscard]] Result stop(Duration deadline, StopPoint where = StopPoint::kBetweenOps) noexcept;
  /// Lets all threads go on; does not wait until they have left the handler.
  void resume() noexcept;

  /// Names a thread that could not be stopped now; empty if there is none. Allocates.
  [[nodiscard]] std::string obstacle(StopPoint where = StopPoint::kBetweenOps);
  /// Says what refuses every stop until somebody changes it, and how; empty if there is nothing.
  /// Allocates.
  [[nodiscard]] std::string lasting_obstacle();

  /// Stops all threads between ops and lets them go on: now each has an alternate signal stack.
  Result give_stacks(Duration deadline) noexcept;
  /// Tells whether a stop was refused because a thread has none.
  [[nodiscard]] bool stacks_wanted() const noexcept;
  /// Tells whether the number of threads is another one than at the last stop between ops.
  [[nodiscard]] bool threads_changed() const noexcept;
  /// Returns the number of our stacks whose threads have ended.
  [[nodiscard]] std::uint32_t unused_stacks() noexcept;

  /// Makes the state usable in a forked child, where only the caller lives.
  void forget_in_child() noexcept;

  /// Returns the signal that is used.
  [[nodiscard]] int signal_number() const noexcept { return signal_; }

 private:
  ThreadStopper();

  int signal_ = 0;
};

}  // namespace commensal

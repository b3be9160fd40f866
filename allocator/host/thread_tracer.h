// SPDX-License-Identifier: Apache-2.0
// Holds threads that no signal reaches, by ptrace.
#pragma once

#include <cstdint>

namespace commensal {

/// Holds threads of this process that block signals. A thread cannot trace its own process, so a
/// short-lived one that shares this one's memory does: it seizes the threads (PTRACE_SEIZE, then
/// PTRACE_INTERRUPT), and when it ends they go on. Its signal mask is the caller's, who blocks all;
/// it sends no signal when it ends, so that `wait` in the program does not find it.
///
/// A held thread is between two instructions, or has finished its system call or will restart it:
/// neither it nor the kernel on its behalf writes memory. It sees nothing of this, except that
/// `epoll_wait` and `sigtimedwait` may return EINTR. No frame is put on its stack.
///
/// Not where the kernel refuses (a debugger or `strace` is there, a container or Yama forbids it),
/// and on x86-64 only. Zero-initialized static storage; no locks, no allocation. Thread safety:
/// none; whoever stops threads uses it in turn.
class ThreadTracer {
 public:
  static constexpr std::uint32_t kMostThreads = 1024;

  struct Result {
    bool done = false;
    int tid = 0;    ///< the thread that could not be held; 0: the tracing process failed
    int error = 0;  ///< errno; 0: the deadline passed
  };

  /// Begins a list of threads.
  void clear() noexcept { count_ = 0; }
  /// Adds a thread to those that `hold` is to hold. False: the list is full.
  [[nodiscard]] bool add(int tid) noexcept;

  /// Holds the threads of the list that are not held yet; those that ended count as held. When it
  /// fails, what it holds stays held until `release`. @param limit  in ns of CLOCK_MONOTONIC.
  [[nodiscard]] Result hold(std::uint64_t limit) noexcept;
  /// Takes a thread that has ended off the list: the kernel may say EPERM of one.
  void forget(int tid) noexcept;
  /// Finds out whether the threads of the list may be traced, and disturbs none.
  [[nodiscard]] Result probe(std::uint64_t limit) noexcept;
  /// Lets all go on, and waits until the tracing process has ended.
  void release() noexcept;
  /// In a forked child, where nobody is held.
  void forget_in_child() noexcept;

 private:
  enum class State : std::uint32_t { kAdded, kSeized, kHeld, kGone };
  enum class Task : std::uint32_t { kHold, kProbe, kRelease };
  struct Target {
    int tid;
    State state;
    int signal;  // one that was on its way to it
  };

  static int trace(void* self);
  void serve() noexcept;
  void seize_all() noexcept;
  void wait_for_all() noexcept;
  void let_all_go() noexcept;
  [[nodiscard]] Result ask(Task task, std::uint64_t limit) noexcept;
  [[nodiscard]] Result ask_once(Task task, std::uint64_t limit) noexcept;
  [[nodiscard]] bool begin() noexcept;

  int process_;  // that traces; 0: none
  int owner_;
  std::uint32_t count_;
  Task task_;
  std::uint64_t limit_;
  std::uint32_t asked_;     // futex word: changes with each task
  std::uint32_t answered_;  // futex word: follows
  Result result_;
  Target targets_[kMostThreads];
  alignas(16) char stack_[16384];
};

}  // namespace commensal

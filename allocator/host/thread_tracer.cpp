// SPDX-License-Identifier: Apache-2.0
// Holds threads by ptrace. Built without sanitizers (sources.cmake). The tracing process shares
// memory and thread-local storage with the caller, who waits: it makes system calls that leave
// `errno` alone, and calls nothing of the C library.
#include "allocator/host/thread_tracer.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "allocator/host/bare_calls.h"

namespace commensal {
namespace {

constexpr std::uint64_t kAlive = 5'000'000;  // look after a tracing process that was killed
constexpr int kEventStop = 128;              // PTRACE_EVENT_STOP

void wait_shared(std::uint32_t& word, std::uint32_t value, std::uint64_t most) noexcept {
  timespec limit{};
  limit.tv_nsec = static_cast<long>(most);
  bare_call(SYS_futex, word_of(&word), FUTEX_WAIT, value, most == 0 ? 0 : word_of(&limit));
}

void wake_shared(std::uint32_t& word) noexcept {
  bare_call(SYS_futex, word_of(&word), FUTEX_WAKE, 1);
}

#if defined(__x86_64__)
// Starts a process that shares memory and descriptors, and never returns from `function`. Not by
// the C library's `clone`: that is a fork to sanitizers. Negative errno: there is none.
long start_sharing(char* stack_end, int (*function)(void*), void* argument) noexcept {
  auto** top = reinterpret_cast<void**>(stack_end);
  *--top = argument;
  *--top = reinterpret_cast<void*>(function);
  constexpr long kFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED;
  long result = SYS_clone;
  register long child_tid asm("r10") = 0;
  register long storage asm("r8") = 0;
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "pop %%rax\n\t"
      "pop %%rdi\n\t"
      "call *%%rax\n\t"
      "hlt\n\t"
      "1:"
      : "+a"(result)
      : "D"(kFlags), "S"(top), "d"(0L), "r"(child_tid), "r"(storage)
      : "rcx", "r11", "memory");
  return result;
}
#endif

}  // namespace

bool ThreadTracer::add(int tid) noexcept {
  if (count_ == kMostThreads) return false;
  targets_[count_++] = Target{tid, State::kAdded, 0};
  return true;
}

// --- in the tracing process -----------------------------------------------------------------

int ThreadTracer::trace(void* self) {
  auto& tracer = *static_cast<ThreadTracer*>(self);
  bare_call(SYS_prctl, PR_SET_NAME, word_of("commensal-trace"));
  // Nobody stays behind, holding the memory of a process that was killed.
  bare_call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
  if (bare_call(SYS_getppid) == tracer.owner_) tracer.serve();
  bare_call(SYS_exit_group, 0);
  return 0;
}

void ThreadTracer::serve() noexcept {
  for (std::uint32_t done = 0;;) {
    while (load(asked_) == done) wait_shared(asked_, done, 0);
    ++done;
    result_ = Result{true, 0, 0};
    if (task_ == Task::kRelease) {
      let_all_go();
      return;
    }
    seize_all();
    if (task_ == Task::kHold && result_.done) wait_for_all();
    store(answered_, done);
    wake_shared(answered_);
  }
}

void ThreadTracer::seize_all() noexcept {
  for (std::uint32_t i = 0; i < count_; ++i) {
    Target& target = targets_[i];
    if (target.state != State::kAdded) continue;
    const long error = -bare_call(SYS_ptrace, PTRACE_SEIZE, target.tid);
    if (error == ESRCH) target.state = State::kGone;
    if (error == ESRCH) continue;
    if (error != 0) {
      result_ = Result{false, target.tid, static_cast<int>(error)};
      return;
    }
    target.state = State::kSeized;
    if (task_ == Task::kHold) bare_call(SYS_ptrace, PTRACE_INTERRUPT, target.tid);
  }
}

void ThreadTracer::wait_for_all() noexcept {
  const timespec pause{0, 50'000};
  for (std::uint32_t i = 0; i < count_;) {
    Target& target = targets_[i];
    int status = 0;
    const long got = target.state == State::kSeized
                         ? bare_call(SYS_wait4, target.tid, word_of(&status), WNOHANG | __WALL)
                         : -ECHILD;
    if (got == 0) {
      if (bare_now() >= limit_) {
        result_ = Result{false, target.tid, 0};
        return;
      }
      bare_call(SYS_nanosleep, word_of(&pause));
      continue;
    }
    if (target.state == State::kSeized) {
      const bool stopped = got > 0 && WIFSTOPPED(status);
      target.state = stopped ? State::kHeld : State::kGone;
      target.signal = stopped && status >> 16 != kEventStop ? WSTOPSIG(status) : 0;
    }
    ++i;
  }
}

// Those that were seized and do not stand yet go on when this process ends.
void ThreadTracer::let_all_go() noexcept {
  for (std::uint32_t i = 0; i < count_; ++i) {
    const Target& target = targets_[i];
    if (target.state != State::kHeld) continue;
    bare_call(SYS_ptrace, PTRACE_DETACH, target.tid, 0, target.signal);
  }
}

// --- in the process whose threads are held --------------------------------------------------

bool ThreadTracer::begin() noexcept {
#if defined(__x86_64__)
  owner_ = static_cast<int>(bare_call(SYS_getpid));
  store(asked_, 0U);
  store(answered_, 0U);
  result_ = Result{};
  const long process = start_sharing(stack_ + sizeof(stack_), trace, this);
  if (process > 0) {
    process_ = static_cast<int>(process);
    return true;
  }
  result_.error = static_cast<int>(-process);
#else
  result_ = Result{false, 0, ENOSYS};
#endif
  return false;
}

ThreadTracer::Result ThreadTracer::ask_once(Task task, std::uint64_t limit) noexcept {
  if (process_ == 0 && !begin()) return result_;
  task_ = task;
  limit_ = limit;
  const std::uint32_t number = load(asked_) + 1;
  store(asked_, number);
  wake_shared(asked_);
  while (load(answered_) != number) {
    wait_shared(answered_, number - 1, kAlive);
    if (load(answered_) == number) break;
    if (bare_call(SYS_wait4, process_, 0, WNOHANG | __WALL) == 0) continue;
    process_ = 0;
    return Result{false, 0, ECHILD};
  }
  return result_;
}

ThreadTracer::Result ThreadTracer::ask(Task task, std::uint64_t limit) noexcept {
  const Result first = ask_once(task, limit);
  if (first.done || first.error != EPERM || process_ == 0) return first;
  // Yama may want to be told who will trace. Without it there is no such call.
  if (bare_call(SYS_prctl, PR_SET_PTRACER, process_) != 0) return first;
  return ask_once(task, limit);
}

ThreadTracer::Result ThreadTracer::hold(std::uint64_t limit) noexcept {
  return ask(Task::kHold, limit);
}

ThreadTracer::Result ThreadTracer::probe(std::uint64_t limit) noexcept {
  const Result result = ask(Task::kProbe, limit);
  release();
  return result;
}

void ThreadTracer::forget(int tid) noexcept {
  for (std::uint32_t i = 0; i < count_; ++i) {
    if (targets_[i].tid == tid) targets_[i].state = State::kGone;
  }
}

void ThreadTracer::release() noexcept {
  if (process_ == 0) return;
  task_ = Task::kRelease;
  store(asked_, load(asked_) + 1);
  wake_shared(asked_);
  while (bare_call(SYS_wait4, process_, 0, __WALL) == -EINTR) {
  }
  process_ = 0;
}

void ThreadTracer::forget_in_child() noexcept { process_ = 0; }

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Stops every thread of this process for a moment, by a signal. Built without sanitizers
// (sources.cmake), with system calls made past the C library's names: a stopped thread may hold a
// sanitizer's locks, and a sanitizer would put the signal off.
#include "allocator/host/thread_stopper.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "allocator/host/own_descriptors.h"
#include "allocator/host/signal_stacks.h"
#include "allocator/memory_source.h"

// Present in programs built with ThreadSanitizer.
extern "C" __attribute__((weak)) void __tsan_init();

#if defined(__x86_64__)
// What a handler returns to; the C library keeps its own to itself.
extern "C" void commensal_signal_return();
asm(R"(
.pushsection .text
.globl commensal_signal_return
.hidden commensal_signal_return
.type commensal_signal_return, @function
commensal_signal_return:
  movq $15, %rax
  syscall
.size commensal_signal_return, .-commensal_signal_return
.popsection
)");
#endif

namespace commensal {
namespace {

constexpr std::uint32_t kMaxThreads = SignalStacks::kMaxThreads;
constexpr std::uint32_t kBuckets = 2 * kMaxThreads;
constexpr std::uint64_t kNanoseconds = 1'000'000'000;
constexpr std::uint64_t kRecheck = 1'000'000;     // look after threads that ended meanwhile
constexpr std::uint64_t kPatience = 20'000'000;   // with a thread that blocks the signal
constexpr std::uint64_t kFallAsleep = 2'000'000;  // others are held meanwhile

enum class Kind : std::uint8_t { kStop, kExempt, kBlocked, kGone };

// On which stack a thread came into the handler.
enum class Found : std::uint8_t { kNothing, kOurs, kItsOwn };

struct Thread {
  int tid;
  Kind kind;
  bool signalled;
  bool raised;  // out of the idle class until it goes on
  std::uint64_t started;
  std::byte* stack;       // put in place by the handler if the thread has none
  std::uint64_t arrived;  // generation in which it came into the handler << 8 | Found
};

// Everything that the handler and the window touch: static, since nothing may be allocated there.
struct State {
  // The gate: odd while it is closed; the number of the generation that waits.
  std::uint32_t gate;
  std::uint32_t wake;      // futex word: changes when enough threads have arrived
  std::uint64_t arrivals;  // generation << 32 | count
  std::uint32_t wanted;
  std::uint32_t turn;  // 1 while somebody stops threads
  std::uint64_t saved_mask;
  int deaf;  // a thread that blocked the signal all through the last look; 0: none
  int busy;  // a thread that ran without an alternate stack all through it; 0: none
  std::uint32_t stacks_wanted;  // 1: a stop was refused for want of an alternate stack
  std::uint64_t links;          // of /proc/self/task when everybody was stopped between ops
  int raised_self;              // the caller's thread, if it was in the idle class; 0: it was not
  bool cannot_raise;            // the kernel refused once
  std::uint64_t raised_since;   // ticks: who starts from then on may inherit the class; 0: nobody
  std::uint64_t ticks;          // of the kernel, a second
  std::size_t stack_size;
  SignalStacks stacks;
  std::uint32_t count;
  Thread threads[kMaxThreads];
  std::uint32_t buckets[kBuckets];  // index + 1 into threads; 0: empty
  alignas(8) char listing[32768];
  char text[4096];
  char reason[192];
};
State g;
ThreadStopper* g_stopper = nullptr;

template <typename T>
T load(const T& word) noexcept {
  return __atomic_load_n(&word, __ATOMIC_SEQ_CST);
}
template <typename T>
void store(T& word, T value) noexcept {
  __atomic_store_n(&word, value, __ATOMIC_SEQ_CST);
}

long futex_wait(std::uint32_t& word, std::uint32_t value, std::uint64_t timeout) noexcept {
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(timeout / kNanoseconds);
  limit.tv_nsec = static_cast<long>(timeout % kNanoseconds);
  return ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, timeout == 0 ? nullptr : &limit,
                   nullptr, 0);
}

void futex_wake(std::uint32_t& word, int count) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

std::uint64_t now() noexcept {
  timespec time{};
  ::syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * kNanoseconds +
         static_cast<std::uint64_t>(time.tv_nsec);
}

// Sees to it that the next signal finds an alternate stack: returning from the handler puts in
// force what the context says.
Found put_stack(void* context, std::byte* stack) noexcept {
  stack_t& own = static_cast<ucontext_t*>(context)->uc_stack;
  if ((own.ss_flags & SS_DISABLE) == 0 && own.ss_size != 0) {
    return own.ss_sp == stack ? Found::kOurs : Found::kItsOwn;
  }
  if (stack == nullptr) return Found::kNothing;
  own.ss_sp = stack;
  own.ss_size = g.stack_size;
  own.ss_flags = 0;
  return Found::kOurs;
}

// Runs on the thread to be stopped, wherever it was.
void wait_in_handler(int, siginfo_t* info, void* context) {
  if (info->si_code != SI_QUEUE) return;
  const int saved_errno = errno;
  const auto value =
      static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(info->si_value.sival_ptr));
  const auto generation = static_cast<std::uint32_t>(value >> 32U);
  const auto index = static_cast<std::uint32_t>(value);
  std::byte* const stack = index < kMaxThreads ? load(g.threads[index].stack) : nullptr;
  // The gate comes after the stack: a stack of a generation that is over may be another thread's.
  if (load(g.gate) == generation && index < kMaxThreads) {
    const Found found = put_stack(context, stack);
    store(g.threads[index].arrived,
          std::uint64_t{generation} << 8U | static_cast<std::uint64_t>(found));
    std::uint64_t seen = load(g.arrivals);
    // A signal of a generation that is over counts for nobody.
    while (static_cast<std::uint32_t>(seen >> 32U) == generation &&
           !__atomic_compare_exchange_n(&g.arrivals, &seen, seen + 1, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
    }
    if (static_cast<std::uint32_t>(seen) + 1 >= load(g.wanted)) {
      __atomic_fetch_add(&g.wake, 1U, __ATOMIC_SEQ_CST);
      futex_wake(g.wake, 1);
    }
    while (load(g.gate) == generation) futex_wait(g.gate, generation, 0);
  }
  errno = saved_errno;
}

struct KernelSigaction {
  void (*handler)(int, siginfo_t*, void*);
  unsigned long flags;
  void (*restorer)();
  std::uint64_t mask;
};

long kernel_sigaction(int signal, const KernelSigaction* set, KernelSigaction* old) noexcept {
  return ::syscall(SYS_rt_sigaction, signal, set, old, sizeof(std::uint64_t));
}

// Takes a signal nobody handles, from the top: few programs start there.
int install_handler() {
  g.stack_size = SignalStacks::size();
  g.ticks = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  for (int signal = SIGRTMAX - 2; signal >= SIGRTMIN; --signal) {
    KernelSigaction old{};
    if (kernel_sigaction(signal, nullptr, &old) != 0 || old.handler != nullptr) continue;
    KernelSigaction mine{};
    mine.handler = wait_in_handler;
    mine.flags = SA_RESTART | SA_SIGINFO | SA_ONSTACK;
#if defined(__x86_64__)
    mine.flags |= 0x04000000;  // SA_RESTORER
    mine.restorer = commensal_signal_return;
#endif
    mine.mask = ~std::uint64_t{0};  // no other handler runs while its thread is held
    if (kernel_sigaction(signal, &mine, nullptr) == 0) return signal;
  }
  throw SourceError("no free real-time signal to stop threads with");
}

// Puts words together without any library.
class Reason {
 public:
  Reason() noexcept { g.reason[0] = 0; }
  Reason& add(const char* text) noexcept {
    for (; *text != 0 && used_ + 1 < sizeof(g.reason); ++text) g.reason[used_++] = *text;
    g.reason[used_] = 0;
    return *this;
  }
  Reason& add(std::uint64_t number) noexcept {
    char digits[24] = {};
    std::size_t at = sizeof(digits) - 1;
    do {
      digits[--at] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    return add(digits + at);
  }
  [[nodiscard]] const char* text() const noexcept { return g.reason; }

 private:
  std::size_t used_ = 0;
};

// The C library's string functions are intercepted by sanitizers, so here are the few needed.
bool starts_with(const char* text, std::size_t length, const char* prefix) noexcept {
  for (std::size_t i = 0; prefix[i] != 0; ++i) {
    if (i >= length || text[i] != prefix[i]) return false;
  }
  return true;
}

// Reads a file of /proc/self/task/TID into g.text. False: the thread is gone.
bool read_about(int tid, const char* file) noexcept {
  char path[64] = "/proc/self/task/";
  std::size_t at = 16;
  char digits[12] = {};
  std::size_t first = sizeof(digits) - 1;
  for (int rest = tid; rest != 0; rest /= 10) digits[--first] = static_cast<char>('0' + rest % 10);
  for (const char* p = digits + first; *p != 0; ++p) path[at++] = *p;
  for (const char* p = file; *p != 0; ++p) path[at++] = *p;
  const long got = own_descriptors::quick([&]() noexcept -> long {
    const long fd = ::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fd;
    const long length = ::syscall(SYS_read, fd, g.text, sizeof(g.text) - 1);
    ::syscall(SYS_close, fd);
    return length;
  });
  if (got <= 0) return false;
  g.text[got] = 0;
  return true;
}
bool read_status(int tid) noexcept { return read_about(tid, "/status"); }

// When a thread started, in the kernel's ticks, and what it does now. False: it is gone.
bool read_start(int tid, std::uint64_t& started, char& state) noexcept {
  if (!read_about(tid, "/stat")) return false;
  const char* at = g.text;
  for (const char* p = g.text; *p != 0; ++p) {
    if (*p == ')') at = p;  // the name may hold any sign
  }
  if (at[0] == 0 || at[1] == 0) return false;
  at += 2;
  state = *at;
  constexpr int kFieldsBetween = 19;  // from the state, the third, to the start, the 22nd
  for (int field = 0; *at != 0 && field < kFieldsBetween; ++at) field += *at == ' ' ? 1 : 0;
  started = 0;
  for (; *at >= '0' && *at <= '9'; ++at) {
    started = started * 10 + static_cast<std::uint64_t>(*at - '0');
  }
  return true;
}

// Returns what follows `key` in g.text; empty if it is not there.
const char* field(const char* key) noexcept {
  std::size_t length = 0;
  while (key[length] != 0) ++length;
  for (const char* line = g.text; *line != 0; ++line) {
    if (starts_with(line, SIZE_MAX, key)) return line + length;
    while (*line != 0 && *line != '\n') ++line;
    if (*line == 0) break;
  }
  return "";
}

// Copies a thread's name out of g.text.
struct Name {
  char text[32] = {};
  std::size_t length = 0;
};
Name name_in_status() noexcept {
  Name name;
  for (const char* p = field("Name:\t"); *p != 0 && *p != '\n' && name.length + 1 < 32; ++p) {
    name.text[name.length++] = *p;
  }
  return name;
}

bool exempt_name(const char* text, std::size_t length) noexcept {
  if (starts_with(text, length, "ZMQbg/")) return true;
  constexpr std::size_t kOwn = 9;  // of "commensal"
  if (!starts_with(text, length, "commensal") || length < kOwn + 2) return false;
  // A process's first thread bears the program's name, which may be just "commensal".
  for (const char* p = "-/:_."; *p != 0; ++p) {
    if (text[kOwn] == *p) return true;
  }
  return false;
}

// `position` in the list of threads, the oldest first. `asleep`: it waits in a system call, which
// generated code does not make; a thread in a page fault is not asleep.
Kind classify(Thread& thread, std::uint32_t position, int signal, bool& asleep) noexcept {
  char doing = 0;
  asleep = false;
  if (!read_start(thread.tid, thread.started, doing)) return Kind::kGone;
  asleep = doing == 'S';
  if (!read_status(thread.tid)) return Kind::kGone;
  const char state = *field("State:\t");
  if (state == 'Z' || state == 'X') return Kind::kGone;
  const Name name = name_in_status();
  if (exempt_name(name.text, name.length)) return Kind::kExempt;
  std::uint64_t blocked = 0;
  for (const char* p = field("SigBlk:\t"); *p != 0 && *p != '\n'; ++p) {
    const char digit = *p;
    const int value = digit <= '9' ? digit - '0' : digit - 'a' + 10;
    blocked = blocked << 4U | static_cast<std::uint64_t>(value);
  }
  if ((blocked >> static_cast<unsigned>(signal - 1) & 1U) == 0) return Kind::kStop;
  // ThreadSanitizer's own thread is started just before the program's first one.
  if (position == 1 && &__tsan_init != nullptr) return Kind::kExempt;
  return Kind::kBlocked;
}

// In the unit of `Thread::started`.
std::uint64_t ticks_now() noexcept {
  timespec time{};
  ::syscall(SYS_clock_gettime, CLOCK_BOOTTIME, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * g.ticks +
         static_cast<std::uint64_t>(time.tv_nsec) * g.ticks / kNanoseconds;
}

// Finds a thread, or the place for it. Null: the table is full.
Thread* find(int tid, bool& is_new) noexcept {
  std::uint32_t at = static_cast<std::uint32_t>(tid) * 2654435761U % kBuckets;
  while (g.buckets[at] != 0) {
    Thread& thread = g.threads[g.buckets[at] - 1];
    if (thread.tid == tid) {
      is_new = false;
      return &thread;
    }
    at = (at + 1) % kBuckets;
  }
  if (g.count == kMaxThreads) return nullptr;
  is_new = true;
  Thread& thread = g.threads[g.count];
  thread.tid = tid;
  thread.kind = Kind::kStop;
  thread.signalled = false;
  thread.raised = false;
  thread.started = 0;
  store(thread.stack, static_cast<std::byte*>(nullptr));
  g.buckets[at] = ++g.count;
  return &thread;
}

// Forgets all but that some are raised.
void forget_threads() noexcept {
  const std::uint32_t count = g.count;
  g.count = 0;
  for (std::uint32_t& bucket : g.buckets) bucket = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!g.threads[i].raised) continue;
    bool is_new = false;
    find(g.threads[i].tid, is_new)->raised = true;
  }
}

// A thread in the idle class comes to its handler only when nobody else wants the processor: beside
// a busy neighbour after seconds, while all others wait. It leaves the class until it goes on. The
// kernel lets an ordinary user do so only where RLIMIT_NICE allows it.
bool raise(int tid) noexcept {
  if (g.cannot_raise) return false;
  const long policy = ::syscall(SYS_sched_getscheduler, tid);
  if (policy != SCHED_IDLE) return false;
  if (g.raised_since == 0) g.raised_since = ticks_now();
  const sched_param normal{};
  if (::syscall(SYS_sched_setscheduler, tid, SCHED_OTHER, &normal) == 0) return true;
  g.cannot_raise = errno == EPERM;
  return false;
}

void lower(int tid) noexcept {
  const sched_param normal{};
  ::syscall(SYS_sched_setscheduler, tid, SCHED_IDLE, &normal);
}

// Tells whether a thread inherited the usual class from one that was raised.
bool inherited(const Thread& thread) noexcept {
  return thread.kind == Kind::kStop && thread.started >= g.raised_since &&
         ::syscall(SYS_sched_getscheduler, thread.tid) == SCHED_OTHER;
}

// Puts all back that were raised, and those that they started, before they go on. `all_held`: no
// thread can be missing; else one that is being started just now is put back at the next stop.
void lower_all(bool all_held) noexcept {
  bool any = g.raised_self != 0;
  for (std::uint32_t i = 0; i < g.count; ++i) any = any || g.threads[i].raised;
  for (std::uint32_t i = 0; any && i < g.count; ++i) {
    Thread& thread = g.threads[i];
    if (thread.raised ? thread.kind != Kind::kGone : inherited(thread)) lower(thread.tid);
    thread.raised = false;
  }
  if (g.raised_self != 0) lower(g.raised_self);
  g.raised_self = 0;
  if (all_held) g.raised_since = 0;
}

struct DirectoryEntry {
  std::uint64_t inode;
  std::int64_t offset;
  std::uint16_t length;
  std::uint8_t type;
  char name[1];
};

// Calls `visit(tid, position)` for every thread; false ends it. `complete`: the kernel's count of
// threads says that the list, which threads may leave while it is read, missed nobody.
template <typename Visit>
bool list_threads(bool& complete, std::uint64_t& links, Visit&& visit) noexcept {
  const long fd = own_descriptors::call(SYS_openat, AT_FDCWD, "/proc/self/task",
                                        O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    Reason().add("/proc/self/task cannot be read");
    return false;
  }
  std::uint32_t position = 0;
  bool going_on = true;
  long got = 0;
  while (going_on &&
         (got = own_descriptors::call(SYS_getdents64, fd, g.listing, sizeof(g.listing))) > 0) {
    for (long at = 0; going_on && at < got;) {
      const char* raw = g.listing + at;
      at += reinterpret_cast<const DirectoryEntry*>(raw)->length;
      int tid = 0;
      for (const char* p = raw + offsetof(DirectoryEntry, name); *p >= '0' && *p <= '9'; ++p) {
        tid = tid * 10 + (*p - '0');
      }
      if (tid != 0) going_on = visit(tid, position++);
    }
  }
  struct stat status {};
  const long checked = own_descriptors::call(SYS_fstat, fd, &status);
  links = checked == 0 ? status.st_nlink : 0;
  complete = links == position + 2;
  (void)own_descriptors::call(SYS_close, fd);
  return going_on && got >= 0;
}

const char* too_many() noexcept {
  return Reason().add("more than ").add(kMaxThreads).add(" threads").text();
}

const char* cannot_stop(const Thread& thread, const char* why) noexcept {
  const bool known = read_status(thread.tid);
  const Name name = known ? name_in_status() : Name{};
  return Reason()
      .add("thread ")
      .add(static_cast<std::uint64_t>(thread.tid))
      .add(" (")
      .add(name.text)
      .add(") ")
      .add(why)
      .text();
}

const char* no_stack(const Thread& thread) noexcept {
  store(g.stacks_wanted, 1U);
  return cannot_stop(thread, "runs and has no alternate signal stack yet");
}

// Makes the table from which threads are read about; a forked child has none at first.
bool have_descriptors() noexcept {
  try {
    own_descriptors::begin();
    return true;
  } catch (const std::exception&) {
    Reason().add("no thread can be started to read /proc/self/task with");
    return false;
  }
}

// While all threads run: finds out whom to signal. False: g.reason says who cannot be stopped.
bool look_first(int self, int signal, StopPoint where, std::uint64_t patience) noexcept {
  if (!have_descriptors()) return false;
  const std::uint64_t limit = now() + patience;
  while (true) {
    forget_threads();
    g.stacks.begin_look();
    const Thread* blocked = nullptr;
    const Thread* busy = nullptr;
    bool complete = false;
    std::uint64_t links = 0;
    const bool listed = list_threads(complete, links, [&](int tid, std::uint32_t position) {
      if (tid == self) {
        std::uint64_t started = 0;
        char doing = 0;
        if (read_start(self, started, doing)) g.stacks.meet(self, started);
        return true;
      }
      bool is_new = false;
      Thread* thread = find(tid, is_new);
      if (thread == nullptr) {
        too_many();
        return false;
      }
      bool asleep = false;
      thread->kind = classify(*thread, position, signal, asleep);
      if (thread->kind == Kind::kBlocked) {
        blocked = thread;
        // It may be on its way out of the handler still.
        thread->raised = thread->raised || raise(tid);
      }
      if (thread->kind == Kind::kGone || thread->kind == Kind::kExempt) return true;
      const SignalStackOwner* owner = g.stacks.meet(tid, thread->started);
      if (owner == nullptr) {
        too_many();
        return false;
      }
      if (where == StopPoint::kAnywhere && !owner->ready && !asleep) busy = thread;
      return true;
    });
    if (!listed) return false;
    if (complete) g.stacks.end_look();
    if (blocked == nullptr) g.deaf = 0;
    if (busy == nullptr) g.busy = 0;
    if (blocked == nullptr && busy == nullptr) return true;
    if (blocked == nullptr && (busy->tid == g.busy || now() >= limit)) {
      g.busy = busy->tid;
      no_stack(*busy);
      return false;
    }
    // A thread that starts, or starts another one or a process, blocks signals for a moment. One
    // that was waited for in vain before is not waited for again.
    if (blocked != nullptr && (blocked->tid == g.deaf || now() >= limit)) {
      g.deaf = blocked->tid;
      cannot_stop(*blocked, "blocks the signal that stops threads");
      return false;
    }
    const timespec pause{0, 200'000};
    ::syscall(SYS_nanosleep, &pause, nullptr);
  }
}

// Queues the signal with generation and index. Returns false if the thread is gone.
bool send(Thread& thread, int process, int signal, std::uint32_t generation, long& error) noexcept {
  siginfo_t info{};
  info.si_signo = signal;
  info.si_code = SI_QUEUE;
  info.si_pid = process;
  info.si_uid = static_cast<uid_t>(::syscall(SYS_getuid));
  const auto index = static_cast<std::uint64_t>(&thread - g.threads);
  info.si_value.sival_ptr = reinterpret_cast<void*>(
      static_cast<std::uintptr_t>(static_cast<std::uint64_t>(generation) << 32U | index));
  error = 0;
  if (::syscall(SYS_rt_tgsigqueueinfo, process, thread.tid, signal, &info) == 0) return true;
  if (errno != ESRCH) error = errno;
  return false;
}

// Waits until a thread sleeps in a system call, now that those are held who may wake it.
bool falls_asleep(const Thread& thread) noexcept {
  const std::uint64_t limit = now() + kFallAsleep;
  std::uint64_t started = 0;
  char doing = 0;
  while (read_start(thread.tid, started, doing) && doing != 'Z' && doing != 'X') {
    if (doing == 'S') return true;
    if (now() >= limit) return false;
    const timespec pause{0, 100'000};
    ::syscall(SYS_nanosleep, &pause, nullptr);
  }
  return true;  // gone
}

// What a pass over the threads found.
struct Pass {
  bool grew = true;        // the list is not final
  bool left_some = false;  // threads without an alternate stack are not signalled yet
  std::uint64_t links = 0;
};

// Signals all threads that were not yet; `ready_only`: those alone that have an alternate stack.
// False: g.reason says why.
bool signal_threads(int self, int process, int signal, std::uint32_t generation, StopPoint where,
                    bool ready_only, Pass& pass) noexcept {
  bool complete = false;
  bool& grew = pass.grew;
  grew = pass.left_some = false;
  const bool listed = list_threads(complete, pass.links, [&](int tid, std::uint32_t position) {
    if (tid == self) return true;
    bool is_new = false;
    Thread* thread = find(tid, is_new);
    if (thread == nullptr) {
      too_many();
      return false;
    }
    if (is_new) {
      grew = true;
      bool asleep = false;
      thread->kind = classify(*thread, position, signal, asleep);
      if (thread->kind == Kind::kBlocked) {
        cannot_stop(*thread, "blocks the signal that stops threads");
        return false;
      }
    }
    if (thread->kind != Kind::kStop || thread->signalled) return true;
    SignalStackOwner* owner = g.stacks.meet(tid, thread->started);
    if (owner == nullptr) {
      too_many();
      return false;
    }
    if (!owner->ready) {
      if (ready_only) {
        pass.left_some = true;
        return true;
      }
      if (where == StopPoint::kAnywhere && !falls_asleep(*thread)) {
        no_stack(*thread);
        return false;
      }
      // Without memory for a stack it is stopped all the same, and stays as it is.
      static_cast<void>(g.stacks.provide(*owner));
    }
    store(thread->stack, owner->stack);
    grew = true;
    thread->signalled = true;
    thread->raised = thread->raised || raise(tid);
    long error = 0;
    store(g.wanted, g.wanted + 1);
    if (send(*thread, process, signal, generation, error)) return true;
    store(g.wanted, g.wanted - 1);
    thread->kind = Kind::kGone;
    if (error != 0) {
      Reason()
          .add("signal to thread ")
          .add(static_cast<std::uint64_t>(thread->tid))
          .add(": errno ")
          .add(static_cast<std::uint64_t>(error));
      return false;
    }
    return true;
  });
  if (listed && !complete) grew = true;
  return listed;
}

// Returns a thread that was signalled and is neither in the handler nor gone; null: none.
const Thread* straggler(std::uint32_t generation) noexcept {
  const Thread* late = nullptr;
  for (std::uint32_t i = 0; i < g.count; ++i) {
    Thread& thread = g.threads[i];
    if (!thread.signalled || thread.kind != Kind::kStop ||
        load(thread.arrived) >> 8U == generation) {
      continue;
    }
    const bool here = read_status(thread.tid);
    const char state = here ? *field("State:\t") : 'X';
    if (state == 'Z' || state == 'X') {
      thread.kind = Kind::kGone;
      store(g.wanted, g.wanted - 1);
    } else {
      late = &thread;
    }
  }
  return late;
}

bool wait_for_arrivals(std::uint32_t generation, std::uint64_t limit) noexcept {
  while (true) {
    const std::uint32_t seen = load(g.wake);
    if (static_cast<std::uint32_t>(load(g.arrivals)) >= load(g.wanted)) return true;
    const std::uint64_t time = now();
    if (time >= limit) {
      const Thread* late = straggler(generation);
      if (late == nullptr) continue;  // the last one has just come or gone
      cannot_stop(*late, "did not stop in time");
      return false;
    }
    const std::uint64_t left = limit - time;
    if (futex_wait(g.wake, seen, left < kRecheck ? left : kRecheck) != 0 && errno == ETIMEDOUT) {
      straggler(generation);
    }
  }
}

bool take_turn(std::uint64_t limit) noexcept {
  std::uint32_t free = 0;
  while (
      !__atomic_compare_exchange_n(&g.turn, &free, 1U, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    free = 0;
    if (now() >= limit) return false;
    const timespec pause{0, 100'000};
    ::syscall(SYS_nanosleep, &pause, nullptr);
  }
  return true;
}

void give_turn() noexcept { store(g.turn, 0U); }

void set_mask(std::uint64_t mask, std::uint64_t* old) noexcept {
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, old, sizeof(mask));
}

// Remembers who has an alternate stack, before those that are held go on.
void note_stacks(std::uint32_t generation) noexcept {
  for (std::uint32_t i = 0; i < g.count; ++i) {
    Thread& thread = g.threads[i];
    const std::uint64_t arrived = load(thread.arrived);
    if (!thread.signalled || thread.kind != Kind::kStop || arrived >> 8U != generation) continue;
    SignalStackOwner* owner = g.stacks.meet(thread.tid, thread.started);
    if (owner == nullptr) continue;
    switch (static_cast<Found>(arrived & 0xFFU)) {
      case Found::kOurs: g.stacks.note_given(*owner); break;
      case Found::kItsOwn: g.stacks.note_own(*owner); break;
      case Found::kNothing: owner->ready = false; break;
    }
  }
}

// The caller needs one against the stops of other threads.
void give_self(int self) noexcept {
  char name[16] = {};
  std::size_t length = 0;
  ::syscall(SYS_prctl, PR_GET_NAME, name, 0L, 0L, 0L);
  while (length < sizeof(name) && name[length] != 0) ++length;
  std::uint64_t started = 0;
  char doing = 0;
  if (exempt_name(name, length) || !read_start(self, started, doing)) return;
  SignalStackOwner* owner = g.stacks.meet(self, started);
  stack_t now_set{};
  if (owner == nullptr || owner->ready || ::syscall(SYS_sigaltstack, nullptr, &now_set) != 0) {
    return;
  }
  if ((now_set.ss_flags & SS_DISABLE) == 0) {
    g.stacks.note_own(*owner);
    return;
  }
  if (!g.stacks.provide(*owner)) return;
  stack_t mine{};
  mine.ss_sp = owner->stack;
  mine.ss_size = g.stack_size;
  if (::syscall(SYS_sigaltstack, &mine, nullptr) == 0) g.stacks.note_given(*owner);
}

std::uint64_t links_now() noexcept {
  struct stat status {};
  const long got = ::syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &status, 0);
  return got == 0 ? status.st_nlink : 0;
}

void open_gate() noexcept {
  store(g.gate, g.gate + 1);
  futex_wake(g.gate, INT32_MAX);
}

void let_go(bool all_held) noexcept {
  lower_all(all_held);
  open_gate();
  const std::uint64_t mask = g.saved_mask;
  give_turn();
  set_mask(mask, nullptr);
}

}  // namespace

bool need_not_stop(std::string_view thread_name) noexcept {
  return exempt_name(thread_name.data(), thread_name.size());
}

ThreadStopper::ThreadStopper() : signal_(install_handler()) {
  __atomic_store_n(&g_stopper, this, __ATOMIC_RELEASE);
}

ThreadStopper& ThreadStopper::instance() {
  static ThreadStopper stopper;
  return stopper;
}

ThreadStopper* ThreadStopper::existing() noexcept {
  return __atomic_load_n(&g_stopper, __ATOMIC_ACQUIRE);
}

ThreadStopper::Result ThreadStopper::stop(Duration deadline, StopPoint where) noexcept {
  const std::uint64_t limit = now() + static_cast<std::uint64_t>(deadline.count());
  if (!take_turn(limit))
    return Result{false, "another thread stops the threads of this process", {}};
  const int self = static_cast<int>(::syscall(SYS_gettid));
  const int process = static_cast<int>(::syscall(SYS_getpid));
  if (!look_first(self, signal_, where, static_cast<std::uint64_t>(deadline.count()) / 2)) {
    lower_all(false);
    give_turn();
    return Result{false, g.reason, {}};
  }
  give_self(self);

  set_mask(~std::uint64_t{0}, &g.saved_mask);
  g.raised_self = raise(self) ? self : 0;
  const std::uint64_t begin = now();
  const std::uint32_t generation = load(g.gate) + 1;
  store(g.wanted, 0U);
  store(g.arrivals, static_cast<std::uint64_t>(generation) << 32U);
  store(g.gate, generation);
  // A thread that has arrived starts no other: when all have, and no new one shows, all are held.
  // Those that may wake a sleeping thread to run a kernel have an alternate stack or sleep too.
  bool ready_only = where == StopPoint::kAnywhere;
  Pass pass;
  while (pass.grew) {
    if (!signal_threads(self, process, signal_, generation, where, ready_only, pass) ||
        !wait_for_arrivals(generation, limit)) {
      note_stacks(generation);
      let_go(false);
      return Result{false, g.reason, {}};
    }
    if (!pass.grew && ready_only) {
      ready_only = false;
      pass.grew = pass.left_some;
    }
    if (pass.grew && now() >= limit) {
      note_stacks(generation);
      let_go(false);
      return Result{
          false, Reason().add("threads start faster than they can be stopped").text(), {}};
    }
  }
  note_stacks(generation);
  if (where == StopPoint::kBetweenOps) {
    store(g.stacks_wanted, 0U);
    store(g.links, pass.links);
  }
  return Result{true, "", Duration{static_cast<Duration::rep>(now() - begin)}};
}

void ThreadStopper::resume() noexcept { let_go(true); }

bool ThreadStopper::stacks_wanted() const noexcept {
  return __atomic_load_n(&g.stacks_wanted, __ATOMIC_RELAXED) != 0;
}

bool ThreadStopper::threads_changed() const noexcept { return links_now() != load(g.links); }

ThreadStopper::Result ThreadStopper::give_stacks(Duration deadline) noexcept {
  const Result result = stop(deadline, StopPoint::kBetweenOps);
  if (result.stopped) resume();
  return result;
}

std::uint32_t ThreadStopper::unused_stacks() noexcept {
  const NoStops none;
  return g.stacks.unused();
}

ThreadStopper::NoStops::NoStops() noexcept { take_turn(UINT64_MAX); }
ThreadStopper::NoStops::~NoStops() { give_turn(); }

std::string ThreadStopper::obstacle(StopPoint where) {
  if (!take_turn(now() + kNanoseconds)) return "another thread stops the threads of this process";
  const bool none = look_first(static_cast<int>(::syscall(SYS_gettid)), signal_, where, kPatience);
  char text[sizeof(g.reason)];
  for (std::size_t i = 0; i < sizeof(text); ++i) text[i] = g.reason[i];
  lower_all(false);
  give_turn();
  return none ? std::string() : std::string(text);
}

void ThreadStopper::forget_in_child() noexcept {
  if ((load(g.gate) & 1U) != 0) open_gate();
  g.stacks.forget_in_child();
  give_turn();
}

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Stops every thread of this process for a moment, by a signal. Built without sanitizers
// (sources.cmake), with system calls made past the C library's names: a stopped thread may hold a
// sanitizer's locks, and a sanitizer would put the signal off.
#include "allocator/host/thread_stopper.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "allocator/host/bare_calls.h"
#include "allocator/host/own_descriptors.h"
#include "allocator/host/own_threads.h"
#include "allocator/host/signal_stacks.h"
#include "allocator/host/thread_tracer.h"
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
constexpr std::uint64_t kRecheck = 1'000'000;     // look after threads that ended meanwhile
constexpr std::uint64_t kProbe = 200'000'000;     // for an answer of the tracing process
constexpr std::uint64_t kPatience = 20'000'000;   // with a thread that blocks the signal
constexpr std::uint64_t kFallAsleep = 2'000'000;  // others are held meanwhile

enum class Kind : std::uint8_t { kStop, kExempt, kBlocked, kGone };

// On which stack a thread came into the handler.
enum class Found : std::uint8_t { kNothing, kOurs, kItsOwn };

struct Thread {
  int tid;     // in /proc
  int number;  // in this process's namespace, for system calls; another one where /proc is a host's
  Kind kind;
  bool signalled;  // or handed to the tracer
  bool raised;     // out of the idle class until it goes on
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
  int deaf;        // a thread that blocked the signal all through the last look; 0: none
  bool may_trace;  // such a thread could be traced when that was tried last
  int busy;        // a thread that ran without an alternate stack all through it; 0: none
  std::uint32_t stacks_wanted;  // 1: a stop was refused for want of an alternate stack
  std::uint64_t links;          // of /proc/self/task when everybody was stopped between ops
  bool raised_self;             // the caller was in the idle class
  bool cannot_raise;            // the kernel refused once
  std::uint64_t raised_since;   // ticks: who starts from then on may inherit the class; 0: nobody
  std::uint64_t ticks;          // of the kernel, a second
  std::size_t stack_size;
  SignalStacks stacks;
  ThreadTracer tracer;
  std::uint32_t count;
  Thread threads[kMaxThreads];
  std::uint32_t buckets[kBuckets];  // index + 1 into threads; 0: empty
  alignas(8) char listing[32768];
  char text[4096];
  char reason[192];
};
State g;
ThreadStopper* g_stopper = nullptr;

long futex_wait(std::uint32_t& word, std::uint32_t value, std::uint64_t timeout) noexcept {
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(timeout / kNanosecondsASecond);
  limit.tv_nsec = static_cast<long>(timeout % kNanosecondsASecond);
  return ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, timeout == 0 ? nullptr : &limit,
                   nullptr, 0);
}

void futex_wake(std::uint32_t& word, int count) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
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
    const std::uint64_t before = __atomic_exchange_n(
        &g.threads[index].arrived,
        std::uint64_t{generation} << 8U | static_cast<std::uint64_t>(found), __ATOMIC_SEQ_CST);
    // A second signal counts for nobody, even where the handler was put back without its mask.
    const bool first = before >> 8U != generation;
    std::uint64_t seen = load(g.arrivals);
    // Nor does one of a generation that is over.
    while (first && static_cast<std::uint32_t>(seen >> 32U) == generation &&
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

KernelSigaction g_installed{};  // as the kernel tells it
int g_signal = 0;

// Takes a signal nobody handles, and that does nothing to a program without a handler: whoever
// resets handlers does it at any time, also just before one of our signals comes.
int install_handler() {
  g.stack_size = SignalStacks::size();
  g.ticks = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  for (const int signal : {SIGURG, SIGWINCH}) {
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
    if (kernel_sigaction(signal, &mine, nullptr) == 0 &&
        kernel_sigaction(signal, nullptr, &g_installed) == 0) {
      g_signal = signal;
      return signal;
    }
  }
  throw SourceError("no free signal to stop threads with: the program handles SIGURG and SIGWINCH");
}

// Tells whether the handler is still the one that was installed, in each respect: a program that
// puts back what it found may forget the flags.
bool handler_stands() noexcept {
  KernelSigaction now{};
  return kernel_sigaction(g_signal, nullptr, &now) == 0 && now.handler == g_installed.handler &&
         now.flags == g_installed.flags && now.mask == g_installed.mask;
}

// Puts words together without any library.
class Reason {
 public:
  enum GoOn { kGoOn };
  Reason() noexcept { g.reason[0] = 0; }
  explicit Reason(GoOn) noexcept {  // behind what is there
    while (used_ + 1 < sizeof(g.reason) && g.reason[used_] != 0) ++used_;
  }
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

// Returns what the kernel calls a thread in its innermost namespace; where it does not tell, that
// is what /proc calls it.
int number_in_status(int tid) noexcept {
  int number = 0;
  for (const char* p = field("NSpid:\t"); *p != 0 && *p != '\n'; ++p) {
    number = *p >= '0' && *p <= '9' ? number * 10 + (*p - '0') : 0;
  }
  return number == 0 ? tid : number;
}

// Returns what /proc calls the calling thread.
int self_in_proc() noexcept {
  char path[64] = {};  // PID/task/TID
  const long length =
      ::syscall(SYS_readlinkat, AT_FDCWD, "/proc/thread-self", path, sizeof(path) - 1);
  int tid = 0;
  for (long i = 0; i < length; ++i) {
    tid = path[i] >= '0' && path[i] <= '9' ? tid * 10 + (path[i] - '0') : 0;
  }
  return tid == 0 ? static_cast<int>(::syscall(SYS_gettid)) : tid;
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
  thread.number = number_in_status(thread.tid);
  if (is_own_thread(thread.number)) return Kind::kExempt;
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
         static_cast<std::uint64_t>(time.tv_nsec) * g.ticks / kNanosecondsASecond;
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
  thread.number = tid;
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
    const Thread was = g.threads[i];
    if (!was.raised) continue;
    bool is_new = false;
    Thread* const thread = find(was.tid, is_new);
    thread->number = was.number;
    thread->raised = true;
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
  return (thread.kind == Kind::kStop || thread.kind == Kind::kBlocked) &&
         thread.started >= g.raised_since &&
         ::syscall(SYS_sched_getscheduler, thread.number) == SCHED_OTHER;
}

// Puts all back that were raised, and those that they started, before they go on. `all_held`: no
// thread can be missing; else one that is being started just now is put back at the next stop.
void lower_all(bool all_held) noexcept {
  bool any = g.raised_self;
  for (std::uint32_t i = 0; i < g.count; ++i) any = any || g.threads[i].raised;
  for (std::uint32_t i = 0; any && i < g.count; ++i) {
    Thread& thread = g.threads[i];
    if (thread.raised ? thread.kind != Kind::kGone : inherited(thread)) lower(thread.number);
    thread.raised = false;
  }
  if (g.raised_self) lower(0);
  g.raised_self = false;
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

void set_mask(std::uint64_t mask, std::uint64_t* old) noexcept {
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, old, sizeof(mask));
}

// Returns the thread that could not be traced; null: none is at fault.
Thread* untraced(const ThreadTracer::Result& result) noexcept {
  for (std::uint32_t i = 0; i < g.count && result.tid != 0; ++i) {
    if (g.threads[i].number == result.tid) return &g.threads[i];
  }
  return nullptr;
}

// Tells whether the thread that could not be traced had just ended, and takes it off the list.
bool has_ended(const ThreadTracer::Result& result) noexcept {
  Thread* const thread = untraced(result);
  std::uint64_t started = 0;
  char doing = 0;
  if (thread == nullptr) return false;
  if (read_start(thread->tid, started, doing) && doing != 'Z' && doing != 'X') return false;
  thread->kind = Kind::kGone;
  g.tracer.forget(result.tid);
  return true;
}

// Says what became of tracing.
const char* cannot_trace(const ThreadTracer::Result& result) noexcept {
  const Thread* const thread = untraced(result);
  if (thread != nullptr && result.error == 0) return cannot_stop(*thread, "did not stop in time");
  if (thread == nullptr) {
    Reason().add("threads that block the signal that stops threads cannot be traced: errno ");
  } else {
    cannot_stop(*thread, "blocks the signal that stops threads and cannot be traced: errno ");
  }
  return Reason(Reason::kGoOn).add(static_cast<std::uint64_t>(result.error)).text();
}

// Hands all threads that block the signal to the tracer; they are held when this returns true.
// Those that are added later are held by the next call.
bool hold_blocked(std::uint64_t limit) noexcept {
  bool any = false;
  for (std::uint32_t i = 0; i < g.count; ++i) {
    Thread& thread = g.threads[i];
    if (thread.kind != Kind::kBlocked || thread.signalled) continue;
    if (!g.tracer.add(thread.number)) {
      Reason().add("more than ").add(ThreadTracer::kMostThreads).add(" threads that block signals");
      return false;
    }
    any = thread.signalled = true;
  }
  if (!any) return true;
  ThreadTracer::Result result;
  do {
    result = g.tracer.hold(limit);
  } while (!result.done && has_ended(result));
  g.may_trace = result.done || result.error == 0;
  if (!result.done) cannot_trace(result);
  return result.done;
}

// Finds out whether threads that block the signal can be traced. False: g.reason says why not.
bool may_trace_blocked() noexcept {
  if (g.may_trace) return true;
  g.tracer.clear();
  for (std::uint32_t i = 0; i < g.count; ++i) {
    if (g.threads[i].kind == Kind::kBlocked) (void)g.tracer.add(g.threads[i].number);
  }
  std::uint64_t mask = 0;
  set_mask(~std::uint64_t{0}, &mask);  // that of the tracing process
  ThreadTracer::Result result;
  do {
    result = g.tracer.probe(bare_now() + kProbe);
  } while (!result.done && has_ended(result));
  set_mask(mask, nullptr);
  g.may_trace = result.done;
  if (!result.done) cannot_trace(result);
  return result.done;
}

const char* handler_gone() noexcept {
  return Reason()
      .add("the program has changed the handler of signal ")
      .add(static_cast<std::uint64_t>(g_signal))
      .add(", which stops threads")
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

// While all threads run: finds out whom to signal, and whom to trace. False: g.reason says who
// cannot be stopped.
bool look_first(int self, int signal, StopPoint where, std::uint64_t patience) noexcept {
  if (!have_descriptors()) return false;
  if (!handler_stands()) {
    handler_gone();
    return false;
  }
  const std::uint64_t limit = bare_now() + patience;
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
        thread->raised = thread->raised || raise(thread->number);
      }
      if (thread->kind == Kind::kGone || thread->kind == Kind::kExempt) return true;
      const SignalStackOwner* owner = g.stacks.meet(tid, thread->started);
      if (owner == nullptr) {
        too_many();
        return false;
      }
      if (where == StopPoint::kAnywhere && thread->kind == Kind::kStop && !owner->ready &&
          !asleep) {
        busy = thread;
      }
      return true;
    });
    if (!listed) return false;
    if (complete) g.stacks.end_look();
    if (blocked == nullptr) g.deaf = 0;
    if (busy == nullptr) g.busy = 0;
    // A thread that starts, or starts another one or a process, blocks signals for a moment. One
    // that was waited for in vain before is not waited for again.
    const bool late = bare_now() >= limit;
    const bool patient =
        (blocked != nullptr && blocked->tid != g.deaf) || (busy != nullptr && busy->tid != g.busy);
    if (!patient || late) {
      if (blocked != nullptr) g.deaf = blocked->tid;
      if (busy == nullptr) return true;
      g.busy = busy->tid;
      no_stack(*busy);
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
  if (::syscall(SYS_rt_tgsigqueueinfo, process, thread.number, signal, &info) == 0) return true;
  if (errno != ESRCH) error = errno;
  return false;
}

// Waits until a thread sleeps in a system call, now that those are held who may wake it.
bool falls_asleep(const Thread& thread) noexcept {
  const std::uint64_t limit = bare_now() + kFallAsleep;
  std::uint64_t started = 0;
  char doing = 0;
  while (read_start(thread.tid, started, doing) && doing != 'Z' && doing != 'X') {
    if (doing == 'S') return true;
    if (bare_now() >= limit) return false;
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
      if (thread->kind == Kind::kBlocked) thread->raised = raise(thread->number);
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
    thread->raised = thread->raised || raise(thread->number);
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

// Returns a thread that was signalled and is neither in the handler nor gone; null: none. Each such
// thread is signalled again: one signal of a number is on its way to a thread, which may have been
// somebody else's, or may have come while our handler was not in its place.
const Thread* straggler(int process, std::uint32_t generation) noexcept {
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
      long error = 0;
      (void)send(thread, process, g_signal, generation, error);
    }
  }
  return late;
}

bool wait_for_arrivals(int process, std::uint32_t generation, std::uint64_t limit) noexcept {
  while (true) {
    const std::uint32_t seen = load(g.wake);
    if (static_cast<std::uint32_t>(load(g.arrivals)) >= load(g.wanted)) return true;
    const std::uint64_t time = bare_now();
    if (time >= limit) {
      const Thread* late = straggler(process, generation);
      if (late == nullptr) continue;  // the last one has just come or gone
      cannot_stop(*late, "did not stop in time");
      return false;
    }
    const std::uint64_t left = limit - time;
    if (futex_wait(g.wake, seen, left < kRecheck ? left : kRecheck) != 0 && errno == ETIMEDOUT) {
      if (!handler_stands()) {
        handler_gone();
        return false;
      }
      straggler(process, generation);
    }
  }
}

bool take_turn(std::uint64_t limit) noexcept {
  std::uint32_t free = 0;
  while (
      !__atomic_compare_exchange_n(&g.turn, &free, 1U, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    free = 0;
    if (bare_now() >= limit) return false;
    const timespec pause{0, 100'000};
    ::syscall(SYS_nanosleep, &pause, nullptr);
  }
  return true;
}

void give_turn() noexcept { store(g.turn, 0U); }

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
  std::uint64_t started = 0;
  char doing = 0;
  const int number = static_cast<int>(::syscall(SYS_gettid));
  if (is_own_thread(number) || !read_start(self, started, doing)) return;
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
  g.tracer.release();
  const std::uint64_t mask = g.saved_mask;
  give_turn();
  set_mask(mask, nullptr);
}

}  // namespace

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
  const std::uint64_t limit = bare_now() + static_cast<std::uint64_t>(deadline.count());
  if (!take_turn(limit))
    return Result{false, "another thread stops the threads of this process", {}};
  const int self = self_in_proc();
  const int process = static_cast<int>(::syscall(SYS_getpid));
  if (!look_first(self, signal_, where, static_cast<std::uint64_t>(deadline.count()) / 2)) {
    lower_all(false);
    give_turn();
    return Result{false, g.reason, {}};
  }
  give_self(self);

  set_mask(~std::uint64_t{0}, &g.saved_mask);
  g.raised_self = raise(0);
  const std::uint64_t begin = bare_now();
  const std::uint32_t generation = load(g.gate) + 1;
  store(g.wanted, 0U);
  store(g.arrivals, static_cast<std::uint64_t>(generation) << 32U);
  store(g.gate, generation);
  g.tracer.clear();
  // A thread that has arrived starts no other: when all have, and no new one shows, all are held.
  // Those that may wake a sleeping thread to run a kernel have an alternate stack or sleep too.
  bool ready_only = where == StopPoint::kAnywhere;
  Pass pass;
  while (pass.grew) {
    // Traced first: where that is refused, nobody else has been held for nothing.
    if (!hold_blocked(limit) ||
        !signal_threads(self, process, signal_, generation, where, ready_only, pass) ||
        !wait_for_arrivals(process, generation, limit)) {
      note_stacks(generation);
      let_go(false);
      return Result{false, g.reason, {}};
    }
    if (!pass.grew && ready_only) {
      ready_only = false;
      pass.grew = pass.left_some;
    }
    if (pass.grew && bare_now() >= limit) {
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
  return Result{true, "", Duration{static_cast<Duration::rep>(bare_now() - begin)}};
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
  if (!take_turn(bare_now() + kNanosecondsASecond))
    return "another thread stops the threads of this process";
  const bool none =
      look_first(self_in_proc(), signal_, where, kPatience) && (g.deaf == 0 || may_trace_blocked());
  char text[sizeof(g.reason)];
  for (std::size_t i = 0; i < sizeof(text); ++i) text[i] = g.reason[i];
  lower_all(false);
  give_turn();
  return none ? std::string() : std::string(text);
}

std::string ThreadStopper::lasting_obstacle() {
  const std::string why = obstacle();
  if (why.find("changed the handler") != std::string::npos) {
    return why + ": leave that signal alone when you set or reset handlers";
  }
  if (why.find("cannot be traced") == std::string::npos) return {};
  // Of a thread's name nothing follows but what is advised.
  if (why.find("(jemalloc_bg_thd)") != std::string::npos) {
    return why + ": it is jemalloc's, in pyarrow and pandas; start the job with " +
           "JE_ARROW_MALLOC_CONF=background_thread:false (another jemalloc: MALLOC_CONF)";
  }
  return why + ": let the process be traced by itself (ptrace), or do without what starts it";
}

void ThreadStopper::forget_in_child() noexcept {
  if ((load(g.gate) & 1U) != 0) open_gate();
  g.stacks.forget_in_child();
  g.tracer.forget_in_child();
  give_turn();
}

}  // namespace commensal

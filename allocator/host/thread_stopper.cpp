// SPDX-License-Identifier: Apache-2.0
// Stops every thread of this process for a moment, by a signal. Built without sanitizers
// (sources.cmake), with system calls made past the C library's names: a stopped thread may hold a
// sanitizer's locks, and a sanitizer would put the signal off.
#include "allocator/host/thread_stopper.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

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

constexpr std::uint32_t kMaxThreads = 16384;
constexpr std::uint32_t kBuckets = 2 * kMaxThreads;
constexpr std::uint64_t kNanoseconds = 1'000'000'000;
constexpr std::uint64_t kRecheck = 1'000'000;    // look after threads that ended meanwhile
constexpr std::uint64_t kPatience = 20'000'000;  // with a thread that blocks the signal

enum class Kind : std::uint8_t { kStop, kExempt, kBlocked, kGone };

struct Thread {
  int tid;
  Kind kind;
  bool signalled;
  std::uint32_t arrived;  // generation in which it came into the handler
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
  std::uint32_t count;
  Thread threads[kMaxThreads];
  std::uint32_t buckets[kBuckets];  // index + 1 into threads; 0: empty
  alignas(8) char listing[32768];
  char text[4096];
  char reason[192];
};
State g;

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

// Runs on the thread to be stopped, wherever it was.
void wait_in_handler(int, siginfo_t* info, void*) {
  if (info->si_code != SI_QUEUE) return;
  const int saved_errno = errno;
  const auto value =
      static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(info->si_value.sival_ptr));
  const auto generation = static_cast<std::uint32_t>(value >> 32U);
  const auto index = static_cast<std::uint32_t>(value);
  if (load(g.gate) == generation && index < kMaxThreads) {
    store(g.threads[index].arrived, generation);
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

// Reads /proc/self/task/TID/status into g.text. False: the thread is gone.
bool read_status(int tid) noexcept {
  char path[64] = "/proc/self/task/";
  std::size_t at = 16;
  char digits[12] = {};
  std::size_t first = sizeof(digits) - 1;
  for (int rest = tid; rest != 0; rest /= 10) digits[--first] = static_cast<char>('0' + rest % 10);
  for (const char* p = digits + first; *p != 0; ++p) path[at++] = *p;
  for (const char* p = "/status"; *p != 0; ++p) path[at++] = *p;
  const long fd = ::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const long got = ::syscall(SYS_read, fd, g.text, sizeof(g.text) - 1);
  ::syscall(SYS_close, fd);
  if (got <= 0) return false;
  g.text[got] = 0;
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

// `position` in the list of threads, the oldest first.
Kind classify(int tid, std::uint32_t position, int signal) noexcept {
  if (!read_status(tid)) return Kind::kGone;
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

void forget_threads() noexcept {
  g.count = 0;
  for (std::uint32_t i = 0; i < kBuckets; ++i) g.buckets[i] = 0;
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
  g.buckets[at] = ++g.count;
  return &thread;
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
bool list_threads(bool& complete, Visit&& visit) noexcept {
  const long fd =
      ::syscall(SYS_openat, AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    Reason().add("/proc/self/task cannot be read");
    return false;
  }
  std::uint32_t position = 0;
  bool going_on = true;
  long got = 0;
  while (going_on && (got = ::syscall(SYS_getdents64, fd, g.listing, sizeof(g.listing))) > 0) {
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
  const long checked = ::syscall(SYS_fstat, fd, &status);
  complete = checked == 0 && status.st_nlink == position + 2;
  ::syscall(SYS_close, fd);
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

// While all threads run: finds out whom to signal. False: g.reason says who cannot be stopped.
bool look_first(int self, int signal, std::uint64_t patience) noexcept {
  const std::uint64_t limit = now() + patience;
  while (true) {
    forget_threads();
    const Thread* blocked = nullptr;
    bool complete = false;
    const bool listed = list_threads(complete, [&](int tid, std::uint32_t position) {
      if (tid == self) return true;
      bool is_new = false;
      Thread* thread = find(tid, is_new);
      if (thread == nullptr) {
        too_many();
        return false;
      }
      thread->kind = classify(tid, position, signal);
      if (thread->kind == Kind::kBlocked) blocked = thread;
      return true;
    });
    if (!listed) return false;
    if (blocked == nullptr) {
      g.deaf = 0;
      return true;
    }
    // A thread that starts, or starts another one or a process, blocks signals for a moment. One
    // that was waited for in vain before is not waited for again.
    if (blocked->tid == g.deaf || now() >= limit) {
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

// Signals all threads that were not yet. `grew`: the list is not final. False: g.reason says why.
bool signal_threads(int self, int process, int signal, std::uint32_t generation,
                    bool& grew) noexcept {
  bool complete = false;
  grew = false;
  const bool listed = list_threads(complete, [&](int tid, std::uint32_t position) {
    if (tid == self) return true;
    bool is_new = false;
    Thread* thread = find(tid, is_new);
    if (thread == nullptr) {
      too_many();
      return false;
    }
    if (is_new) {
      grew = true;
      thread->kind = classify(tid, position, signal);
      if (thread->kind == Kind::kBlocked) {
        cannot_stop(*thread, "blocks the signal that stops threads");
        return false;
      }
    }
    if (thread->kind != Kind::kStop || thread->signalled) return true;
    grew = true;
    thread->signalled = true;
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
    if (!thread.signalled || thread.kind != Kind::kStop || load(thread.arrived) == generation) {
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

void open_gate() noexcept {
  store(g.gate, g.gate + 1);
  futex_wake(g.gate, INT32_MAX);
}

}  // namespace

bool need_not_stop(std::string_view thread_name) noexcept {
  return exempt_name(thread_name.data(), thread_name.size());
}

ThreadStopper::ThreadStopper() : signal_(install_handler()) {}

ThreadStopper& ThreadStopper::instance() {
  static ThreadStopper stopper;
  return stopper;
}

ThreadStopper::Result ThreadStopper::stop(Duration deadline) noexcept {
  const std::uint64_t limit = now() + static_cast<std::uint64_t>(deadline.count());
  if (!take_turn(limit)) return Result{false, "another thread stops the threads of this process"};
  const int self = static_cast<int>(::syscall(SYS_gettid));
  const int process = static_cast<int>(::syscall(SYS_getpid));
  if (!look_first(self, signal_, static_cast<std::uint64_t>(deadline.count()) / 2)) {
    give_turn();
    return Result{false, g.reason};
  }

  set_mask(~std::uint64_t{0}, &g.saved_mask);
  const std::uint32_t generation = load(g.gate) + 1;
  store(g.wanted, 0U);
  store(g.arrivals, static_cast<std::uint64_t>(generation) << 32U);
  store(g.gate, generation);
  // A thread that has arrived starts no other: when all have, and no new one shows, all are held.
  bool grew = true;
  while (grew) {
    if (!signal_threads(self, process, signal_, generation, grew) ||
        !wait_for_arrivals(generation, limit)) {
      resume();
      return Result{false, g.reason};
    }
    if (grew && now() >= limit) {
      resume();
      return Result{false, Reason().add("threads start faster than they can be stopped").text()};
    }
  }
  return Result{true, ""};
}

void ThreadStopper::resume() noexcept {
  open_gate();
  const std::uint64_t mask = g.saved_mask;
  give_turn();
  set_mask(mask, nullptr);
}

std::string ThreadStopper::obstacle() {
  if (!take_turn(now() + kNanoseconds)) return "another thread stops the threads of this process";
  const bool none = look_first(static_cast<int>(::syscall(SYS_gettid)), signal_, kPatience);
  char text[sizeof(g.reason)];
  for (std::size_t i = 0; i < sizeof(text); ++i) text[i] = g.reason[i];
  give_turn();
  return none ? std::string() : std::string(text);
}

void ThreadStopper::forget_in_child() noexcept {
  if ((load(g.gate) & 1U) != 0) open_gate();
  give_turn();
}

}  // namespace commensal

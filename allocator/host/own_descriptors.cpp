// SPDX-License-Identifier: Apache-2.0
// The threads of the table: one for work of any kind, one for system calls in a hurry. And one that
// has the program's table.
#include "allocator/host/own_descriptors.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <semaphore>
#include <system_error>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/host/own_threads.h"
#include "allocator/host/quick_calls.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

namespace commensal::own_descriptors {
namespace {

// CLOSE_RANGE_UNSHARE (Linux 5.9), which older headers lack.
constexpr unsigned kUnshare = 1U << 1U;
constexpr int kLeastNumber = 512;

struct Task {
  const std::function<void()>& work;
  Task* next = nullptr;
  std::exception_ptr error;
  std::binary_semaphore done{0};
};

/// Work that waits for a thread.
struct Queue {
  Mutex mutex;
  std::condition_variable_any changed;
  Task* first COMMENSAL_GUARDED_BY(mutex) = nullptr;
  Task* last COMMENSAL_GUARDED_BY(mutex) = nullptr;

  void run(const std::function<void()>& work) {
    Task task{work, nullptr, nullptr};
    {
      const MutexLock lock(mutex);
      (first == nullptr ? first : last->next) = &task;
      last = &task;
    }
    changed.notify_one();
    task.done.acquire();
    if (task.error) std::rethrow_exception(task.error);
  }

  [[noreturn]] void serve() {
    while (true) {
      mutex.lock();
      while (first == nullptr) changed.wait(mutex);
      Task& task = *std::exchange(first, first->next);
      mutex.unlock();
      try {
        task.work();
      } catch (...) {
        task.error = std::current_exception();
      }
      task.done.release();
    }
  }
};

/// What standard error was when the table was made.
class StandardError {
 public:
  StandardError() noexcept : is_open_(::fstat(STDERR_FILENO, &status_) == 0) {}
  /// Whether its number still leads to where a program's messages go.
  [[nodiscard]] bool may_write() const noexcept {
    struct stat now {};
    if (!is_open_ || ::fstat(STDERR_FILENO, &now) != 0) return false;
    const bool same = now.st_dev == status_.st_dev && now.st_ino == status_.st_ino;
    const bool appends = (::fcntl(STDERR_FILENO, F_GETFL) & O_APPEND) != 0;
    pollfd readers{STDERR_FILENO, POLLOUT, 0};
    return (same || appends || !S_ISREG(now.st_mode)) && ::poll(&readers, 1, 0) == 1;
  }

 private:
  struct stat status_ {};
  bool is_open_;
};

/// What a process has of it. Never destroyed: its threads end with the process, and a forked child,
/// which has no such threads, makes another one.
struct Table {
  pid_t process = ::getpid();
  std::string refusal;
  QuickCalls calls;
  Queue inside;
  Queue outside;
  StandardError words;
  const Table* inherited = nullptr;  // of the process that forked this one
};

std::atomic<Table*> current{nullptr};
thread_local bool in_table = false;

Table* table_here() noexcept {
  Table* const table = current.load(std::memory_order_acquire);
  return table != nullptr && table->process == ::getpid() ? table : nullptr;
}

// Threads start with all signals blocked: those are for the program's own threads.
class BlockedSignals {
 public:
  BlockedSignals() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

// Starts a thread that nobody joins, and waits until it is ready to serve.
void begin_thread(const char* name, const std::function<void()>& prepare, void (*serve)(Table&),
                  Table& table) {
  std::binary_semaphore ready{0};
  std::thread([&, serve, name] {
    const OwnThread own;  // others need it while threads are stopped
    Table& mine = table;
    ::pthread_setname_np(::pthread_self(), name);
    prepare();
    ready.release();  // from here on nothing of the caller's is used
    serve(mine);
  }).detach();
  ready.acquire();
}

void begin_threads(Table& table) {
  const BlockedSignals blocked;
  std::exception_ptr error;
  const auto nothing = [] {};
  const auto serve_outside = [](Table& of) { of.outside.serve(); };
  const auto serve_inside = [](Table& of) { of.inside.serve(); };
  const auto serve_calls = [](Table& of) { of.calls.serve(); };
  begin_thread("commensal-lines", nothing, serve_outside, table);
  const auto leave = [&] {
    in_table = true;
    if (const int refused = leave_shared_table(); refused != 0) {
      table.refusal = "the kernel gives no thread a table of descriptors of its own: " +
                      std::generic_category().message(refused);
    }
    try {
      begin_thread("commensal-calls", nothing, serve_calls, table);
    } catch (const std::system_error&) {
      error = std::current_exception();
    }
  };
  begin_thread("commensal-files", leave, serve_inside, table);
  if (error) std::rethrow_exception(error);
}

Table& table() {
  if (Table* const here = table_here(); here != nullptr) {
    while (QuickCalls::here() == nullptr) ::sched_yield();  // its maker is about to publish it
    return *here;
  }
  // A forked child has one thread at first, and a process begins before it has many: a lock that a
  // fork could leave taken is not worth it. Who comes second uses the first one's.
  // Never given back, not even where one thread is refused: another one sleeps in it.
  auto* const fresh = new Table;
  begin_threads(*fresh);
  Table* before = current.load(std::memory_order_acquire);
  do {
    if (before != nullptr && before->process == fresh->process) return *before;
    fresh->inherited = before;
  } while (!current.compare_exchange_weak(before, fresh, std::memory_order_acq_rel));
  fresh->calls.publish();
  return *fresh;
}

// What `close_range` does in one call.
int close_all() noexcept {
  DIR* const folder = ::opendir("/proc/thread-self/fd");
  if (folder == nullptr) return errno;
  std::vector<int> open;
  while (const dirent* entry = ::readdir(folder)) {
    if (entry->d_name[0] != '.') open.push_back(std::atoi(entry->d_name));
  }
  const int listing = ::dirfd(folder);
  for (const int fd : open) {
    if (fd != listing) ::close(fd);
  }
  ::closedir(folder);
  return 0;
}

}  // namespace

int leave_shared_table(bool at_once) noexcept {
  if (!at_once || ::syscall(SYS_close_range, 0U, ~0U, kUnshare) != 0) {
    if (::unshare(CLONE_FILES) != 0) return errno;
    if (const int error = close_all(); error != 0) return error;
  }
  // All numbers below a high one are taken by an event counter, which takes no words: those that a
  // library writes to standard error must not go into what is opened next. And a number of ours is
  // hardly ever one of the program's, so that nobody (ThreadSanitizer) can mistake one for the
  // other.
  rlimit numbers{};
  if (::getrlimit(RLIMIT_NOFILE, &numbers) != 0) return errno;
  const int least = static_cast<int>(std::min<rlim_t>(kLeastNumber, numbers.rlim_cur / 2));
  const int filler = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (int fd = filler; fd + 1 < least; fd = ::fcntl(filler, F_DUPFD_CLOEXEC, 0)) {
    if (fd < 0) return errno;
  }
  return 0;
}

void begin() { (void)table(); }

const std::string& refusal() { return table().refusal; }

void run_there(const std::function<void()>& work) {
  if (in_table) {
    work();
    return;
  }
  table().inside.run(work);
}

void write_line(const std::string& line) {
  Table& ours = table();
  ours.outside.run([&] {
    if (!ours.words.may_write()) return;
    const std::string whole = line + '\n';
    (void)!::write(STDERR_FILENO, whole.data(), whole.size());
  });
}

std::thread start_thread(std::function<void()> body) {
  return run([&] {
    return std::thread([body = std::move(body)] {
      in_table = true;
      body();
    });
  });
}

void close(int fd) noexcept {
  if (fd < 0 || table_here() == nullptr) return;
  run([fd] { ::close(fd); });  // to give a large file back takes time
}

}  // namespace commensal::own_descriptors

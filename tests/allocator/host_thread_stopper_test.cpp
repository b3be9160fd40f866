// SPDX-License-Identifier: Apache-2.0
// Stopping all threads of the process by a signal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/host/own_threads.h"
#include "allocator/host/thread_stopper.h"
#include "tests/allocator/kernel_sigaction.h"
#include "tests/allocator/sanitizer_threads.h"

// What runs while threads are stopped must not enter a sanitizer: they may hold its locks.
#define UNINSTRUMENTED __attribute__((no_sanitize("thread", "address", "undefined")))

namespace commensal::host_thread_stopper_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// Generous: the machine may be busy, and no test waits for it unless something is wrong.
constexpr auto kLong = 5s;

// Counters that threads advance; read without a sanitizer's help inside a stop.
struct Counters {
  static constexpr int kCount = 64;
  volatile std::uint64_t values[kCount] = {};

  UNINSTRUMENTED std::uint64_t sum() const noexcept {
    std::uint64_t total = 0;
    for (const volatile std::uint64_t& value : values) total += value;
    return total;
  }
  UNINSTRUMENTED void advance(int which) noexcept { values[which] = values[which] + 1; }
};

UNINSTRUMENTED void give_way(int times) noexcept {
  for (int i = 0; i < times; ++i) ::syscall(SYS_sched_yield);
}

// Stops, looks whether anything moves, and lets go. Returns whether anything did.
UNINSTRUMENTED bool moves_inside(const Counters& counters) noexcept {
  const std::uint64_t before = counters.sum();
  give_way(3);
  return counters.sum() != before;
}

void stop_or_fail() {
  const ThreadStopper::Result result = ThreadStopper::instance().stop(kLong);
  ASSERT_TRUE(result.stopped) << result.reason;
}

TEST(ThreadStopper, StopsAProcessOfOneThread) {
  for (int i = 0; i < 100; ++i) {
    stop_or_fail();
    ThreadStopper::instance().resume();
  }
  EXPECT_EQ(ThreadStopper::instance().obstacle(), "");
}

// What was started in the kernel's tick in which a stop begins passes for started during it.
void let_a_tick_pass() { std::this_thread::sleep_for(30ms); }

// A thread of the idle class that does nothing but end when told.
class IdleClassThread {
 public:
  IdleClassThread() : thread_([this] { run(); }) {
    while (tid_.load() == 0) std::this_thread::yield();
  }
  ~IdleClassThread() {
    end_ = true;
    thread_.join();
  }
  IdleClassThread(const IdleClassThread&) = delete;
  IdleClassThread& operator=(const IdleClassThread&) = delete;

  UNINSTRUMENTED long scheduling_class() const noexcept {
    return ::syscall(SYS_sched_getscheduler, tid_.load());
  }
  // Whether the kernel lets such a thread leave the class again.
  [[nodiscard]] bool may_leave() const noexcept { return may_leave_; }

 private:
  void run() {
    const sched_param normal{};
    ::sched_setscheduler(0, SCHED_IDLE, &normal);
    may_leave_ = ::sched_setscheduler(0, SCHED_OTHER, &normal) == 0;
    ::sched_setscheduler(0, SCHED_IDLE, &normal);
    tid_ = static_cast<int>(::syscall(SYS_gettid));
    while (!end_) std::this_thread::sleep_for(1ms);
  }

  std::atomic<int> tid_{0};
  std::atomic<bool> end_{false};
  bool may_leave_ = false;
  std::thread thread_;
};

TEST(ThreadStopper, AThreadOfTheIdleClassIsOutOfItWhileItIsStopped) {
  let_a_tick_pass();
  const IdleClassThread thread;
  ASSERT_EQ(thread.scheduling_class(), SCHED_IDLE);
  for (int round = 0; round < 3; ++round) {
    stop_or_fail();
    const long inside = thread.scheduling_class();
    ThreadStopper::instance().resume();
    EXPECT_EQ(inside, thread.may_leave() ? SCHED_OTHER : SCHED_IDLE);
    EXPECT_EQ(thread.scheduling_class(), SCHED_IDLE) << "it goes on as it was";
  }
}

TEST(ThreadStopper, WhoStopsFromTheIdleClassIsBackInItAfterwards) {
  let_a_tick_pass();
  std::thread([] {
    const sched_param normal{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &normal), 0);
    stop_or_fail();
    ThreadStopper::instance().resume();
    EXPECT_EQ(::sched_getscheduler(0), SCHED_IDLE);
  }).join();
}

// A thread of the idle class that does what it is told; then it has ended.
void in_the_idle_class(const std::function<void(bool may_leave)>& work) {
  std::thread([&] {
    const sched_param normal{};
    ::sched_setscheduler(0, SCHED_IDLE, &normal);
    const bool may_leave = ::sched_setscheduler(0, SCHED_OTHER, &normal) == 0;
    ::sched_setscheduler(0, SCHED_IDLE, &normal);
    work(may_leave);
  }).join();
}

// A thread that lives until it is told to end.
class Sleeper {
 public:
  // `first` runs on the thread.
  explicit Sleeper(const std::function<void()>& first = [] {})
      : thread_([this, first] {
          first();
          tid_ = static_cast<int>(::syscall(SYS_gettid));
          while (!end_) std::this_thread::sleep_for(1ms);
        }) {
    while (tid_.load() == 0) std::this_thread::yield();
  }
  ~Sleeper() {
    end_ = true;
    thread_.join();
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  [[nodiscard]] int scheduling_class() const noexcept { return ::sched_getscheduler(tid_.load()); }

 private:
  std::atomic<int> tid_{0};
  std::atomic<bool> end_{false};
  std::thread thread_;
};

TEST(ThreadStopper, AThreadStartedDuringAStopIsInTheIdleClassAsItsParent) {
  ThreadStopper& stopper = ThreadStopper::instance();
  sigset_t signal;
  sigemptyset(&signal);
  sigaddset(&signal, stopper.signal_number());
  std::promise<void> deaf;
  std::unique_ptr<Sleeper> child;
  const Sleeper usual;
  let_a_tick_pass();
  std::thread parent([&] {
    in_the_idle_class([&](bool may_leave) {
      pthread_sigmask(SIG_BLOCK, &signal, nullptr);
      deaf.set_value();
      // Just what a thread does that starts another one: it blocks signals when the stop looks.
      while (may_leave && ::sched_getscheduler(0) == SCHED_IDLE) std::this_thread::yield();
      child = std::make_unique<Sleeper>([&] { pthread_sigmask(SIG_UNBLOCK, &signal, nullptr); });
      EXPECT_EQ(child->scheduling_class(), may_leave ? SCHED_OTHER : SCHED_IDLE);
      pthread_sigmask(SIG_UNBLOCK, &signal, nullptr);
    });
  });
  deaf.get_future().wait();
  stop_or_fail();
  stopper.resume();
  parent.join();
  EXPECT_EQ(child->scheduling_class(), SCHED_IDLE);
  EXPECT_EQ(usual.scheduling_class(), SCHED_OTHER) << "who was not in the class is not put there";
}

TEST(ThreadStopper, ThreadsStartedAllTheTimeStayInTheIdleClass) {
  ThreadStopper& stopper = ThreadStopper::instance();
  std::atomic<bool> begun{false};
  std::atomic<bool> enough{false};
  std::vector<std::unique_ptr<Sleeper>> children;
  std::thread parent([&] {
    in_the_idle_class([&](bool) {
      while (children.size() < 100 && !enough) {
        children.push_back(std::make_unique<Sleeper>());
        begun = true;
      }
    });
  });
  // Beside a busy neighbour the idle class may have to wait for its first turn.
  while (!begun) std::this_thread::sleep_for(1ms);
  for (int i = 0; i < 60; ++i) {
    // Short ones, of which some are given up while a thread is being started.
    if (stopper.stop(i % 2 == 0 ? 5ms : 1s).stopped) stopper.resume();
  }
  enough = true;
  parent.join();
  // What a stop that was given up has missed, the next one puts back.
  const Sleeper last([] {
    const sched_param normal{};
    ::sched_setscheduler(0, SCHED_IDLE, &normal);
  });
  // Beside a busy neighbour some may still be on their way out of the handler.
  bool stopped = false;
  for (int i = 0; i < 50 && !stopped; ++i) stopped = stopper.stop(kLong).stopped;
  ASSERT_TRUE(stopped);
  stopper.resume();
  for (const auto& child : children) EXPECT_EQ(child->scheduling_class(), SCHED_IDLE);
}

TEST(ThreadStopper, NobodyStopsThreadsWhileTheirClassesChange) {
  ThreadStopper::instance();
  {
    const ThreadStopper::NoStops none;
    const ThreadStopper::Result result = ThreadStopper::instance().stop(10ms);
    EXPECT_FALSE(result.stopped);
    EXPECT_THAT(result.reason, HasSubstr("another thread"));
  }
  stop_or_fail();
  ThreadStopper::instance().resume();
}

TEST(ThreadStopper, NothingMovesInsideAndEverythingGoesOn) {
  Counters counters;
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      while (!end.load(std::memory_order_relaxed)) {
        counters.advance(i);
        if (i % 2 == 0) std::this_thread::yield();
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    stop_or_fail();
    const bool moved = moves_inside(counters);
    ThreadStopper::instance().resume();
    ASSERT_FALSE(moved) << "in round " << round;
    if (round % 10 == 0) {  // they run again
      const std::uint64_t before = counters.sum();
      while (counters.sum() == before) std::this_thread::yield();
    }
  }
  end = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadStopper, ThreadsMayComeAndGoMeanwhile) {
  Counters counters;
  std::atomic<bool> end{false};
  std::atomic<int> born{0};
  std::vector<std::thread> parents;
  for (int i = 0; i < 2; ++i) {
    parents.emplace_back([&, i] {
      while (!end.load(std::memory_order_relaxed)) {
        std::thread child([&, i] {
          for (int n = 0; n < 200; ++n) counters.advance(8 + i);
        });
        counters.advance(i);
        child.join();
        born.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  int stops = 0;
  for (int round = 0; round < 1000 && stops < 30; ++round) {
    // A thread that is just being made blocks signals for a moment: not an answer to rely on.
    if (!ThreadStopper::instance().stop(kLong).stopped) continue;
    const bool moved = moves_inside(counters);
    ThreadStopper::instance().resume();
    ASSERT_FALSE(moved) << "in round " << round;
    ++stops;
  }
  EXPECT_EQ(stops, 30);
  while (born.load() < 3) std::this_thread::yield();
  end = true;
  for (std::thread& parent : parents) parent.join();
}

TEST(ThreadStopper, SystemCallsRestartAndErrnoStays) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::atomic<bool> end{false};
  std::atomic<bool> errno_changed{false};
  std::promise<ssize_t> answer;
  std::thread reader([&] {
    char byte = 0;
    answer.set_value(::read(ends[0], &byte, 1));
  });
  std::thread watcher([&] {
    errno = 123;
    while (!end.load(std::memory_order_relaxed)) {
      if (errno != 123) errno_changed.store(true, std::memory_order_relaxed);
    }
  });
  for (int i = 0; i < 50; ++i) {
    stop_or_fail();
    ThreadStopper::instance().resume();
  }
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  EXPECT_EQ(answer.get_future().get(), 1) << "not EINTR";
  end = true;
  reader.join();
  watcher.join();
  EXPECT_FALSE(errno_changed);
  ::close(ends[0]);
  ::close(ends[1]);
}

// Runs a thread that does `prepare`, then waits until the end of the scope.
class WaitingThread {
 public:
  explicit WaitingThread(std::function<void()> prepare)
      : thread_([this, prepare = std::move(prepare)] {
          prepare();
          ready_.set_value();
          end_.get_future().wait();
        }) {
    ready_.get_future().wait();
  }
  ~WaitingThread() {
    end_.set_value();
    thread_.join();
  }
  WaitingThread(const WaitingThread&) = delete;
  WaitingThread& operator=(const WaitingThread&) = delete;

 private:
  std::promise<void> ready_;
  std::promise<void> end_;
  std::thread thread_;
};

void block_all_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

std::atomic<int> g_found{0};  // a child that nobody of the test has started

// A thread that does something again and again until the end of the scope.
class BusyThread {
 public:
  // `prepare` runs on the thread first. Both are to leave sanitizers alone.
  BusyThread(std::function<void()> prepare, void (*work)(void*), void* context)
      : thread_([this, prepare = std::move(prepare), work, context] {
          prepare();
          tid_ = static_cast<int>(::syscall(SYS_gettid));
          while (!end_.load(std::memory_order_relaxed)) work(context);
        }) {
    while (tid_.load() == 0) std::this_thread::yield();
  }
  ~BusyThread() {
    end_ = true;
    thread_.join();
  }
  BusyThread(const BusyThread&) = delete;
  BusyThread& operator=(const BusyThread&) = delete;

  [[nodiscard]] int tid() const noexcept { return tid_.load(); }

 private:
  std::atomic<int> tid_{0};
  std::atomic<bool> end_{false};
  std::thread thread_;
};

UNINSTRUMENTED void advance_first(void* counters) { static_cast<Counters*>(counters)->advance(0); }

// Stops some times while a thread counts. Returns in how many of the stops it went on counting.
int stops_with_movement(const Counters& counters, int rounds) {
  int moved = 0;
  for (int i = 0; i < rounds; ++i) {
    for (std::uint64_t before = counters.sum(); counters.sum() == before;) {
      std::this_thread::yield();
    }
    const ThreadStopper::Result result = ThreadStopper::instance().stop(kLong);
    if (!result.stopped) {
      ADD_FAILURE() << result.reason;
      return rounds;
    }
    if (moves_inside(counters)) ++moved;
    ThreadStopper::instance().resume();
  }
  return moved;
}

TEST(ThreadStopper, NoThreadIsPassedOverByItsName) {
  for (const char* name : {"commensal-loader", "commensal-mover", "ZMQbg/IO/0", "commensal:tsan"}) {
    Counters counters;
    const BusyThread writer([name] { pthread_setname_np(pthread_self(), name); }, advance_first,
                            &counters);
    EXPECT_EQ(stops_with_movement(counters, 10), 0) << name;
  }
}

TEST(ThreadStopper, OurOwnThreadIsKnownByItsNumberWhileItSaysSo) {
  Counters counters;
  const BusyThread writer([] { pthread_setname_np(pthread_self(), "usual"); }, advance_first,
                          &counters);
  {
    const OwnThread own(writer.tid());
    EXPECT_TRUE(is_own_thread(writer.tid()));
    stop_or_fail();
    const std::uint64_t before = counters.sum();
    while (counters.sum() == before) give_way(1);  // it runs on
    ThreadStopper::instance().resume();
  }
  EXPECT_FALSE(is_own_thread(writer.tid()));
  EXPECT_EQ(stops_with_movement(counters, 3), 0) << "who gets the number later is stopped";
}

TEST(ThreadStopper, OurOwnThreadLeavesTheIdleClassThatItWasStartedIn) {
  std::thread([] {
    const sched_param none{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &none), 0);
    if (::sched_setscheduler(0, SCHED_OTHER, &none) != 0) {
      GTEST_SKIP() << "an ordinary user's thread cannot leave the idle class here";
    }
    ASSERT_EQ(::sched_setscheduler(0, SCHED_IDLE, &none), 0);
    const OwnThread own;
    EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
  }).join();
}

TEST(ThreadStopper, MoreOwnThreadsThanThereIsRoomForAreStopped) {
  std::vector<std::unique_ptr<OwnThread>> all;
  for (int i = 0; i < 300; ++i) all.push_back(std::make_unique<OwnThread>(1'000'000'000 + i));
  EXPECT_FALSE(is_own_thread(1'000'000'299));
  all.clear();
  EXPECT_FALSE(is_own_thread(1'000'000'000));
}

TEST(ThreadStopper, AForkedChildKnowsNoOwnThreadOfItsParent) {
  const OwnThread own;
  const int tid = static_cast<int>(::syscall(SYS_gettid));
  EXPECT_TRUE(is_own_thread(tid));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(is_own_thread(tid) ? 1 : 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ThreadStopper, AThreadThatBlocksSignalsIsHeldWhileItSleepsAndWhileItRuns) {
  Counters counters;
  const WaitingThread sleeper([] { block_all_signals(); });
  const BusyThread runner(block_all_signals, advance_first, &counters);
  EXPECT_EQ(ThreadStopper::instance().obstacle(), "");
  EXPECT_EQ(stops_with_movement(counters, 20), 0);
  for (int i = 0; i < 3; ++i) {
    const ThreadStopper::Result result =
        ThreadStopper::instance().stop(kLong, StopPoint::kAnywhere);
    ASSERT_TRUE(result.stopped) << result.reason;
    ThreadStopper::instance().resume();
  }
}

TEST(ThreadStopper, WhoBlocksSignalsIsNotDisturbedInItsSystemCalls) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::promise<std::pair<ssize_t, int>> answer;
  std::promise<void> ready;
  std::thread reader([&] {
    block_all_signals();
    ready.set_value();
    char byte = 0;
    const ssize_t got = ::read(ends[0], &byte, 1);
    answer.set_value({got, byte});
  });
  ready.get_future().wait();
  EXPECT_EQ(ThreadStopper::instance().obstacle(), "");
  for (int i = 0; i < 20; ++i) {
    stop_or_fail();
    ThreadStopper::instance().resume();
  }
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  EXPECT_EQ(answer.get_future().get(), std::make_pair(ssize_t{1}, int{'x'}));
  reader.join();
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(ThreadStopper, ASignalOnItsWayToATracedThreadArrives) {
  static std::atomic<int> arrived;
  arrived = 0;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { arrived.fetch_add(1, std::memory_order_relaxed); };
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  Counters counters;
  const BusyThread thread(
      [] {
        block_all_signals();
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, SIGUSR1);
        pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
      },
      advance_first, &counters);
  EXPECT_EQ(ThreadStopper::instance().obstacle(), "");
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(::syscall(SYS_tgkill, ::getpid(), thread.tid(), SIGUSR1), 0);
    stop_or_fail();
    ThreadStopper::instance().resume();
    while (arrived.load() <= i) std::this_thread::yield();
  }
  EXPECT_EQ(arrived.load(), 50);
  ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
}

TEST(ThreadStopper, ThreadsThatBlockSignalsMayComeAndGoMeanwhile) {
  Counters counters;
  std::atomic<bool> end{false};
  std::thread parent([&] {
    block_all_signals();
    while (!end.load(std::memory_order_relaxed)) {
      std::thread child([&] {  // inherits the mask
        for (int n = 0; n < 200; ++n) counters.advance(1);
      });
      counters.advance(0);
      child.join();
    }
  });
  int stops = 0;
  for (int round = 0; round < 300 && stops < 30; ++round) {
    if (!ThreadStopper::instance().stop(kLong).stopped) continue;
    const bool moved = moves_inside(counters);
    ThreadStopper::instance().resume();
    ASSERT_FALSE(moved) << "in round " << round;
    ++stops;
  }
  EXPECT_EQ(stops, 30);
  end = true;
  parent.join();
}

TEST(ThreadStopper, AProgramThatWaitsForItsChildrenDoesNotMeetTheTracer) {
  const WaitingThread deaf(block_all_signals);
  const BusyThread waits([] {},
                         [](void* found) {
                           if (::waitpid(-1, nullptr, WNOHANG) > 0)
                             static_cast<std::atomic<int>*>(found)->store(1);
                         },
                         &g_found);
  EXPECT_EQ(ThreadStopper::instance().obstacle(), "");
  for (int i = 0; i < 50; ++i) {
    stop_or_fail();
    ThreadStopper::instance().resume();
  }
  EXPECT_EQ(g_found.load(), 0);
}

// In a child that another process traces, as under a debugger.
TEST(ThreadStopper, AThreadThatCannotBeTracedIsNamedAndNobodyStops) {
  const pid_t child = ::fork();
  if (child == 0) {
    testing::pass_over_sanitizer_threads();
    int wrong = 0;
    {
      std::promise<int> number;
      const WaitingThread deaf([&] {
        pthread_setname_np(pthread_self(), "deaf");
        block_all_signals();
        number.set_value(static_cast<int>(::syscall(SYS_gettid)));
      });
      const int tid = number.get_future().get();
      const pid_t parent = ::getpid();
      int ready[2];
      if (::pipe(ready) != 0) ::_exit(100);
      const pid_t debugger = ::fork();
      if (debugger == 0) {
        const bool seized = ::ptrace(PTRACE_SEIZE, tid, nullptr, nullptr) == 0;
        if (::write(ready[1], seized ? "y" : "n", 1) != 1) ::_exit(1);
        while (::getppid() == parent) ::usleep(1000);
        ::_exit(0);
      }
      char seized = 0;
      if (::read(ready[0], &seized, 1) != 1 || seized != 'y') ::_exit(77);
      const ThreadStopper::Result result = ThreadStopper::instance().stop(300ms);
      const std::string why = result.reason;
      const char* const expected =
          "(deaf) blocks the signal that stops threads and cannot be traced";
      if (result.stopped) ++wrong;
      if (why.find(expected) == std::string::npos) wrong += 2;
      if (ThreadStopper::instance().obstacle().find(expected) == std::string::npos) wrong += 4;
      if (ThreadStopper::instance().lasting_obstacle().find(expected) == std::string::npos) {
        wrong += 8;
      }
      ::kill(debugger, SIGKILL);
      ::waitpid(debugger, nullptr, 0);
      if (!ThreadStopper::instance().obstacle().empty()) wrong += 16;
      if (!ThreadStopper::instance().stop(kLong).stopped) wrong += 32;
      ThreadStopper::instance().resume();
    }
    ::_exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (status == 77 << 8) GTEST_SKIP() << "a parent cannot be traced here";
  EXPECT_EQ(status, 0);
}

// Puts a handler for the stopper's signal in the place of ours while it lives.
class OtherHandler {
 public:
  explicit OtherHandler(void (*handler)(int)) {
    testing::KernelSigaction action;
    action.handler = handler;
    const int signal = ThreadStopper::instance().signal_number();
    EXPECT_EQ(testing::kernel_sigaction(signal, &action, &before_), 0);
  }
  ~OtherHandler() {
    const int signal = ThreadStopper::instance().signal_number();
    EXPECT_EQ(testing::kernel_sigaction(signal, &before_, nullptr), 0);
  }
  OtherHandler(const OtherHandler&) = delete;
  OtherHandler& operator=(const OtherHandler&) = delete;

 private:
  testing::KernelSigaction before_;
};

TEST(ThreadStopper, WhereTheHandlerIsGoneNobodyIsSignalledAndItIsNotPutBack) {
  static std::atomic<int> got;
  got = 0;
  const WaitingThread other([] {});
  for (const auto handler :
       {SIG_DFL, SIG_IGN, static_cast<void (*)(int)>([](int) { got.fetch_add(1); })}) {
    const OtherHandler gone(handler);
    const ThreadStopper::Result result = ThreadStopper::instance().stop(kLong);
    EXPECT_FALSE(result.stopped);
    EXPECT_THAT(result.reason, HasSubstr("the program has changed the handler of signal"));
    EXPECT_THAT(ThreadStopper::instance().obstacle(), HasSubstr("changed the handler"));
    EXPECT_THAT(ThreadStopper::instance().lasting_obstacle(), HasSubstr("changed the handler"));
    testing::KernelSigaction now;
    const int signal = ThreadStopper::instance().signal_number();
    ASSERT_EQ(testing::kernel_sigaction(signal, nullptr, &now), 0);
    EXPECT_EQ(now.handler, handler);
  }
  EXPECT_EQ(got.load(), 0);
  stop_or_fail();  // put back by who took it away
  ThreadStopper::instance().resume();
}

TEST(ThreadStopper, AHandlerThatIsPutBackWithoutItsFlagsIsNotOurs) {
  testing::KernelSigaction ours;
  const int signal = ThreadStopper::instance().signal_number();
  ASSERT_EQ(testing::kernel_sigaction(signal, nullptr, &ours), 0);
  {
    const OtherHandler bare(ours.handler);
    EXPECT_FALSE(ThreadStopper::instance().stop(kLong).stopped);
  }
  stop_or_fail();
  ThreadStopper::instance().resume();
}

TEST(ThreadStopper, HandlersThatAreResetWithoutPauseNeitherKillNorLetAThreadMove) {
  Counters counters;
  const BusyThread writer([] {}, advance_first, &counters);
  const BusyThread resets([] {},
                          [](void*) {
                            const int signal = ThreadStopper::instance().signal_number();
                            const testing::KernelSigaction none;
                            testing::KernelSigaction ours;
                            testing::kernel_sigaction(signal, &none, &ours);
                            testing::kernel_sigaction(signal, &ours, nullptr);
                          },
                          nullptr);
  int stops = 0;
  for (int round = 0; round < 20000 && stops < 100; ++round) {
    const ThreadStopper::Result result = ThreadStopper::instance().stop(kLong);
    if (!result.stopped) {
      ASSERT_THAT(result.reason, HasSubstr("changed the handler"));
      continue;
    }
    const bool moved = moves_inside(counters);
    ThreadStopper::instance().resume();
    ASSERT_FALSE(moved);
    ++stops;
  }
  EXPECT_GT(stops, 0);
}

// A process in a PID namespace of its own that sees the /proc of another one.
TEST(ThreadStopper, ThreadsAreFoundInTheProcOfAnotherNamespace) {
  const pid_t outer = ::fork();
  if (outer == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(77);
    const pid_t inner = ::fork();
    if (inner != 0) {
      int status = -1;
      ::waitpid(inner, &status, 0);
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
    }
    testing::pass_over_sanitizer_threads();
    int wrong = 0;
    {
      Counters counters;
      const BusyThread runner([] {}, advance_first, &counters);
      const BusyThread deaf(block_all_signals, advance_first, &counters);
      if (!ThreadStopper::instance().obstacle().empty()) wrong += 100;
      for (int i = 0; i < 5; ++i) {
        if (!ThreadStopper::instance().stop(kLong).stopped) {
          ++wrong;
          continue;
        }
        if (moves_inside(counters)) wrong += 10;
        ThreadStopper::instance().resume();
      }
    }
    ::_exit(wrong);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(outer, &status, 0), outer);
  if (status == 77 << 8) GTEST_SKIP() << "no PID namespace can be made here";
  EXPECT_EQ(status, 0);
}

// A child that shares our memory holds its parent thread in the kernel, as vfork does.
struct Holder {
  volatile int let_go = 0;
  volatile int holds = 0;
};
[[noreturn]] UNINSTRUMENTED void hold_parent(Holder* holder) {
  holder->holds = 1;
  while (holder->let_go == 0) {
    const timespec pause{0, 1'000'000};
    ::syscall(SYS_nanosleep, &pause, nullptr);
  }
  while (true) ::syscall(SYS_exit, 0);
}
#if defined(__x86_64__)
// vfork itself, which sanitizers turn into fork.
UNINSTRUMENTED __attribute__((noinline)) long be_held(Holder* holder) {
  long child = SYS_vfork;
  asm volatile("syscall" : "+a"(child) : : "rcx", "r11", "memory");
  if (child == 0) hold_parent(holder);
  return child;
}

class ThreadStopperDeadline : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadStopperDeadline, ::testing::Bool(), [](const auto& which) {
  return std::string(which.param ? "ThatBlockSignals" : "ThatAreSignalled");
});

TEST_P(ThreadStopperDeadline, WithdrawsWhenTheDeadlinePasses) {
  Holder holder;
  Counters counters;
  std::atomic<bool> end{false};
  std::thread runner([&] {
    while (!end.load(std::memory_order_relaxed)) counters.advance(0);
  });
  std::thread held([&] {
    pthread_setname_np(pthread_self(), "held");
    if (GetParam()) block_all_signals();
    const auto child = static_cast<pid_t>(be_held(&holder));
    if (child > 0) ::waitpid(child, nullptr, 0);
  });
  while (holder.holds == 0) std::this_thread::yield();
  for (std::uint64_t before = counters.sum(); counters.sum() == before;) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) {
    const ThreadStopper::Result result = ThreadStopper::instance().stop(50ms);
    ASSERT_FALSE(result.stopped);
    EXPECT_THAT(result.reason, HasSubstr("(held) did not stop in time"));
    const std::uint64_t before = counters.sum();
    while (counters.sum() == before) std::this_thread::yield();  // the others go on
  }
  holder.let_go = 1;
  // Signals of the withdrawn stops arrive late and hold nobody.
  held.join();
  stop_or_fail();
  const bool moved = moves_inside(counters);
  ThreadStopper::instance().resume();
  EXPECT_FALSE(moved);
  end = true;
  runner.join();
}

#endif

TEST(ThreadStopper, TwoThreadsTakeTurns) {
  std::atomic<int> inside{0};
  std::atomic<int> stops{0};
  const auto stop_often = [&] {
    for (int i = 0; i < 50; ++i) {
      if (!ThreadStopper::instance().stop(kLong).stopped) continue;
      inside.fetch_add(1, std::memory_order_relaxed);
      inside.fetch_sub(1, std::memory_order_relaxed);
      ThreadStopper::instance().resume();
      stops.fetch_add(1, std::memory_order_relaxed);
    }
  };
  std::thread other(stop_often);
  stop_often();
  other.join();
  EXPECT_GT(stops.load(), 50);
}

TEST(ThreadStopper, AStrangersSignalHoldsNobody) {
  const int signal = ThreadStopper::instance().signal_number();
  std::atomic<bool> end{false};
  Counters counters;
  std::thread runner([&] {
    while (!end.load(std::memory_order_relaxed)) counters.advance(0);
  });
  ASSERT_EQ(::pthread_kill(runner.native_handle(), signal), 0);
  ASSERT_EQ(::kill(::getpid(), signal), 0);
  sigval value{};
  value.sival_ptr = &value;
  ASSERT_EQ(::sigqueue(::getpid(), signal, value), 0);
  const std::uint64_t before = counters.sum();
  while (counters.sum() == before) std::this_thread::yield();
  end = true;
  runner.join();
}

// Takes the calling thread's alternate signal stack away, which a sanitizer may have set.
class WithoutAlternateStack {
 public:
  WithoutAlternateStack() {
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    EXPECT_EQ(::sigaltstack(&none, &before_), 0);
  }
  ~WithoutAlternateStack() { EXPECT_EQ(::sigaltstack(&before_, nullptr), 0); }
  WithoutAlternateStack(const WithoutAlternateStack&) = delete;
  WithoutAlternateStack& operator=(const WithoutAlternateStack&) = delete;

 private:
  stack_t before_{};
};

stack_t alternate_stack() {
  stack_t now{};
  EXPECT_EQ(::sigaltstack(nullptr, &now), 0);
  return now;
}

bool inside(const stack_t& stack, const void* address) {
  const auto* begin = static_cast<const char*>(stack.ss_sp);
  return address >= begin && address < begin + stack.ss_size;
}

volatile bool ran_on_alternate_stack = false;
void look_where(int) {
  const int here = 0;
  ran_on_alternate_stack = inside(alternate_stack(), &here);
}

// A thread without an alternate stack, asleep; it tells at its end which one it has then.
class StacklessThread {
 public:
  explicit StacklessThread(std::function<void()> at_the_end = [] {})
      : thread_([this, at_the_end = std::move(at_the_end)] {
          const WithoutAlternateStack without;
          ready_.set_value();
          end_.get_future().wait();
          found_.set_value(alternate_stack());
          at_the_end();
        }) {
    ready_.get_future().wait();
  }
  stack_t end() {
    end_.set_value();
    thread_.join();
    return found_.get_future().get();
  }

 private:
  std::promise<void> ready_;
  std::promise<void> end_;
  std::promise<stack_t> found_;
  std::thread thread_;
};

TEST(ThreadStopper, AStoppedThreadHasAnAlternateStackFromThenOn) {
  StacklessThread thread([] {
    struct sigaction action {};
    struct sigaction before {};
    action.sa_handler = look_where;
    action.sa_flags = SA_ONSTACK;
    ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
    ASSERT_EQ(::pthread_kill(::pthread_self(), SIGUSR1), 0);
    ASSERT_EQ(::sigaction(SIGUSR1, &before, nullptr), 0);
  });
  stop_or_fail();
  ThreadStopper::instance().resume();
  stop_or_fail();  // the second one waits on that stack
  ThreadStopper::instance().resume();
  const stack_t stack = thread.end();
  EXPECT_EQ(stack.ss_flags & SS_DISABLE, 0);
  EXPECT_GE(stack.ss_size, 64U << 10U);
  EXPECT_TRUE(ran_on_alternate_stack);
}

TEST(ThreadStopper, AnAlternateStackOfTheProgramStays) {
  std::vector<char> room(128U << 10U);
  std::promise<void> ready;
  std::promise<void> end;
  stack_t found{};
  std::thread thread([&] {
    const WithoutAlternateStack without;
    stack_t own{};
    own.ss_sp = room.data();
    own.ss_size = room.size();
    ASSERT_EQ(::sigaltstack(&own, nullptr), 0);
    ready.set_value();
    end.get_future().wait();
    found = alternate_stack();
  });
  ready.get_future().wait();
  for (int i = 0; i < 2; ++i) {
    const ThreadStopper::Result result =
        ThreadStopper::instance().stop(kLong, i == 0 ? StopPoint::kBetweenOps  // now it is known
                                                     : StopPoint::kAnywhere);
    ASSERT_TRUE(result.stopped) << result.reason;
    ThreadStopper::instance().resume();
  }
  end.set_value();
  thread.join();
  EXPECT_EQ(found.ss_sp, room.data());
  EXPECT_EQ(found.ss_size, room.size());
}

TEST(ThreadStopper, StacksOfThreadsThatEndedServeOthers) {
  const auto stop_and_go = [] {
    let_a_tick_pass();  // a thread that was joined may be seen for a moment still
    stop_or_fail();
    ThreadStopper::instance().resume();
  };
  stop_and_go();
  const std::uint32_t before = ThreadStopper::instance().unused_stacks();
  StacklessThread first;
  stop_and_go();
  first.end();
  stop_and_go();
  const std::uint32_t after = ThreadStopper::instance().unused_stacks();
  EXPECT_EQ(after, before == 0 ? 1 : before) << "it came from there, or is new, and is back";
  StacklessThread second;
  stop_and_go();
  EXPECT_EQ(ThreadStopper::instance().unused_stacks(), after - 1);
  second.end();
}

TEST(ThreadStopper, TheCallerHasAnAlternateStackToo) {
  stack_t found{};
  std::thread caller([&] {
    const WithoutAlternateStack without;
    stop_or_fail();
    ThreadStopper::instance().resume();
    found = alternate_stack();
  });
  caller.join();
  EXPECT_EQ(found.ss_flags & SS_DISABLE, 0);
  EXPECT_GT(found.ss_size, 0U);
}

TEST(ThreadStopper, AnywhereAThreadMustHaveAStackOrSleep) {
  ThreadStopper& stopper = ThreadStopper::instance();
  Counters counters;
  std::atomic<bool> end{false};
  std::thread runner([&] {
    const WithoutAlternateStack without;
    pthread_setname_np(pthread_self(), "runner");
    while (!end.load(std::memory_order_relaxed)) counters.advance(0);
  });
  for (std::uint64_t before = counters.sum(); counters.sum() == before;) std::this_thread::yield();

  for (int i = 0; i < 3; ++i) {
    const ThreadStopper::Result result = stopper.stop(40ms, StopPoint::kAnywhere);
    EXPECT_FALSE(result.stopped);
    EXPECT_THAT(result.reason, HasSubstr("(runner) runs and has no alternate signal stack yet"));
    EXPECT_TRUE(stopper.stacks_wanted());
    const std::uint64_t before = counters.sum();
    while (counters.sum() == before) std::this_thread::yield();  // it goes on
  }
  EXPECT_THAT(stopper.obstacle(StopPoint::kAnywhere), HasSubstr("no alternate signal stack"));
  EXPECT_EQ(stopper.obstacle(StopPoint::kBetweenOps), "");

  const ThreadStopper::Result given = stopper.give_stacks(kLong);
  ASSERT_TRUE(given.stopped) << given.reason;
  EXPECT_FALSE(stopper.stacks_wanted());
  EXPECT_EQ(stopper.obstacle(StopPoint::kAnywhere), "");
  for (int i = 0; i < 20; ++i) {
    const ThreadStopper::Result result = stopper.stop(kLong, StopPoint::kAnywhere);
    ASSERT_TRUE(result.stopped) << result.reason;
    const bool moved = moves_inside(counters);
    stopper.resume();
    EXPECT_FALSE(moved);
  }
  end = true;
  runner.join();
}

TEST(ThreadStopper, AnywhereAThreadThatSleepsIsStoppedAndGetsAStack) {
  StacklessThread sleeper;
  const ThreadStopper::Result result = ThreadStopper::instance().stop(kLong, StopPoint::kAnywhere);
  ASSERT_TRUE(result.stopped) << result.reason;
  ThreadStopper::instance().resume();
  const stack_t stack = sleeper.end();
  EXPECT_EQ(stack.ss_flags & SS_DISABLE, 0);
}

TEST(ThreadStopper, ANewThreadIsNoticed) {
  ThreadStopper& stopper = ThreadStopper::instance();
  stop_or_fail();
  stopper.resume();
  EXPECT_FALSE(stopper.threads_changed());
  {
    const WaitingThread thread([] {});
    EXPECT_TRUE(stopper.threads_changed());
    stop_or_fail();
    stopper.resume();
    EXPECT_FALSE(stopper.threads_changed());
  }
}

}  // namespace
}  // namespace commensal::host_thread_stopper_test

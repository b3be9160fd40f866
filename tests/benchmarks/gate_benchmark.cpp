// SPDX-License-Identifier: Apache-2.0
// How soon ops of a thread in the kernel's idle class begin when a guaranteed job's gap does, and
// end when it ends: the gate with its law, the clock and the kernel; only the device is made up.
// While it is busy, a thread on each core computes. One JSON object.
//
//   gate_benchmark GAPS OP_MICROSECONDS
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <exception>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/base/clock.h"
#include "torch_ext/gate/gate.h"

namespace commensal {
namespace {

using namespace std::chrono_literals;

TimePoint now() { return SteadyClock::instance().now(); }

/// Of gaps, which last up to three times as long; so long each is expected to last.
constexpr std::chrono::milliseconds kShortest{10};

/// A guaranteed job that is busy or waits, as its page would say.
class Device final : public DeviceObserver {
 public:
  void wait(TimePoint since) {
    idle_since_.store(since.time_since_epoch().count());
    waiting_.store(true);
  }
  void work() { waiting_.store(false); }

  [[nodiscard]] DeviceObservation observe(TimePoint at) const noexcept override {
    DeviceObservation seen;
    seen.now = at;
    seen.guaranteed_present = seen.coordinator_alive = true;
    seen.all_waiting = waiting_.load();
    seen.idle_since = TimePoint{Duration{idle_since_.load()}};
    seen.idle_expected_end = seen.idle_since + kShortest;
    seen.processes = 1;
    return seen;
  }

 private:
  std::atomic<bool> waiting_{false};
  std::atomic<Duration::rep> idle_since_{0};
};

/// Threads that compute while they are told to, one for each core.
class Neighbours {
 public:
  Neighbours() {
    for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
      threads_.emplace_back([this] {
        while (!ended_.load()) {
          if (busy_.load(std::memory_order_relaxed)) continue;
          busy_.wait(false);
        }
      });
    }
  }
  ~Neighbours() {
    ended_.store(true);
    work(true);
    for (std::thread& thread : threads_) thread.join();
  }
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  void work(bool busy) {
    busy_.store(busy);
    busy_.notify_all();
  }

 private:
  std::atomic<bool> busy_{false};
  std::atomic<bool> ended_{false};
  std::vector<std::thread> threads_;
};

/// Runs ops through the gate, in the idle class, and notes when each began and ended.
class Job {
 public:
  struct Op {
    TimePoint begin;
    TimePoint end;
  };
  Job(Gate& gate, Duration length) : gate_(gate), length_(length), thread_([this] { run(); }) {}
  ~Job() {
    ended_.store(true);
    thread_.join();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] std::vector<Op> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(ops_, {});
  }
  [[nodiscard]] bool idle_class() const { return idle_class_.load(); }

 private:
  void run() {
    const sched_param none{};
    if (::sched_setscheduler(0, SCHED_IDLE, &none) != 0) idle_class_.store(false);
    OpDuration known;
    Gate::Account* const account = gate_.account();
    while (!ended_.load(std::memory_order_relaxed)) {
      if (!gate_.try_enter_op(known, account)) gate_.wait_op(known, nullptr);
      const TimePoint begin = now();
      compute();
      const TimePoint end = now();
      gate_.leave_op(known, account);
      const std::lock_guard lock(mutex_);
      ops_.push_back({begin, end});
    }
  }
  void compute() const {
    timespec start{};
    timespec at{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    do {
      ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    } while (std::chrono::seconds{at.tv_sec - start.tv_sec} +
                 std::chrono::nanoseconds{at.tv_nsec - start.tv_nsec} <
             length_);
  }

  Gate& gate_;
  const Duration length_;
  std::mutex mutex_;
  std::vector<Op> ops_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> idle_class_{true};
  std::thread thread_;
};

double microseconds(Duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() != 3) throw std::runtime_error("usage: gate_benchmark GAPS OP_MICROSECONDS");
  const int gaps = std::stoi(arguments[1]);
  Device device;
  Gate gate(make_pacing_law("gap"), device);
  gate.set_share(0.0, 1.0);  // no trickle
  gate.refresh();
  Neighbours neighbours;
  Job job(gate, std::chrono::microseconds{std::stoi(arguments[2])});

  std::mt19937 dice(1);  // NOLINT(cert-msc51-cpp): the same gaps each time
  std::uniform_int_distribution<int> length(1000 * kShortest.count(), 3000 * kShortest.count());
  std::vector<double> first;
  std::vector<double> last;
  double longest = 0.0;
  int missed = 0;
  for (int i = 0; i < gaps; ++i) {
    neighbours.work(false);
    const TimePoint opens = now();
    device.wait(opens);
    std::this_thread::sleep_for(std::chrono::microseconds{length(dice)});
    device.work();
    const TimePoint closes = now();
    neighbours.work(true);
    std::this_thread::sleep_for(std::chrono::microseconds{length(dice)});
    neighbours.work(false);
    std::this_thread::sleep_for(10ms);  // an op that was taken off its core ends
    const std::vector<Job::Op> ops = job.take();
    if (ops.empty()) {
      ++missed;
      continue;
    }
    first.push_back(microseconds(ops.front().begin - (opens + kQuietBeforeGap)));
    last.push_back(microseconds(ops.back().end - closes));
    for (const Job::Op& op : ops) longest = std::max(longest, microseconds(op.end - op.begin));
  }
  std::cout << nlohmann::json{{"first", first},
                              {"last", last},
                              {"longest", longest},
                              {"missed", missed},
                              {"idle_class", job.idle_class()}}
            << std::endl;
  // Let it out of its last wait.
  device.wait(now() - 1s);
  return 0;
}

}  // namespace
}  // namespace commensal

int main(int argc, char** argv) {
  try {
    return commensal::run(std::vector<std::string>(argv, argv + argc));
  } catch (const std::exception& error) {
    std::cerr << "gate_benchmark: " << error.what() << '\n';
    return 1;
  }
}

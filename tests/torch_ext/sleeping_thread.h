// SPDX-License-Identifier: Apache-2.0
// A thread that sleeps in the kernel by the time a test does something to wake it.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

namespace commensal::testing {

/// Runs something that sleeps. Whoever makes it sees to it that the sleep ends, and joins.
class SleepingThread {
 public:
  /// Returns when it sleeps, or has come through.
  explicit SleepingThread(std::function<void()> sleep)
      : thread_([this, sleep = std::move(sleep)] {
          id_.store(::syscall(SYS_gettid));
          sleep();
          awake_.store(true);
        }) {
    while (!awake_.load() && !sleeps()) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }

  [[nodiscard]] bool awake() const noexcept { return awake_.load(); }
  /// Waits until it has come through; false after that time.
  [[nodiscard]] bool wakes_within(std::chrono::milliseconds patience) const {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!awake() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
    return awake();
  }
  void join() { thread_.join(); }

 private:
  [[nodiscard]] bool sleeps() const {
    const long id = id_.load();
    if (id == 0) return false;
    // It may end while it is looked at: a failed read throws out of an istreambuf_iterator.
    std::ostringstream stat;
    stat << std::ifstream{"/proc/self/task/" + std::to_string(id) + "/stat"}.rdbuf();
    const std::string text = std::move(stat).str();
    const std::size_t state = text.rfind(')') + 2;
    return state < text.size() && text[state] == 'S';
  }

  std::atomic<long> id_{0};
  std::atomic<bool> awake_{false};
  std::thread thread_;
};

}  // namespace commensal::testing

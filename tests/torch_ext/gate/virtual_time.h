// SPDX-License-Identifier: Apache-2.0
// Threads that take turns under a clock which only they move: what they do is the same every time.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/base/clock.h"
#include "torch_ext/gate/doorbell.h"

namespace commensal::testing {

/// A clock and the threads that live by it. One of them runs at a time; when it sleeps, time jumps
/// to the next one's waking. Equal threads in equal order give equal runs.
class VirtualTime final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return TimePoint{Duration{now_.load()}}; }

  /// Calls this with each new time before that is now: for a device that works meanwhile.
  void on_advance(std::function<void(TimePoint)> device) { device_ = std::move(device); }

  /// Runs each of these on a thread of its own, the first first, until all have returned.
  void run(const std::vector<std::function<void()>>& actors) {
    actors_.clear();
    for (std::size_t i = 0; i < actors.size(); ++i) actors_.emplace_back().wakes = now();
    turn_ = 0;
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < actors.size(); ++i) {
      threads.emplace_back([this, i, &actor = actors[i]] {
        self_ = {this, i};
        {
          std::unique_lock lock(mutex_);
          actors_[i].turn.wait(lock, [&] { return turn_ == i; });
        }
        actor();
        const std::lock_guard lock(mutex_);
        actors_[i].ended = true;
        choose();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void sleep_for(Duration time) { sleep_until(now() + time); }
  void sleep_until(TimePoint time) { sleep({}, time); }
  /// Sleeps until the bell is rung, then for `latency` more, or until that time. Returns at once
  /// where the word is another than was seen, as the kernel does.
  void sleep_at(const Doorbell& bell, TimePoint time, Duration latency) {
    if (bell && static_cast<std::uint32_t>(bell.word->load()) != bell.seen) return;
    latency_ = latency;
    sleep(bell, time);
  }
  /// Takes `ring`'s place for what runs on one of the threads.
  static void ring(const std::atomic<std::uint64_t>& word) noexcept {
    VirtualTime& time = *self_.time;
    const std::lock_guard lock(time.mutex_);
    for (Actor& actor : time.actors_) {
      if (actor.sleeps_at == nullptr || place(*actor.sleeps_at) != place(word)) continue;
      actor.sleeps_at = nullptr;
      actor.wakes = std::min(actor.wakes, time.now() + time.latency_);
    }
  }

 private:
  struct Actor {
    TimePoint wakes;
    const std::atomic<std::uint64_t>* sleeps_at = nullptr;
    bool ended = false;
    std::condition_variable turn;
  };
  struct Self {
    VirtualTime* time;
    std::size_t index;
  };

  /// Of a word in its page, which is mapped once for who writes it and once for who sleeps at it.
  static std::uintptr_t place(const std::atomic<std::uint64_t>& word) {
    constexpr std::uintptr_t kPage = 4096;
    return reinterpret_cast<std::uintptr_t>(&word) % kPage;
  }

  void sleep(const Doorbell& bell, TimePoint time) {
    std::unique_lock lock(mutex_);
    Actor& self = actors_[self_.index];
    self.wakes = std::max(time, now());
    self.sleeps_at = bell.word;
    choose();
    self.turn.wait(lock, [&] { return turn_ == self_.index; });
    self.sleeps_at = nullptr;
  }
  /// Gives the turn to who wakes first; of several to the first.
  void choose() {
    std::size_t next = actors_.size();
    for (std::size_t i = 0; i < actors_.size(); ++i) {
      if (actors_[i].ended) continue;
      if (next == actors_.size() || actors_[i].wakes < actors_[next].wakes) next = i;
    }
    if (next == actors_.size()) return;
    const TimePoint to = std::max(now(), actors_[next].wakes);
    if (device_) device_(to);
    now_.store(to.time_since_epoch().count());
    if (std::exchange(turn_, next) != next) actors_[next].turn.notify_one();
  }

  std::atomic<Duration::rep> now_{std::chrono::nanoseconds{std::chrono::hours{1}}.count()};
  std::function<void(TimePoint)> device_;
  std::mutex mutex_;
  std::deque<Actor> actors_;
  std::size_t turn_ = 0;
  Duration latency_{};
  inline static thread_local constinit Self self_{nullptr, 0};
};

}  // namespace commensal::testing

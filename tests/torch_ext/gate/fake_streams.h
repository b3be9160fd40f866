// SPDX-License-Identifier: Apache-2.0
// A device with queues in simulated time: ops return when they are issued, and run later.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <thread>

#include "torch_ext/gate/device_time.h"

namespace commensal::testing {

/// One device that works on one queue at a time, in the order of issue within a queue; a test
/// chooses the queue of its next ops. As on a card, a marker is reached when all that was issued
/// into its queue before it is done, and the time between two markers of a thread has the pauses
/// between them, and what other threads issued. Threads call it one after the other.
class FakeStreams final : public WorkClock {
 public:
  explicit FakeStreams(const Clock& clock) : clock_(clock) {}

  void use_queue(std::size_t queue) { queue_ = queue; }
  /// From now on no marker can be made.
  void fail_to_mark() { fails_ = true; }

  /// An op that returns at once and runs for so long, after all that was issued before.
  void issue(Duration runs) {
    busy_until_ = std::max(busy_until_, clock_.now()) + runs;
    busy_total_ += runs;
    ends_[queue_] = busy_until_;
  }
  /// For how long it would still run if nothing came any more.
  [[nodiscard]] Duration backlog() const {
    return std::max(Duration::zero(), busy_until_ - clock_.now());
  }
  /// For how long it has run.
  [[nodiscard]] Duration busy_total() const { return busy_total_ - backlog(); }

  [[nodiscard]] bool done_on_return() const noexcept override { return false; }
  void begin() noexcept override { last_[std::this_thread::get_id()] = reached(); }
  [[nodiscard]] Marker mark() noexcept override {
    if (fails_) return 0;
    TimePoint& last = last_[std::this_thread::get_id()];
    markers_[++newest_] = {reached(), reached() - last};
    last = reached();
    return newest_;
  }
  [[nodiscard]] std::optional<Duration> passed(Marker marker) noexcept override {
    const auto found = markers_.find(marker);
    if (found == markers_.end()) return Duration{-1};  // asked about twice: shows in every sum
    if (clock_.now() < found->second.end) return std::nullopt;
    const Duration took = found->second.took;
    markers_.erase(found);
    return took;
  }
  [[nodiscard]] Marker markers() const { return newest_; }

 private:
  /// When a marker that is put now is reached.
  [[nodiscard]] TimePoint reached() const { return std::max(ends_[queue_], clock_.now()); }

  struct Marked {
    TimePoint end;
    Duration took{};
  };

  const Clock& clock_;
  TimePoint busy_until_;
  Duration busy_total_{};
  std::array<TimePoint, 4> ends_{};
  std::map<std::thread::id, TimePoint> last_;
  std::size_t queue_ = 0;
  std::map<Marker, Marked> markers_;
  Marker newest_ = 0;
  bool fails_ = false;
};

}  // namespace commensal::testing

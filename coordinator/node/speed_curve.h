// SPDX-License-Identifier: Apache-2.0
// How fast a job was with how much memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "coordinator/policies/view.h"

namespace commensal::node {

/// Measures a job's steps a second with each limit that it has had.
///
/// A measurement begins when a limit has been in force for `settle` (memory moves, caches fill) and
/// counts from ten steps and `least` on; it goes on, so that it gets surer, and is renewed every
/// `least * 8`. Points older than `kept` are dropped. If a limit that was measured is measured
/// again and is a quarter off, the job itself has changed: all other points go. Not thread safe.
class SpeedCurve {
 public:
  static constexpr Duration kSettle = std::chrono::seconds(1);
  static constexpr Duration kLeast = std::chrono::seconds(2);
  static constexpr Duration kKept = std::chrono::minutes(10);
  static constexpr std::uint64_t kLeastSteps = 10;

  /// Notes how many steps the job has done, under which limit. `steady`: its limit is in force and
  /// it may run; false begins again.
  void note(TimePoint now, Bytes limit, std::uint64_t steps, bool steady);
  /// Forgets all: other jobs compute beside it now.
  void clear() noexcept;
  /// In the order of their limits.
  [[nodiscard]] std::vector<policies::SpeedPoint> points() const;

 private:
  struct Begun {
    Bytes limit;
    TimePoint at;
    std::uint64_t steps = 0;
  };
  struct Point {
    policies::SpeedPoint speed;
    TimePoint at;
  };
  void add(TimePoint now, Bytes limit, double steps_per_second);

  std::optional<Begun> begun_;
  std::vector<Point> points_;
};

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// What a guaranteed job's slowdown is made of: where its training thread's time went, beside an
// opportunistic job and alone.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "allocator/base/clock.h"
#include "coordinator/node/cpu_meter.h"

namespace commensal::node {

/// Parts of a slowdown, as fractions of the step time alone: they add up to it. A part below zero
/// got faster.
struct SlowdownParts {
  double memory = 0.0;      ///< the same work took longer on a core: caches, bandwidth, SMT, clocks
  double scheduling = 0.0;  ///< ready, and waiting for a core
  double io = 0.0;          ///< waiting while the machine's tasks were stalled on I/O
  double unknown = 0.0;     ///< other waiting: its other threads, locks, its data
  bool operator==(const SlowdownParts&) const = default;
};

/// A stretch of time and what a process did in it.
struct TimeUse {
  Duration wall{};
  Duration run{};      ///< its first thread on a core
  Duration delayed{};  ///< its first thread ready, and waiting for one
  Duration io{};       ///< some task of the machine stalled on I/O (PSI)
  TimeUse& operator+=(const TimeUse& other) noexcept;
  bool operator==(const TimeUse&) const = default;
};

/// Splits a slowdown. A step alone takes 1, beside the other job 1 + `slowdown`; each part is what
/// the time of its kind grew by: (1 + slowdown) * (part of shared time) - (part of quiet time).
/// Pure. What grew while blocked counts as I/O as far as I/O stalls grew, the rest is unknown.
/// @return nothing unless both stretches are known.
[[nodiscard]] std::optional<SlowdownParts> split_slowdown(double slowdown, const TimeUse& quiet,
                                                          const TimeUse& shared);

/// Collects a process's time in quiet stretches (no opportunistic op may run) and shared ones.
/// Older time counts less: half for each `half_life` that passed in its kind of stretch. Not thread
/// safe.
class TimeUseHistory {
 public:
  static constexpr Duration kHalfLife = std::chrono::seconds(60);

  /// Takes totals; the time since the last call is of the stretch that `quiet` named then.
  /// @param io_stalled  PSI's total for the machine; a constant where there is none.
  void note(TimePoint now, const CpuMeter::Totals& totals, Duration io_stalled, bool quiet);
  [[nodiscard]] const TimeUse& quiet() const noexcept { return used_[1]; }
  [[nodiscard]] const TimeUse& shared() const noexcept { return used_[0]; }

 private:
  std::array<TimeUse, 2> used_;
  CpuMeter::Totals last_;
  Duration last_io_{};
  TimePoint noted_;
  bool quiet_ = false;
};

/// PSI's total of time in which some task was stalled on I/O; nothing without PSI.
[[nodiscard]] std::optional<Duration> read_io_stalled(const HostRoots& roots = {});

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// For how long a GPU was used, by what processes show of their waits and by what its driver says.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "allocator/base/clock.h"

namespace commensal::node {

/// What a process's page shows of its waits at one moment.
struct WaitsShown {
  Duration ended{};                ///< waits that have ended, together
  std::optional<TimePoint> since;  ///< beginning of the present wait; nothing: it does not wait
  bool works = false;  ///< in it: the device still works on what it was given before the wait
};

/// Adds up for how long a process had work for its GPU: all the time but its waits, without the
/// part of them in which the device still worked. How large that part is, the looks tell: it is the
/// part of the looks into waits that found the device at work, the newest 64 of them making half of
/// the weight or more. A process that has shown nothing yet is taken to work. Not thread safe.
class GpuTimeMeter {
 public:
  void note(const WaitsShown& shown, TimePoint now);
  /// Since the first look.
  [[nodiscard]] Duration busy() const noexcept { return busy_; }
  [[nodiscard]] bool began() const noexcept { return last_.has_value(); }

 private:
  static constexpr double kMostLooks = 128.0;
  std::optional<TimePoint> last_;
  Duration waited_{};  // at the last look, the present wait included
  double looks_ = 0.0;
  double at_work_ = 0.0;  // of these
  Duration busy_{};
};

/// The mean of a GPU's busy share as its driver tells it about once a second. Not thread safe.
class DriverBusyShare {
 public:
  /// @param keep  how long a share counts.
  explicit DriverBusyShare(Duration keep) : keep_(keep) {}
  /// @param share  0..1.
  void note(double share, TimePoint now);
  /// Nothing: it has not told of late.
  [[nodiscard]] std::optional<double> mean(TimePoint now) const noexcept;

 private:
  Duration keep_;
  std::deque<std::pair<TimePoint, double>> shares_;
};

}  // namespace commensal::node

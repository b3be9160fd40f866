// SPDX-License-Identifier: Apache-2.0
// Pacing laws: pure decisions, from what a device looks like to "open" or "wait, because".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "allocator/base/clock.h"

namespace commensal {

/// What the guaranteed side of a device is doing, as one observation.
struct DeviceObservation {
  TimePoint now;
  bool guaranteed_present = false;   ///< a guaranteed job's lease on the page is alive
  bool coordinator_alive = false;    ///< its heartbeat is fresh
  bool all_waiting = false;          ///< every guaranteed process is in a wait
  TimePoint idle_since;              ///< when the last of them began to wait
  TimePoint idle_expected_end;       ///< earliest likely end of a wait; zero: not known
  TimePoint last_touch;              ///< newest sign of work from any of them
  double trickle = 0.0;              ///< share allowed while the coordinator is silent
};

/// Looks at the shared pages. Called from the gate's hot path: a few atomic loads, no lock.
class DeviceObserver {
 public:
  virtual ~DeviceObserver() = default;
  [[nodiscard]] virtual DeviceObservation observe() const noexcept = 0;
};

/// What the job itself did and may do.
struct PacingInput {
  DeviceObservation device;
  Duration predicted{};      ///< of the op at the gate; zero: not known
  Duration own_busy{};       ///< time that own ops ran since the job began
  Duration own_elapsed{};    ///< wall time since then
  Duration window_busy{};    ///< own busy time in the law's present window
  Duration window_elapsed{};
  double share_min = 0.0;
  double share_max = 1.0;
};

/// One decision and its reason (static text, shown by `stats` and `status`).
struct PacingDecision {
  bool open = true;
  Duration recheck{};        ///< when closed: ask again after this, at the latest
  const char* reason = "";
};

/// Decides whether an op may start. Has no clock, lock or socket; equal input, equal decision.
class PacingLaw {
 public:
  virtual ~PacingLaw() = default;
  /// Name in commands and statistics; lower case, unique.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// Whether decisions can ever be "wait" for these bounds: else the op callback stays off.
  [[nodiscard]] virtual bool throttles(double share_max, bool guaranteed_present) const noexcept = 0;
  [[nodiscard]] virtual PacingDecision decide(const PacingInput& input) const noexcept = 0;
};

/// Makes a law by name: "open", "duty_cycle" (AntMan: sleeps in proportion to its own run time)
/// or "gap" (runs in the guaranteed job's gaps). @throws std::invalid_argument naming the value.
[[nodiscard]] std::unique_ptr<PacingLaw> make_pacing_law(std::string_view name);

}  // namespace commensal

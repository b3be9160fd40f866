// SPDX-License-Identifier: Apache-2.0
// When a rank passes a closed gate: while another rank of its job waits for it in a collective.
#pragma once

#include <algorithm>
#include <cstdint>

#include "allocator/base/clock.h"

namespace commensal {

/// How a rank stands among the ranks of its job, at one moment. Counts are of collectives that
/// began, since the processes started; ranks of a data-parallel job begin the same ones in the same
/// order, so that equal counts mean the same place in the program.
struct GangObservation {
  std::uint64_t epoch = 0;  ///< of the newest switch; 0: this process is gated by itself
  std::uint64_t begun = 0;  ///< collectives that began here
  std::uint64_t front = 0;  ///< most that began in any rank that shows signs of life

  /// Whether a rank is in a collective that this one has not come to.
  [[nodiscard]] constexpr bool behind() const noexcept { return epoch != 0 && begun < front; }
  /// What the page says of a rank that stands at its closed gate; 0 is "does not stand".
  [[nodiscard]] constexpr std::uint64_t stand() const noexcept { return begun + 1; }
};

/// After the gate was ordered to close (a pause, a window), a rank runs on while it is behind, for
/// so long in all at most: the way to its next collective, unless the rank is far behind, and then
/// its neighbour shall not pay for it. Time in which it stands does not count: the front may begin
/// its last collective long after others saw the order.
inline constexpr Duration kMostCatchUp = std::chrono::milliseconds{50};
/// Run time that a rank that is behind may owe to its budget (trickle, maximum share) and still
/// pass. It is paid off like any other, so that over a second the budget holds as before.
inline constexpr Duration kCatchUpCredit = std::chrono::milliseconds{5};

inline constexpr const char* kCatchUpReason =
    "behind its gang: runs on to the collective that others wait in";

/// Whether an op passes a gate that was ordered to close.
/// @param caught_up  for how long it has run on since this order.
[[nodiscard]] constexpr bool runs_on(const GangObservation& gang, Duration caught_up) noexcept {
  return gang.behind() && caught_up < kMostCatchUp;
}

/// What ran on since an op passed: up to the next one that is behind; of the last op of all, the
/// collective that it led to, and what came after, was no running on.
[[nodiscard]] constexpr Duration ran_on(const GangObservation& gang, Duration passed) noexcept {
  return gang.behind() ? passed : std::min(passed, kCatchUpCredit);
}

/// The debt that a law shall see.
[[nodiscard]] constexpr Duration debt_to_go_by(const GangObservation& gang,
                                               Duration debt) noexcept {
  return gang.behind() ? debt - kCatchUpCredit : debt;
}

}  // namespace commensal

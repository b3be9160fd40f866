// SPDX-License-Identifier: Apache-2.0
// When a rank passes a closed gate: while another rank of its job waits for it in a collective.
#pragma once

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

/// After the gate was ordered to close (a pause, a window), a rank that is behind runs on for so
/// long at most: the way to its next collective, unless the rank is far behind, and then its
/// neighbour shall not pay for it.
inline constexpr Duration kMostCatchUp = std::chrono::milliseconds{50};
/// Run time that a rank that is behind may owe to its budget (trickle, maximum share) and still
/// pass. It is paid off like any other, so that over a second the budget holds as before.
inline constexpr Duration kCatchUpCredit = std::chrono::milliseconds{5};

inline constexpr const char* kCatchUpReason =
    "behind its gang: runs on to the collective that others wait in";

/// Whether an op passes a gate that was ordered to close.
/// @param closed_for  time since this gate first saw the order.
[[nodiscard]] constexpr bool runs_on(const GangObservation& gang, Duration closed_for) noexcept {
  return gang.behind() && closed_for < kMostCatchUp;
}

/// The debt that a law shall see.
[[nodiscard]] constexpr Duration debt_to_go_by(const GangObservation& gang,
                                               Duration debt) noexcept {
  return gang.behind() ? debt - kCatchUpCredit : debt;
}

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Divides device time among opportunistic jobs.
#pragma once

#include <vector>

#include "allocator/base/ids.h"
#include "allocator/base/ranges.h"

namespace commensal::node {

/// One job that takes part in a division.
struct ShareClaim {
  ShareRange bounds;     ///< 0 <= min <= max <= 1
  double deficit = 0.0;  ///< what it got less than the others of late; at least 0
};

/// Returns each job's part of `budget`, in the order of the claims: minimum shares first, scaled
/// down if even these do not fit; the rest in proportion to the deficits, equally where there are
/// none, nobody above its maximum. The parts add up to the budget, or to all maxima. Pure.
/// @param budget  device time to divide, 1 being all of it; more than 1 where jobs may run at once.
[[nodiscard]] std::vector<double> divide_share(double budget,
                                               const std::vector<ShareClaim>& claims);

/// Returns the deficits of jobs that used so much each: the mean use less the own one, at least 0.
/// Who may use nothing (a maximum of 0, or paused) is to be left out before. Pure.
[[nodiscard]] std::vector<double> deficits(const std::vector<double>& used);

}  // namespace commensal::node

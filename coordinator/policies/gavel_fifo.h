// SPDX-License-Identifier: Apache-2.0
// Gavel's first come, first served: who has a type has all of the time on it.
#pragma once

#include <vector>

#include "coordinator/policies/cluster_policy.h"
#include "coordinator/policies/gavel_shares.h"
#include "coordinator/policies/seeded_random.h"

namespace commensal::policies {

/// Each job in its turn takes the fastest type that has enough GPUs, until one finds none.
[[nodiscard]] Shares fastest_types(const ShareProblem& problem);

/// Each job in its turn takes the last open type in the order of the columns, and keeps it to its
/// end, until none has enough GPUs; who ends hands its type to the first in the queue. As in the
/// original's code, a type may be given out more often than it has GPUs (those then take turns),
/// and once it is exactly full a random one among those that fit is closed. The notes remember the
/// types in `level`, by job: one more than the column.
[[nodiscard]] Shares kept_types(const std::vector<JobIndex>& jobs, const ShareProblem& problem,
                                Notes& notes, SeededRandom& random);

}  // namespace commensal::policies

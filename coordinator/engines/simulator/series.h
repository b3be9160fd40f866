// SPDX-License-Identifier: Apache-2.0
// Curves of a run: who waited and what was used over time, and how completion times are spread.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/engines/simulator/simulation.h"

namespace commensal::simulator {

/// What holds from a moment on.
struct Sample {
  Time time = 0;
  double waiting = 0;  ///< jobs
  double busy = 0;     ///< GPUs that running jobs ask for; above all of them where jobs share
};

struct Series {
  std::vector<Time> time;       ///< where each interval begins; they are equally long
  std::vector<double> waiting;  ///< means of the intervals
  std::vector<double> busy;
  std::vector<double> jct;  ///< sorted, equally spaced from the least to the largest
};

/// Returns curves of `points` each; `samples` are in the order of time.
[[nodiscard]] Series series_of(const Outcome& outcome, const std::vector<Sample>& samples,
                               std::size_t points);

}  // namespace commensal::simulator

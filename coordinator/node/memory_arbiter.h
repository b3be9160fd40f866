// SPDX-License-Identifier: Apache-2.0
// Divides a device's memory among its jobs.
#pragma once

#include <chrono>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "coordinator/policies/plan.h"
#include "coordinator/policies/view.h"

namespace commensal::node {

struct ArbiterConfig {
  /// Kept free above what a guaranteed job wants, as a fraction of the device, so that its growth
  /// never waits for somebody else's shrink.
  double headroom = 0.05;
  /// Changes smaller than this fraction of a limit are not made, unless a floor needs them.
  double hysteresis = 0.05;
  /// What changes hands at a time between opportunistic jobs, as a fraction of the device; zero:
  /// nothing does.
  double exchange = 1.0 / 32;
  /// A job that owes memory to a guaranteed one for so long is parked.
  Duration park_after = std::chrono::seconds(10);
  /// One that is parked for so long is to be moved: the engine is asked.
  Duration move_after = std::chrono::seconds(60);
  /// A job stays parked at least so long, so that it is not parked and woken in turns.
  Duration park_least = std::chrono::seconds(10);
};

/// Returns the limits to change on one device, shrinking ones first, and the jobs to park, to wake
/// or to move. No clock, lock or socket: time is `device.now`.
///
/// What is divided is the capacity without `device.outside` and without what jobs use beside their
/// managed memory; only floors of guaranteed jobs count on all of the capacity. In order of
/// precedence: floors of guaranteed jobs; minima of opportunistic jobs; what guaranteed jobs want,
/// with headroom; what opportunistic jobs use; the rest, evenly up to their maxima, to
/// opportunistic jobs; what those cannot use, to guaranteed jobs.
///
/// So memory that nobody uses changes hands before any that is used. If what opportunistic jobs
/// use does not fit, victims are chosen by cost, then size: paused ones first; then those whose
/// measured speed loses least (`divide_by_gain`), or, where speeds are not known, the largest.
/// A job runs with its minimum or is parked as a whole: by a floor that needs its minimum, or by
/// not giving back in time what a guaranteed job waits for.
///
/// A lease (`JobView::lease`) keeps what a job wanted until it runs out; growth counts at once.
[[nodiscard]] policies::Plan decide_memory(const policies::DeviceView& device,
                                           const ArbiterConfig& config);

}  // namespace commensal::node

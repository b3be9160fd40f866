// SPDX-License-Identifier: Apache-2.0
// Divides a device's memory among its jobs.
#pragma once

#include "allocator/base/bytes.h"
#include "coordinator/policies/plan.h"
#include "coordinator/policies/view.h"

namespace commensal::node {

struct ArbiterConfig {
  /// Kept free above what a guaranteed job wants, as a fraction of the device, so that its growth
  /// never waits for somebody else's shrink.
  double headroom = 0.05;
  /// Changes smaller than this fraction of a limit are not made, unless a floor needs them.
  double hysteresis = 0.05;
};

/// Returns the limits to change on one device, shrinking ones first. No clock, lock or socket.
///
/// In order of precedence: floors of guaranteed jobs; minima of opportunistic jobs; what
/// guaranteed jobs want, with headroom; then the rest, evenly up to their maxima, to opportunistic
/// jobs; what those cannot use, to guaranteed jobs. The limits that result fit in the device. A
/// guaranteed job's growth counts at once, its decrease only when `wanted_recent` has gone down.
[[nodiscard]] policies::Plan decide_memory(const policies::DeviceView& device,
                                           const ArbiterConfig& config);

}  // namespace commensal::node

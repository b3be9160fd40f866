// SPDX-License-Identifier: Apache-2.0
// Who is told what the cluster coordinator does, for metrics.
#pragma once

#include <cstdint>

#include "coordinator/cluster/job.h"

namespace commensal::cluster {

/// What takes time in a step.
enum class Work : std::uint8_t { kDecision, kStoreWrite };

/// Looks on. Called by the coordinator's own thread; must not throw nor call it back.
class ClusterObserver {
 public:
  virtual ~ClusterObserver() = default;

  /// A job changed its state. It is not durable yet: after a failure of the store it is told again.
  virtual void moved(const JobRecord& before, const JobRecord& after) noexcept = 0;
  /// Around each decision and each write; an end is not told if it failed.
  virtual void begins(Work work) noexcept = 0;
  virtual void ended(Work work) noexcept = 0;
  /// The engine cannot be asked; told when that begins.
  virtual void engine_failed() noexcept = 0;
};

}  // namespace commensal::cluster

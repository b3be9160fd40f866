// SPDX-License-Identifier: Apache-2.0
// Whether what jobs need at least of a GPU fits beside each other.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "coordinator/policies/cluster_plan.h"
#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// What a job needs at least of each of its GPUs, as it counts there: a guaranteed job has its time
/// before all others, so that its share takes nothing from theirs.
[[nodiscard]] Minima minima_of(const ClusterJob& job, JobClass job_class) noexcept;

/// Says why an opportunistic job does not fit on a GPU beside others; nothing: it fits. Who needs
/// no minimum fits beside everybody.
/// @param others          sums of those that are there.
/// @param gpu_memory_mib  zero: not known, and not looked at.
[[nodiscard]] std::optional<Reason> lacks(const Minima& others, const Minima& own,
                                          std::int64_t gpu_memory_mib) noexcept;

/// The minima on the GPUs of a cluster, and those of jobs that a plan which is being made puts
/// there. Lives for one decision. Thread safety: none.
class MinimaDraft {
 public:
  explicit MinimaDraft(const Cluster& cluster) : cluster_(cluster) {}

  /// Whether an opportunistic job fits on a GPU.
  [[nodiscard]] bool fits(const ClusterJob& job, NodeIndex node, std::uint16_t gpu) const;

  void take(const ClusterJob& job, JobClass job_class, const Placement& parts);

 private:
  const Cluster& cluster_;
  std::unordered_map<std::size_t, Minima> taken_;  // by the GPU's number among all
};

}  // namespace commensal::policies

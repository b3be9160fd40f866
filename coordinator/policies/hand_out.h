// SPDX-License-Identifier: Apache-2.0
// Hands GPUs to jobs in the order in which a policy offers them.
#pragma once

#include <optional>
#include <vector>

#include "coordinator/policies/cluster_plan.h"
#include "coordinator/policies/cluster_policy.h"

namespace commensal::policies {

/// Turns an order of jobs into a plan, by the rules of the view's placer. Lives for one decision.
class HandOut {
 public:
  enum class Mode : std::uint8_t {
    kFree,  ///< only what is free now: who runs goes on
    kAnew   ///< all GPUs: who runs and is not offered in time is stopped
  };

  HandOut(const ClusterView& view, Notes& notes, Mode mode);

  /// Whether no job can get anything any more.
  [[nodiscard]] bool exhausted() const noexcept { return budget_ <= 0; }
  [[nodiscard]] std::int32_t budget() const noexcept { return budget_; }

  /// Gives `job` all the GPUs that it asks for, or none: those of a tenant are within its quota.
  /// @return whether it got them; a job that runs keeps its own.
  bool offer(JobIndex job, const Reason& reason);

  /// Writes the stops, then the moves and starts. Where jobs stay where they are, one that is to
  /// start and finds no place waits on.
  void finish(const Reason& stop_reason, ClusterPlan& plan);

 private:
  struct Chosen {
    JobIndex job;
    Reason reason;
    std::optional<Placement> placement;
  };

  [[nodiscard]] Cluster& scratch();
  [[nodiscard]] bool within_quota(const ClusterJob& job) const;

  const ClusterView& view_;
  Notes& notes_;
  Mode mode_;
  Placer::Scope scope_;
  std::int32_t budget_;
  std::optional<Cluster> scratch_;
  std::vector<std::int64_t> charged_;  // to tenants, in thousandths; empty if none has a quota
  std::vector<Chosen> chosen_;         // that wait, or move
};

}  // namespace commensal::policies

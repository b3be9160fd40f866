// SPDX-License-Identifier: Apache-2.0
// Jobs and cluster as they are: what views are made of, and what plans change.
#pragma once

#include <utility>
#include <vector>

#include "coordinator/policies/cluster_index.h"
#include "coordinator/policies/cluster_plan.h"
#include "coordinator/policies/cluster_policy.h"
#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// Keeps one cluster's jobs, for the live coordinator and the simulator alike. Thread safety: none.
class ClusterState {
 public:
  explicit ClusterState(Cluster cluster, std::vector<Tenant> tenants = {})
      : cluster_(std::move(cluster)), index_(cluster_), tenants_(std::move(tenants)) {}

  /// Adds a job behind all others; it waits.
  JobIndex arrive(ClusterJob job);

  /// Adds a job behind all others as a restarted coordinator finds it: it runs on `placement`, or
  /// waits, perhaps with GPUs that are kept for it.
  /// @throws std::logic_error if these are not free.
  JobIndex adopt(ClusterJob job);

  /// Ends a running job: its GPUs are free.
  void end(JobIndex job);

  /// Asks a policy. The plan is dropped whole if it breaks a rule.
  /// @throws std::logic_error with the rule that it breaks.
  [[nodiscard]] ClusterPlan decide(const ClusterPolicy& policy, const Placer& placer,
                                   const JobModels& models, Time now);

  /// Makes the changes of a plan that `decide` returned.
  void commit(const ClusterPlan& plan);

  [[nodiscard]] std::vector<ClusterJob>& jobs() noexcept { return jobs_; }
  [[nodiscard]] const ClusterJob& job(JobIndex index) const { return jobs_[index]; }
  [[nodiscard]] const std::vector<JobIndex>& running() const noexcept { return running_; }
  [[nodiscard]] const Cluster& cluster() const noexcept { return cluster_; }
  [[nodiscard]] const ClusterIndex& index() const noexcept { return index_; }
  [[nodiscard]] const std::vector<Tenant>& tenants() const noexcept { return tenants_; }
  [[nodiscard]] const Notes& notes() const noexcept { return notes_; }

 private:
  void give(ClusterJob& job);
  void take(ClusterJob& job, const Placement& placement);
  void make(const Decision& decision);
  void hold(const ClusterJob& job, const Placement& placement, std::int32_t sign);
  void charge(const ClusterJob& job, std::int32_t sign);

  Cluster cluster_;
  ClusterIndex index_;
  std::vector<Tenant> tenants_;
  std::vector<ClusterJob> jobs_;
  std::vector<JobIndex> running_;
  std::vector<JobIndex> arrived_;
  std::vector<JobIndex> ended_;
  std::uint64_t turns_ = 0;
  Notes notes_;
};

}  // namespace commensal::policies

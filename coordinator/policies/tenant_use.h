// SPDX-License-Identifier: Apache-2.0
// What tenants use of their quotas and beyond them, while a plan is made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// Thousandths of a GPU by tenant: charged to the quota (guaranteed jobs), lent beyond it (the
/// others), and held for jobs that are about to start within it. A tenant without a quota has the
/// whole cluster.
class TenantUse {
 public:
  TenantUse(const ClusterView& view, std::size_t tenants)
      : view_(&view), charged_(tenants, 0), lent_(tenants, 0), held_(tenants, 0) {
    for (const JobIndex index : view.running) {
      const ClusterJob& job = view.jobs[index];
      (lent(job) ? lent_ : charged_)[job.tenant] += milli(job, job.held());
    }
  }

  /// Number of tenants of a view: its own, or those that its jobs name.
  [[nodiscard]] static std::size_t tenants(const ClusterView& view,
                                           const std::vector<JobIndex>& queue) {
    std::size_t most = std::max<std::size_t>(1, view.tenants.size());
    const auto count = [&](JobIndex job) {
      most = std::max<std::size_t>(most, std::size_t{view.jobs[job].tenant} + 1);
    };
    std::for_each(view.running.begin(), view.running.end(), count);
    std::for_each(queue.begin(), queue.end(), count);
    return most;
  }

  /// Whether a job that runs is not charged to its tenant's quota.
  [[nodiscard]] static bool lent(const ClusterJob& job) {
    return job.job_class == JobClass::kOpportunistic;
  }

  /// What is used as a part of the quota, lent GPUs included.
  [[nodiscard]] double part(std::size_t tenant) const {
    const auto used = static_cast<double>(charged_[tenant] + lent_[tenant]);
    return used / static_cast<double>(std::max<std::int64_t>(1, quota(tenant)));
  }

  /// Whether the quota has room for so many GPUs of a job.
  [[nodiscard]] bool has_room(const ClusterJob& job, std::int32_t gpus) const {
    return !limited(job.tenant) ||
           charged_[job.tenant] + held_[job.tenant] + milli(job, gpus) <= quota(job.tenant);
  }
  /// Whether a job is one for the quota, and fits into it.
  [[nodiscard]] bool may_charge(const ClusterJob& job) const {
    return job.asked != AskedClass::kOpportunistic && has_room(job, job.gpus);
  }

  void charge(const ClusterJob& job, std::int32_t gpus) {
    charged_[job.tenant] += milli(job, gpus);
  }
  void start(const ClusterJob& job, bool beyond) {
    (beyond ? lent_ : charged_)[job.tenant] += milli(job, job.gpus);
  }
  void stop_lent(const ClusterJob& job) { lent_[job.tenant] -= milli(job, job.gpus); }
  void charge_lent(const ClusterJob& job) {
    stop_lent(job);
    start(job, false);
  }
  void hold(const ClusterJob& job) { held_[job.tenant] += milli(job, job.gpus); }

 private:
  static std::int64_t milli(const ClusterJob& job, std::int32_t gpus) {
    return std::int64_t{gpus} * job.gpu_milli;
  }
  [[nodiscard]] bool limited(std::size_t tenant) const {
    return tenant < view_->tenants.size() && view_->tenants[tenant].quota.has_value();
  }
  [[nodiscard]] std::int64_t quota(std::size_t tenant) const {
    const std::int32_t gpus =
        limited(tenant) ? *view_->tenants[tenant].quota : view_->cluster->total_gpus();
    return std::int64_t{kWholeGpu} * gpus;
  }

  const ClusterView* view_;
  std::vector<std::int64_t> charged_;
  std::vector<std::int64_t> lent_;
  std::vector<std::int64_t> held_;
};

}  // namespace commensal::policies

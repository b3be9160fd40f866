// SPDX-License-Identifier: Apache-2.0
// Sums seconds between decisions.
#include "coordinator/engines/simulator/wait_causes.h"

#include <algorithm>

namespace commensal::simulator {
namespace {

bool lacks_quota(const policies::ClusterState& state, const policies::ClusterJob& job) {
  if (job.asked == policies::AskedClass::kOpportunistic) return true;
  if (job.tenant >= state.tenants().size() || !state.tenants()[job.tenant].quota) return false;
  const policies::Tenant& tenant = state.tenants()[job.tenant];
  return tenant.charged_milli + std::int64_t{job.gpus} * job.gpu_milli >
         std::int64_t{*tenant.quota} * policies::kWholeGpu;
}

}  // namespace

void WaitCauses::observe(policies::ClusterState& state, Time now) {
  if (seen_ == 0) {
    quotas_ = std::any_of(state.tenants().begin(), state.tenants().end(),
                          [](const policies::Tenant& tenant) { return tenant.quota.has_value(); });
  }
  if (!quotas_) {
    seen_ = 1;  // is not asked again
    return;
  }
  for (const Waiting& waiting : waiting_) {
    if (waiting.for_quota) for_quota_[waiting.job] += now - last_;
  }
  last_ = now;
  follow(state);
}

/// Who waits from now on, and for what.
void WaitCauses::follow(policies::ClusterState& state) {
  for (; seen_ < state.jobs().size(); ++seen_) {
    waiting_.push_back({static_cast<policies::JobIndex>(seen_), false});
  }
  for_quota_.resize(seen_, 0);
  for (const policies::JobIndex job : running_) {
    if (state.job(job).phase == policies::JobPhase::kWaiting) waiting_.push_back({job, false});
  }
  running_ = state.running();
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    return state.job(waiting.job).phase != policies::JobPhase::kWaiting;
  });
  for (Waiting& waiting : waiting_) waiting.for_quota = lacks_quota(state, state.job(waiting.job));
}

void WaitCauses::write(Outcome& outcome) const {
  if (!quotas_ || for_quota_.size() != outcome.jobs.size()) return;
  for (std::size_t job = 0; job < for_quota_.size(); ++job) {
    outcome.jobs[job].waited_for_quota = std::min(for_quota_[job], outcome.jobs[job].waited);
  }
}

}  // namespace commensal::simulator

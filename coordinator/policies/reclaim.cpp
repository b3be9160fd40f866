// SPDX-License-Identifier: Apache-2.0
// Tries with one more job stopped at a time.
#include "coordinator/policies/reclaim.h"

#include <algorithm>
#include <utility>

namespace commensal::policies {
namespace {

std::optional<JobIndex> take_furthest_above(const ClusterView& view, const TenantUse& use,
                                            std::vector<JobIndex>& lent) {
  auto best = lent.end();
  for (auto job = lent.begin(); job != lent.end(); ++job) {
    const ClusterJob& candidate = view.jobs[*job];
    const double part = use.part(candidate.tenant);
    if (part <= 1 && candidate.asked != AskedClass::kOpportunistic) continue;
    if (best == lent.end() || part >= use.part(view.jobs[*best].tenant)) best = job;
  }
  if (best == lent.end()) return std::nullopt;
  const JobIndex job = *best;
  lent.erase(best);
  return job;
}

bool meet(const Placement& parts, const Placement& others) {
  return std::any_of(parts.begin(), parts.end(), [&](const GpuPart& part) {
    return std::any_of(others.begin(), others.end(), [&](const GpuPart& other) {
      return other.node == part.node && other.gpu == part.gpu;
    });
  });
}

}  // namespace

std::optional<Reclaimed> reclaim(const ClusterView& view, const ClusterJob& job, Locality locality,
                                 FreeGpus free, TenantUse use, std::vector<JobIndex> lent) {
  Reclaimed reclaimed;
  while (const auto next = take_furthest_above(view, use, lent)) {
    const ClusterJob& stopped = view.jobs[*next];
    reclaimed.stopped.push_back(*next);
    use.stop_lent(stopped);
    free.give(stopped, stopped.placement);
    if (free.total() < job.gpus) continue;
    FreeGpus attempt = free;
    reclaimed.parts = take_close(job, locality, attempt);
    if (std::ssize(reclaimed.parts) < job.gpus) continue;
    std::erase_if(reclaimed.stopped, [&](JobIndex index) {
      return !meet(view.jobs[index].placement, reclaimed.parts);
    });
    return reclaimed;
  }
  return std::nullopt;
}

}  // namespace commensal::policies

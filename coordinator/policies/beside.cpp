// SPDX-License-Identifier: Apache-2.0
// Sums of minima against a whole GPU.
#include "coordinator/policies/beside.h"

namespace commensal::policies {

Minima minima_of(const ClusterJob& job, JobClass job_class) noexcept {
  Minima minima = job.minima;
  if (job_class == JobClass::kGuaranteed) minima.share_milli = 0;
  return minima;
}

std::optional<Reason> lacks(const Minima& others, const Minima& own,
                            std::int64_t gpu_memory_mib) noexcept {
  if (own.share_milli > 0 && others.share_milli + own.share_milli > kWholeGpu) {
    return Reason{"its minimum share of {} does not fit beside the {} of others",
                  {static_cast<double>(own.share_milli) / kWholeGpu,
                   static_cast<double>(others.share_milli) / kWholeGpu}};
  }
  const bool known = gpu_memory_mib > 0;
  if (known && own.memory_mib > 0 && others.memory_mib + own.memory_mib > gpu_memory_mib) {
    return Reason{"its minimum of {} MiB of memory is more than the {} MiB that others leave",
                  {static_cast<double>(own.memory_mib),
                   static_cast<double>(gpu_memory_mib - others.memory_mib)}};
  }
  return std::nullopt;
}

bool MinimaDraft::fits(const ClusterJob& job, NodeIndex node, std::uint16_t gpu) const {
  const Minima own = minima_of(job, JobClass::kOpportunistic);
  if (own == Minima{}) return true;
  Minima others = cluster_.gpu(node, gpu).minima;
  if (const auto more = taken_.find(cluster_.index(node, gpu)); more != taken_.end()) {
    others.share_milli += more->second.share_milli;
    others.memory_mib += more->second.memory_mib;
  }
  return !lacks(others, own, cluster_.nodes()[node].gpu_memory_mib);
}

void MinimaDraft::take(const ClusterJob& job, JobClass job_class, const Placement& parts) {
  const Minima own = minima_of(job, job_class);
  if (own == Minima{}) return;
  for (const GpuPart& part : parts) {
    if (part.gpu == kHostOnly) continue;
    Minima& taken = taken_[cluster_.index(part.node, part.gpu)];
    taken.share_milli += own.share_milli;
    taken.memory_mib += own.memory_mib;
  }
}

}  // namespace commensal::policies

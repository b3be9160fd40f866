// SPDX-License-Identifier: Apache-2.0
// When jobs cross the limits of Tiresias' queues.
#include "coordinator/policies/attained_service.h"

#include <algorithm>
#include <cmath>

namespace commensal::policies {
namespace {

double until_crossing(Crossing crossing, double limit, const ClusterJob& job) {
  if (job.gpus == 0 && crossing != Crossing::kSeconds) return kNever;  // it attains no service
  switch (crossing) {
    case Crossing::kSeconds: return limit - job.attained;
    case Crossing::kExact: return limit / job.gpus - job.attained;
    case Crossing::kFloor: return std::floor((limit - job.attained) / job.gpus);
    case Crossing::kCeil: return std::ceil(limit / job.gpus) - job.attained;
  }
  return kNever;
}

}  // namespace

ServiceQueues read_service_queues(Options& options, bool by_gpus) {
  ServiceQueues queues;
  queues.by_gpus = by_gpus;
  queues.limits[0] = options.number("first-limit", queues.limits[0]);
  queues.limits[1] = options.number("second-limit", queues.limits[1]);
  if (!by_gpus) {
    queues.crossing = Crossing::kSeconds;
    return queues;
  }
  const std::string crossing = options.choice("crossing", "floor", {"exact", "floor", "ceil"});
  queues.crossing = crossing == "floor"  ? Crossing::kFloor
                    : crossing == "ceil" ? Crossing::kCeil
                                         : Crossing::kExact;
  return queues;
}

Time ServiceQueues::next_crossing(const ClusterView& view, const Notes& notes,
                                  const std::vector<JobIndex>& running) const {
  // Sums of fractions are rounded: a moment that is not ahead would find the job below its limit
  // once more, and nobody would be asked again.
  const bool exact = crossing == Crossing::kExact || crossing == Crossing::kSeconds;
  const Time ahead = exact ? std::nextafter(view.now, kNever) : view.now;
  Time first = kNever;
  for (const JobIndex index : running) {
    const std::size_t level = notes.level[index];
    if (level + 1 >= kQueues) continue;
    const ClusterJob& job = view.jobs[index];
    first =
        std::min(first, std::max(ahead, view.now + until_crossing(crossing, limits[level], job)));
  }
  return first;
}

}  // namespace commensal::policies

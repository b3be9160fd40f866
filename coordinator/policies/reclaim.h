// SPDX-License-Identifier: Apache-2.0
// Whom to stop of those that run beyond a quota, so that a job within its own can start.
#pragma once

#include <optional>
#include <vector>

#include "coordinator/policies/free_gpus.h"
#include "coordinator/policies/tenant_use.h"

namespace commensal::policies {

struct Reclaimed {
  std::vector<JobIndex> stopped;
  Placement parts;  ///< all that the job asks for
};

/// Of the tenants above their quotas the one furthest above gives first, of its jobs among `lent`
/// the one that started last; who asked for no quota may be stopped in any case. Just as many as
/// let `job` start with `locality`, and only those on whose GPUs it starts; nothing if it would not
/// start with all of them stopped. `lent` is in the order of their starts.
[[nodiscard]] std::optional<Reclaimed> reclaim(const ClusterView& view, const ClusterJob& job,
                                               Locality locality, FreeGpus free, TenantUse use,
                                               std::vector<JobIndex> lent);

}  // namespace commensal::policies

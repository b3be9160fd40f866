// SPDX-License-Identifier: Apache-2.0
// Where Gandiva's jobs run: the choice of a server, migration, and growing into idle GPUs.
#pragma once

#include <vector>

#include "coordinator/policies/round_book.h"

namespace commensal::policies {

struct GandivaRules {
  bool migrates = true;
  bool grows = true;
};

/// Writes a plan in which exactly `turns` run, on servers of the type of each turn. Who runs there
/// stays, with as many GPUs as it asks for.
///
/// Who starts, large ones first, goes to a server with jobs of its own size only (its affinity),
/// the least loaded first; then to an unused one; then to any that holds it; else it is spread.
/// After somebody has left, who is spread over several servers goes to one that holds it, and the
/// used server with most free GPUs is emptied, as far as others with fewer free ones take its jobs.
/// Last, jobs that take more GPUs than they ask for get idle ones of their servers; in the next
/// round these are free again. Two jobs that share have half of each GPU.
void plan_on_servers(const ClusterView& view, const std::vector<RoundBook::Turn>& turns,
                     const GandivaRules& rules, ClusterPlan& plan);

}  // namespace commensal::policies

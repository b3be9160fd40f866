// SPDX-License-Identifier: Apache-2.0
// From who runs in a round to GPUs.
#pragma once

#include <vector>

#include "coordinator/policies/round_book.h"

namespace commensal::policies {

/// Writes a plan in which exactly `turns` run. Who runs on the same type as before, with the same
/// partner, stays where it is if it can; others take the first free GPUs of their type, those with
/// many GPUs first. Two jobs that share have half of each GPU.
void plan_round(const ClusterView& view, const std::vector<RoundBook::Turn>& turns,
                ClusterPlan& plan);

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// The rules that hold for the plans of all policies.
#pragma once

#include <string>

#include "coordinator/policies/cluster_plan.h"

namespace commensal::policies {

/// Returns which rule a plan breaks, with the values; empty: none. A plan that breaks one is
/// dropped whole. The rules, once all that gives has given:
/// - only waiting jobs start or reserve, only running ones stop, move or are upgraded, each once;
/// - a gang gets all of its GPUs or none: what it asks for, or between its least and its most, of a
///   type that it takes; a GPU is named once;
/// - nothing is over capacity: GPUs, cores, memory; a GPU that is reserved for a job is closed to
///   other guaranteed ones, unless the plan changes that reservation;
/// - on no GPU that an opportunistic job with minima is put on are the minimum shares of the
///   opportunistic jobs, or the minima of memory of all, more than there is;
/// - no tenant's guaranteed jobs are over its quota;
/// - every decision has a reason, and the plan does not ask to be woken in the past.
[[nodiscard]] std::string broken_rule(const ClusterView& view, const ClusterPlan& plan);

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// The interface of every policy of the cluster.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "coordinator/policies/cluster_plan.h"
#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// What a policy writes down for its next decision: plain values, kept with the view, so that a
/// decision can be repeated from them.
struct Notes {
  std::vector<std::vector<JobIndex>> lists;
  std::vector<std::uint8_t> level;  ///< by job
  std::vector<std::uint32_t> mark;  ///< by job: the decision that last chose it
  std::vector<double> numbers;      ///< what else a policy has to remember
  std::uint32_t decisions = 0;
  bool operator==(const Notes&) const = default;
};

/// Decides who runs where. Has no clock, lock, socket or memory of its own: equal view and equal
/// notes give an equal plan and equal notes.
///
/// Every policy keeps the rules of `plan_rules.h`. Thread safety: a policy does not change.
class ClusterPolicy {
 public:
  virtual ~ClusterPolicy() = default;

  /// Whether decisions depend on how far running jobs are (`attained`, `remaining`).
  [[nodiscard]] virtual bool reads_progress() const noexcept { return true; }

  /// Whose durations it is published with, by the name of a predictor; `truth`: the recorded ones.
  [[nodiscard]] virtual std::string_view predictor() const noexcept { return "truth"; }

  /// Whether jobs that run already, which a coordinator finds after a restart without notes, arrive
  /// like others. If not, only those that wait do: enough for who never looks at running jobs, or
  /// at `view.running` only.
  [[nodiscard]] virtual bool adopts_running() const noexcept { return false; }

  /// Load of a GPU, in thousandths of its time, from which on it puts no job there beside others;
  /// nothing: it has no such bound. Who has one serves guaranteed jobs of a tenant, then
  /// opportunistic jobs, then auto jobs of a tenant, each in the order of their arrival.
  [[nodiscard]] virtual std::optional<std::int32_t> beside_below() const noexcept { return {}; }

  /// What it has to be told of jobs that only a trace knows, in words; empty: nothing. A live
  /// coordinator takes no policy that needs something.
  [[nodiscard]] virtual std::string_view needs() const noexcept { return {}; }

  /// Writes changes into `plan`, which is empty, in order; none leaves everything as it is.
  virtual void decide(const ClusterView& view, Notes& notes, ClusterPlan& plan) const = 0;
};

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// GPUs without a guaranteed job, as a decision of antman leaves them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "coordinator/policies/cluster_view.h"
#include "coordinator/policies/guaranteed_demand.h"
#include "coordinator/policies/host_draft.h"

namespace commensal::policies {

/// What the view shows to be open, less what the decision took since; within a decision GPUs are
/// only taken. Lives for one decision. Thread safety: none.
class OpenGpus {
 public:
  explicit OpenGpus(const ClusterView& view);

  /// Cores and memory of the nodes.
  [[nodiscard]] HostDraft& hosts() noexcept { return hosts_; }

  [[nodiscard]] std::uint32_t number(const GpuPart& part) const;
  /// Whether a guaranteed job was given the GPU, or has it reserved, since the decision began, or
  /// it is kept.
  [[nodiscard]] bool closed(const GpuPart& part) const;
  /// Whether a node has GPUs that will do, and now cores and memory for the job.
  [[nodiscard]] bool takes(const ClusterJob& job, NodeIndex node) const;

  /// Adds open GPUs to those that are reserved, as far as they go: of the node with the fewest open
  /// ones that are enough, else of that with most; a larger gang has whole nodes, of one rack where
  /// one has enough.
  void complete(const ClusterJob& job, Placement& parts);
  /// Takes GPUs for a guaranteed job.
  void close(const Placement& parts);
  /// Takes what a job that waits could use from all who are served from now on.
  void keep_for(const ClusterJob& job);

  /// Counts what a job with a reservation waits for.
  void wait_for(const ClusterJob& job, const Placement& reserved);
  /// Whether all that waits with a reservation can be served one after the other: otherwise two
  /// gangs could keep from each other what they wait for.
  [[nodiscard]] bool may_reserve(const ClusterJob& job, const Placement& parts) const;

 private:
  [[nodiscard]] std::int32_t open_on(NodeIndex node) const;
  void add_open(NodeIndex node, std::size_t enough, Placement& parts) const;
  [[nodiscard]] NodeIndex best_node(const ClusterJob& job);
  /// A node to wait on: it must be able to hold this job beside all that wait there already.
  [[nodiscard]] bool may_wait_on(const ClusterJob& job, NodeIndex node) const;
  [[nodiscard]] NodeIndex most_open(const ClusterJob& job) const;
  /// Wholly open nodes, those of the rack that has most of them first, larger ones before smaller.
  void add_whole_nodes(const ClusterJob& job, std::size_t enough, Placement& parts) const;

  const ClusterView& view_;
  HostDraft hosts_;
  GuaranteedDemand kept_;
  std::unordered_set<std::uint32_t> closed_;  // taken or reserved by guaranteed jobs
  /// By open GPUs, as the view has them, and GPUs asked for: the first node with so many left.
  std::map<std::pair<std::int32_t, std::int32_t>, std::set<NodeIndex>::const_iterator> first_with_;
  std::unordered_map<NodeIndex, std::int32_t> taken_on_;
  std::unordered_map<NodeIndex, std::int32_t> waited_for_;  // GPUs that jobs bound to it ask for
  std::int32_t waited_by_large_ = 0;                        // GPUs that larger gangs ask for
};

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// What all packers share: which nodes a job fits on, the best by a rule's score, and which GPUs.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "coordinator/policies/cluster_policy.h"

namespace commensal::policies {

/// What is free of a node while a plan is made. Valid until something is taken.
struct NodeRoom {
  NodeIndex node = 0;
  std::uint32_t type = 0;              ///< of its GPUs
  std::int64_t cpu_milli = 0;          ///< without end where cores are not counted
  std::int64_t memory_mib = 0;         ///< without end where memory is not counted
  std::span<const std::int32_t> gpus;  ///< thousandths free of each; none of a reserved one
  std::uint32_t kinds = 0;             ///< bits of `kind_of` of the jobs on it
  [[nodiscard]] std::int64_t gpu_milli() const noexcept;  ///< free of all GPUs together
};
inline constexpr std::int64_t kUncounted = std::numeric_limits<std::int64_t>::max();

/// Whether a job asks for a part of one GPU.
[[nodiscard]] constexpr bool asks_for_part(const ClusterJob& job) noexcept {
  return job.gpus == 1 && job.gpu_milli < kWholeGpu;
}
/// A bit for jobs that ask alike: for a part of a GPU, for one GPU, for two, ...; zero without
/// GPUs.
[[nodiscard]] std::uint32_t kind_of(const ClusterJob& job) noexcept;

/// The largest node of a cluster, by which requests are measured.
struct LargestNode {
  std::int64_t cpu_milli = 0;
  std::int64_t gpu_milli = 0;
};

/// How a packer values places. Made for one decision. Thread safety: none.
class PackingRule {
 public:
  virtual ~PackingRule() = default;

  /// Points of a node on which the job fits: most wins, the lowest node among equals.
  [[nodiscard]] virtual std::int64_t score(const NodeRoom& node, JobIndex index,
                                           const ClusterJob& job) = 0;

  /// Points of a free node for a job with more GPUs than any node has: most first, the lowest among
  /// equals. Unless a rule has its own, all are equal.
  [[nodiscard]] virtual std::int64_t score_as_part(const NodeRoom& node, JobIndex index,
                                                   const ClusterJob& job);

  /// The GPU for a job that asks for a part of one; unless a rule has its own, the one with the
  /// least left that will do.
  [[nodiscard]] virtual std::uint16_t part_of(const NodeRoom& node, JobIndex index,
                                              const ClusterJob& job);

  /// A reason in the syntax of fmt, with two numbers: points, and nodes on which the job fits.
  [[nodiscard]] virtual std::string_view why() const = 0;

  /// Whether `NodeRoom::kinds` is read.
  [[nodiscard]] virtual bool reads_kinds() const { return false; }
};

[[nodiscard]] LargestNode largest_node(const Cluster& cluster);

/// Starts jobs in the order of their arrival, each whole on one node; who does not fit is passed
/// and tried again when a job has ended. Nobody is stopped or moved. A job fits where cores,
/// memory, GPU type and as many GPUs with its part free are; whole GPUs are the lowest that are
/// wholly free. A job with more GPUs than any node has gets wholly free nodes, by the rule's
/// `score_as_part`, the last one in part. Uses list 0 of the notes: who waits.
void pack(const ClusterView& view, Notes& notes, PackingRule& rule, ClusterPlan& plan);

}  // namespace commensal::policies

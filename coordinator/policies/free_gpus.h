// SPDX-License-Identifier: Apache-2.0
// Whole GPUs that nobody uses, while a plan is made, and how to take them close together.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/policies/cluster_view.h"

namespace commensal::policies {

/// GPUs that no job is on and that are kept for none: what a cluster shows, less what a plan takes
/// and with what it gives. A value that may be copied to try something. Thread safety: none.
class FreeGpus {
 public:
  explicit FreeGpus(const Cluster& cluster);

  [[nodiscard]] std::int32_t total() const noexcept { return total_; }
  [[nodiscard]] std::int32_t on(NodeIndex node) const { return on_[node]; }
  [[nodiscard]] const Cluster& cluster() const noexcept { return *cluster_; }

  /// Whether a job takes the type of a node's GPUs, and the node has the cores and the memory that
  /// it asks for.
  [[nodiscard]] bool takes(const ClusterJob& job, NodeIndex node) const;

  /// Takes the lowest `gpus` of a node, which are free, and with them its part of the host.
  void take(const ClusterJob& job, NodeIndex node, std::int32_t gpus, Placement& parts);
  /// Takes what is named, all of which is free.
  void take(const ClusterJob& job, const Placement& parts);
  void give(const ClusterJob& job, const Placement& parts);
  /// Gives GPUs that were kept for a job, which held nothing of the host.
  void unreserve(const Placement& parts);

 private:
  void hold_host(const ClusterJob& job, const Placement& parts, std::int64_t sign);

  const Cluster* cluster_;
  std::vector<std::uint8_t> free_;  // by number of a GPU
  std::vector<std::int32_t> on_;
  std::vector<std::int64_t> cpu_;
  std::vector<std::int64_t> memory_;
  std::int32_t total_ = 0;
};

/// How close together the GPUs of a job have to be, closest first.
enum class Locality : std::uint8_t {
  kServers,  ///< on the fewest servers, equally many on each, of one rack
  kRack,     ///< on any servers of one rack
  kAnywhere
};

/// Whether an empty cluster could place a job so.
[[nodiscard]] bool possible(const Cluster& cluster, const ClusterJob& job, Locality locality);

/// Takes the GPUs that a job asks for; fewer if not so many are free. Racks that could hold the
/// whole job, first the one with most servers that have enough (`kServers`: then servers by
/// packing, the fullest that will do) or with most free GPUs (then the emptiest servers, so that
/// they are few).
[[nodiscard]] Placement take_close(const ClusterJob& job, Locality locality, FreeGpus& free);

}  // namespace commensal::policies

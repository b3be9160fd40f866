// SPDX-License-Identifier: Apache-2.0
// Which jobs are on which nodes, kept with each change of a job.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "coordinator/cluster/job.h"

namespace commensal::cluster {

/// Returns the nodes on which a job is, or on which devices are kept for it; empty: it is nowhere.
[[nodiscard]] std::set<std::string> nodes_of(const JobRecord& job);

/// Keeps the jobs of each node, so that nobody has to look through all jobs for one node.
///
/// Memory is bounded by the jobs that are somewhere. Thread safety: none.
class PlacementIndex {
 public:
  using Number = std::uint64_t;  // of a job

  /// Begins anew with these jobs.
  void begin(const std::map<Number, JobRecord>& jobs);
  /// Notes what has become of a job.
  void moved(Number job, const JobRecord& before, const JobRecord& after);
  /// Has every node count as changed: what its devices are may be another thing now.
  void touch_all() noexcept;

  /// Jobs of a node, the lowest number first.
  [[nodiscard]] const std::set<Number>& on(const std::string& node) const;
  /// Another number than before whenever anything about the jobs of a node has changed since.
  [[nodiscard]] std::uint64_t revision(const std::string& node) const;

 private:
  struct Node {
    std::set<Number> jobs;
    std::uint64_t changed = 0;
  };
  std::map<std::string, Node> nodes_;  // that have jobs
  std::uint64_t last_ = 1;
  std::uint64_t none_ = 1;  // revision of nodes without jobs; no other one is ever the same
};

}  // namespace commensal::cluster

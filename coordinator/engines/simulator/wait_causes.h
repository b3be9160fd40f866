// SPDX-License-Identifier: Apache-2.0
// Why jobs waited: for their tenant's quota, or though it had room for them.
#pragma once

#include <vector>

#include "coordinator/engines/simulator/simulation.h"

namespace commensal::simulator {

/// Splits the waiting of each job as Philly's authors do: *fair share*, while its tenant's quota
/// has no room for it (or it asked for none), and *fragmentation*, while it has, and the job lacks
/// GPUs or places. Shown the state after each decision. Thread safety: none.
class WaitCauses {
 public:
  void observe(policies::ClusterState& state, Time now);

  /// Fills in `waited_for_quota`, if a tenant has a quota and each job was run once.
  void write(Outcome& outcome) const;

 private:
  struct Waiting {
    policies::JobIndex job;
    bool for_quota;
  };

  void follow(policies::ClusterState& state);

  bool quotas_ = false;
  Time last_ = 0;
  std::size_t seen_ = 0;  // jobs
  std::vector<Waiting> waiting_;
  std::vector<policies::JobIndex> running_;
  std::vector<double> for_quota_;  // seconds, by job
};

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// Tiresias' placement: close together only who needs it.
#pragma once

#include <memory>
#include <utility>

#include "coordinator/policies/cluster_policy.h"
#include "coordinator/policies/placer.h"
#include "coordinator/policies/registry.h"

namespace commensal::policies {

/// A job whose model has a skew (largest tensor as a part of the model) above a threshold goes to
/// the fewest machines that could hold it, or waits; others go anywhere, to the fullest machines
/// first, so that whole ones stay free. Who runs stays (Tiresias, NSDI '19).
class SkewPlacer final : public Placer {
 public:
  explicit SkewPlacer(double threshold) : threshold_(threshold) {}

  [[nodiscard]] Scope scope() const noexcept override { return Scope::kStay; }
  [[nodiscard]] std::optional<Placement> place(const Cluster& cluster,
                                               const ClusterJob& job) const override;

 private:
  double threshold_;
};

/// Reads `placement` (`given`: as the view has it; `skew`) and `skew-above` (0..1), and has
/// `policy` place by that.
/// @throws std::invalid_argument for a threshold that is none.
[[nodiscard]] std::unique_ptr<ClusterPolicy> with_placement(Options& options,
                                                            std::unique_ptr<ClusterPolicy> policy);

}  // namespace commensal::policies

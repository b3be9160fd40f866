// SPDX-License-Identifier: Apache-2.0
// Where the GPUs of one job come from.
#pragma once

#include <optional>

#include "coordinator/policies/cluster.h"

namespace commensal::policies {

struct ClusterJob;

/// Whether a node has GPUs of a type that the job takes, and cores and memory for it.
[[nodiscard]] bool takes(const Cluster& cluster, const ClusterJob& job, NodeIndex node);

/// Finds a place for a job. Pure: it changes nothing. Thread safety: does not change.
class Placer {
 public:
  virtual ~Placer() = default;

  /// How jobs that run are treated when everything is handed out anew.
  enum class Scope : std::uint8_t {
    kCounted,  ///< GPUs are only counted; places do not matter
    kStay,     ///< who runs stays where it is
    kMove      ///< every job is placed anew, in order, on the empty cluster
  };
  [[nodiscard]] virtual Scope scope() const noexcept = 0;

  /// Returns the GPUs for `job` (empty where they are only counted); nothing if it does not fit.
  [[nodiscard]] virtual std::optional<Placement> place(const Cluster& cluster,
                                                       const ClusterJob& job) const = 0;
};

/// GPUs are counted and nobody asks where they are (Tiresias' simulator, placement "count").
class CountedPlacer final : public Placer {
 public:
  [[nodiscard]] Scope scope() const noexcept override { return Scope::kCounted; }
  [[nodiscard]] std::optional<Placement> place(const Cluster& cluster,
                                               const ClusterJob& job) const override;
};

/// Fullest node that fits; larger jobs on wholly free nodes and, if they are no multiple of a node,
/// on one more (Helios' artifact, placement "consolidate"). All nodes have equally many GPUs.
class ConsolidatingPlacer final : public Placer {
 public:
  [[nodiscard]] Scope scope() const noexcept override { return Scope::kStay; }
  [[nodiscard]] std::optional<Placement> place(const Cluster& cluster,
                                               const ClusterJob& job) const override;
};

/// First node with enough free GPUs; larger jobs on the first wholly free nodes (Muri's simulator).
/// Of nodes that differ: those whose GPUs, cores and memory will do.
class FirstNodePlacer final : public Placer {
 public:
  [[nodiscard]] Scope scope() const noexcept override { return Scope::kMove; }
  [[nodiscard]] std::optional<Placement> place(const Cluster& cluster,
                                               const ClusterJob& job) const override;
};

/// The node with most free GPUs, the lowest of equal ones, then the next, until the job has its
/// own; who runs stays (Pollux' simulator, for Tiresias and Optimus).
class MostFreePlacer final : public Placer {
 public:
  [[nodiscard]] Scope scope() const noexcept override { return Scope::kStay; }
  [[nodiscard]] std::optional<Placement> place(const Cluster& cluster,
                                               const ClusterJob& job) const override;
};

}  // namespace commensal::policies

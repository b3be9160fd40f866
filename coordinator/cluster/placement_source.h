// SPDX-License-Identifier: Apache-2.0
// Where it is known what is placed on nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/wire/placements.h"

namespace commensal::cluster {

/// Says what is placed on a node.
class PlacementSource {
 public:
  virtual ~PlacementSource() = default;

  /// Returns another number than before whenever `placements_on` may have changed since then.
  /// Cheap: it is asked with each heartbeat of each node.
  [[nodiscard]] virtual std::uint64_t placement_revision(const std::string& node) const = 0;

  /// Returns the jobs that are placed on a node, or for which devices of it are kept, in the order
  /// of their numbers. None for a node that the engine does not have; nothing while it is not known
  /// which ones it has.
  [[nodiscard]] virtual std::optional<std::vector<wire::Placement>> placements_on(
      const std::string& node) const = 0;
};

}  // namespace commensal::cluster

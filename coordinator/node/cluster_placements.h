// SPDX-License-Identifier: Apache-2.0
// The list of what the cluster's coordinator has placed on this node.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/node/heartbeats.h"
#include "coordinator/wire/placements.h"

namespace commensal::node {

/// Takes lists out of answers to heartbeats, and tells with each heartbeat which one it has.
///
/// The newest list stays until a newer one has come, however long nobody answers. A list comes
/// whole; one that is older, damaged or in no answer to a heartbeat that waits for one is refused
/// and changes nothing. Has no socket and no clock. Thread safety: none.
class ClusterPlacements {
 public:
  /// Returns the part "placements" of the next heartbeat (docs/cluster.md).
  [[nodiscard]] nlohmann::json tell();

  /// Takes the same part of an answer; null: it has none.
  /// @return whether there is another list now.
  /// @throws std::invalid_argument with one sentence; nothing has changed then.
  bool take(const nlohmann::json& part);

  [[nodiscard]] const std::vector<wire::Placement>& list() const noexcept { return list_; }
  /// Its number; 0: none has come.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// Placements that did not fit into it.
  [[nodiscard]] std::uint64_t left_out() const noexcept { return left_out_; }

 private:
  Heartbeats beats_;
  std::string run_;  // of the coordinator that the list is of
  std::uint64_t number_ = 0;
  std::uint64_t left_out_ = 0;
  std::vector<wire::Placement> list_;
};

}  // namespace commensal::node

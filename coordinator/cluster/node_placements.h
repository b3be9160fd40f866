// SPDX-License-Identifier: Apache-2.0
// Lists of what is placed on nodes, on their way to nodes that report.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/cluster/placement_source.h"
#include "coordinator/wire/heartbeat_parts.h"

namespace commensal::cluster {

/// Tells each node what is placed on it, with the answers to its heartbeats.
///
/// A node's list has a number. It goes out whole until the node has said that number; from then on
/// answers carry the number alone. A list is made when what it is made of has changed, not with
/// each heartbeat. Nothing of it is written down: another start of the coordinator has another word
/// (`run`), and tells its lists anew.
///
/// Has no socket and no clock: time is an argument. Memory is bounded by the nodes that report and
/// the longest list. Thread safety: none.
class NodePlacements {
 public:
  static constexpr Duration kLook = std::chrono::seconds{1};

  /// @param source  not owned, must outlive this object.
  /// @param run  as of NodeOrders.
  NodePlacements(const PlacementSource& source, std::string run);

  /// Looks at what a node says of its list (docs/cluster.md, "heartbeat").
  /// @param told  null: the node takes no placements.
  /// @throws std::invalid_argument with one sentence.
  void check(const nlohmann::json& told) const;

  /// Takes it. @return the same part of the answer; null if `told` is, or if it is not known yet
  /// what is placed there. @throws as `check`; nothing has changed then.
  [[nodiscard]] nlohmann::json exchange(const std::string& node, const nlohmann::json& told,
                                        TimePoint now);

  /// Forgets nodes that have left. Looks once a `kLook` at most.
  void expire(TimePoint now);

  /// Adds to each report of an answer to `nodes` (NodeReports::add_to) which list is its node's and
  /// which one it knows: `placements` with `number` and `known`, or null: it takes none.
  void add_to(nlohmann::json& answer);

  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }

 private:
  struct Node {
    std::uint64_t number = 0;  // of its list; 0: there is none yet
    std::uint64_t known = 0;   // it has said this one; 0: none of this run
    std::uint64_t revision = 0;
    std::vector<wire::Placement> list;
    std::size_t left_out = 0;
    TimePoint heard;
  };
  [[nodiscard]] wire::PlacementReport read(const nlohmann::json& told) const;
  void refresh(const std::string& name, Node& node);

  const PlacementSource& source_;
  const std::string run_;
  std::map<std::string, Node> nodes_;
  std::uint64_t last_ = 0;  // number that was given; they grow over all nodes
  TimePoint next_look_{};
};

}  // namespace commensal::cluster

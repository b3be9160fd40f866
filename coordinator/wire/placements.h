// SPDX-License-Identifier: Apache-2.0
// What the cluster's coordinator has placed on a node, as the node is told of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/ids.h"
#include "allocator/base/ranges.h"

namespace commensal::wire {

inline constexpr std::size_t kMostPlacements = 128;     ///< in one list
inline constexpr std::size_t kMostPlacedDevices = 32;   ///< of one of them
inline constexpr std::size_t kLongestPlacedText = 128;  ///< bytes of each of its texts

enum class PlacementState : std::uint8_t {
  kReserved,  ///< waits elsewhere; devices are kept for it
  kStarting,  ///< its engine was asked to start it
  kRunning,   ///< its engine has started it, as its class
  kUpgrading  ///< likewise, as opportunistic; it is being made guaranteed where it runs
};
/// "reserved", "starting", "running", "upgrading".
[[nodiscard]] std::string_view to_string(PlacementState state) noexcept;

/// One job of the cluster on one node.
struct Placement {
  std::string id;   ///< under which its processes register
  std::string job;  ///< its number in the cluster
  std::uint32_t attempt = 0;
  std::string name;
  std::string tenant;
  JobClass job_class = JobClass::kOpportunistic;
  PlacementState state = PlacementState::kStarting;
  std::vector<std::string> devices;   ///< of this node, each once; empty: cores alone
  std::int64_t cpu_milli = 0;         ///< thousandths of a core that were asked for; 0: not counted
  std::optional<MemoryRange> memory;  ///< of each device; absent: the cluster decided nothing
  std::optional<ShareRange> share;    ///< likewise
  bool operator==(const Placement&) const = default;
};

/// Writes a list; texts are cut to what `read_placements` takes.
[[nodiscard]] nlohmann::json written(const std::vector<Placement>& placements);

/// Reads a list that was written.
/// @throws std::invalid_argument with one sentence that names what is wrong.
[[nodiscard]] std::vector<Placement> read_placements(const nlohmann::json& list);

}  // namespace commensal::wire

// SPDX-License-Identifier: Apache-2.0
// What the cluster's coordinator has placed on a node, as the node is told of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/enum_names.h"
#include "allocator/base/field_rules.h"
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
constexpr EnumNames<PlacementState, 4> names_of(PlacementState) noexcept {
  return {{{PlacementState::kReserved, "reserved"},
           {PlacementState::kStarting, "starting"},
           {PlacementState::kRunning, "running"},
           {PlacementState::kUpgrading, "upgrading"}}};
}
[[nodiscard]] constexpr std::string_view to_string(PlacementState state) noexcept {
  return name_of(state);
}

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
void fields(SameAs<Placement> auto& placement, auto& field) {
  constexpr TextSize kText{0, kLongestPlacedText};
  constexpr TextSize kId{1, kLongestPlacedText};
  field("id", placement.id, kId);
  field("job", placement.job, kId);
  field("attempt", placement.attempt);
  field("name", placement.name, kText);
  field("tenant", placement.tenant, kText);
  field("class", placement.job_class);
  field("state", placement.state);
  field("devices", placement.devices, ListSize{0, kMostPlacedDevices}, kText);
  field("cpu_milli", placement.cpu_milli, NotBelow{0});
  field("memory", placement.memory);
  field("share", placement.share);
}

/// Cuts texts and the list of devices to what a reader takes, no character in two.
void cut_to_bounds(Placement& placement);
/// Says which id two of them have; empty: each has its own.
[[nodiscard]] std::string repeated_id(const std::vector<Placement>& placements);

}  // namespace commensal::wire

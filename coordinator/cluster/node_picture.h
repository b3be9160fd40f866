// SPDX-License-Identifier: Apache-2.0
// What the page shows of a node's report.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>

namespace commensal::cluster {

/// Devices and jobs of a node that the page has room for, and bytes of a name.
inline constexpr std::size_t kShownDevices = 16;
inline constexpr std::size_t kShownJobs = 16;
inline constexpr std::size_t kShownText = 128;

/// Returns devices (memory, use) and jobs (memory by tier, gate, steps, slowdown) of a report, in
/// the form of a node's status (docs/stats.md), which the page knows. Whatever a node sends, each
/// field has its own type or is null, and the result is bounded. Pure.
/// @param report  as NodeReports takes it.
[[nodiscard]] nlohmann::json node_picture(const nlohmann::json& report);

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// The gaps of a job, from the reports that it sends.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "coordinator/node/gap_control.h"
#include "coordinator/wire/gaps.h"

namespace commensal::node {

/// Over which gaps are counted.
inline constexpr Duration kGapWindow = std::chrono::seconds(60);

/// Waits that have ended and their time, by phase, since the process began.
struct GapTotals {
  struct Phase {
    double waits = 0.0;
    double seconds = 0.0;
    bool operator==(const Phase&) const = default;
  };
  std::array<Phase, wire::kGapPhases> phases{};
  bool operator==(const GapTotals&) const = default;
};

/// Reads the totals of a report (docs/stats.md, `activity.gaps`); what is not there, or is no such
/// thing, counts as zero.
[[nodiscard]] GapTotals read_gap_totals(const nlohmann::json& report);

/// Returns the classes of the gaps that ended between two reports, the one with the most time
/// first. @param report  the newer one, which tells of the lengths.
[[nodiscard]] std::vector<GapClass> gap_classes(const nlohmann::json& report,
                                                const GapTotals& before, double seconds);

/// Writes them as `jobs[].gaps`, the phases that were not seen last.
[[nodiscard]] nlohmann::json to_json(const std::vector<GapClass>& gaps);
/// Returns `activity.gaps` of a job that has not reported yet.
[[nodiscard]] nlohmann::json no_gaps();
/// Writes them as `jobs[].gap_rules`.
[[nodiscard]] nlohmann::json to_json(const GapDecision& decision);

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// Reading and writing what is known of gaps.
#include "coordinator/node/gap_report.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

namespace commensal::node {
namespace {

using nlohmann::json;

constexpr std::size_t kMostLengths = wire::kGapBuckets;

const json* list_of(const json& report) {
  if (!report.is_object()) return nullptr;
  const auto activity = report.find("activity");
  if (activity == report.end() || !activity->is_object()) return nullptr;
  const auto gaps = activity->find("gaps");
  return gaps != activity->end() && gaps->is_array() ? &*gaps : nullptr;
}

/// A number that makes sense; else zero.
double number(const json& value) {
  if (!value.is_number()) return 0.0;
  const auto given = value.get<double>();
  return std::isfinite(given) && given > 0.0 ? given : 0.0;
}

double field(const json& entry, const char* name) {
  const auto value = entry.find(name);
  return value == entry.end() ? 0.0 : number(*value);
}

std::optional<wire::GapPhase> phase_of(const json& entry) {
  if (!entry.is_object()) return std::nullopt;
  const auto name = entry.find("phase");
  if (name == entry.end() || !name->is_string()) return std::nullopt;
  const auto& text = name->get_ref<const std::string&>();
  for (std::size_t i = 0; i < wire::kGapPhases; ++i) {
    if (wire::kGapPhaseNames[i] == text) return static_cast<wire::GapPhase>(i);
  }
  return std::nullopt;
}

std::vector<std::pair<double, double>> lengths_of(const json& entry) {
  std::vector<std::pair<double, double>> lengths;
  const auto list = entry.find("lengths");
  if (list == entry.end() || !list->is_array()) return lengths;
  double all = 0.0;
  for (const json& bucket : *list) {
    if (!bucket.is_array() || bucket.size() != 2 || lengths.size() == kMostLengths) continue;
    lengths.emplace_back(number(bucket[0]), number(bucket[1]));
    all += lengths.back().second;
  }
  if (all <= 0.0) return {};
  for (auto& [floor, part] : lengths) part /= all;
  std::sort(lengths.begin(), lengths.end());
  return lengths;
}

}  // namespace

GapTotals read_gap_totals(const json& report) {
  GapTotals totals;
  const json* const list = list_of(report);
  if (list == nullptr) return totals;
  for (const json& entry : *list) {
    const auto phase = phase_of(entry);
    if (!phase) continue;
    totals.phases[static_cast<std::size_t>(*phase)] = {field(entry, "waits_total"),
                                                       field(entry, "seconds_total")};
  }
  return totals;
}

std::vector<GapClass> gap_classes(const json& report, const GapTotals& before, double seconds) {
  std::vector<GapClass> classes;
  const json* const list = list_of(report);
  if (list == nullptr || seconds <= 0.0) return classes;
  const GapTotals now = read_gap_totals(report);
  for (const json& entry : *list) {
    const auto phase = phase_of(entry);
    if (!phase) continue;
    const auto index = static_cast<std::size_t>(*phase);
    const double waits = now.phases[index].waits - before.phases[index].waits;
    const double waited = now.phases[index].seconds - before.phases[index].seconds;
    if (waits <= 0.0) continue;  // none of late, or the process began anew
    classes.push_back({*phase, waits * 60.0 / seconds, std::clamp(waited / seconds, 0.0, 1.0),
                       field(entry, "median_seconds"), field(entry, "p90_seconds"),
                       lengths_of(entry)});
  }
  std::sort(classes.begin(), classes.end(),
            [](const GapClass& a, const GapClass& b) { return a.share > b.share; });
  return classes;
}

json to_json(const std::vector<GapClass>& gaps) {
  json all = json::array();
  std::vector<GapClass> every = gaps;
  for (std::size_t i = 1; i < wire::kGapPhases; ++i) {
    const auto phase = static_cast<wire::GapPhase>(i);
    const bool seen = std::any_of(gaps.begin(), gaps.end(),
                                  [&](const GapClass& gap) { return gap.phase == phase; });
    if (!seen) every.push_back({.phase = phase, .lengths = {}});
  }
  for (const GapClass& gap : every) {
    all.push_back({{"phase", wire::to_string(gap.phase)},
                   {"per_minute", gap.per_minute},
                   {"share", gap.share},
                   {"median_seconds", gap.median_seconds},
                   {"p90_seconds", gap.p90_seconds}});
  }
  return all;
}

json no_gaps() {
  json all = json::array();
  for (std::size_t i = 1; i < wire::kGapPhases; ++i) {
    all.push_back({{"phase", wire::kGapPhaseNames[i]},
                   {"waits_total", 0},
                   {"seconds_total", 0.0},
                   {"median_seconds", 0.0},
                   {"p90_seconds", 0.0},
                   {"lengths", json::array()}});
  }
  return all;
}

json to_json(const GapDecision& decision) {
  const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
  const wire::GapRules& rules = decision.rules;
  json phases = json::array();
  for (std::size_t i = 0; i < wire::kGapPhases; ++i) {
    const auto phase = static_cast<wire::GapPhase>(i);
    if ((rules.phases & wire::phase_bit(phase)) != 0) phases.push_back(wire::to_string(phase));
  }
  const bool flight = rules.in_flight > Duration::zero();
  return {{"level", decision.state.level},
          {"phases", std::move(phases)},
          {"smallest_seconds", seconds(rules.smallest)},
          {"guard_seconds", seconds(rules.guard)},
          {"in_flight_seconds", flight ? json(seconds(rules.in_flight)) : json(nullptr)},
          {"hand_overs_per_second", rules.hand_overs > 0 ? json(rules.hand_overs) : json(nullptr)},
          {"reason", decision.reason}};
}

}  // namespace commensal::node

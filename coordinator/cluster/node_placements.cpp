// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/node_placements.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "coordinator/cluster/node_reports.h"
#include "coordinator/wire/json_fields.h"

namespace commensal::cluster {

using nlohmann::json;

NodePlacements::NodePlacements(const PlacementSource& source, std::string run)
    : source_(source), run_(std::move(run)) {}

wire::PlacementReport NodePlacements::read(const json& told) const {
  wire::PlacementReport report;
  wire::read_field(told, "placements", report);
  if (report.run == run_ && report.number > last_) {
    throw std::invalid_argument(fmt::format(
        "it knows list {} of placements, and the newest one of all is {}", report.number, last_));
  }
  return report;
}

void NodePlacements::check(const json& told) const {
  if (!told.is_null()) (void)read(told);
}

json NodePlacements::exchange(const std::string& name, const json& told, TimePoint now) {
  if (told.is_null()) {
    nodes_.erase(name);
    return nullptr;
  }
  const wire::PlacementReport report = read(told);
  Node& node = nodes_[name];
  node.heard = now;
  node.known = report.run == run_ ? report.number : 0;
  refresh(name, node);
  if (node.number == 0) return nullptr;
  wire::PlacementList part{report.beat, run_, node.number, std::nullopt, std::nullopt};
  if (node.known != node.number) {
    part.list = node.list;
    part.left_out = node.left_out;
  }
  return wire::write_fields(part);
}

void NodePlacements::refresh(const std::string& name, Node& node) {
  const std::uint64_t revision = source_.placement_revision(name);
  if (node.number != 0 && node.revision == revision) return;
  auto placements = source_.placements_on(name);
  if (!placements) return;
  node.revision = revision;
  const std::size_t all = placements->size();
  if (all > wire::kMostPlacements) placements->resize(wire::kMostPlacements);
  for (wire::Placement& placement : *placements) wire::cut_to_bounds(placement);
  const std::size_t left_out = all - placements->size();
  if (node.number != 0 && *placements == node.list && left_out == node.left_out) return;
  node.list = *std::move(placements);
  node.left_out = left_out;
  node.number = ++last_;
}

void NodePlacements::expire(TimePoint now) {
  if (now < next_look_) return;
  next_look_ = now + kLook;
  std::erase_if(nodes_, [&](const auto& entry) {
    return now - entry.second.heard >= NodeReports::kForgotten;
  });
}

void NodePlacements::add_to(json& answer) {
  for (json& node : answer.at("nodes")) {
    const auto report = node.find("report");
    if (report == node.end()) continue;
    const auto found = nodes_.find(node.at("name").get<std::string>());
    json& shown = (*report)["placements"] = nullptr;
    if (found == nodes_.end()) continue;
    refresh(found->first, found->second);
    shown = {{"number", found->second.number}, {"known", found->second.known}};
  }
}

}  // namespace commensal::cluster

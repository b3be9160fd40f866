// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/node_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/cluster/node_picture.h"
#include "coordinator/wire/json_text.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;

bool is_list_of_objects(const json& report, const char* name) {
  const auto found = report.find(name);
  if (found == report.end() || !found->is_array()) return false;
  for (const json& entry : *found) {
    if (!entry.is_object()) return false;
  }
  return true;
}

/// A number of a report; zero if it says none.
double number(const json& report, const char* name) {
  const auto found = report.find(name);
  return found != report.end() && found->is_number() ? found->get<double>() : 0.0;
}

/// A node that the engine does not know, in the words of those that it knows.
json as_node(const std::string& name, const json& report) {
  json devices = json::array();
  for (const json& device : report.at("devices")) {
    devices.push_back({{"id", wire::text_of(device, "id")},
                       {"type", wire::text_of(device, "type")},
                       {"jobs", json::array()}});
  }
  return {{"name", name},
          {"cores", number(report, "cores")},
          {"memory_mib", number(report, "memory_mib")},
          {"devices", std::move(devices)},
          {"only_reports", true}};
}

}  // namespace

void NodeReports::check(const json& report) {
  if (!report.is_object()) throw std::invalid_argument("a report is a JSON object");
  for (const char* list : {"devices", "jobs"}) {
    if (!is_list_of_objects(report, list)) {
      throw std::invalid_argument(fmt::format("a report has the list \"{}\" of objects", list));
    }
  }
}

void NodeReports::take(const std::string& node, json report, TimePoint now) {
  check(report);
  nodes_.insert_or_assign(node, Said{std::move(report), now});
}

void NodeReports::expire(TimePoint now) {
  if (now < next_look_) return;
  next_look_ = now + kLook;
  std::erase_if(nodes_, [&](const auto& entry) { return now - entry.second.at >= kForgotten; });
}

json NodeReports::shown(const Said& said, TimePoint now) {
  const Duration silence = now - said.at;
  json shown = said.report;
  shown["state"] = silence < kSilent ? "up" : "silent";
  shown["silent_seconds"] = in_seconds(silence);
  return shown;
}

void NodeReports::add_to(json& answer, TimePoint now) const {
  std::set<std::string> known;
  json& nodes = answer.at("nodes");
  for (json& node : nodes) {
    const auto name = node.at("name").get<std::string>();
    known.insert(name);
    const auto said = nodes_.find(name);
    if (said != nodes_.end()) node["report"] = shown(said->second, now);
  }
  for (const auto& [name, said] : nodes_) {
    if (known.contains(name)) continue;
    json node = as_node(name, said.report);
    json report = shown(said, now);
    const bool up = report["state"] == "up";
    node["state"] = up ? "up" : "down";
    node["reason"] = up ? "reports; the engine starts nothing there"
                        : fmt::format("silent for {:.0f} s", in_seconds(now - said.at));
    node["report"] = std::move(report);
    nodes.push_back(std::move(node));
  }
}

json NodeReports::picture(TimePoint now, std::size_t detailed, std::size_t most) const {
  std::vector<const std::pair<const std::string, Said>*> order;
  order.reserve(nodes_.size());
  for (const auto& entry : nodes_) order.push_back(&entry);
  std::stable_partition(order.begin(), order.end(),
                        [](const auto* entry) { return !entry->second.report.at("jobs").empty(); });
  json nodes = json::array();
  for (const auto* entry : order) {
    if (nodes.size() == most) break;
    const auto& [name, said] = *entry;
    const bool up = now - said.at < kSilent;
    json node{{"name", name},
              {"state", up ? "up" : "silent"},
              {"silent_seconds", up ? 0.0 : std::floor(in_seconds(now - said.at))},
              {"cores", number(said.report, "cores")},
              {"memory_mib", number(said.report, "memory_mib")},
              {"device_count", said.report.at("devices").size()},
              {"job_count", said.report.at("jobs").size()}};
    node["status"] = nodes.size() < detailed ? node_picture(said.report) : json(nullptr);
    nodes.push_back(std::move(node));
  }
  const std::size_t left_out = order.size() - nodes.size();
  return {{"nodes", std::move(nodes)}, {"left_out", left_out}};
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/node_picture.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace commensal::cluster {
namespace {

using nlohmann::json;
using FieldNames = std::initializer_list<const char*>;

json field(const json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : json();
}

json text(const json& value) {
  return value.is_string() ? value.get_ref<const std::string&>().substr(0, kShownText) : "";
}

json numbers(const json& object, FieldNames names) {
  json result = json::object();
  for (const char* name : names) {
    json value = field(object, name);
    result[name] = value.is_number() ? std::move(value) : json(nullptr);
  }
  return result;
}

/// The first entries of a list, those that are objects.
template <typename Shape>
json list_of(const json& list, std::size_t most, const Shape& shape) {
  json result = json::array();
  if (!list.is_array()) return result;
  for (const json& entry : list) {
    if (result.size() == most) break;
    if (entry.is_object()) result.push_back(shape(entry));
  }
  return result;
}

json device_of(const json& device) {
  json shown = numbers(device, {"capacity_bytes", "granted_bytes", "held_bytes", "outside_bytes"});
  for (const char* name : {"id", "name", "type"}) shown[name] = text(field(device, name));
  shown["use"] =
      numbers(field(device, "use"), {"guaranteed_share", "opportunistic_share", "oracle_share"});
  return shown;
}

json lease_of(const json& lease) {
  json shown = numbers(lease, {"held_bytes", "granted_bytes"});
  shown["device"] = text(field(lease, "device"));
  return shown;
}

json job_of(const json& job) {
  const bool guaranteed = field(job, "class") == "guaranteed";
  const json gate = field(job, "gate");
  json devices = json::array();
  if (const json list = field(job, "devices"); list.is_array()) {
    for (const json& id : list) {
      if (devices.size() < kShownDevices) devices.push_back(text(id));
    }
  }
  json shown = numbers(job, {"slowdown", "slowdown_error"});
  shown.update(
      {{"job",
        {{"id", text(field(job, "id"))},
         {"name", text(field(job, "name"))},
         {"class", guaranteed ? "guaranteed" : "opportunistic"}}},
       {"slowdown_reason", text(field(job, "slowdown_reason"))},
       {"ended", false},
       {"paused", field(job, "paused") == true},
       {"devices", std::move(devices)},
       {"step", numbers(field(job, "step"), {"number", "median_seconds"})},
       {"memory", numbers(field(job, "memory"),
                          {"limit_bytes", "device_bytes", "host_bytes", "parked_bytes"})},
       {"lease", lease_of(field(job, "lease"))},
       {"leases", list_of(field(job, "leases"), kShownDevices, lease_of)},
       {"share", numbers(field(job, "share"), {"now"})},
       {"gate", {{"law", text(field(gate, "law"))}, {"state", text(field(gate, "state"))}}}});
  return shown;
}

}  // namespace

json node_picture(const json& report) {
  return {{"devices", list_of(field(report, "devices"), kShownDevices, device_of)},
          {"jobs", list_of(field(report, "jobs"), kShownJobs, job_of)}};
}

}  // namespace commensal::cluster

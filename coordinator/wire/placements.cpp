// SPDX-License-Identifier: Apache-2.0
#include "coordinator/wire/placements.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

namespace commensal::wire {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<PlacementState, std::string_view>, 4> kStates{
    {{PlacementState::kReserved, "reserved"},
     {PlacementState::kStarting, "starting"},
     {PlacementState::kRunning, "running"},
     {PlacementState::kUpgrading, "upgrading"}}};
constexpr std::array kClasses{JobClass::kGuaranteed, JobClass::kOpportunistic};
constexpr std::size_t kLongestShown = 64;

[[noreturn]] void refuse(const char* name, const char* wanted, const json& value) {
  std::string shown = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (shown.size() > kLongestShown) shown = shown.substr(0, kLongestShown) + "...";
  throw std::invalid_argument(std::string{"\""} + name + "\" of a placement is " + wanted +
                              ", not " + shown);
}

/// A field, or null.
json field(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? json() : *found;
}

std::string text(const json& object, const char* name, bool may_be_empty = true) {
  const json value = field(object, name);
  const std::size_t bytes = value.is_string() ? value.get_ref<const std::string&>().size() : 0;
  if (!value.is_string() || bytes > kLongestPlacedText || (bytes == 0 && !may_be_empty)) {
    refuse(name, may_be_empty ? "text of at most 128 bytes" : "text of 1 to 128 bytes", value);
  }
  return value.get<std::string>();
}

template <typename Number>
Number whole(const json& object, const char* name, std::uint64_t most) {
  const json value = field(object, name);
  const bool negative = !value.is_number_unsigned() && value < 0;
  if (!value.is_number_integer() || negative || value.get<std::uint64_t>() > most) {
    refuse(name, "a whole number that is not too large", value);
  }
  return static_cast<Number>(value.get<std::uint64_t>());
}

MemoryRange memory_of(const json& value) {
  if (!value.is_object()) refuse("memory", "null or an object", value);
  MemoryRange memory;
  memory.min = Bytes{whole<std::uint64_t>(value, "min_bytes", UINT64_MAX)};
  if (field(value, "max_bytes").is_null()) return memory;
  memory.max = Bytes{whole<std::uint64_t>(value, "max_bytes", UINT64_MAX)};
  if (*memory.max < memory.min) refuse("max_bytes", "not below min_bytes", value);
  return memory;
}

ShareRange share_of(const json& value) {
  if (!value.is_object()) refuse("share", "null or an object", value);
  const json min = field(value, "min");
  const json max = field(value, "max");
  if (!min.is_number() || !max.is_number()) refuse("share", "two numbers", value);
  const ShareRange share{min.get<double>(), max.get<double>()};
  const bool good = share.min >= 0 && share.min <= share.max && share.max <= 1;
  if (!good) refuse("share", "MIN to MAX within 0 to 1", value);
  return share;
}

std::vector<std::string> devices_of(const json& value) {
  if (!value.is_array() || value.size() > kMostPlacedDevices) {
    refuse("devices", "a list of at most 32", value);
  }
  std::vector<std::string> devices;
  for (const json& device : value) {
    if (!device.is_string() || device.get_ref<const std::string&>().size() > kLongestPlacedText) {
      refuse("devices", "a list of names of at most 128 bytes", value);
    }
    devices.push_back(device.get<std::string>());
  }
  return devices;
}

PlacementState state_of(const json& value) {
  const auto* const found = std::ranges::find_if(
      kStates, [&](const auto& entry) { return value == std::string{entry.second}; });
  if (found == kStates.end()) {
    refuse("state", "reserved, starting, running or upgrading", value);
  }
  return found->first;
}

JobClass class_of(const json& value) {
  const auto* const found = std::ranges::find_if(kClasses, [&](JobClass job_class) {
    return value == std::string{commensal::to_string(job_class)};
  });
  if (found == kClasses.end()) refuse("class", "guaranteed or opportunistic", value);
  return *found;
}

Placement placement_of(const json& entry) {
  if (!entry.is_object()) throw std::invalid_argument("a placement is a JSON object");
  Placement placement;
  placement.id = text(entry, "id", false);
  placement.job = text(entry, "job", false);
  placement.attempt = whole<std::uint32_t>(entry, "attempt", UINT32_MAX);
  placement.name = text(entry, "name");
  placement.tenant = text(entry, "tenant");
  placement.job_class = class_of(field(entry, "class"));
  placement.state = state_of(field(entry, "state"));
  placement.devices = devices_of(field(entry, "devices"));
  placement.cpu_milli = whole<std::int64_t>(entry, "cpu_milli", INT64_MAX);
  if (const json memory = field(entry, "memory"); !memory.is_null()) {
    placement.memory = memory_of(memory);
  }
  if (const json share = field(entry, "share"); !share.is_null()) placement.share = share_of(share);
  return placement;
}

/// What fits, without a part of a character of UTF-8: that would be replaced by something longer on
/// its way, and a text that is too long costs the whole list.
std::string cut(const std::string& text) {
  std::size_t size = std::min(text.size(), kLongestPlacedText);
  const auto goes_on = [&](std::size_t at) {
    return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };
  while (size > 0 && size < text.size() && goes_on(size)) --size;
  return text.substr(0, size);
}

json written(const Placement& placement) {
  json devices = json::array();
  for (const std::string& device : placement.devices) {
    if (devices.size() < kMostPlacedDevices) devices.push_back(cut(device));
  }
  json memory;
  if (placement.memory) {
    memory = {{"min_bytes", placement.memory->min.count()}, {"max_bytes", nullptr}};
    if (placement.memory->max) memory["max_bytes"] = placement.memory->max->count();
  }
  json share;
  if (placement.share) share = {{"min", placement.share->min}, {"max", placement.share->max}};
  return {{"id", cut(placement.id)},
          {"job", cut(placement.job)},
          {"attempt", placement.attempt},
          {"name", cut(placement.name)},
          {"tenant", cut(placement.tenant)},
          {"class", commensal::to_string(placement.job_class)},
          {"state", to_string(placement.state)},
          {"devices", std::move(devices)},
          {"cpu_milli", placement.cpu_milli},
          {"memory", std::move(memory)},
          {"share", std::move(share)}};
}

}  // namespace

std::string_view to_string(PlacementState state) noexcept {
  for (const auto& [known, name] : kStates) {
    if (known == state) return name;
  }
  return "starting";
}

json written(const std::vector<Placement>& placements) {
  json list = json::array();
  for (const Placement& placement : placements) list.push_back(written(placement));
  return list;
}

std::vector<Placement> read_placements(const json& list) {
  if (!list.is_array() || list.size() > kMostPlacements) {
    throw std::invalid_argument("placements are a list of at most " +
                                std::to_string(kMostPlacements));
  }
  std::vector<Placement> placements;
  std::set<std::string> ids;
  for (const json& entry : list) {
    placements.push_back(placement_of(entry));
    if (!ids.insert(placements.back().id).second) {
      throw std::invalid_argument("two placements have the id " + placements.back().id);
    }
  }
  return placements;
}

}  // namespace commensal::wire

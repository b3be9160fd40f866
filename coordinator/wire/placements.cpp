// SPDX-License-Identifier: Apache-2.0
#include "coordinator/wire/placements.h"

#include <algorithm>
#include <set>

namespace commensal::wire {
namespace {

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

}  // namespace

void cut_to_bounds(Placement& placement) {
  for (std::string* const text :
       {&placement.id, &placement.job, &placement.name, &placement.tenant}) {
    *text = cut(*text);
  }
  if (placement.devices.size() > kMostPlacedDevices) placement.devices.resize(kMostPlacedDevices);
  for (std::string& device : placement.devices) device = cut(device);
}

std::string repeated_id(const std::vector<Placement>& placements) {
  std::set<std::string> ids;
  for (const Placement& placement : placements) {
    if (!ids.insert(placement.id).second) return "two placements have the id " + placement.id;
  }
  return "";
}

}  // namespace commensal::wire

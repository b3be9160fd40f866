// SPDX-License-Identifier: Apache-2.0
// Dense tables of speeds.
#include "coordinator/policies/throughput_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace commensal::policies {

ThroughputTable::ThroughputTable(std::vector<std::string> types, std::vector<std::string> profiles)
    : types_(std::move(types)) {
  for (std::string& profile : profiles) {
    profiles_.emplace(std::move(profile), static_cast<std::uint32_t>(profiles_.size()));
  }
  alone_.resize(types_.size() * profiles_.size());
  together_.resize(alone_.size() * profiles_.size());
}

void ThroughputTable::set_alone(std::uint32_t type, std::uint32_t profile, double rate) {
  alone_.at(type * profiles_.size() + profile) = rate;
}

void ThroughputTable::set_together(std::uint32_t type, std::uint32_t first, std::uint32_t second,
                                   Pair rates) {
  together_.at((type * profiles_.size() + first) * profiles_.size() + second) = rates;
}

std::optional<std::uint32_t> ThroughputTable::find_type(std::string_view name) const {
  const auto found = std::find(types_.begin(), types_.end(), name);
  if (found == types_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - types_.begin());
}

std::optional<std::uint32_t> ThroughputTable::find_profile(const std::string& name) const {
  const auto found = profiles_.find(name);
  if (found == profiles_.end()) return std::nullopt;
  return found->second;
}

double ThroughputTable::reference(std::uint32_t profile) const {
  if (const auto v100 = find_type("v100"); v100 && alone(*v100, profile) > 0) {
    return alone(*v100, profile);
  }
  double best = 0;
  for (std::uint32_t type = 0; type < types_.size(); ++type) {
    best = std::max(best, alone(type, profile));
  }
  return best;
}

std::vector<std::uint32_t> ThroughputTable::types_of(const std::vector<std::string>& names) const {
  std::vector<std::uint32_t> numbers;
  for (const std::string& name : names) {
    const auto type = find_type(name);
    if (!type) {
      throw std::invalid_argument(fmt::format(
          "no throughputs for GPUs of type \"{}\"; there are {}", name, fmt::join(types_, ", ")));
    }
    numbers.push_back(*type);
  }
  return numbers;
}

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// Words between commas.
#include "coordinator/engines/local/given_devices.h"

#include "coordinator/engines/local/rank_environment.h"

namespace commensal::cluster::local {

Placed with_given_devices(Placed placed, std::string_view visible) {
  std::vector<std::string> given;
  while (!visible.empty()) {
    const std::size_t comma = visible.find(',');
    given.emplace_back(visible.substr(0, comma));
    visible.remove_prefix(comma == std::string_view::npos ? visible.size() : comma + 1);
  }
  const auto ranks = number_ranks(placed.devices);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::string& device = placed.uuids.at(rank);
    if (device != kGivenDevice) continue;
    const std::size_t number = ranks[rank].local_rank;
    device = number < given.size() && !given[number].empty() ? given[number] : "host";
  }
  return placed;
}

}  // namespace commensal::cluster::local

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node/cluster_placements.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "coordinator/wire/heartbeat_parts.h"
#include "coordinator/wire/json_fields.h"

namespace commensal::node {

using nlohmann::json;

json ClusterPlacements::tell() {
  return wire::write_fields(wire::PlacementReport{beats_.next(), run_, number_});
}

bool ClusterPlacements::take(const json& part) {
  if (part.is_null()) return false;
  wire::PlacementList told;
  wire::read_field(part, "placements", told);
  beats_.check(told.beat);
  const bool same_run = told.run == run_;
  if (same_run && told.number < number_) {
    throw std::invalid_argument(
        fmt::format("list {} of placements is older than {}, which is here", told.number, number_));
  }
  const bool is_known = same_run && told.number == number_;
  if (!is_known && !told.list) {
    throw std::invalid_argument(
        fmt::format("list {} of placements is named and not there", told.number));
  }
  beats_.answered(told.beat);
  if (is_known) return false;
  run_ = std::move(told.run);
  number_ = told.number;
  left_out_ = *told.left_out;
  list_ = *std::move(told.list);
  return true;
}

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node/cluster_placements.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace commensal::node {

using nlohmann::json;

json ClusterPlacements::tell() {
  return {{"beat", beats_.next()}, {"run", run_}, {"number", number_}};
}

bool ClusterPlacements::take(const json& part) {
  if (part.is_null()) return false;
  const AnswerHead head = beats_.read(part, "placements");
  const json number = field_of(part, "number");
  if (!number.is_number_unsigned() || number == 0) {
    throw std::invalid_argument(
        fmt::format("a list of placements has a number from 1, not {}", number.dump()));
  }
  const auto named = number.get<std::uint64_t>();
  const bool same_run = head.run == run_;
  if (same_run && named < number_) {
    throw std::invalid_argument(
        fmt::format("list {} of placements is older than {}, which is here", named, number_));
  }
  const json list = field_of(part, "list");
  const json left_out = field_of(part, "left_out");
  const bool is_known = same_run && named == number_;
  if (!is_known && list.is_null()) {
    throw std::invalid_argument(fmt::format("list {} of placements is named and not there", named));
  }
  if (!list.is_null() && !left_out.is_number_unsigned()) {
    throw std::invalid_argument(fmt::format(
        "a list of placements says how many were left out of it, not {}", left_out.dump()));
  }
  std::vector<wire::Placement> placements;
  if (!list.is_null()) placements = wire::read_placements(list);
  beats_.answered(head.beat);
  if (is_known) return false;
  run_ = head.run;
  number_ = named;
  left_out_ = left_out.get<std::uint64_t>();
  list_ = std::move(placements);
  return true;
}

}  // namespace commensal::node

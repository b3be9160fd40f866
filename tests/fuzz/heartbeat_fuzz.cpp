// SPDX-License-Identifier: Apache-2.0
// Any answers of the cluster's coordinator at a node: orders and placements are taken, or refused
// with a reason. Each line of the input is an answer.
#include <stdexcept>
#include <string_view>

#include "coordinator/node/cluster_orders.h"
#include "coordinator/node/cluster_placements.h"
#include "coordinator/wire/json_text.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace commensal;
using nlohmann::json;

/// Takes a part; what is wrong with it must have a text.
template <typename Taker>
void take(Taker& taker, const json& part) {
  try {
    (void)taker.take(part);
  } catch (const std::invalid_argument& problem) {
    fuzz::require(problem.what()[0] != '\0', "a refusal has a reason");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  node::ClusterOrders orders;
  node::ClusterPlacements placements;
  std::string_view text{reinterpret_cast<const char*>(data), size};
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const auto answer = wire::try_parse_json(line);
    if (!answer || !answer->is_object()) continue;
    take(orders, answer->value("orders", json{}));
    take(placements, answer->value("placements", json{}));
    fuzz::require(!orders.tell().dump().empty(), "what came of orders can be told");
    fuzz::require(!placements.tell().dump().empty(), "what came of placements can be told");
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/node_exchange.h"

#include <fmt/format.h>

#include <random>
#include <stdexcept>

namespace commensal::cluster {

using nlohmann::json;

bool has_number(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned();
}

bool has_text(const json& object, const char* name, std::size_t longest) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() &&
         found->get_ref<const std::string&>().size() <= longest;
}

NodeTold read_told(const json& part, const char* name) {
  if (!part.is_object() || !has_number(part, "beat") || !has_text(part, "run", kLongestRun)) {
    throw std::invalid_argument(
        fmt::format("\"{}\" is an object with \"beat\", a number, and \"run\", at most {} bytes",
                    name, kLongestRun));
  }
  return {part.at("beat"), part.at("run").get<std::string>()};
}

std::string new_run() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace commensal::cluster

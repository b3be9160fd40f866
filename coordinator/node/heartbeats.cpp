// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node/heartbeats.h"

#include <fmt/format.h>

#include <cstddef>
#include <stdexcept>

namespace commensal::node {
namespace {

using nlohmann::json;

constexpr std::size_t kLongestRun = 64;

}  // namespace

json field_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? json() : *found;
}

AnswerHead Heartbeats::read(const json& part, const char* name) const {
  if (!part.is_object()) {
    throw std::invalid_argument(fmt::format("\"{}\" of an answer is an object", name));
  }
  const json run = field_of(part, "run");
  const json beat = field_of(part, "beat");
  if (!run.is_string() || run.get_ref<const std::string&>().size() > kLongestRun) {
    throw std::invalid_argument(
        fmt::format("\"{}\" names the coordinator's run by at most {} bytes", name, kLongestRun));
  }
  if (!beat.is_number_unsigned()) {
    throw std::invalid_argument(
        fmt::format("\"{}\" names the heartbeat that it answers by a number", name));
  }
  if (beat > sent_ || beat <= answered_) {
    throw std::invalid_argument(
        fmt::format("it answers heartbeat {}, not one of {} to {}: it is old, or sent again",
                    beat.dump(), answered_ + 1, sent_));
  }
  return {beat.get<std::uint64_t>(), run.get<std::string>()};
}

}  // namespace commensal::node

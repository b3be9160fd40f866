// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/node_job.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string_view>

namespace commensal::cluster {

std::string node_job_id(const Attempt& attempt) {
  return fmt::format("job-{}.{}", attempt.job.str(), attempt.number);
}

std::optional<Attempt> attempt_of_node_job(const std::string& id) {
  constexpr std::string_view kBegin = "job-";
  constexpr std::size_t kMostDigits = 9;
  const std::size_t dot = id.rfind('.');
  if (!id.starts_with(kBegin) || dot == std::string::npos || dot <= kBegin.size()) {
    return std::nullopt;
  }
  const std::string_view digits = std::string_view{id}.substr(dot + 1);
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
  if (error != std::errc{} || end != digits.end() || digits.size() > kMostDigits) {
    return std::nullopt;
  }
  return Attempt{JobId{id.substr(kBegin.size(), dot - kBegin.size())}, number};
}

}  // namespace commensal::cluster

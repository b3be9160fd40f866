// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/node_job.h"

#include <fmt/format.h>

#include <regex>

namespace commensal::cluster {

std::string node_job_id(const Attempt& attempt) {
  return fmt::format("job-{}.{}", attempt.job.str(), attempt.number);
}

std::optional<Attempt> attempt_of_node_job(const std::string& id) {
  static const std::regex pattern{R"(job-(.+)\.(\d{1,9}))"};
  std::smatch parts;
  if (!std::regex_match(id, parts, pattern)) return std::nullopt;
  return Attempt{JobId{parts[1].str()}, static_cast<std::uint32_t>(std::stoul(parts[2].str()))};
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// Names of files with output of jobs.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "allocator/base/ids.h"

namespace commensal::cluster {

/// Returns the job of a file by its name, JOB-ATTEMPT-RANK.log or that with .N behind it; nothing
/// for any other name.
[[nodiscard]] inline std::optional<JobId> job_of_log(std::string_view name) {
  const auto number = [&name] {
    const std::size_t end = std::min(name.find_first_not_of("0123456789"), name.size());
    const std::string_view digits = name.substr(0, end);
    name.remove_prefix(end);
    return digits;
  };
  const auto word = [&name](std::string_view wanted) {
    if (!name.starts_with(wanted)) return false;
    name.remove_prefix(wanted.size());
    return true;
  };
  const std::string_view job = number();
  if (job.empty() || job.front() == '0') return std::nullopt;
  const bool is_log = word("-") && !number().empty() && word("-") && !number().empty() &&
                      word(".log") && (name.empty() || (word(".") && !number().empty()));
  return is_log && name.empty() ? std::optional{JobId{std::string{job}}} : std::nullopt;
}

}  // namespace commensal::cluster

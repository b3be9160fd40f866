// SPDX-License-Identifier: Apache-2.0
// Rules of execve for words and variables.
#include "coordinator/engines/local/job_check.h"

#include <stdexcept>

#include "coordinator/engines/local/attempt_folder.h"

namespace commensal::cluster::local {
namespace {

[[noreturn]] void refuse(const Attempt& attempt, const std::string& why) {
  throw std::invalid_argument("job " + attempt.job.str() + ": " + why);
}

bool has_zero(const std::string& text) { return text.find('\0') != std::string::npos; }

void check_environment(const Attempt& attempt, const JobSpec& spec) {
  for (const auto& [name, value] : spec.environment) {
    if (name.empty() || name.find('=') != std::string::npos || has_zero(name)) {
      refuse(attempt, "cannot be the name of a variable: '" + name + "'");
    }
    if (has_zero(value)) refuse(attempt, "the value of " + name + " has a byte 0");
  }
}

}  // namespace

void check_job(const Attempt& attempt, const JobSpec& spec) {
  if (const std::string why = obstacle_to_folder(attempt.job); !why.empty()) {
    throw std::invalid_argument(why);
  }
  if (spec.command.empty() || spec.command.front().empty()) refuse(attempt, "has no command");
  for (std::size_t i = 0; i < spec.command.size(); ++i) {
    if (has_zero(spec.command[i])) {
      refuse(attempt, "word " + std::to_string(i) + " of its command has a byte 0");
    }
  }
  if (spec.directory.empty() || spec.directory.front() != '/' || has_zero(spec.directory)) {
    refuse(attempt, "its directory is not an absolute path: '" + spec.directory + "'");
  }
  if (spec.gpus < 1) {
    refuse(attempt, "must have at least one device, not " + std::to_string(spec.gpus));
  }
  if (spec.time_limit && spec.time_limit->count() <= 0) {
    refuse(attempt, "its time limit must be above 0 s, is " +
                        std::to_string(spec.time_limit->count()) + " s");
  }
  check_environment(attempt, spec);
}

}  // namespace commensal::cluster::local

// SPDX-License-Identifier: Apache-2.0
// Starting a keeper.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <stdexcept>

#include "coordinator/engines/local/attempt_folder.h"

namespace commensal::cluster::local {

/// Raised where the keeper's program cannot be executed; no process is left of it.
class NotStarted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Starts `keeper STATE JOB ATTEMPT` as a child in a session of its own, with none of this
/// process's descriptors, in the root folder; what it says goes to keeper.log in the attempt's
/// folder. Its signals wait until it takes them, so that none is lost. @throws NotStarted.
[[nodiscard]] pid_t start_keeper(const std::filesystem::path& keeper,
                                 const std::filesystem::path& state, const AttemptFolder& folder);

}  // namespace commensal::cluster::local

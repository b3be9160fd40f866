// SPDX-License-Identifier: Apache-2.0
// What the cluster's jobs are called on nodes.
#pragma once

#include <optional>
#include <string>

#include "coordinator/cluster/engine.h"

namespace commensal::cluster {

/// Returns the id under which a node's coordinator knows an attempt.
[[nodiscard]] std::string node_job_id(const Attempt& attempt);

/// The attempt that such an id stands for; nothing for other ids.
[[nodiscard]] std::optional<Attempt> attempt_of_node_job(const std::string& id);

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// One decision of a policy about a state that was written down.
#pragma once

#include <nlohmann/json.hpp>

#include "coordinator/engines/simulator/run_options.h"

namespace commensal::simulator {

/// Puts the state of `options.state` through a policy, as a coordinator that has just been
/// restarted would: without notes. Who runs stays where it is, unless the policy says otherwise.
/// @return {"schema", "state", "policy", "options", "assumed", "plan": {"decisions",
/// "wake_seconds"}, "goes_on", "waits", "never_fits"} (docs/policies.md).
/// @throws BadCluster for the file, std::invalid_argument for a policy, an option, or a policy that
/// needs to know of jobs what no state has; std::logic_error if the plan breaks a rule.
[[nodiscard]] nlohmann::json replay(const RunOptions& options);

}  // namespace commensal::simulator

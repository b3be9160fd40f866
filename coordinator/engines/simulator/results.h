// SPDX-License-Identifier: Apache-2.0
// One run from options to JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>

#include "coordinator/engines/simulator/run_options.h"

namespace commensal::simulator {

/// Runs a trace through a policy. Writes the file of jobs if it is asked for, and nothing before
/// the run has ended well. Lines of progress go to `progress` if they are asked for.
/// @return {"trace", "cluster", "results": [{"policy", "metrics", ...}]} (docs/policies.md).
/// @throws BadTrace, BadCluster, std::invalid_argument for what the user gave; std::logic_error for
/// a policy that breaks a rule or lets jobs wait for ever; std::system_error.
[[nodiscard]] nlohmann::json run(const RunOptions& options, std::ostream& progress);

/// Makes up jobs and writes them.
/// @return {"trace": {"file", "format", "jobs"}}.
/// @throws std::invalid_argument for an option that does not exist; std::system_error.
[[nodiscard]] nlohmann::json generate(const RunOptions& options);

/// Returns {"policies": [{"name", "summary"}]}.
[[nodiscard]] nlohmann::json list_policies();

/// Returns {"formats": [...], "semantics": [...], "predictors": [...]}.
[[nodiscard]] nlohmann::json list_formats();

}  // namespace commensal::simulator

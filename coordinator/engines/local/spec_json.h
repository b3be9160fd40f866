// SPDX-License-Identifier: Apache-2.0
// What is asked of a job, as JSON that keeps every byte of it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/cluster/job.h"

namespace commensal::cluster::local {

/// A text; one that is not UTF-8 becomes a list of its bytes.
[[nodiscard]] nlohmann::json text_to_json(const std::string& text);
/// @throws nlohmann::json::exception.
[[nodiscard]] std::string text_from_json(const nlohmann::json& value);

[[nodiscard]] nlohmann::json texts_to_json(const std::vector<std::string>& texts);
[[nodiscard]] std::vector<std::string> texts_from_json(const nlohmann::json& value);

/// Names and values as a list of pairs.
[[nodiscard]] nlohmann::json variables_to_json(const std::map<std::string, std::string>& variables);
[[nodiscard]] std::map<std::string, std::string> variables_from_json(const nlohmann::json& value);

[[nodiscard]] nlohmann::json spec_to_json(const JobSpec& spec);
/// @throws nlohmann::json::exception.
[[nodiscard]] JobSpec spec_from_json(const nlohmann::json& value);

}  // namespace commensal::cluster::local

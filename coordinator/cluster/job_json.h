// SPDX-License-Identifier: Apache-2.0
// Jobs to and from JSON: columns of the store, and parts of messages.
//
// Bytes are `..._bytes`, times `..._ms`; the class that was asked for, and the one of an attempt,
// are `class`. A field may be absent (or null) where the structure has a std::optional, nowhere
// else; a field that is not known, or does not fit, is refused.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/cluster/job.h"

namespace commensal::cluster {

/// Write a structure; what they return can be read back by the functions below, if it is in range.
/// @throws std::invalid_argument naming the field of a text that is not UTF-8.
[[nodiscard]] nlohmann::json to_json(const JobSpec& spec);
[[nodiscard]] nlohmann::json to_json(const wire::TermsPatch& terms);
[[nodiscard]] nlohmann::json to_json(const JobRecord& record);
[[nodiscard]] nlohmann::json to_json(const std::vector<DevicePlace>& placement);

/// Read a structure.
/// @throws std::invalid_argument naming field and value: it is unknown, missing, of a wrong type,
/// or out of its range (counts and times not negative, shares from 0 to 1, MIN not above MAX, a
/// time limit of whole seconds).
[[nodiscard]] JobSpec spec_from_json(const nlohmann::json& json);
[[nodiscard]] wire::TermsPatch terms_from_json(const nlohmann::json& json);
[[nodiscard]] JobRecord record_from_json(const nlohmann::json& json);
[[nodiscard]] std::vector<DevicePlace> placement_from_json(const nlohmann::json& json);

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// Fields of a request, read or refused.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/wire/json_fields.h"

namespace commensal::cluster {

/// Reads a field, which keeps to the rules; `fallback` if it is not there (or null) and there is
/// one.
/// @throws RequestRefused "malformed", naming field and value.
template <typename T, typename... Rules>
T field(const nlohmann::json& request, const char* name, std::optional<T> fallback = std::nullopt,
        const Rules&... rules) {
  const auto found = request.find(name);
  if (found == request.end() || found->is_null()) {
    if (fallback) return *std::move(fallback);
    throw RequestRefused("malformed", fmt::format("field '{}' is missing", name));
  }
  if constexpr (std::is_same_v<T, nlohmann::json>) {
    return *found;
  } else {
    try {
      T value{};
      wire::read_field(*found, name, value);
      (wire::keep(rules, value, name, *found), ...);
      return value;
    } catch (const wire::BadField& problem) {
      throw RequestRefused("malformed", problem.what());
    }
  }
}

}  // namespace commensal::cluster

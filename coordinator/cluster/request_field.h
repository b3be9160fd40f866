// SPDX-License-Identifier: Apache-2.0
// Fields of a request, read or refused.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "coordinator/cluster/cluster_coordinator.h"

namespace commensal::cluster {

/// Reads a field; `fallback` if it is not there (or null) and there is one.
/// @throws RequestRefused "malformed", naming field and value.
template <typename T>
T field(const nlohmann::json& request, const char* name, std::optional<T> fallback = std::nullopt) {
  const auto found = request.find(name);
  if (found == request.end() || found->is_null()) {
    if (fallback) return *std::move(fallback);
    throw RequestRefused("malformed", fmt::format("field \"{}\" is missing", name));
  }
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    throw RequestRefused(
        "malformed",
        fmt::format("field \"{}\" cannot be {}", name,
                    found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  }
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// Fields of a request, read or refused.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <utility>

#include "coordinator/cluster/cluster_coordinator.h"

namespace commensal::cluster {

/// Whether a value is a whole number of this type, where the type is one: the library would cut
/// others off.
template <typename T>
bool fits(const nlohmann::json& value) {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    if (value.is_number_unsigned()) return std::in_range<T>(value.get<std::uint64_t>());
    return value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>());
  }
  return true;
}

/// Reads a field; `fallback` if it is not there (or null) and there is one.
/// @throws RequestRefused "malformed", naming field and value.
template <typename T>
T field(const nlohmann::json& request, const char* name, std::optional<T> fallback = std::nullopt) {
  const auto found = request.find(name);
  if (found == request.end() || found->is_null()) {
    if (fallback) return *std::move(fallback);
    throw RequestRefused("malformed", fmt::format("field \"{}\" is missing", name));
  }
  const auto refused = [&] {
    return RequestRefused(
        "malformed",
        fmt::format("field \"{}\" cannot be {}", name,
                    found->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  };
  if (!fits<T>(*found)) throw refused();
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    throw refused();
  }
}

}  // namespace commensal::cluster

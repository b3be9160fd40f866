// SPDX-License-Identifier: Apache-2.0
// Who may ask what: one pure function.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "coordinator/keys/allowed_keys.h"

namespace commensal::cluster {

/// What a node says of itself once a second.
inline constexpr std::string_view kHeartbeat = "heartbeat";

struct Verdict {
  bool allowed = false;
  std::string reason;  ///< never empty
};

/// Says whether the holder of a key may make a request. Whether the key itself is still allowed is
/// not asked here.
/// @param type    the request's.
/// @param tenant  whose job it is about; nothing: it is about none, or about one that is not there.
[[nodiscard]] Verdict authorise(const keys::AllowedKey& caller, std::string_view type,
                                const std::optional<std::string>& tenant);

/// Whether the caller sees what is of a tenant: jobs, quota.
[[nodiscard]] bool may_see(const keys::AllowedKey& caller, std::string_view tenant);

}  // namespace commensal::cluster

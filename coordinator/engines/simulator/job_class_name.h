// SPDX-License-Identifier: Apache-2.0
// What a job asked for, in words of files and tables.
#pragma once

#include <string_view>

#include "coordinator/policies/cluster_view.h"

namespace commensal::simulator {

[[nodiscard]] constexpr std::string_view to_string(policies::AskedClass asked) noexcept {
  switch (asked) {
    case policies::AskedClass::kGuaranteed: return "guaranteed";
    case policies::AskedClass::kOpportunistic: return "opportunistic";
    case policies::AskedClass::kAuto: return "auto";
  }
  return "guaranteed";
}

}  // namespace commensal::simulator

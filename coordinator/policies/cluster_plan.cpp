// SPDX-License-Identifier: Apache-2.0
// Decisions in words.
#include "coordinator/policies/cluster_plan.h"

#include <fmt/format.h>

namespace commensal::policies {

std::string to_string(const Reason& reason) {
  return fmt::format(fmt::runtime(reason.text), reason.values[0], reason.values[1]);
}

std::string_view to_string(Action action) noexcept {
  switch (action) {
    case Action::kStop: return "stop";
    case Action::kStart: return "start";
    case Action::kMove: return "move";
    case Action::kUpgrade: return "upgrade";
    case Action::kReserve: return "reserve";
  }
  return "stop";
}

}  // namespace commensal::policies

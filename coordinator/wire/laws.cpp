// SPDX-License-Identifier: Apache-2.0
// Names of the pacing laws.
#include "coordinator/wire/laws.h"

namespace commensal::wire {

std::string_view to_string(LawId law) noexcept {
  switch (law) {
    case LawId::kOpen: return "open";
    case LawId::kDutyCycle: return "duty_cycle";
    case LawId::kGap: return "gap";
    case LawId::kAntman: return "antman";
    case LawId::kRateAimd: return "rate_aimd";
    case LawId::kTokenWindow: return "token_window";
  }
  return "";
}

std::optional<LawId> to_law(std::string_view name) noexcept {
  for (const LawId law : kLaws) {
    if (to_string(law) == name) return law;
  }
  return std::nullopt;
}

std::string law_names() {
  std::string names;
  for (const LawId law : kLaws) {
    if (!names.empty()) names += ", ";
    names += to_string(law);
  }
  return names;
}

}  // namespace commensal::wire

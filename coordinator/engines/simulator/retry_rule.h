// SPDX-License-Identifier: Apache-2.0
// Whether and when a failed job is tried again.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "coordinator/engines/simulator/failure_model.h"

namespace commensal::simulator {

struct RetryRule {
  enum class Which : std::uint8_t {
    kNone,
    kAll,     ///< whatever it was, as Philly did
    kByClass  ///< only what another attempt may not meet again
  };

  Which which = Which::kAll;
  std::uint32_t retries = 3;  ///< at most
  double back_off = 120;      ///< seconds before the first; doubled for each further one
  double longest_back_off = 3600;

  /// Returns the seconds until attempt number `attempt` (the first retry is 1); absent: the job is
  /// given up. `passes_over`: whether the next attempt passes over the record that this one met.
  [[nodiscard]] std::optional<double> delay(FailureClass kind, std::uint32_t attempt,
                                            bool passes_over) const {
    if (which == Which::kNone || attempt > retries) return std::nullopt;
    const bool other = kind == FailureClass::kInfrastructure || passes_over;
    if (which == Which::kByClass && !other) return std::nullopt;
    return std::min(longest_back_off, back_off * std::exp2(attempt - 1));
  }
};

}  // namespace commensal::simulator

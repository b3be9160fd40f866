// SPDX-License-Identifier: Apache-2.0
// The profile `gavel`.
#pragma once

#include <memory>

#include "coordinator/engines/simulator/semantics.h"

namespace commensal::simulator {

/// Makes the profile of Gavel's simulator: rounds of 360 s, speeds by model, GPUs and type, alone
/// and in pairs on the same GPUs; stopping is free.
/// @throws std::invalid_argument for a trace without throughputs.
[[nodiscard]] std::unique_ptr<Semantics> make_gavel(const Trace& trace);

}  // namespace commensal::simulator

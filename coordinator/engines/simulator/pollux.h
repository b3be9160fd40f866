// SPDX-License-Identifier: Apache-2.0
// The rules of Pollux' simulator.
#pragma once

#include <memory>

#include "coordinator/engines/simulator/semantics.h"

namespace commensal::simulator {

/// @throws std::invalid_argument if the trace has no profiles, or a job none of its batch size.
[[nodiscard]] std::unique_ptr<Semantics> make_pollux(const Trace& trace);

}  // namespace commensal::simulator

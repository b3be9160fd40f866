// SPDX-License-Identifier: Apache-2.0
// The rules of Muri's simulator.
#pragma once

#include <memory>

#include "coordinator/engines/simulator/semantics.h"

namespace commensal::simulator {

[[nodiscard]] std::unique_ptr<Semantics> make_muri();

}  // namespace commensal::simulator

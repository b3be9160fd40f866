// SPDX-License-Identifier: Apache-2.0
// The profile `commensal`: our own cluster, where opportunistic jobs live on GPUs of guaranteed
// ones.
#pragma once

#include <memory>

#include "coordinator/engines/simulator/coexecution.h"
#include "coordinator/engines/simulator/semantics.h"

namespace commensal::simulator {

/// @throws std::invalid_argument for shared pairs if the trace has no throughputs.
[[nodiscard]] std::unique_ptr<Semantics> make_commensal(const SharingModel& model,
                                                        const Trace& trace = {});

}  // namespace commensal::simulator

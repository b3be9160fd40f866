// SPDX-License-Identifier: Apache-2.0
// The profile fgd: the rules of FGD's simulator.
#pragma once

#include <cstdint>
#include <memory>

#include "coordinator/engines/simulator/semantics.h"

namespace commensal::simulator {

/// Makes the rules of hkust-adsl/kubernetes-scheduler-simulator, as its experiments run it: pods in
/// random order, one after the other, never leave, and one that does not fit is given up. Pods
/// drawn at random are added behind (or taken out) until their GPUs are 1.3 times those of the
/// cluster. Nodes are in random order, too. For packers.
[[nodiscard]] std::unique_ptr<Semantics> make_fgd(std::uint64_t seed);

}  // namespace commensal::simulator

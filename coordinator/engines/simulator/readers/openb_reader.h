// SPDX-License-Identifier: Apache-2.0
// Reads pods and nodes of Alibaba's cluster-trace-gpu-v2023 (openb_pod_list_*, openb_node_list_*).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/engines/simulator/readers/trace_reader.h"
#include "coordinator/policies/cluster.h"

namespace commensal::simulator {

/// Reads pods: `num_gpu` GPUs, `gpu_milli` of each (a part only of one), the types of `gpu_spec`;
/// BE and Burstable pods are opportunistic, LS and Guaranteed ones are guaranteed; a pod runs from
/// its start, or its creation, to its deletion. Lists of resources alone, without classes and
/// times, are read too: all pods arrive at zero.
/// @throws BadTrace
[[nodiscard]] Trace read_openb(const std::string& file, const ReadOptions& options);

/// Reads nodes; each model is a rack of its own, as none is named.
/// @throws BadTrace; also for a list without a GPU in it.
[[nodiscard]] std::vector<policies::NodeSpec> read_openb_nodes(const std::string& file);

/// Returns the list of nodes with GPUs in the folder of a trace, if there is one.
[[nodiscard]] std::optional<std::string> openb_nodes_beside(const std::string& trace_file);

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// Compares what jobs ask for with what nodes have at most.
#include "coordinator/policies/guaranteed_demand.h"

#include <algorithm>

namespace commensal::policies {
namespace {

bool is_of_type(std::uint32_t gpu_types, const NodeSpec& node) {
  return gpu_types == 0 || (gpu_types >> node.type & 1U) != 0;
}

}  // namespace

void GuaranteedDemand::add(const ClusterJob& job, std::int32_t least) {
  if (job.gpus == 0) return;
  shapes_.emplace(least, job.gpu_types, job.cpu_milli, job.memory_mib);
}

bool GuaranteedDemand::wants(NodeIndex node) const {
  const NodeSpec& spec = cluster_->nodes()[node];
  return std::any_of(shapes_.begin(), shapes_.end(), [&](const Shape& shape) {
    const auto& [least, gpu_types, cpu_milli, memory_mib] = shape;
    return least <= spec.gpus && is_of_type(gpu_types, spec) &&
           (spec.cpu_milli == 0 || cpu_milli <= spec.cpu_milli) &&
           (spec.memory_mib == 0 || memory_mib <= spec.memory_mib);
  });
}

bool GuaranteedDemand::wants_any(std::uint32_t gpu_types) const {
  if (shapes_.empty()) return false;
  for (NodeIndex node = 0; node < cluster_->nodes().size(); ++node) {
    if (is_of_type(gpu_types, cluster_->nodes()[node]) && wants(node)) return true;
  }
  return false;
}

}  // namespace commensal::policies

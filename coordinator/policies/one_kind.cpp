// SPDX-License-Identifier: Apache-2.0
#include "coordinator/policies/one_kind.h"

#include <fmt/format.h>

namespace commensal::policies {

DeviceKinds kinds_of(const Cluster& cluster) noexcept {
  DeviceKinds all;
  for (const NodeSpec& node : cluster.nodes()) all.add(node.gpu_type, node.gpus);
  return all;
}

std::uint32_t types_of_one_kind(const Cluster& cluster, std::int32_t gpus, std::uint32_t types) {
  if (gpus < 2) return types;
  DeviceKinds devices;
  std::uint32_t with_gpus = 0;
  std::uint32_t without = 0;
  for (const NodeSpec& node : cluster.nodes()) {
    const std::uint32_t type = 1U << node.type;
    if (types != 0 && (types & type) == 0) continue;
    (node.gpu_type == kCoresType ? without : with_gpus) |= type;
    devices.add(node.gpu_type, node.gpus);
  }
  if (with_gpus == 0 || without == 0) return types;
  return devices.gpus < gpus && devices.cores >= gpus ? without : with_gpus;
}

std::string lack_of_one_kind(std::int64_t gpus, const DeviceKinds& all) {
  if (gpus > all.gpus + all.cores || gpus <= all.gpus || gpus <= all.cores) return {};
  return fmt::format(
      "the job asks for {} devices, all GPUs or none, and the cluster has {} GPUs and {} nodes' "
      "cores",
      gpus, all.gpus, all.cores);
}

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// A gang runs on GPUs, or on the cores of nodes without one, and never on both: under Slurm each
// node of a job gives the same, and ranks of one gang cannot talk to each other otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "coordinator/policies/cluster.h"

namespace commensal::policies {

/// The type of the one device that a node without a GPU has: its cores.
inline constexpr std::string_view kCoresType = "cpu";

/// Devices of both kinds.
struct DeviceKinds {
  std::int64_t gpus = 0;
  std::int64_t cores = 0;  ///< nodes without a GPU, whose cores are one device each
  void add(std::string_view type, std::int64_t devices) noexcept {
    (type == kCoresType ? cores : gpus) += devices;
  }
  bool operator==(const DeviceKinds&) const = default;
};

/// Returns the devices of a whole cluster.
[[nodiscard]] DeviceKinds kinds_of(const Cluster& cluster) noexcept;

/// Narrows the types of which a job may have devices: where some nodes have GPUs and others their
/// cores alone, a gang has GPUs if there are enough of them, and else cores. Pure.
/// @param types  bits of those that will do; zero: any (`ClusterJob::gpu_types`).
[[nodiscard]] std::uint32_t types_of_one_kind(const Cluster& cluster, std::int32_t gpus,
                                              std::uint32_t types);

/// Says that a gang would fit on both kinds together and on neither alone; empty: it is not so.
/// Pure.
[[nodiscard]] std::string lack_of_one_kind(std::int64_t gpus, const DeviceKinds& all);

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// The device of a machine without a GPU: the cores and the memory that this process may use.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "allocator/base/bytes.h"
#include "coordinator/node/device.h"

namespace commensal::node {

/// Where to read from; tests point it at a tree of their own.
struct HostRoots {
  std::filesystem::path proc = "/proc";
  /// Put before the mount points that `proc/self/mountinfo` names.
  std::filesystem::path mounts = "/";
  std::filesystem::path sys = "/sys";
};

/// What the machine and the control groups above this process leave to it.
struct HostFacts {
  double cores = 1.0;                    ///< affinity, bounded by CPU quotas; at least 0.01
  unsigned affinity = 1;                 ///< CPUs that it may run on
  Bytes available;                       ///< memory that can still be taken
  Bytes total{std::uint64_t{1} << 62U};  ///< the machine's memory, if it can be read
  std::string cores_reason;
  std::string memory_reason;
};

/// Reads cores and memory. Control groups of version 1 and 2 count, each level up to the mount's
/// root; page cache that can be dropped is not use.
/// @throws std::runtime_error if /proc does not tell affinity or MemAvailable.
[[nodiscard]] HostFacts read_host_facts(const HostRoots& roots = {});
/// The same of the memory alone: what can still be taken.
[[nodiscard]] Bytes read_available(const HostRoots& roots = {});

/// How much of the available memory the device has: a count, or a fraction of what is available.
struct MemoryBudget {
  std::optional<Bytes> bytes;
  double fraction = 0.8;
};
/// Reads "6GiB", "512 MiB", "0.8". @throws std::invalid_argument naming the value.
[[nodiscard]] MemoryBudget parse_memory_budget(const std::string& text);

/// The machine as a device.
[[nodiscard]] Device make_host_device(const HostFacts& facts, const MemoryBudget& budget,
                                      std::optional<double> cores);

}  // namespace commensal::node

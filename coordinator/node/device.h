// SPDX-License-Identifier: Apache-2.0
// What a coordinator divides: a GPU, or the cores and the memory of the machine.
#pragma once

#include <cstdint>
#include <string>

#include "allocator/base/bytes.h"

namespace commensal::node {

enum class DeviceKind : std::uint8_t {
  kHost,  ///< the machine without its GPUs
  kGpu    ///< one GPU, or one MIG instance of it
};

[[nodiscard]] constexpr const char* to_string(DeviceKind kind) noexcept {
  return kind == DeviceKind::kGpu ? "gpu" : "host";
}

/// The id of the machine's own device.
inline constexpr const char* kHostId = "host";

struct Device {
  std::string id = kHostId;  ///< of a GPU: as NVML writes it, "GPU-..." or "MIG-..."
  DeviceKind kind = DeviceKind::kHost;
  std::string name;  ///< of a GPU: its product's
  Bytes capacity;
  double cores = 1.0;  ///< of a GPU 1: its time
  /// Fraction that was taken of the available memory; 0: the capacity does not depend on it.
  double fraction = 0.0;
  Bytes machine{std::uint64_t{1} << 62U};  ///< the capacity never grows above it
  std::string reason;
};

}  // namespace commensal::node

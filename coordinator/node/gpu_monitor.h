// SPDX-License-Identifier: Apache-2.0
// The GPUs of this machine, as NVIDIA's management library (NVML) shows them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "coordinator/node/device.h"
#include "coordinator/node/host_device.h"

namespace commensal::node {

/// A GPU, or a MIG instance, which is one to whoever uses it.
struct GpuFacts {
  std::string id;  ///< "GPU-..." or "MIG-..."
  std::string name;
  Bytes total;  ///< of its memory, without what the driver keeps for itself
  bool mig = false;
  std::string parent;  ///< of a MIG instance: the GPU
  bool operator==(const GpuFacts&) const = default;
};

/// Who holds how much of a GPU now.
struct GpuUse {
  Bytes free;
  /// Part of the last moments in which any kernel ran, 0..1; nothing: it does not tell.
  std::optional<double> busy;
  /// By process, numbered as this machine's first PID namespace does; one that does not tell how
  /// much is left out.
  std::map<std::int64_t, Bytes> processes;
};

/// Shows GPUs. Calls may take milliseconds. Not thread safe.
class GpuMonitor {
 public:
  virtual ~GpuMonitor() = default;
  /// Returns all GPUs; of those that are divided into MIG instances, the instances.
  [[nodiscard]] virtual std::vector<GpuFacts> all() = 0;
  /// Returns nothing if it does not tell.
  [[nodiscard]] virtual std::optional<GpuUse> use(const std::string& id) = 0;
  /// Why there are none; empty: there are some.
  [[nodiscard]] virtual std::string problem() = 0;
};

/// The machine's own, by the library of this name, which is loaded at the first call: a machine
/// without GPUs needs none. What fails is tried again at the next call.
[[nodiscard]] std::unique_ptr<GpuMonitor> nvml_monitor(
    const std::string& library = "libnvidia-ml.so.1");

/// Finds a GPU by the id that a process read from the driver: that does not say whether it is a
/// whole GPU or a MIG instance ("GPU-" stands before both).
[[nodiscard]] std::optional<GpuFacts> find_gpu(const std::vector<GpuFacts>& gpus,
                                               const std::string& id);
/// @param budget  part of its memory, or bytes.
[[nodiscard]] Device make_gpu_device(const GpuFacts& facts, const MemoryBudget& budget);

}  // namespace commensal::node

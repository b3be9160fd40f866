// SPDX-License-Identifier: Apache-2.0
// Nodes and their GPUs: how many there are, and what of them is free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace commensal::policies {

using NodeIndex = std::uint32_t;
using JobIndex = std::uint32_t;
inline constexpr JobIndex kNoJob = UINT32_MAX;
inline constexpr NodeIndex kAnyNode = UINT32_MAX;

/// A whole GPU in thousandths, the unit of fractional requests.
inline constexpr std::int32_t kWholeGpu = 1000;

/// A machine as it was bought.
struct NodeSpec {
  std::string name;
  std::string gpu_type;
  std::int32_t gpus = 0;
  std::int64_t cpu_milli = 0;   ///< thousandths of a core; zero: not counted
  std::int64_t memory_mib = 0;  ///< of the host; zero: not counted
  std::int32_t rack = 0;
  std::int64_t gpu_memory_mib = 0;  ///< of each GPU; zero: not known
  std::uint32_t type =
      0;  ///< number of its kind of GPU among those of the cluster; Cluster sets it
  bool operator==(const NodeSpec&) const = default;
};

/// In place of types that will do: none does.
inline constexpr std::uint32_t kNoGpuType = 1U << 31U;

/// What jobs need at least of one GPU.
struct Minima {
  std::int32_t share_milli = 0;  ///< of its time, of opportunistic jobs; others have theirs first
  std::int64_t memory_mib = 0;   ///< of its memory, of jobs of either class
  bool operator==(const Minima&) const = default;
};

/// In place of a GPU's number: a job without GPUs holds only cores and memory of the node.
inline constexpr std::uint16_t kHostOnly = UINT16_MAX;

/// A part of one GPU that a job holds.
struct GpuPart {
  NodeIndex node = 0;
  std::uint16_t gpu = 0;
  std::uint16_t milli = kWholeGpu;
  bool operator==(const GpuPart&) const = default;
};
using Placement = std::vector<GpuPart>;

/// What is free of a cluster. Taking more than is free throws: a plan that does so is wrong.
///
/// A GPU has two sides: what is charged to guaranteed jobs, and opportunistic jobs beside it, which
/// are counted only. Thread safety: none; a value that may be copied.
class Cluster {
 public:
  struct Gpu {
    std::int32_t free_milli = kWholeGpu;  ///< not charged to a guaranteed job
    std::int32_t opportunistic = 0;       ///< jobs beside
    Minima minima;                        ///< of all jobs on it; may be more than there is
    JobIndex reserved_for = kNoJob;       ///< closed to other guaranteed jobs
    bool operator==(const Gpu&) const = default;
  };

  /// @throws std::invalid_argument for more than 31 GPU types.
  explicit Cluster(std::vector<NodeSpec> nodes);

  [[nodiscard]] const std::vector<NodeSpec>& nodes() const noexcept { return specs_; }
  /// GPU types in the order of their first node; one that comes with different memory is several.
  [[nodiscard]] const std::vector<std::string>& types() const noexcept { return types_; }
  /// Bits of these types, for `ClusterJob::gpu_types`; names that are of no node have none.
  [[nodiscard]] std::uint32_t type_bits(const std::vector<std::string>& names) const;
  /// Bits of the types with so much memory, and of those of which it is not known, for
  /// `ClusterJob::gpu_types`: zero if all are, `kNoGpuType` if none is.
  [[nodiscard]] std::uint32_t types_with_memory(std::int64_t mib) const;
  [[nodiscard]] std::int32_t total_gpus() const noexcept { return total_gpus_; }
  /// GPUs of which nothing is charged, reserved ones included.
  [[nodiscard]] std::int32_t free_gpus() const noexcept { return free_gpus_; }
  [[nodiscard]] std::int32_t free_gpus(NodeIndex node) const { return free_on_[node]; }
  [[nodiscard]] std::int64_t free_cpu(NodeIndex node) const { return cpu_[node]; }
  [[nodiscard]] std::int64_t free_memory(NodeIndex node) const { return memory_[node]; }
  [[nodiscard]] const Gpu& gpu(NodeIndex node, std::int32_t gpu) const {
    return gpus_[first_[node] + static_cast<std::size_t>(gpu)];
  }

  /// Number of a GPU among all of the cluster.
  [[nodiscard]] std::size_t index(NodeIndex node, std::int32_t gpu) const {
    return first_[node] + static_cast<std::size_t>(gpu);
  }
  /// Whether no guaranteed job holds the GPU and none has reserved it.
  [[nodiscard]] bool open(NodeIndex node, std::int32_t gpu) const {
    const Gpu& g = this->gpu(node, gpu);
    return g.free_milli == kWholeGpu && g.reserved_for == kNoJob;
  }

  /// Charges GPUs that are only counted: nobody asks on which node they are.
  /// @throws std::logic_error if fewer are free (all of these calls, with the values).
  void take_counted(std::int32_t gpus);
  void give_counted(std::int32_t gpus);

  void take(const GpuPart& part);
  void give(const GpuPart& part);
  void take_beside(const GpuPart& part);
  void give_beside(const GpuPart& part);
  void take_minima(const GpuPart& part, const Minima& minima);
  void give_minima(const GpuPart& part, const Minima& minima);
  void take_host(NodeIndex node, std::int64_t cpu_milli, std::int64_t memory_mib);
  void give_host(NodeIndex node, std::int64_t cpu_milli, std::int64_t memory_mib);
  void reserve(NodeIndex node, std::int32_t gpu, JobIndex job);
  void unreserve(NodeIndex node, std::int32_t gpu);

  bool operator==(const Cluster&) const = default;

 private:
  [[nodiscard]] Gpu& at(NodeIndex node, std::int32_t gpu);

  std::vector<NodeSpec> specs_;
  std::vector<std::string> types_;
  std::vector<std::int64_t> memory_of_type_;
  std::vector<std::size_t> first_;  // of a node's GPUs
  std::vector<Gpu> gpus_;
  std::vector<std::int32_t> free_on_;
  std::vector<std::int64_t> cpu_;
  std::vector<std::int64_t> memory_;
  std::int32_t total_gpus_ = 0;
  std::int32_t free_gpus_ = 0;
};

/// Makes `nodes` equal machines, eight to a rack.
[[nodiscard]] std::vector<NodeSpec> equal_nodes(std::int32_t nodes, std::int32_t gpus_per_node);

}  // namespace commensal::policies

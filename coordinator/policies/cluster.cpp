// SPDX-License-Identifier: Apache-2.0
// Nodes and their GPUs: accounting that refuses to go below zero.
#include "coordinator/policies/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace commensal::policies {

Cluster::Cluster(std::vector<NodeSpec> nodes) : specs_(std::move(nodes)) {
  for (NodeSpec& node : specs_) {
    node.type = 0;
    while (node.type < types_.size() && (types_[node.type] != node.gpu_type ||
                                         memory_of_type_[node.type] != node.gpu_memory_mib)) {
      ++node.type;
    }
    if (node.type == types_.size()) {
      types_.push_back(node.gpu_type);
      memory_of_type_.push_back(node.gpu_memory_mib);
    }
    if (types_.size() > 31) throw std::invalid_argument("more than 31 types of GPUs");
    first_.push_back(gpus_.size());
    gpus_.resize(gpus_.size() + static_cast<std::size_t>(node.gpus));
    free_on_.push_back(node.gpus);
    cpu_.push_back(node.cpu_milli);
    memory_.push_back(node.memory_mib);
    total_gpus_ += node.gpus;
  }
  free_gpus_ = total_gpus_;
}

std::uint32_t Cluster::type_bits(const std::vector<std::string>& names) const {
  std::uint32_t bits = 0;
  for (std::size_t type = 0; type < types_.size(); ++type) {
    if (std::find(names.begin(), names.end(), types_[type]) != names.end()) bits |= 1U << type;
  }
  return bits;
}

std::uint32_t Cluster::types_with_memory(std::int64_t mib) const {
  std::uint32_t bits = 0;
  std::size_t count = 0;
  for (std::size_t type = 0; type < types_.size(); ++type) {
    if (memory_of_type_[type] == 0 || memory_of_type_[type] >= mib) {
      bits |= 1U << type;
      ++count;
    }
  }
  if (count == types_.size()) return 0;
  return bits == 0 ? kNoGpuType : bits;
}

Cluster::Gpu& Cluster::at(NodeIndex node, std::int32_t gpu) {
  if (node >= specs_.size() || gpu < 0 || gpu >= specs_[node].gpus) {
    throw std::logic_error(fmt::format("no GPU {} on node {}", gpu, node));
  }
  return gpus_[first_[node] + static_cast<std::size_t>(gpu)];
}

void Cluster::take_counted(std::int32_t gpus) {
  if (gpus > free_gpus_) {
    throw std::logic_error(fmt::format("more GPUs than are free: {} > {}", gpus, free_gpus_));
  }
  free_gpus_ -= gpus;
}

void Cluster::give_counted(std::int32_t gpus) {
  if (gpus > total_gpus_ - free_gpus_) {
    throw std::logic_error(
        fmt::format("more GPUs given than taken: {} > {}", gpus, total_gpus_ - free_gpus_));
  }
  free_gpus_ += gpus;
}

void Cluster::take(const GpuPart& part) {
  if (part.gpu == kHostOnly) return;
  Gpu& gpu = at(part.node, part.gpu);
  if (part.milli > gpu.free_milli) {
    throw std::logic_error(fmt::format("more of GPU {} on node {} than is free: {} > {} milli",
                                       part.gpu, part.node, part.milli, gpu.free_milli));
  }
  if (gpu.free_milli == kWholeGpu) {
    --free_on_[part.node];
    --free_gpus_;
  }
  gpu.free_milli -= part.milli;
}

void Cluster::give(const GpuPart& part) {
  if (part.gpu == kHostOnly) return;
  Gpu& gpu = at(part.node, part.gpu);
  if (part.milli > kWholeGpu - gpu.free_milli) {
    throw std::logic_error(fmt::format("more of GPU {} on node {} given than taken: {} > {} milli",
                                       part.gpu, part.node, part.milli,
                                       kWholeGpu - gpu.free_milli));
  }
  gpu.free_milli += part.milli;
  if (gpu.free_milli == kWholeGpu) {
    ++free_on_[part.node];
    ++free_gpus_;
  }
}

void Cluster::take_beside(const GpuPart& part) { ++at(part.node, part.gpu).opportunistic; }

void Cluster::give_beside(const GpuPart& part) {
  Gpu& gpu = at(part.node, part.gpu);
  if (gpu.opportunistic == 0) {
    throw std::logic_error(
        fmt::format("no opportunistic job on GPU {} of node {}", part.gpu, part.node));
  }
  --gpu.opportunistic;
}

void Cluster::take_minima(const GpuPart& part, const Minima& minima) {
  Minima& sum = at(part.node, part.gpu).minima;
  sum.share_milli += minima.share_milli;
  sum.memory_mib += minima.memory_mib;
}

void Cluster::give_minima(const GpuPart& part, const Minima& minima) {
  Minima& sum = at(part.node, part.gpu).minima;
  if (minima.share_milli > sum.share_milli || minima.memory_mib > sum.memory_mib) {
    throw std::logic_error(fmt::format(
        "larger minima on GPU {} of node {} given than taken: {} > {} milli or {} > {} MiB",
        part.gpu, part.node, minima.share_milli, sum.share_milli, minima.memory_mib,
        sum.memory_mib));
  }
  sum.share_milli -= minima.share_milli;
  sum.memory_mib -= minima.memory_mib;
}

void Cluster::take_host(NodeIndex node, std::int64_t cpu_milli, std::int64_t memory_mib) {
  if ((specs_[node].cpu_milli > 0 && cpu_milli > cpu_[node]) ||
      (specs_[node].memory_mib > 0 && memory_mib > memory_[node])) {
    throw std::logic_error(
        fmt::format("more of node {} than is free: {} > {} milli-CPU or {} > {} MiB", node,
                    cpu_milli, cpu_[node], memory_mib, memory_[node]));
  }
  if (specs_[node].cpu_milli > 0) cpu_[node] -= cpu_milli;
  if (specs_[node].memory_mib > 0) memory_[node] -= memory_mib;
}

void Cluster::give_host(NodeIndex node, std::int64_t cpu_milli, std::int64_t memory_mib) {
  if (specs_[node].cpu_milli > 0) cpu_[node] += cpu_milli;
  if (specs_[node].memory_mib > 0) memory_[node] += memory_mib;
}

void Cluster::reserve(NodeIndex node, std::int32_t gpu, JobIndex job) {
  Gpu& reserved = at(node, gpu);
  if (reserved.reserved_for != kNoJob) {
    throw std::logic_error(fmt::format("GPU {} on node {} is reserved for job {} already", gpu,
                                       node, reserved.reserved_for));
  }
  reserved.reserved_for = job;
}

void Cluster::unreserve(NodeIndex node, std::int32_t gpu) { at(node, gpu).reserved_for = kNoJob; }

std::vector<NodeSpec> equal_nodes(std::int32_t nodes, std::int32_t gpus_per_node) {
  std::vector<NodeSpec> made;
  made.reserve(static_cast<std::size_t>(nodes));
  for (std::int32_t node = 0; node < nodes; ++node) {
    made.push_back({.name = fmt::format("node{:04}", node),
                    .gpu_type = "gpu",
                    .gpus = gpus_per_node,
                    .rack = node / 8});
  }
  return made;
}

}  // namespace commensal::policies

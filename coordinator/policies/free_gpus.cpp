// SPDX-License-Identifier: Apache-2.0
// Takes whole GPUs by rack and server.
#include "coordinator/policies/free_gpus.h"

#include <algorithm>
#include <map>
#include <utility>

namespace commensal::policies {
namespace {

/// Servers and GPUs of each, for a request on the fewest servers.
struct Split {
  std::int32_t servers = 0;
  std::int32_t gpus = 0;  // on the last one perhaps fewer
};

Split fewest_servers(const Cluster& cluster, const ClusterJob& job) {
  std::int32_t most = 0;
  for (const NodeSpec& node : cluster.nodes()) {
    if (job.gpu_types == 0 || (job.gpu_types >> node.type & 1U) != 0) {
      most = std::max(most, node.gpus);
    }
  }
  if (most == 0 || job.gpus == 0) return {};
  const std::int32_t servers = (job.gpus + most - 1) / most;
  return {servers, (job.gpus + servers - 1) / servers};
}

/// What counts of a rack: servers with enough, or GPUs.
struct Rack {
  std::int32_t could = 0;  // empty
  std::int32_t has = 0;    // now
  std::vector<NodeIndex> nodes;
};

/// Racks that could hold the job; without `free` an empty cluster.
std::map<std::int32_t, Rack> racks_of(const Cluster& cluster, const ClusterJob& job,
                                      Locality locality, const Split& split, const FreeGpus* free) {
  std::map<std::int32_t, Rack> racks;
  const bool servers = locality == Locality::kServers;
  for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
    const NodeSpec& spec = cluster.nodes()[node];
    if (job.gpu_types != 0 && (job.gpu_types >> spec.type & 1U) == 0) continue;
    Rack& rack = racks[spec.rack];
    rack.could += servers ? (spec.gpus >= split.gpus ? 1 : 0) : spec.gpus;
    const std::int32_t now = free != nullptr && free->takes(job, node) ? free->on(node) : 0;
    rack.has += servers ? (now >= split.gpus ? 1 : 0) : now;
    if (now > 0) rack.nodes.push_back(node);
  }
  const std::int32_t needed = servers ? split.servers : locality == Locality::kRack ? job.gpus : 0;
  std::erase_if(racks, [&](const auto& rack) { return rack.second.could < needed; });
  return racks;
}

}  // namespace

FreeGpus::FreeGpus(const Cluster& cluster) : cluster_(&cluster) {
  free_.resize(static_cast<std::size_t>(cluster.total_gpus()), 0);
  for (NodeIndex node = 0; node < cluster.nodes().size(); ++node) {
    on_.push_back(0);
    cpu_.push_back(cluster.free_cpu(node));
    memory_.push_back(cluster.free_memory(node));
    for (std::int32_t gpu = 0; gpu < cluster.nodes()[node].gpus; ++gpu) {
      if (!cluster.open(node, gpu) || cluster.gpu(node, gpu).opportunistic > 0) continue;
      free_[cluster.index(node, gpu)] = 1;
      ++on_[node];
    }
    total_ += on_[node];
  }
}

bool FreeGpus::takes(const ClusterJob& job, NodeIndex node) const {
  const NodeSpec& spec = cluster_->nodes()[node];
  return (job.gpu_types == 0 || (job.gpu_types >> spec.type & 1U) != 0) &&
         (spec.cpu_milli == 0 || job.cpu_milli <= cpu_[node]) &&
         (spec.memory_mib == 0 || job.memory_mib <= memory_[node]);
}

void FreeGpus::hold_host(const ClusterJob& job, const Placement& parts, std::int64_t sign) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && parts[i - 1].node == parts[i].node) continue;
    cpu_[parts[i].node] -= sign * job.cpu_milli;
    memory_[parts[i].node] -= sign * job.memory_mib;
  }
}

void FreeGpus::take(const ClusterJob& job, NodeIndex node, std::int32_t gpus, Placement& parts) {
  Placement taken;
  for (std::int32_t gpu = 0; gpus > 0; ++gpu) {
    if (free_[cluster_->index(node, gpu)] == 0) continue;
    taken.push_back(
        {node, static_cast<std::uint16_t>(gpu), static_cast<std::uint16_t>(job.gpu_milli)});
    --gpus;
  }
  take(job, taken);
  parts.insert(parts.end(), taken.begin(), taken.end());
}

void FreeGpus::take(const ClusterJob& job, const Placement& parts) {
  for (const GpuPart& part : parts) {
    free_[cluster_->index(part.node, part.gpu)] = 0;
    --on_[part.node];
  }
  total_ -= static_cast<std::int32_t>(parts.size());
  hold_host(job, parts, 1);
}

void FreeGpus::give(const ClusterJob& job, const Placement& parts) {
  unreserve(parts);
  hold_host(job, parts, -1);
}

void FreeGpus::unreserve(const Placement& parts) {
  for (const GpuPart& part : parts) {
    free_[cluster_->index(part.node, part.gpu)] = 1;
    ++on_[part.node];
  }
  total_ += static_cast<std::int32_t>(parts.size());
}

bool possible(const Cluster& cluster, const ClusterJob& job, Locality locality) {
  if (locality == Locality::kAnywhere || job.gpus == 0) return true;
  return !racks_of(cluster, job, locality, fewest_servers(cluster, job), nullptr).empty();
}

Placement take_close(const ClusterJob& job, Locality locality, FreeGpus& free) {
  const Split split = fewest_servers(free.cluster(), job);
  std::map<std::int32_t, Rack> racks = racks_of(free.cluster(), job, locality, split, &free);
  std::vector<Rack> ranked;
  ranked.reserve(racks.size());
  for (auto& [number, rack] : racks) ranked.push_back(std::move(rack));
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Rack& a, const Rack& b) { return a.has > b.has; });
  if (locality != Locality::kAnywhere && ranked.size() > 1) ranked.resize(1);
  Placement parts;
  std::int32_t missing = job.gpus;
  for (Rack& rack : ranked) {
    const bool pack = locality == Locality::kServers;
    std::stable_sort(rack.nodes.begin(), rack.nodes.end(), [&](NodeIndex a, NodeIndex b) {
      return pack ? free.on(a) < free.on(b) : free.on(a) > free.on(b);
    });
    for (const NodeIndex node : rack.nodes) {
      const std::int32_t wanted = pack ? std::min(split.gpus, missing) : missing;
      if (missing == 0 || (pack && free.on(node) < wanted)) continue;
      const std::int32_t here = std::min(wanted, free.on(node));
      free.take(job, node, here, parts);
      missing -= here;
    }
  }
  return parts;
}

}  // namespace commensal::policies

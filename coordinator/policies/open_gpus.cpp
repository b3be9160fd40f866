// SPDX-License-Identifier: Apache-2.0
// Which open GPUs a guaranteed job gets, and where it may wait.
#include "coordinator/policies/open_gpus.h"

#include <algorithm>
#include <vector>

namespace commensal::policies {

OpenGpus::OpenGpus(const ClusterView& view)
    : view_(view), hosts_(*view.cluster), kept_(*view.cluster) {}

void OpenGpus::wait_for(const ClusterJob& job, const Placement& reserved) {
  if (job.gpus > view_.index->most_on_a_node()) {
    waited_by_large_ += job.gpus;
  } else {
    waited_for_[reserved.front().node] += job.gpus;
  }
}

std::uint32_t OpenGpus::number(const GpuPart& part) const {
  return static_cast<std::uint32_t>(view_.cluster->index(part.node, part.gpu));
}

bool OpenGpus::takes(const ClusterJob& job, NodeIndex node) const {
  const bool type =
      job.gpu_types == 0 || (job.gpu_types >> view_.cluster->nodes()[node].type & 1U) != 0;
  return (type || job.gpus == 0) && hosts_.has(job, node);
}

std::int32_t OpenGpus::open_on(NodeIndex node) const {
  if (kept_.wants(node)) return 0;
  const auto taken = taken_on_.find(node);
  return view_.index->open_on(node) - (taken == taken_on_.end() ? 0 : taken->second);
}

bool OpenGpus::may_reserve(const ClusterJob& job, const Placement& parts) const {
  if (job.gpus > view_.index->most_on_a_node()) {
    return waited_by_large_ + job.gpus <= view_.cluster->total_gpus();
  }
  return may_wait_on(job, parts.front().node);
}

bool OpenGpus::closed(const GpuPart& part) const {
  return closed_.contains(number(part)) || kept_.wants(part.node);
}

void OpenGpus::keep_for(const ClusterJob& job) {
  kept_.add(job, job.gpus > view_.index->most_on_a_node() ? 1 : job.gpus);
}

void OpenGpus::close(const Placement& parts) {
  for (const GpuPart& part : parts) {
    if (part.gpu == kHostOnly) continue;
    const bool fresh = closed_.insert(number(part)).second;
    if (fresh && view_.cluster->open(part.node, part.gpu)) ++taken_on_[part.node];
  }
}

void OpenGpus::add_open(NodeIndex node, std::size_t enough, Placement& parts) const {
  for (std::int32_t gpu = 0; gpu < view_.cluster->nodes()[node].gpus; ++gpu) {
    if (parts.size() == enough) return;
    const GpuPart part{.node = node, .gpu = static_cast<std::uint16_t>(gpu)};
    if (!view_.cluster->open(node, gpu) || closed_.contains(number(part))) continue;
    parts.push_back(part);
  }
}

void OpenGpus::complete(const ClusterJob& job, Placement& parts) {
  const auto enough = static_cast<std::size_t>(job.gpus);
  if (job.gpus > view_.index->most_on_a_node()) {
    add_whole_nodes(job, enough, parts);
  } else if (!parts.empty()) {
    add_open(parts.front().node, enough, parts);
  } else if (const NodeIndex node = best_node(job); node != kAnyNode) {
    add_open(node, enough, parts);
  }
}

NodeIndex OpenGpus::best_node(const ClusterJob& job) {
  for (std::int32_t open = job.gpus; open <= view_.index->most_on_a_node(); ++open) {
    const auto& nodes = view_.index->nodes_with_open(open);
    // Within a decision GPUs are only taken: a node that is too full for so many stays so.
    auto& first = first_with_.try_emplace({open, job.gpus}, nodes.begin()).first->second;
    while (first != nodes.end() && open_on(*first) < job.gpus) ++first;
    for (auto at = first; at != nodes.end(); ++at) {
      if (takes(job, *at) && open_on(*at) >= job.gpus) return *at;
    }
  }
  return most_open(job);
}

bool OpenGpus::may_wait_on(const ClusterJob& job, NodeIndex node) const {
  const auto waiting = waited_for_.find(node);
  const std::int32_t others = waiting == waited_for_.end() ? 0 : waiting->second;
  return takes(job, node) && others + job.gpus <= view_.cluster->nodes()[node].gpus;
}

NodeIndex OpenGpus::most_open(const ClusterJob& job) const {
  NodeIndex best = kAnyNode;
  std::int32_t most = 0;
  const auto look = [&](NodeIndex node) {
    const std::int32_t open = open_on(node);
    if (open < most || open == 0 || !may_wait_on(job, node)) return;
    if (open > most || node < best) best = node;
    most = open;
  };
  for (const auto& [node, taken] : taken_on_) look(node);
  for (std::int32_t open = job.gpus - 1; open > most; --open) {
    for (const NodeIndex node : view_.index->nodes_with_open(open)) {
      look(node);
      if (most == open) break;
    }
  }
  return best;
}

void OpenGpus::add_whole_nodes(const ClusterJob& job, std::size_t enough, Placement& parts) const {
  std::vector<NodeIndex> nodes;
  std::unordered_map<std::int32_t, std::int32_t> in_rack;
  for (std::int32_t open = view_.index->most_on_a_node(); open > 0; --open) {
    for (const NodeIndex node : view_.index->nodes_with_open(open)) {
      const NodeSpec& spec = view_.cluster->nodes()[node];
      if (spec.gpus != open || open_on(node) != open || !takes(job, node)) continue;
      nodes.push_back(node);
      ++in_rack[spec.rack];
    }
  }
  std::stable_sort(nodes.begin(), nodes.end(), [&](NodeIndex a, NodeIndex b) {
    const std::int32_t rack_a = view_.cluster->nodes()[a].rack;
    const std::int32_t rack_b = view_.cluster->nodes()[b].rack;
    if (in_rack[rack_a] != in_rack[rack_b]) return in_rack[rack_a] > in_rack[rack_b];
    return rack_a < rack_b;
  });
  for (const NodeIndex node : nodes) add_open(node, enough, parts);
}

}  // namespace commensal::policies

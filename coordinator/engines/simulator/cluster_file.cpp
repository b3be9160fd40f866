// SPDX-License-Identifier: Apache-2.0
// Checks each key and value of a cluster file.
#include "coordinator/engines/simulator/cluster_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace commensal::simulator {
namespace {

using nlohmann::json;
using policies::NodeSpec;
using policies::Tenant;

constexpr std::int64_t kMostNodes = 1'000'000;
constexpr std::int64_t kMostGpus = 1024;  // of a node
constexpr std::int64_t kMostQuota = 1'000'000'000;

void add_nodes(const Section& section, const std::vector<std::string>& types,
               std::vector<NodeSpec>& nodes) {
  NodeSpec node;
  node.gpus = static_cast<std::int32_t>(section.whole("gpus", 0, 0, kMostGpus));
  node.gpu_type = section.text("gpu_type", "gpu");
  if (section.has("gpu_type") &&
      std::find(types.begin(), types.end(), node.gpu_type) == types.end()) {
    section.fail(fmt::format("has a type that gpu_types does not name ({}): gpu_type",
                             fmt::join(types, ", ")),
                 node.gpu_type);
  }
  node.rack = static_cast<std::int32_t>(section.whole("rack", 0, 0, kMostNodes));
  node.cpu_milli = 1000 * section.whole("cores", 0, 1, 1'000'000);
  node.memory_mib = 1024 * section.whole("memory_gib", 0, 1, 1'000'000);
  const std::string name = section.text("name", "node");
  const std::int64_t count = section.whole("count", 1, 1, kMostNodes);
  for (std::int64_t i = 0; i < count; ++i) {
    node.name =
        section.has("name") && count == 1 ? name : fmt::format("{}{:04}", name, nodes.size());
    nodes.push_back(node);
  }
}

Tenant tenant_of(const Section& section, const std::vector<Tenant>& others) {
  if (!section.has("name")) section.fail("has no key:", "name");
  Tenant tenant{.name = section.text("name", ""), .quota = {}};
  for (const Tenant& other : others) {
    if (other.name == tenant.name) section.fail("is a second tenant of this name:", tenant.name);
  }
  if (section.has("quota")) {
    tenant.quota = static_cast<std::int32_t>(section.whole("quota", 0, 0, kMostQuota));
  }
  return tenant;
}

}  // namespace

ClusterFile read_cluster(const std::string& file) {
  const json content = parse_json(file);
  const Section all(file, "the cluster", content, {"gpu_types", "nodes", "tenants"});
  std::vector<std::string> types;
  for (const json& type : all.list("gpu_types")) {
    if (!type.is_string()) all.fail("has a type that is no text:", type);
    types.push_back(type.get<std::string>());
  }
  ClusterFile cluster;
  std::vector<NodeSpec>& nodes = cluster.nodes;
  std::size_t number = 0;
  for (const json& entry : all.list("nodes")) {
    const Section section(file, fmt::format("nodes[{}]", number++), entry,
                          {"count", "name", "gpus", "gpu_type", "rack", "cores", "memory_gib"});
    add_nodes(section, types, nodes);
  }
  const bool any_gpu =
      std::any_of(nodes.begin(), nodes.end(), [](const NodeSpec& node) { return node.gpus > 0; });
  if (!any_gpu) throw BadCluster(fmt::format("{}: no node with a GPU in it", file));
  number = 0;
  for (const json& entry : all.list("tenants")) {
    const Section section(file, fmt::format("tenants[{}]", number++), entry, {"name", "quota"});
    cluster.tenants.push_back(tenant_of(section, cluster.tenants));
  }
  return cluster;
}

}  // namespace commensal::simulator

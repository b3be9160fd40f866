// SPDX-License-Identifier: Apache-2.0
// Checks each key and value of a cluster file.
#include "coordinator/engines/simulator/cluster_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace commensal::simulator {
namespace {

using nlohmann::json;
using policies::NodeSpec;
using policies::Tenant;

constexpr std::int64_t kMostNodes = 1'000'000;
constexpr std::int64_t kMostGpus = 1024;  // of a node
constexpr std::int64_t kMostQuota = 1'000'000'000;

/// An object of the file, and how it is called in messages.
class Section {
 public:
  Section(std::string file, std::string where, const json& object,
          const std::vector<std::string_view>& keys)
      : file_(std::move(file)), where_(std::move(where)), object_(object) {
    if (!object.is_object()) fail("is no object", object);
    for (const auto& [key, value] : object.items()) {
      if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      fail(fmt::format("has a key that does not exist (there are {}): {}", fmt::join(keys, ", "),
                       key),
           value);
    }
  }

  [[nodiscard]] bool has(std::string_view key) const { return object_.contains(std::string(key)); }

  [[nodiscard]] std::int64_t whole(std::string_view key, std::int64_t fallback, std::int64_t least,
                                   std::int64_t most) const {
    if (!has(key)) return fallback;
    const json& value = object_.at(std::string(key));
    if (!value.is_number_integer() || value.get<double>() < static_cast<double>(least) ||
        value.get<double>() > static_cast<double>(most)) {
      fail(fmt::format("needs a whole number from {} to {}: {}", least, most, key), value);
    }
    return value.get<std::int64_t>();
  }

  [[nodiscard]] std::string text(std::string_view key, std::string_view fallback) const {
    if (!has(key)) return std::string(fallback);
    const json& value = object_.at(std::string(key));
    if (!value.is_string() || value.get<std::string>().empty()) {
      fail(fmt::format("needs a text: {}", key), value);
    }
    return value.get<std::string>();
  }

  [[nodiscard]] const json& list(std::string_view key) const {
    static const json none = json::array();
    if (!has(key)) return none;
    const json& value = object_.at(std::string(key));
    if (!value.is_array()) fail(fmt::format("needs a list: {}", key), value);
    return value;
  }

  [[noreturn]] void fail(std::string_view what, const json& value) const {
    throw BadCluster(fmt::format("{}: {} {} = {}", file_, where_, what, value.dump()));
  }

 private:
  std::string file_;
  std::string where_;
  const json& object_;
};

json parse(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw BadCluster(fmt::format("{}: cannot be opened", file));
  try {
    return json::parse(in);
  } catch (const json::parse_error& error) {
    throw BadCluster(fmt::format("{}: no JSON, at byte {}", file, error.byte));
  }
}

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
  const json content = parse(file);
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

// SPDX-License-Identifier: Apache-2.0
// States of a cluster and of a node, from JSON.
#include "coordinator/engines/simulator/state_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "coordinator/policies/one_kind.h"

namespace commensal::simulator {
namespace {

using nlohmann::json;
using policies::AskedClass;
using policies::ClusterJob;
using policies::ClusterState;
using policies::JobPhase;
using policies::kWholeGpu;
using policies::NodeSpec;
using policies::Placement;
using policies::Tenant;

constexpr double kMost = 1e15;               // seconds, and whatever else has no bound of its own
constexpr std::int64_t kMostDevices = 1024;  // of a node
constexpr std::int64_t kMostOfAKind = 1'000'000;
constexpr std::int64_t kMostMib = 1'000'000'000;
constexpr double kNodeBusy = 0.6;  // as the co-execution model assumes of jobs that do not say

struct NamedJob {
  std::string name;
  ClusterJob job;
  std::string where;  // for messages
};

/// What a file says, before there is a cluster of it.
struct Draft {
  std::string file;
  std::string kind;
  policies::Time now = 0;
  std::vector<NodeSpec> nodes;
  std::vector<std::vector<std::string>> devices;
  std::vector<Tenant> tenants;
  std::vector<NamedJob> jobs;
  std::size_t without_duration = 0;

  [[nodiscard]] policies::TenantIndex tenant(const std::string& name) {
    const auto found = std::find_if(tenants.begin(), tenants.end(),
                                    [&](const Tenant& t) { return t.name == name; });
    if (found == tenants.end()) {
      tenants.push_back({.name = name, .quota = std::nullopt});
      return static_cast<policies::TenantIndex>(tenants.size() - 1);
    }
    return static_cast<policies::TenantIndex>(found - tenants.begin());
  }
};

std::string at(std::string_view list, std::size_t number) {
  return fmt::format("{}[{}]", list, number);
}

std::int32_t milli_of(double share) {
  return static_cast<std::int32_t>(std::lround(share * kWholeGpu));
}

void add_node(const Section& section, Draft& draft) {
  NodeSpec node;
  node.name = section.text("name");
  for (const NodeSpec& other : draft.nodes) {
    if (other.name == node.name) section.fail("has the name of another node: name", node.name);
  }
  node.rack = static_cast<std::int32_t>(section.whole("rack", 0, 0, kMostOfAKind));
  node.cpu_milli = 1000 * section.whole("cores", 0, 1, kMostOfAKind);
  node.memory_mib = 1024 * section.whole("memory_gib", 0, 1, kMostOfAKind);
  node.gpu_memory_mib = section.whole("gpu_memory_mib", 0, 1, kMostMib);
  std::vector<std::string> names;
  for (const json& entry : section.list("devices")) {
    const Section device(draft.file,
                         at("nodes", draft.nodes.size()) + "." + at("devices", names.size()), entry,
                         {"id", "type"});
    std::string id = device.text("id");
    if (std::find(names.begin(), names.end(), id) != names.end()) {
      device.fail("has the id of another device of the node: id", id);
    }
    const std::string type = device.text("type", "gpu");
    if (!names.empty() && type != node.gpu_type) {
      device.fail(fmt::format("is not of the type of the node's others, {}: type", node.gpu_type),
                  type);
    }
    node.gpu_type = type;
    names.push_back(std::move(id));
  }
  if (names.size() > kMostDevices) section.fail("has too many devices:", names.size());
  node.gpus = static_cast<std::int32_t>(names.size());
  draft.nodes.push_back(std::move(node));
  draft.devices.push_back(std::move(names));
}

void add_tenant(const Section& section, Draft& draft) {
  Tenant tenant{.name = section.text("name"), .quota = std::nullopt};
  for (const Tenant& other : draft.tenants) {
    if (other.name == tenant.name)
      section.fail("has the name of another tenant: name", tenant.name);
  }
  if (section.has("quota")) {
    tenant.quota = static_cast<std::int32_t>(section.whole("quota", 0, 0, kMostOfAKind));
  }
  draft.tenants.push_back(std::move(tenant));
}

/// GPUs by the names of nodes and devices.
Placement read_parts(const Section& job, std::string_view key, const std::string& where,
                     const Draft& draft) {
  Placement parts;
  for (const json& entry : job.list(key)) {
    const Section section(draft.file, where + "." + at(key, parts.size()), entry,
                          {"node", "device", "share"});
    const std::string node = section.text("node");
    const auto found = std::find_if(draft.nodes.begin(), draft.nodes.end(),
                                    [&](const NodeSpec& spec) { return spec.name == node; });
    if (found == draft.nodes.end()) section.fail("names a node that is not there: node", node);
    const auto number = static_cast<std::size_t>(found - draft.nodes.begin());
    const std::vector<std::string>& devices = draft.devices[number];
    const std::string device = section.text("device");
    const auto gpu = std::find(devices.begin(), devices.end(), device);
    if (gpu == devices.end()) section.fail("names a device that is not there: device", device);
    const policies::GpuPart part{
        .node = static_cast<policies::NodeIndex>(number),
        .gpu = static_cast<std::uint16_t>(gpu - devices.begin()),
        .milli = static_cast<std::uint16_t>(milli_of(section.number("share", 1, 0.001, 1)))};
    for (const policies::GpuPart& other : parts) {
      if (other.node == part.node && other.gpu == part.gpu) {
        section.fail("names a device twice: device", device);
      }
    }
    parts.push_back(part);
  }
  return parts;
}

AskedClass asked_of(const std::string& name) {
  return value_of<AskedClass>(name).value_or(AskedClass::kGuaranteed);
}

std::uint32_t type_bits(const Section& section, const Draft& draft) {
  const std::vector<std::string> names = section.texts("gpu_types");
  const std::uint32_t bits = policies::Cluster(draft.nodes).type_bits(names);
  if (!names.empty() && bits == 0) {
    section.fail("takes only types that no node has: gpu_types", names);
  }
  return bits;
}

/// Of types that will do, those with as much memory as the job needs at least.
std::uint32_t with_memory(std::uint32_t bits, const Section& section, const Draft& draft,
                          std::int64_t mib) {
  const std::uint32_t large = policies::Cluster(draft.nodes).types_with_memory(mib);
  const std::uint32_t both = bits == 0 || large == 0 ? bits | large : bits & large;
  if (both == policies::kNoGpuType || (bits != 0 && both == 0)) {
    section.fail("needs more memory than a device that it takes has: min_gpu_memory_mib", mib);
  }
  return both;
}

void add_job(const Section& section, const std::string& where, Draft& draft) {
  NamedJob named{.name = section.text("id"), .job = {}, .where = where};
  ClusterJob& job = named.job;
  for (const NamedJob& other : draft.jobs) {
    if (other.name == named.name) section.fail("has the id of another job: id", named.name);
  }
  const bool runs = section.choice("phase", "queued", {"queued", "running"}) == "running";
  job.phase = runs ? JobPhase::kRunning : JobPhase::kWaiting;
  job.asked =
      asked_of(section.choice("class", "guaranteed", {"guaranteed", "opportunistic", "auto"}));
  const std::string as = section.choice(
      "runs_as", job.asked == AskedClass::kGuaranteed ? "guaranteed" : "opportunistic",
      {"guaranteed", "opportunistic"});
  job.job_class = value_of<JobClass>(as).value_or(JobClass::kOpportunistic);
  job.tenant = draft.tenant(section.text("tenant", "none"));
  job.submit = section.number("submit", draft.now, 0, kMost);
  job.gpus = job.min_gpus = job.max_gpus =
      static_cast<std::int32_t>(section.whole("gpus", 1, 1, kMostOfAKind));
  job.gpu_milli = milli_of(section.number("gpu_share", 1, 0.001, 1));
  job.minima = {.share_milli = milli_of(section.number("min_share", 0, 0, 1)),
                .memory_mib = section.whole("min_gpu_memory_mib", 0, 1, kMostMib)};
  job.gpu_types = policies::types_of_one_kind(
      policies::Cluster(draft.nodes), job.gpus,
      with_memory(type_bits(section, draft), section, draft, job.minima.memory_mib));
  job.priority =
      static_cast<std::int32_t>(section.whole("priority", 0, -kMostOfAKind, kMostOfAKind));
  job.cpu_milli = 1000 * section.whole("cores", 0, 1, kMostOfAKind);
  job.memory_mib = 1024 * section.whole("memory_gib", 0, 1, kMostOfAKind);
  job.load_milli = milli_of(section.number("busy", kNodeBusy, 0, 1));
  job.attained = section.number("attained", 0, 0, kMost);
  job.duration = section.number("duration", 0, 0, kMost);
  job.remaining = section.number("remaining", std::max(0.0, job.duration - job.attained), 0, kMost);
  if (!section.has("duration") && !section.has("remaining")) ++draft.without_duration;
  job.placement = read_parts(section, "placement", where, draft);
  job.reserved = read_parts(section, "reserved", where, draft);
  const auto placed = static_cast<std::int64_t>(job.placement.size());
  if (runs ? placed == 0 : placed > 0) {
    section.fail(
        runs ? "runs, and is nowhere: placement" : "is queued, and runs somewhere: placement",
        placed);
  }
  if (runs && !job.reserved.empty()) section.fail("runs, and has a reservation: reserved", as);
  if (runs && placed != job.gpus) {
    section.fail(fmt::format("runs on another number of devices than its {}: placement", job.gpus),
                 placed);
  }
  draft.jobs.push_back(std::move(named));
}

Draft read_cluster_state(const std::string& file, const json& content) {
  const Section all(file, "the state", content, {"now", "nodes", "tenants", "jobs"});
  Draft draft;
  draft.file = file;
  draft.kind = "cluster";
  draft.now = all.number("now", 0, 0, kMost);
  for (const json& entry : all.list("nodes")) {
    add_node({file,
              at("nodes", draft.nodes.size()),
              entry,
              {"name", "rack", "cores", "memory_gib", "gpu_memory_mib", "devices"}},
             draft);
  }
  if (std::none_of(draft.nodes.begin(), draft.nodes.end(),
                   [](const NodeSpec& node) { return node.gpus > 0; })) {
    all.fail("needs a node with a device: nodes", draft.nodes.size());
  }
  for (const json& entry : all.list("tenants")) {
    add_tenant({file, at("tenants", draft.tenants.size()), entry, {"name", "quota"}}, draft);
  }
  for (const json& entry : all.list("jobs")) {
    const std::string where = at("jobs", draft.jobs.size());
    add_job({file, where, entry, {"id",        "tenant",
                                  "phase",     "class",
                                  "runs_as",   "submit",
                                  "gpus",      "gpu_share",
                                  "gpu_types", "priority",
                                  "cores",     "memory_gib",
                                  "min_share", "min_gpu_memory_mib",
                                  "busy",      "attained",
                                  "duration",  "remaining",
                                  "placement", "reserved"}},
            where, draft);
  }
  return draft;
}

/// Devices of one node, those of a kind together: a host's cores are no GPU.
void add_devices(const Section& all, Draft& draft, std::map<std::string, Placement>& places) {
  for (const json& entry : all.list("devices")) {
    const Section device(draft.file, at("devices", places.size()), entry, {});
    const std::string id = device.text("id");
    const std::string type = device.text("name", device.text("kind", "host"));
    auto node = std::find_if(draft.nodes.begin(), draft.nodes.end(),
                             [&](const NodeSpec& spec) { return spec.gpu_type == type; });
    if (node == draft.nodes.end()) {
      NodeSpec spec;
      spec.name = spec.gpu_type = type;
      draft.nodes.push_back(std::move(spec));
      draft.devices.emplace_back();
      node = std::prev(draft.nodes.end());
    }
    const auto number = static_cast<std::size_t>(node - draft.nodes.begin());
    places[id] = {{.node = static_cast<policies::NodeIndex>(number),
                   .gpu = static_cast<std::uint16_t>(node->gpus++)}};
    draft.devices[number].push_back(id);
  }
  if (places.empty()) all.fail("needs a device: devices", json::array());
}

Draft read_node_state(const std::string& file, const json& content) {
  const Section all(file, "the status", content, {});
  Draft draft;
  draft.file = file;
  draft.kind = "node";
  std::map<std::string, Placement> places;
  add_devices(all, draft, places);
  std::size_t number = 0;
  for (const json& entry : all.list("jobs")) {
    const std::string where = at("jobs", number++);
    const Section section(file, where, entry, {});
    if (section.value("ended") == true) continue;
    const Section known(file, where + ".job", section.value("job"), {});
    NamedJob named{.name = known.text("id"), .job = {}, .where = where};
    ClusterJob& job = named.job;
    job.phase = JobPhase::kRunning;
    job.asked = asked_of(known.choice("class", "opportunistic", {"guaranteed", "opportunistic"}));
    job.job_class =
        job.asked == AskedClass::kGuaranteed ? JobClass::kGuaranteed : JobClass::kOpportunistic;
    job.tenant = draft.tenant(known.text("tenant", "none"));
    job.load_milli = milli_of(kNodeBusy);
    job.attained = section.number("started_seconds_ago", 0, 0, kMost);
    draft.now = std::max(draft.now, job.attained);
    std::vector<std::string> devices = section.texts("devices");
    if (devices.empty()) devices = {draft.devices.front().front()};
    for (const std::string& device : devices) {
      const auto place = places.find(device);
      if (place == places.end()) section.fail("is on a device that is not there: devices", device);
      job.placement.push_back(place->second.front());
    }
    job.gpus = job.min_gpus = job.max_gpus = static_cast<std::int32_t>(job.placement.size());
    ++draft.without_duration;
    draft.jobs.push_back(std::move(named));
  }
  for (NamedJob& named : draft.jobs) named.job.submit = draft.now - named.job.attained;
  return draft;
}

/// A node's coordinator puts several guaranteed jobs on one device: they divide it equally here.
std::size_t divide_devices(Draft& draft) {
  std::map<std::pair<policies::NodeIndex, std::uint16_t>, std::vector<ClusterJob*>> on;
  for (NamedJob& named : draft.jobs) {
    if (named.job.job_class != JobClass::kGuaranteed) continue;
    for (const policies::GpuPart& part : named.job.placement) {
      on[{part.node, part.gpu}].push_back(&named.job);
    }
  }
  std::size_t divided = 0;
  for (const auto& [gpu, jobs] : on) {
    const auto milli = static_cast<std::uint16_t>(kWholeGpu / std::ssize(jobs));
    if (jobs.size() > 1) ++divided;
    for (ClusterJob* job : jobs) job->gpu_milli = std::min<std::int32_t>(job->gpu_milli, milli);
  }
  for (NamedJob& named : draft.jobs) {
    for (policies::GpuPart& part : named.job.placement) {
      part.milli = static_cast<std::uint16_t>(named.job.gpu_milli);
    }
  }
  return divided;
}

}  // namespace

RecordedState read_state(const std::string& file) {
  const json content = parse_json(file);
  const bool of_a_node = content.is_object() && content.contains("coordinator");
  Draft draft = of_a_node ? read_node_state(file, content) : read_cluster_state(file, content);
  const std::size_t divided = of_a_node ? divide_devices(draft) : 0;
  std::stable_sort(draft.jobs.begin(), draft.jobs.end(), [](const NamedJob& a, const NamedJob& b) {
    return a.job.submit < b.job.submit;
  });
  RecordedState recorded{.kind = draft.kind,
                         .now = draft.now,
                         .state = ClusterState(policies::Cluster(draft.nodes), draft.tenants),
                         .jobs = {},
                         .devices = std::move(draft.devices),
                         .assumed = {}};
  for (NamedJob& named : draft.jobs) {
    recorded.jobs.push_back(named.name);
    try {
      recorded.state.adopt(std::move(named.job));
    } catch (const std::logic_error& error) {
      throw BadCluster(fmt::format("{}: {}, {}: {}", file, named.where, named.name, error.what()));
    }
  }
  if (draft.without_duration > 0) {
    recorded.assumed.push_back(
        fmt::format("of {} jobs no duration is stated: taken as 0 s", draft.without_duration));
  }
  if (divided > 0) {
    recorded.assumed.push_back(
        fmt::format("{} devices have several guaranteed jobs: equal parts for each", divided));
  }
  return recorded;
}

}  // namespace commensal::simulator

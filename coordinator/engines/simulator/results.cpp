// SPDX-License-Identifier: Apache-2.0
// Reads, runs, and puts into JSON what came out.
#include "coordinator/engines/simulator/results.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engines/simulator/cluster_file.h"
#include "coordinator/engines/simulator/job_class_name.h"
#include "coordinator/engines/simulator/jobs_file.h"
#include "coordinator/engines/simulator/metrics.h"
#include "coordinator/engines/simulator/readers/openb_reader.h"
#include "coordinator/engines/simulator/readers/trace_reader.h"
#include "coordinator/engines/simulator/semantics.h"
#include "coordinator/engines/simulator/series.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator {
namespace {

using nlohmann::json;

json json_of(const policies::Cluster& cluster) {
  std::map<std::string, std::int32_t> types;
  for (const policies::NodeSpec& node : cluster.nodes()) types[node.gpu_type] += node.gpus;
  return {{"nodes", cluster.nodes().size()}, {"gpus", cluster.total_gpus()}, {"gpu_types", types}};
}

/// Metrics of parts of the jobs, by what `key_of` says of them.
template <typename KeyOf>
json groups_of(const Trace& trace, const Outcome& outcome, const KeyOf& key_of) {
  std::map<std::string, Outcome> groups;
  for (const JobOutcome& job : outcome.jobs) {
    groups[std::string(key_of(trace.jobs[job.row]))].jobs.push_back(job);
  }
  json all = json::array();
  for (const auto& [name, group] : groups) {
    all.push_back({{"name", name}, {"metrics", metrics_of(group)}});
  }
  return all;
}

json json_of(const Series& series) {
  return {{"time", series.time},
          {"waiting", series.waiting},
          {"busy_gpus", series.busy},
          {"jct", series.jct}};
}

std::map<std::string, std::string> merged(std::map<std::string, std::string> given,
                                          const std::map<std::string, std::string>& fallback) {
  given.insert(fallback.begin(), fallback.end());
  return given;
}

Observer collector(std::vector<Sample>& samples) {
  return [&samples](policies::ClusterState& state, Time now, std::size_t waiting) {
    double busy = 0;
    for (const policies::JobIndex index : state.running()) {
      const policies::ClusterJob& job = state.jobs()[index];
      busy += static_cast<double>(job.held()) * job.gpu_milli / policies::kWholeGpu;
    }
    samples.push_back({now, static_cast<double>(waiting), busy});
  };
}

Progress reporter(const RunOptions& options, std::ostream& out) {
  if (!options.progress) return {};
  return [&out](std::size_t ended, std::size_t jobs) {
    out << json{{"ended", ended}, {"jobs", jobs}}.dump() << "\n" << std::flush;
  };
}

/// How GPUs are shared, which only our own rules leave open; takes its options out of `options`.
SharingModel sharing_of(const RunOptions& given, std::map<std::string, std::string>& options) {
  if (given.semantics == "commensal") return read_sharing(given.sharing, options);
  if (given.sharing.empty()) return {};
  throw std::invalid_argument(
      fmt::format("--sharing {} is of semantics commensal: those of {} have their own",
                  given.sharing, given.semantics));
}

/// Nodes of a file (of openb's lists too: a list beside its pods needs no naming), or equal ones.
std::vector<policies::NodeSpec> nodes_of(const RunOptions& options, const std::string& format) {
  if (options.cluster.ends_with(".csv")) return read_openb_nodes(options.cluster);
  if (!options.cluster.empty()) return read_cluster(options.cluster);
  if (options.nodes > 0) return policies::equal_nodes(options.nodes, options.gpus_per_node);
  const auto beside = format == "openb" ? openb_nodes_beside(options.trace) : std::nullopt;
  if (!beside) {
    throw std::invalid_argument("--cluster is missing, or --nodes and --gpus-per-node");
  }
  return read_openb_nodes(*beside);
}

}  // namespace

json run(const RunOptions& options, std::ostream& progress) {
  const std::string format = options.format.empty() ? guess_format(options.trace) : options.format;
  Trace trace = read_trace(options.trace, format,
                           {.skip_bad_rows = options.skip_bad_rows, .profiles = options.profiles});
  std::map<std::string, std::string> policy_options = options.policy_options;
  const SharingModel sharing = sharing_of(options, policy_options);
  const auto semantics =
      make_semantics(options.semantics, options.policy, trace, options.seed.value_or(0), sharing);
  const auto policy = policies::make_policy(
      options.policy, merged(std::move(policy_options), semantics->options(options.policy)),
      options.seed);
  std::vector<policies::NodeSpec> nodes = nodes_of(options, format);
  semantics->arrange(trace, nodes);
  const policies::Cluster cluster(std::move(nodes));
  std::vector<Sample> samples;
  const Outcome outcome =
      simulate(trace, cluster, *semantics, options.policy, *policy, reporter(options, progress),
               options.series > 0 ? collector(samples) : Observer{});
  json result{
      {"policy", options.policy},          {"semantics", options.semantics},
      {"options", options.policy_options}, {"metrics", semantics->metrics(trace, cluster, outcome)},
      {"events", outcome.events},          {"decisions", outcome.decisions},
      {"tenants", json::array()},          {"classes", json::array()}};
  if (semantics->leaves()) {
    result["tenants"] = groups_of(trace, outcome, [](const TraceJob& job) { return job.tenant; });
    result["classes"] =
        groups_of(trace, outcome, [](const TraceJob& job) { return to_string(job.asked); });
  }
  if (options.series > 0 && semantics->leaves())
    result["series"] = json_of(series_of(outcome, samples, options.series));
  if (!options.jobs_out.empty()) write_jobs(options.jobs_out, options.policy, trace, outcome);
  return {{"trace",
           {{"file", options.trace},
            {"format", format},
            {"jobs", trace.jobs.size()},
            {"skipped_rows", trace.skipped_rows}}},
          {"cluster", json_of(cluster)},
          {"results", {result}}};
}

json list_policies() {
  json all = json::array();
  for (const policies::PolicyEntry& entry : policies::all_policies()) {
    all.push_back({{"name", entry.name}, {"summary", entry.summary}});
  }
  return {{"policies", all}};
}

json list_formats() { return {{"formats", all_formats()}, {"semantics", all_semantics()}}; }

}  // namespace commensal::simulator

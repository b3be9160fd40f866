// SPDX-License-Identifier: Apache-2.0
// Reads, runs, and puts into JSON what came out.
#include "coordinator/engines/simulator/results.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engines/simulator/cluster_file.h"
#include "coordinator/engines/simulator/jobs_file.h"
#include "coordinator/engines/simulator/metrics.h"
#include "coordinator/engines/simulator/optimus_errors.h"
#include "coordinator/engines/simulator/predicted_durations.h"
#include "coordinator/engines/simulator/readers/openb_reader.h"
#include "coordinator/engines/simulator/readers/trace_reader.h"
#include "coordinator/engines/simulator/recurrent_jobs.h"
#include "coordinator/engines/simulator/semantics.h"
#include "coordinator/engines/simulator/series.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/engines/simulator/wait_causes.h"
#include "coordinator/policies/nearest_name.h"
#include "coordinator/policies/optimus_estimates.h"
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

json json_of(const FailureCosts& costs) {
  json all{{"pre_runs", costs.pre_runs},
           {"found_by_pre_run", costs.found_by_pre_run},
           {"blacklisted_records", costs.blacklisted},
           {"used_gpu_seconds", costs.used_gpu_seconds},
           {"classes", json::array()}};
  for (std::size_t i = 0; i < kFailureClasses; ++i) {
    all["classes"].push_back({{"name", to_string(static_cast<FailureClass>(i))},
                              {"failed_attempts", costs.by_class[i].failed_attempts},
                              {"given_up", costs.by_class[i].given_up},
                              {"wasted_gpu_seconds", costs.by_class[i].wasted_gpu_seconds}});
  }
  return all;
}

json json_of(const prediction::PredictionErrors::Row& row) {
  return {{"jobs", row.jobs},
          {"mape_percent", row.mape_percent},
          {"median_error_percent", row.median_error_percent}};
}

/// How good the predictions were; `predicted` counts those from jobs alike.
json json_of(std::string_view predictor, const prediction::PredictionErrors& errors) {
  json all = json_of(errors.alike());
  const double percent = 100 * all["jobs"].get<double>();
  all["predictor"] = predictor;
  all["predicted"] = all["jobs"];
  all["jobs"] = errors.jobs();
  all["coverage_percent"] = errors.jobs() == 0 ? 0 : percent / static_cast<double>(errors.jobs());
  all["by_key"] = json::array();
  for (const auto& row : errors.by_key()) {
    json key = json_of(row);
    key["key"] = row.key;
    all["by_key"].push_back(key);
  }
  return all;
}

/// Of steps that are left, with step times as one more key.
json json_of(const OptimusErrors& errors) {
  json all = json_of("optimus", errors.steps_left());
  const json times = json_of("optimus", errors.step_times());
  for (const json& row : times["by_key"]) all["by_key"].push_back(row);
  return all;
}

/// Only for the policy that predicts so, where its jobs have step times.
std::optional<OptimusErrors> optimus_errors(const RunOptions& options, const Semantics& semantics) {
  const policies::ScalingModel* const scaling = semantics.models().scaling;
  if (options.policy != "optimus" || scaling == nullptr) return std::nullopt;
  policies::Options given(options.policy_options);
  return OptimusErrors(*scaling, given.number("threshold", policies::kOptimusThreshold));
}

std::map<std::string, std::string> merged(std::map<std::string, std::string> given,
                                          const std::map<std::string, std::string>& fallback) {
  given.insert(fallback.begin(), fallback.end());
  return given;
}

/// Collects samples and errors where they are asked for.
Observer observer(std::vector<Sample>* samples, std::optional<OptimusErrors>& errors) {
  if (samples == nullptr && !errors) return {};
  return [samples, &errors](policies::ClusterState& state, Time now, std::size_t waiting) {
    if (errors) errors->look(state);
    if (samples == nullptr) return;
    double busy = 0;
    for (const policies::JobIndex index : state.running()) {
      const policies::ClusterJob& job = state.jobs()[index];
      busy += static_cast<double>(job.held()) * job.gpu_milli / policies::kWholeGpu;
    }
    samples->push_back({now, static_cast<double>(waiting), busy});
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
ClusterFile cluster_of(const RunOptions& options, const std::string& format) {
  if (options.cluster.ends_with(".csv")) return {read_openb_nodes(options.cluster), {}};
  if (!options.cluster.empty()) return read_cluster(options.cluster);
  if (options.nodes > 0) return {policies::equal_nodes(options.nodes, options.gpus_per_node), {}};
  const auto beside = format == "openb" ? openb_nodes_beside(options.trace) : std::nullopt;
  if (!beside) {
    throw std::invalid_argument("--cluster is missing, or --nodes and --gpus-per-node");
  }
  return {read_openb_nodes(*beside), {}};
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
  const auto predicted = make_predicted(
      options.predict.empty() ? policy->predictor() : std::string_view(options.predict),
      *semantics);
  ClusterFile file = cluster_of(options, format);
  semantics->arrange(trace, file.nodes);
  const policies::Cluster cluster(std::move(file.nodes));
  std::optional<Failures> failures;
  if (!options.failures.empty()) {
    failures.emplace(failure_options(options.failures), trace, options.seed.value_or(0));
  }
  std::vector<Sample> samples;
  std::optional<OptimusErrors> errors = optimus_errors(options, *semantics);
  WaitCauses causes;
  Outcome outcome =
      simulate(trace, cluster, *semantics, options.policy, *policy, reporter(options, progress),
               [&, more = observer(options.series > 0 ? &samples : nullptr, errors)](
                   policies::ClusterState& state, Time now, std::size_t waiting) {
                 causes.observe(state, now);
                 if (more) more(state, now, waiting);
               },
               {std::move(file.tenants), failures ? &*failures : nullptr, predicted.get()});
  causes.write(outcome);
  json result{
      {"policy", options.policy},          {"semantics", options.semantics},
      {"options", options.policy_options}, {"metrics", semantics->metrics(trace, cluster, outcome)},
      {"events", outcome.events},          {"decisions", outcome.decisions},
      {"tenants", json::array()},          {"classes", json::array()}};
  if (failures) {
    for (const auto& [name, value] : failures->costs().metrics()) result["metrics"][name] = value;
    result["failures"] = json_of(failures->costs());
    result["failures"]["options"] = options.failures;
  }
  if (semantics->leaves()) {
    result["tenants"] = groups_of(trace, outcome, [](const TraceJob& job) { return job.tenant; });
    result["classes"] =
        groups_of(trace, outcome, [](const TraceJob& job) { return to_string(job.asked); });
  }
  if (predicted) {
    result["prediction"] = json_of(predicted->predictor(), predicted->errors());
  }
  if (errors) result["prediction"] = json_of(*errors);
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

json generate(const RunOptions& options) {
  policies::Options given(options.policy_options);
  const RecurrentJobs like = RecurrentJobs::from(given);
  if (const auto left = given.left(); !left.empty()) {
    throw std::invalid_argument(fmt::format("recurrent jobs have no option {}; did you mean {}?",
                                            left.front(),
                                            policies::nearest_name(left.front(), given.known())));
  }
  const Trace trace = make_recurrent_jobs(like, options.seed.value_or(0));
  write_trace(options.out, trace);
  return {{"trace", {{"file", options.out}, {"format", "commensal"}, {"jobs", trace.jobs.size()}}}};
}

json list_policies() {
  json all = json::array();
  for (const policies::PolicyEntry& entry : policies::all_policies()) {
    all.push_back({{"name", entry.name}, {"summary", entry.summary}});
  }
  return {{"policies", all}};
}

json list_formats() {
  std::vector<std::string_view> predictors = prediction::all_predictors();
  predictors.emplace_back("truth");
  return {{"formats", all_formats()}, {"semantics", all_semantics()}, {"predictors", predictors}};
}

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// Options of commensal-simulate, by CLI11.
#include "coordinator/engines/simulator/run_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <stdexcept>
#include <vector>

namespace commensal::simulator {
namespace {

constexpr int kUsage = 2;

void add_options(CLI::App& app, RunOptions& options, std::vector<std::string>& policy_options) {
  app.add_option("--trace", options.trace, "File with the jobs");
  app.add_option("--state", options.state,
                 "Instead of a trace: print the plan for a coordinator's state");
  app.add_option("--format", options.format, "Its format; told by its columns if not given");
  app.add_option("--semantics", options.semantics, "Whose rules to go by; commensal if not given");
  app.add_option("--sharing", options.sharing,
                 "Who divides a GPU's time: gate, slices, mps or pairs");
  app.add_option("--cluster", options.cluster, "File with the nodes (docs/policies.md)");
  app.add_option("--nodes", options.nodes, "So many equal nodes")->check(CLI::PositiveNumber);
  app.add_option("--gpus-per-node", options.gpus_per_node, "GPUs of each of them")
      ->check(CLI::PositiveNumber);
  app.add_option("--policy", options.policy, "Who decides");
  app.add_option("--option", policy_options, "Option of the policy, as name=value")
      ->expected(1)
      ->take_all();
  app.add_option("--seed", options.seed, "What is random follows from it")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--failures", options.failures,
                 "Let jobs fail: on, or name=value[,name=value...] (docs/policies.md)");
  app.add_option("--predict", options.predict, "Who predicts durations; truth: nobody");
  app.add_option("--generate", options.generate, "Instead: make up jobs (recurrent)");
  app.add_option("--out", options.out, "The file for these, as CSV");
  app.add_option("--profiles", options.profiles,
                 "Folder with what a trace's jobs were measured at");
  app.add_option("--jobs-out", options.jobs_out, "Write what became of each job there, as CSV");
  app.add_option("--series", options.series, "Also curves of so many points");
  app.add_flag("--skip-bad-rows", options.skip_bad_rows, "Count rows that cannot be read");
  app.add_flag("--progress", options.progress, "Lines of JSON on stderr meanwhile");
  app.add_flag("--list-policies", options.list_policies, "Print them as JSON");
  app.add_flag("--list-formats", options.list_formats, "Print formats and semantics as JSON");
}

void check(const RunOptions& options) {
  if (!options.generate.empty()) {
    if (options.generate != "recurrent") {
      throw std::invalid_argument(
          fmt::format("no jobs {} to generate; there are recurrent", options.generate));
    }
    if (options.out.empty()) throw std::invalid_argument("--out is missing");
    return;
  }
  if (!options.out.empty()) throw std::invalid_argument("--out goes with --generate");
  if (options.trace.empty() && options.state.empty()) {
    throw std::invalid_argument("--trace is missing");
  }
  if (options.policy.empty()) throw std::invalid_argument("--policy is missing");
  if (!options.state.empty() &&
      (!options.trace.empty() || !options.cluster.empty() || options.nodes > 0)) {
    throw std::invalid_argument("--state has jobs and nodes of its own: no --trace, no --cluster");
  }
  const bool counted = options.nodes > 0 || options.gpus_per_node > 0;
  if (counted && !options.cluster.empty()) {
    throw std::invalid_argument("either --cluster, or --nodes and --gpus-per-node");
  }
  if (counted && (options.nodes == 0 || options.gpus_per_node == 0)) {
    throw std::invalid_argument("--cluster is missing, or --nodes and --gpus-per-node");
  }
}

}  // namespace

RunOptions parse_run_options(int argc, const char* const* argv) {
  CLI::App app{"Runs the jobs of a trace through a policy of the cluster; prints JSON"};
  RunOptions options;
  options.semantics = "commensal";
  std::vector<std::string> policy_options;
  add_options(app, options, policy_options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    throw;
  }
  for (const std::string& option : policy_options) {
    const std::size_t equals = option.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw std::invalid_argument(fmt::format("--option is not name=value: {}", option));
    }
    options.policy_options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  if (!options.list_policies && !options.list_formats) check(options);
  return options;
}

int explain_usage() {
  try {
    throw;
  } catch (const CLI::CallForHelp&) {
    return 0;
  } catch (const CLI::Error& error) {
    std::cerr << "commensal-simulate: " << error.what() << "\n";
    return kUsage;
  }
}

}  // namespace commensal::simulator

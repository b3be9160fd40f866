// SPDX-License-Identifier: Apache-2.0
// commensal-simulate: runs one trace through one policy and prints JSON.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "coordinator/engines/simulator/metrics.h"
#include "coordinator/engines/simulator/readers/trace_reader.h"
#include "coordinator/engines/simulator/semantics.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/registry.h"

namespace {

using namespace commensal;

constexpr int kBadInput = 2;

int run(const std::string& file, const std::string& format, const std::string& semantics_name,
        std::int32_t nodes, std::int32_t gpus_per_node, const std::string& policy_name) {
  const simulator::Trace trace = simulator::read_trace(file, format, {});
  const auto semantics = simulator::make_semantics(semantics_name, policy_name, trace);
  const auto policy = policies::make_policy(policy_name, semantics->options(policy_name));
  const policies::Cluster cluster(policies::equal_nodes(nodes, gpus_per_node));
  const simulator::Outcome outcome =
      simulator::simulate(trace, cluster, *semantics, policy_name, *policy, {});
  nlohmann::json result{{"policy", policy_name},
                        {"metrics", simulator::metrics_of(outcome)},
                        {"events", outcome.events},
                        {"decisions", outcome.decisions}};
  std::cout << nlohmann::json{{"trace", file}, {"results", {result}}}.dump(2) << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Runs a trace through a policy"};
  std::string file;
  std::string format = "itp";
  std::string semantics = "tiresias";
  std::string policy = "fifo";
  std::int32_t nodes = 1;
  std::int32_t gpus = 8;
  app.add_option("--trace", file)->required();
  app.add_option("--format", format);
  app.add_option("--semantics", semantics);
  app.add_option("--policy", policy);
  app.add_option("--nodes", nodes)->check(CLI::PositiveNumber);
  app.add_option("--gpus-per-node", gpus)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(file, format, semantics, nodes, gpus, policy);
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return kBadInput;
  } catch (const simulator::BadTrace& error) {
    std::cerr << error.what() << "\n";
    return kBadInput;
  }
}

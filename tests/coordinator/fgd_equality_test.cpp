// SPDX-License-Identifier: Apache-2.0
// Allocation as FGD's own simulator gives it, seed by seed. All of it:
// tests/simulator/fgd_equality.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "coordinator/engines/simulator/readers/openb_reader.h"
#include "coordinator/engines/simulator/semantics.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator::fgd_equality_test {
namespace {

const std::string kFolder = COMMENSAL_OPENB_UNPACKED;
constexpr std::array<int, 3> kDemands{100, 120, 130};

using Metrics = std::map<std::string, double>;

std::string metric(int demand) {
  return "gpu_allocation_ratio_at_demand_" + std::to_string(demand) + "pct";
}

Metrics run(const std::string& workload, const std::string& policy_name, std::uint64_t seed) {
  Trace trace = read_openb(kFolder + "/openb_pod_list_" + workload + ".csv", {});
  auto nodes = read_openb_nodes(kFolder + "/openb_node_list_gpu_node.csv");
  const auto semantics = make_semantics("fgd", policy_name, trace, seed);
  const auto policy = policies::make_policy(policy_name, semantics->options(policy_name));
  semantics->arrange(trace, nodes);
  const policies::Cluster cluster(std::move(nodes));
  const Outcome outcome = simulate(trace, cluster, *semantics, policy_name, *policy, {});
  return semantics->metrics(trace, cluster, outcome);
}

/// Their figures of a workload and policy by seed and demand.
std::map<std::pair<int, int>, double> theirs(const std::string& workload,
                                             const std::string& policy) {
  Rows<6> rows(kFolder + "/allocation_by_seed.csv",
               {"workload", "policy", "seed", "at100", "at120", "at130"});
  std::map<std::pair<int, int>, double> all;
  while (rows.next()) {
    if (rows[0].text() != workload || rows[1].text() != policy) continue;
    for (std::size_t i = 0; i < kDemands.size(); ++i) {
      all[{rows[2].count(0), kDemands[i]}] = rows[3 + i].number();
    }
  }
  return all;
}

class FgdEqualityTest : public ::testing::TestWithParam<std::tuple<std::string, std::string, int>> {
};

TEST_P(FgdEqualityTest, AllocatesAsMuch) {
  const auto& [workload, policy, seed] = GetParam();
  const Metrics ours = run(workload, policy, static_cast<std::uint64_t>(seed));
  const auto expected = theirs(workload, policy);
  for (const int demand : kDemands) {
    EXPECT_NEAR(ours.at(metric(demand)), expected.at({seed, demand}), 0.05) << demand << " %";
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, FgdEqualityTest,
                         ::testing::Values(std::tuple("default", "best-fit", 42),
                                           std::tuple("default", "fgd", 43),
                                           std::tuple("default", "gpu-packing", 43),
                                           std::tuple("gpuspec33", "gpu-clustering", 42),
                                           std::tuple("cpu250", "dot-product", 43)),
                         [](const auto& test) {
                           std::string name =
                               std::get<0>(test.param) + "_" + std::get<1>(test.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Whom it gets depends on the order in which their threads find nodes, so only their spread can be
// asked for: the mean of two of ours within four standard errors of the mean of their ten.
TEST(FgdRandomTest, AllocatesAsMuchOnTheMean) {
  const auto expected = theirs("default", "random");
  double sum = 0;
  double squares = 0;
  int seeds = 0;
  for (const auto& [key, value] : expected) {
    if (key.second != 130) continue;
    sum += value;
    squares += value * value;
    ++seeds;
  }
  const double mean = sum / seeds;
  const double variance = (squares - seeds * mean * mean) / (seeds - 1);
  const double ours = (run("default", "random", 42).at(metric(130)) +
                       run("default", "random", 43).at(metric(130))) /
                      2;
  EXPECT_NEAR(ours, mean, 4 * std::sqrt(variance * (1.0 / 2 + 1.0 / seeds)));
}

TEST(FgdSemanticsTest, AnotherSeedIsAnotherOrder) {
  EXPECT_NE(run("multigpu50", "best-fit", 42), run("multigpu50", "best-fit", 43));
  EXPECT_EQ(run("multigpu50", "random", 42), run("multigpu50", "random", 42));
}

TEST(FgdSemanticsTest, PodsAskForThirteenTenthsOfTheCluster) {
  for (const char* workload : {"gpushare100", "multigpu50"}) {  // added to, and taken out of
    Trace trace = read_openb(kFolder + "/openb_pod_list_" + workload + ".csv", {});
    const std::size_t recorded = trace.jobs.size();
    auto nodes = read_openb_nodes(kFolder + "/openb_node_list_gpu_node.csv");
    make_semantics("fgd", "fgd", trace, 42)->arrange(trace, nodes);
    EXPECT_EQ(trace.jobs.size() > recorded, std::string(workload) == "gpushare100");
    double gpus = 0;
    for (const TraceJob& job : trace.jobs) gpus += job.gpus * job.gpu_milli / 1000.0;
    EXPECT_NEAR(gpus, 1.3 * 6212, 8);
  }
}

TEST(FgdSemanticsTest, ATypeThatNobodyHasIsAnError) {
  Trace trace{.source = "t", .jobs = {}};
  trace.jobs.emplace_back();
  trace.jobs.back().gpu_types = {"H900"};
  const auto semantics = make_semantics("fgd", "fgd", trace);
  const auto policy = policies::make_policy("fgd", {});
  EXPECT_THAT(
      [&] {
        (void)simulate(trace, policies::Cluster(policies::equal_nodes(1, 1)), *semantics, "fgd",
                       *policy, {});
      },
      ::testing::ThrowsMessage<std::invalid_argument>(::testing::HasSubstr("H900")));
}

}  // namespace
}  // namespace commensal::simulator::fgd_equality_test

// SPDX-License-Identifier: Apache-2.0
// The engine: what happens when, what it refuses, and the figures and curves that come out.
#include "coordinator/engines/simulator/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string_view>

#include "coordinator/engines/simulator/metrics.h"
#include "coordinator/engines/simulator/series.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::simulator::simulation_test {
namespace {

using policies::Cluster;
using policies::equal_nodes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Trace trace_of(std::initializer_list<std::array<double, 3>> jobs) {
  Trace trace{.source = "made up", .jobs = {}};
  for (const auto& [submit, duration, gpus] : jobs) {
    TraceJob job;
    job.name = std::to_string(trace.jobs.size());
    job.submit = submit;
    job.duration = duration;
    job.gpus = static_cast<std::int32_t>(gpus);
    trace.jobs.push_back(job);
  }
  return trace;
}

Outcome run(const Trace& trace, const Cluster& cluster, std::string_view policy,
            std::string_view semantics = "tiresias", const Observer& observer = {},
            const Conditions& conditions = {}) {
  const auto rules = make_semantics(semantics, policy, trace);
  const auto decides = policies::make_policy(policy, rules->options(policy));
  return simulate(trace, cluster, *rules, policy, *decides, {}, observer, conditions);
}

TEST(SimulationTest, AJobThatDoesNotFitWaitsForOneThatEnds) {
  const Outcome outcome =
      run(trace_of({{0, 10, 2}, {1, 5, 2}, {2, 5, 1}}), Cluster(equal_nodes(1, 2)), "fifo");
  EXPECT_EQ(outcome.jobs[0].end, 10);
  EXPECT_EQ(outcome.jobs[1].first_start, 10);
  EXPECT_EQ(outcome.jobs[1].waited, 9);
  EXPECT_EQ(outcome.jobs[2].end, 20);
}

TEST(SimulationTest, RowsMayStandInAnyOrderAndKeepTheirNumbers) {
  const Outcome outcome = run(trace_of({{5, 1, 1}, {0, 1, 1}}), Cluster(equal_nodes(1, 1)), "fifo");
  EXPECT_EQ(outcome.jobs[0].row, 1U);
  EXPECT_EQ(outcome.jobs[1].row, 0U);
}

TEST(SimulationTest, AStoppedJobKeepsItsProgress) {
  const Outcome outcome =
      run(trace_of({{0, 10, 1}, {2, 3, 1}}), Cluster(equal_nodes(1, 1)), "srtf");
  EXPECT_EQ(outcome.jobs[0].preemptions, 1U);
  EXPECT_EQ(outcome.jobs[0].end, 13);
  EXPECT_EQ(outcome.jobs[0].waited, 3);
  EXPECT_EQ(outcome.jobs[1].end, 5);
}

TEST(SimulationTest, ALimitIsCrossedOnAClockWithFractionsToo) {
  // Woken 3250 s after its start the first job has run for a little less by the clock's rounding;
  // it must fall behind the second then, and not only at the next arrival, which is late.
  for (const std::string_view policy : {"las", "2d-las", "2d-gittins"}) {
    for (int i = 0; i < 20; ++i) {
      const double begin = 1048576 - 1000 + 0.37 * i;  // numbers above 2^20 have a bit less behind
      const Trace trace =
          trace_of({{begin, 20000, 1}, {begin + 0.7, 100, 1}, {begin + 90000, 1, 1}});
      const Outcome outcome = run(trace, Cluster(equal_nodes(1, 1)), policy, "commensal");
      EXPECT_NEAR(outcome.jobs[1].first_start, begin + 3250, 0.001) << policy;
      EXPECT_NEAR(outcome.jobs[0].end, begin + 20100, 0.001) << policy;
    }
  }
}

TEST(SimulationTest, RoundsGoOnAfterOneInWhichNobodyRan) {
  // The second comes when nobody is there, and before shares are computed anew.
  Trace trace = trace_of({{1000, 300, 1}, {1400, 300, 1}});
  policies::ThroughputTable table({"gpu"}, {"('model', 1)"});
  table.set_alone(0, 0, 1);
  trace.throughputs = std::make_shared<const policies::ThroughputTable>(table);
  for (TraceJob& job : trace.jobs) {
    job.model = "model";
    job.iterations = job.duration;
  }
  const Outcome outcome = run(trace, Cluster(equal_nodes(1, 1)), "gandiva", "gavel");
  EXPECT_EQ(outcome.jobs[0].end, 1300);
  EXPECT_EQ(outcome.jobs[1].end, 1700);
}

TEST(SimulationTest, RefusesAJobThatIsLargerThanTheCluster) {
  EXPECT_THAT(
      [] {
        (void)run(trace_of({{0, 1, 9}}), Cluster(equal_nodes(2, 4)), "fifo");
      },
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("job 0 asks for more GPUs than the cluster has: 9 > 8")));
}

TEST(SimulationTest, QuotasHoldForEveryPolicyThatHandsOutGpus) {
  Trace trace = trace_of({{0, 10, 2}, {0, 10, 1}, {0, 10, 1}});
  for (TraceJob& job : trace.jobs) job.tenant = "a";
  trace.jobs[2].tenant = "b";
  const Conditions conditions{.tenants = {{.name = "a", .quota = 2}, {.name = "b", .quota = {}}}};
  for (const std::string_view policy : {"fit-first", "srtf", "2d-las", "antman"}) {
    const Outcome outcome = run(trace, Cluster(equal_nodes(1, 4)), policy,
                                policy == "antman" ? "commensal" : "tiresias", {}, conditions);
    EXPECT_EQ(outcome.jobs[2].end, 10) << policy;
    EXPECT_EQ(outcome.jobs[0].end + outcome.jobs[1].end, 30) << policy;
  }
}

TEST(SimulationTest, RefusesAJobOfNoTenantAndOneAboveItsQuota) {
  Trace trace = trace_of({{0, 1, 3}});
  trace.jobs[0].tenant = "visoin";
  const Conditions conditions{
      .tenants = {{.name = "speech", .quota = {}}, {.name = "vision", .quota = 2}}};
  const auto run_it = [&] {
    (void)run(trace, Cluster(equal_nodes(1, 4)), "fifo", "tiresias", {}, conditions);
  };
  EXPECT_THAT(run_it, ThrowsMessage<std::invalid_argument>(
                          HasSubstr("job 0 is of a tenant that the cluster does not have: visoin; "
                                    "did you mean vision?")));
  trace.jobs[0].tenant = "vision";
  EXPECT_THAT(run_it, ThrowsMessage<std::invalid_argument>(HasSubstr(
                          "job 0 asks for more GPUs than the quota of its tenant vision: 3 > 2")));
  trace.jobs[0].tenant = "";  // charged to nobody
  EXPECT_NO_THROW(run_it());
}

TEST(SimulationTest, CoresMemoryAndTypesOfUnequalNodesAreKept) {
  const Cluster cluster(
      {{.name = "a", .gpu_type = "t4", .gpus = 2, .cpu_milli = 4000, .memory_mib = 8},
       {.name = "b", .gpu_type = "v100", .gpus = 4, .cpu_milli = 8000, .memory_mib = 9},
       {.name = "c", .gpu_type = "v100", .gpus = 2, .cpu_milli = 8000, .memory_mib = 9}});
  Trace trace =
      trace_of({{0, 10, 1}, {0, 10, 1}, {0, 10, 1}, {0, 10, 0}, {100, 10, 6}, {200, 9, 1}});
  for (std::size_t row : {0U, 1U}) {  // only node b or c has that many cores, and only once
    trace.jobs[row].cpu_milli = 6000;
    trace.jobs[row].gpu_types = {"v100"};
  }
  trace.jobs[2].memory_mib = 9;  // a has too little, so it waits for b or c
  trace.jobs[2].cpu_milli = 8000;
  trace.jobs[3].cpu_milli = 3000;      // no GPU: on a
  trace.jobs[4].gpu_types = {"v100"};  // all of b and c
  trace.jobs[5].gpu_types = {"t4"};
  for (const std::string_view policy : {"fit-first", "srtf", "2d-las", "tiresias", "antman"}) {
    const Outcome outcome = run(trace, cluster, policy, "commensal");
    EXPECT_EQ(outcome.jobs[0].end, 10) << policy;
    EXPECT_EQ(outcome.jobs[1].end, 10) << policy;
    EXPECT_EQ(outcome.jobs[2].end, 20) << policy;
    EXPECT_EQ(outcome.jobs[4].end, 110) << policy;
    EXPECT_EQ(outcome.jobs[5].end, 209) << policy;
    EXPECT_EQ(outcome.jobs[3].end, policy == "antman" ? 20 : 10) << policy;
  }
}

TEST(SimulationTest, RefusesUnequalNodesUnderRulesForEqualOnes) {
  const Cluster cluster(
      {{.name = "a", .gpu_type = {}, .gpus = 8}, {.name = "b", .gpu_type = {}, .gpus = 4}});
  EXPECT_THAT(
      [&] {
        (void)run(trace_of({{0, 1, 1}}), cluster, "fifo", "helios");
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("a has 8 GPUs and b has 4")));
  EXPECT_EQ(run(trace_of({{0, 1, 12}}), cluster, "fifo", "tiresias").jobs[0].end, 1);
}

TEST(SimulationTest, UnknownSemanticsAreRefusedWithTheNearest) {
  EXPECT_THAT([] { (void)make_semantics("helio", "fifo", {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("did you mean helios?")));
}

TEST(SimulationTest, IsTheSameEachTime) {
  const Trace trace = trace_of({{0, 9000, 2}, {3, 800, 1}, {3, 70, 2}, {4, 6000, 1}, {9, 5, 2}});
  const Cluster cluster(equal_nodes(1, 2));
  for (const auto& entry : policies::all_policies()) {
    if (entry.name == "muri-antman") continue;  // it names GPUs, and here they are counted
    if (policies::needs_models(entry.name)) continue;
    const Outcome first = run(trace, cluster, entry.name);
    const Outcome second = run(trace, cluster, entry.name);
    EXPECT_EQ(metrics_of(first), metrics_of(second)) << entry.name;
    EXPECT_EQ(first.events, second.events) << entry.name;
  }
}

TEST(MetricsTest, QuantilesAreSortedValuesByTheirRoundedDownNumber) {
  Outcome outcome;
  for (int i = 10; i >= 1; --i) {
    outcome.jobs.push_back({.submit = 100, .end = 100.0 + i, .waited = 2, .preemptions = 1});
  }
  const auto metrics = metrics_of(outcome);
  EXPECT_EQ(metrics.at("jobs"), 10);
  EXPECT_EQ(metrics.at("avg_jct"), 5.5);
  EXPECT_EQ(metrics.at("median_jct"), 6);  // number 5 from 0
  EXPECT_EQ(metrics.at("p95_jct"), 10);    // number 9
  EXPECT_EQ(metrics.at("makespan"), 110);  // the first submission is not taken off
  EXPECT_EQ(metrics.at("avg_queue"), 2);
  EXPECT_EQ(metrics.at("preemptions"), 10);
}

TEST(SeriesTest, AreMeansWeightedByTime) {
  Outcome outcome;
  outcome.jobs.push_back({.submit = 0, .end = 10});
  outcome.jobs.push_back({.submit = 2, .end = 10});
  const Series series = series_of(outcome, {{0, 0, 4}, {2.5, 2, 2}, {5, 1, 1}}, 2);
  EXPECT_THAT(series.time, ElementsAre(0, 5));
  EXPECT_THAT(series.waiting, ElementsAre(1, 1));
  EXPECT_THAT(series.busy, ElementsAre(3, 1));
  EXPECT_THAT(series.jct, ElementsAre(8, 10));
}

TEST(SeriesTest, AnObserverSeesWhoWaitsAndWhatIsBusy) {
  std::vector<std::size_t> waiting;
  std::vector<std::size_t> running;
  (void)run(trace_of({{0, 10, 1}, {1, 5, 1}}), Cluster(equal_nodes(1, 1)), "fifo", "tiresias",
            [&](policies::ClusterState& state, Time, std::size_t waits) {
              waiting.push_back(waits);
              running.push_back(state.running().size());
            });
  EXPECT_THAT(waiting, ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(running, ElementsAre(1, 1, 1, 0));
}

}  // namespace
}  // namespace commensal::simulator::simulation_test

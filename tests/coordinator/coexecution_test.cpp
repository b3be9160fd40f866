// SPDX-License-Identifier: Apache-2.0
// Speeds of jobs that share a GPU, and what they do to a small cluster.
#include "coordinator/engines/simulator/coexecution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/engines/simulator/readers/throughput_reader.h"
#include "coordinator/engines/simulator/shared_gpus.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator::coexecution_test {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kNone = 0;

TEST(CoexecutionTest, AloneEverybodyIsAsFastAsAlone) {
  for (const Sharing sharing : {Sharing::kGate, Sharing::kDefault, Sharing::kMps}) {
    const SharingModel model{.sharing = sharing};
    EXPECT_EQ(speeds_on_gpu(model, 0.9, {}).guaranteed, 1);
    EXPECT_EQ(speeds_on_gpu(model, kNone, std::vector{0.9}).opportunistic, 1);
  }
}

TEST(CoexecutionTest, BehindTheGateTheGuaranteedJobIsSlowerByTheObjectiveAtMost) {
  const SharingModel model{.slo = 0.02, .efficiency = 0.5};
  const SharingSpeeds speeds = speeds_on_gpu(model, 0.6, std::vector{1.0});
  EXPECT_DOUBLE_EQ(speeds.guaranteed, 1 / 1.02);
  EXPECT_DOUBLE_EQ(speeds.opportunistic, 0.5 * (1 - 0.6 / 1.02)) << "half of the oracle";
}

TEST(CoexecutionTest, OthersDivideWhatIsLeftAndNoneIsFasterThanAlone) {
  const SharingModel model{.slo = 0.01, .efficiency = 1};
  const double left = 1 - 0.5 / 1.01;
  EXPECT_DOUBLE_EQ(speeds_on_gpu(model, 0.5, std::vector{1.0, 1.0}).opportunistic, left / 2);
  EXPECT_EQ(speeds_on_gpu(model, 0.5, std::vector{0.1}).opportunistic, 1) << "it wants a tenth";
}

TEST(CoexecutionTest, TheDriversSlicesSlowEverybodyAlike) {
  const SharingModel slices{.sharing = Sharing::kDefault};
  const SharingSpeeds speeds = speeds_on_gpu(slices, 0.2, std::vector{0.2});
  EXPECT_EQ(speeds.guaranteed, 0.5) << "idle time inside of a slice is lost";
  EXPECT_EQ(speeds.opportunistic, 0.5);
  const SharingModel mps{.sharing = Sharing::kMps};
  EXPECT_EQ(speeds_on_gpu(mps, 0.2, std::vector{0.2}).guaranteed, 1) << "they fit side by side";
  EXPECT_EQ(speeds_on_gpu(mps, 1.0, std::vector{1.0}).guaranteed, 0.5);
}

/// Model 0 makes 10 steps alone and 8 beside model 1, which makes 20 alone and 10 beside it; two of
/// model 0 do not fit. Type 1 is half as fast.
policies::ThroughputTable a_table() {
  policies::ThroughputTable table({"v100", "k80"}, {profile_key("zero", 1), profile_key("one", 1)});
  table.set_alone(0, 0, 10);
  table.set_alone(0, 1, 20);
  table.set_alone(1, 0, 5);
  table.set_alone(1, 1, 10);
  table.set_together(0, 0, 1, {.first = 8, .second = 10});
  table.set_together(0, 1, 0, {.first = 10, .second = 8});
  table.set_together(0, 1, 1, {.first = 12, .second = 12});
  return table;
}
constexpr PairedJob kZero{.profile = 0, .guaranteed = true};
constexpr PairedJob kZeroBeside{.profile = 0, .guaranteed = false};
constexpr PairedJob kOneBeside{.profile = 1, .guaranteed = false};
using Speeds = std::vector<double>;

TEST(PairSpeedsTest, TwoAreAsFastAsTheyWereMeasuredTogether) {
  const policies::ThroughputTable table = a_table();
  EXPECT_EQ(pair_speeds(table, 0, std::vector{kZero, kOneBeside}), (Speeds{0.8, 0.5}));
  EXPECT_EQ(pair_speeds(table, 0, std::vector{kOneBeside, kZero}), (Speeds{0.5, 0.8}));
  EXPECT_EQ(pair_speeds(table, 0, std::vector{kZero}), Speeds{1});
  EXPECT_EQ(pair_speeds(table, 1, std::vector{kOneBeside}), Speeds{0.5}) << "of the faster type";
}

TEST(PairSpeedsTest, WhatDoesNotFitBesideAGuaranteedJobStandsStill) {
  EXPECT_EQ(pair_speeds(a_table(), 0, std::vector{kZero, kZeroBeside}), (Speeds{1, 0}));
}

TEST(PairSpeedsTest, OthersThatDoNotFitTakeTurns) {
  EXPECT_EQ(pair_speeds(a_table(), 0, std::vector{kZeroBeside, kZeroBeside}), (Speeds{0.5, 0.5}));
}

TEST(PairSpeedsTest, OfSeveralTwoRunAtATime) {
  const policies::ThroughputTable table = a_table();
  // Half of the time beside each of the two.
  EXPECT_EQ(pair_speeds(table, 0, std::vector{kZero, kOneBeside, kOneBeside}),
            (Speeds{0.8, 0.25, 0.25}));
  const Speeds three = pair_speeds(table, 0, std::vector{kOneBeside, kOneBeside, kOneBeside});
  for (const double speed : three) EXPECT_THAT(speed, DoubleNear(0.6 * 2 / 3, 1e-12));
}

TEST(MemoryFitTest, OthersHaveWhatGuaranteedJobsLeave) {
  const SharingModel model{.gpu_memory_gib = 80};
  EXPECT_EQ(part_in_memory(model, 60, 40), 0.5);
  EXPECT_EQ(part_in_memory(model, 60, 10), 1);
  EXPECT_EQ(part_in_memory(model, 90, 10), 0);
  EXPECT_EQ(part_in_memory(model, 60, 0), 1);
  EXPECT_EQ(part_in_memory({}, 60, 40), 1) << "no size is known";
}

TEST(MemoryFitTest, TheFirstTenthCostsLittleAndHalfWhatWasMeasured) {
  const SharingModel model{.half_memory = 0.25};
  EXPECT_EQ(speed_with(model, 1), 1);
  EXPECT_DOUBLE_EQ(speed_with(model, 0.5), 0.25);
  EXPECT_GT(speed_with(model, 0.9), 0.88);
  EXPECT_LT(speed_with(model, 0), 0.1);
  EXPECT_EQ(speed_with({.half_memory = 1}, 0), 1) << "a tier as fast as the GPU's memory";
}

TEST(ReadSharingTest, TakesItsOptionsAndLeavesThoseOfThePolicy) {
  std::map<std::string, std::string> options{
      {"slo", "0.05"}, {"harvest", "0.5"}, {"busy", "0.9"}, {"first-limit", "60"}};
  const SharingModel model = read_sharing("mps", options);
  EXPECT_EQ(model.sharing, Sharing::kMps);
  EXPECT_EQ(model.slo, 0.05);
  EXPECT_EQ(model.efficiency, 0.5);
  EXPECT_EQ(model.busy, 0.9);
  EXPECT_EQ(options.size(), 1U);
  EXPECT_EQ(read_sharing("", options).sharing, Sharing::kGate);
}

TEST(ReadSharingTest, OnlyTheGateKnowsMemory) {
  std::map<std::string, std::string> options{{"gpu-memory", "80"}, {"half-memory", "0.5"}};
  (void)read_sharing("mps", options);
  EXPECT_EQ(options.size(), 2U);
  const SharingModel model = read_sharing("gate", options);
  EXPECT_TRUE(options.empty());
  EXPECT_EQ(model.gpu_memory_gib, 80);
  EXPECT_EQ(model.half_memory, 0.5);
}

TEST(ReadSharingTest, WhatCannotBeIsNamed) {
  const auto read = [](const char* name, const std::map<std::string, std::string>& options) {
    return [name, options] {
      std::map<std::string, std::string> left = options;
      (void)read_sharing(name, left);
    };
  };
  using Wrong = std::invalid_argument;
  EXPECT_THAT(read("gates", {}), ThrowsMessage<Wrong>(HasSubstr("did you mean gate?")));
  EXPECT_THAT(read("gate", {{"slo", "x"}}), ThrowsMessage<Wrong>(HasSubstr("slo is no number: x")));
  EXPECT_THAT(read("gate", {{"harvest", "0"}}), ThrowsMessage<Wrong>(HasSubstr("harvest")));
  EXPECT_THAT(read("gate", {{"busy", "1.5"}}), ThrowsMessage<Wrong>(HasSubstr("to 1: 1.5")));
  EXPECT_THAT(read("gate", {{"half-memory", "0"}}), ThrowsMessage<Wrong>(HasSubstr("half-memory")));
  EXPECT_THAT(read("gate", {{"gpu-memory", "-1"}}), ThrowsMessage<Wrong>(HasSubstr("1e+06: -1")));
}

TraceJob recorded(const char* name, double submit, double duration, policies::AskedClass asked,
                  double busy) {
  TraceJob job;
  job.name = name;
  job.submit = submit;
  job.duration = duration;
  job.asked = asked;
  job.busy = busy;
  return job;
}

Outcome run(const std::vector<TraceJob>& jobs, const SharingModel& model) {
  const Trace trace{.source = "made up", .jobs = jobs};
  const auto semantics = make_commensal(model);
  const auto policy = policies::make_policy("antman", {});
  const policies::Cluster cluster(policies::equal_nodes(1, 1));
  return simulate(trace, cluster, *semantics, "antman", *policy, {});
}

TEST(SharedGpusTest, AnOpportunisticJobRunsInTheGapsAndAtFullSpeedAfterwards) {
  const SharingModel model{.slo = 0.01, .efficiency = 1};
  const Outcome outcome = run({recorded("prod", 0, 101, policies::AskedClass::kGuaranteed, 0.505),
                               recorded("sweep", 0, 100, policies::AskedClass::kOpportunistic, 1)},
                              model);
  const double guaranteed_end = 101 * 1.01;
  EXPECT_THAT(outcome.jobs[0].end, DoubleNear(guaranteed_end, 1e-9));
  // Until then at half speed: 1 - 0.505 / 1.01.
  EXPECT_THAT(outcome.jobs[1].end, DoubleNear(guaranteed_end + 100 - guaranteed_end / 2, 1e-9));
}

TEST(SharedGpusTest, AGuaranteedJobThatComesLaterSlowsTheOther) {
  const SharingModel model{.slo = 0.01, .efficiency = 1};
  const Outcome outcome =
      run({recorded("sweep", 0, 100, policies::AskedClass::kOpportunistic, 1),
           recorded("prod", 60, 1000, policies::AskedClass::kGuaranteed, 0.505)},
          model);
  EXPECT_THAT(outcome.jobs[0].end, DoubleNear(60 + 40 * 2, 1e-9));
  EXPECT_EQ(outcome.jobs[1].first_start, 60) << "it does not wait for the other";
  // 80 s beside the other, of which 80 / 1.01 count.
  EXPECT_THAT(outcome.jobs[1].end, DoubleNear(60 + 80 + 1000 - 80 / 1.01, 1e-9));
}

TEST(SharedGpusTest, AJobWhoseMemoryDoesNotFitIsSlowerUntilTheOtherIsGone) {
  const SharingModel model{.slo = 0, .efficiency = 1, .gpu_memory_gib = 80, .half_memory = 0.25};
  std::vector<TraceJob> jobs{recorded("prod", 0, 100, policies::AskedClass::kGuaranteed, 0.5),
                             recorded("sweep", 0, 100, policies::AskedClass::kOpportunistic, 0.5)};
  EXPECT_EQ(run(jobs, model).jobs[1].end, 100) << "nothing is known: it fits";
  jobs[0].gpu_memory_gib = 60;
  jobs[1].gpu_memory_gib = 40;
  const Outcome outcome = run(jobs, model);
  EXPECT_EQ(outcome.jobs[0].end, 100);
  EXPECT_THAT(outcome.jobs[1].end, DoubleNear(100 + (100 - 100 * 0.25), 1e-9));
}

TEST(SharedGpusTest, AStopCostsWhatIsLostByIt) {
  const std::vector<TraceJob> jobs{
      recorded("long", 0, 100, policies::AskedClass::kGuaranteed, 0.5),
      recorded("short", 10, 20, policies::AskedClass::kGuaranteed, 0.5)};
  const Trace trace{.source = "made up", .jobs = jobs};
  const auto end = [&](double restart) {
    const auto semantics = make_commensal({.restart = restart}, trace);
    const auto policy = policies::make_policy("srtf", {});
    const policies::Cluster cluster(policies::equal_nodes(1, 1));
    return simulate(trace, cluster, *semantics, "srtf", *policy, {}).jobs[0].end;
  };
  EXPECT_EQ(end(0), 120);
  EXPECT_EQ(end(7), 127);
}

TEST(SharedGpusTest, WithoutTheGateTheGuaranteedJobPays) {
  const std::vector<TraceJob> jobs{
      recorded("prod", 0, 100, policies::AskedClass::kGuaranteed, 0.5),
      recorded("sweep", 0, 1000, policies::AskedClass::kOpportunistic, 1)};
  EXPECT_LT(run(jobs, {}).jobs[0].end, 101.1);
  EXPECT_EQ(run(jobs, {.sharing = Sharing::kDefault}).jobs[0].end, 200);
}

TEST(SharedGpusTest, MeasuredPairsRunAsMeasured) {
  TraceJob zero = recorded("zero", 0, 100, policies::AskedClass::kGuaranteed, 0.5);
  TraceJob one = recorded("one", 0, 100, policies::AskedClass::kOpportunistic, 0.5);
  zero.model = "zero";
  one.model = "one";
  Trace trace{.source = "made up", .jobs = {zero, one}};
  const SharingModel pairs{.sharing = Sharing::kPairs};
  EXPECT_THAT([&] { (void)make_commensal(pairs, trace); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("made up has none")));
  trace.throughputs = std::make_shared<const policies::ThroughputTable>(a_table());
  const auto semantics = make_commensal(pairs, trace);
  std::vector<policies::NodeSpec> nodes = policies::equal_nodes(1, 1);
  nodes[0].gpu_type = "v100";
  semantics->arrange(trace, nodes);
  const auto policy = policies::make_policy("antman", {});
  const Outcome outcome =
      simulate(trace, policies::Cluster(nodes), *semantics, "antman", *policy, {});
  EXPECT_THAT(outcome.jobs[0].end, DoubleNear(100 / 0.8, 1e-9));
  EXPECT_THAT(outcome.jobs[1].end, DoubleNear(125 + (100 - 125 * 0.5), 1e-9));
}

TEST(SharedGpusTest, AJobWithoutAMeasuredSpeedIsNamed) {
  TraceJob job = recorded("j", 0, 100, policies::AskedClass::kGuaranteed, 0.5);
  job.model = "zero";
  job.gpus = 2;
  Trace trace{.source = "made up", .jobs = {job}};
  trace.throughputs = std::make_shared<const policies::ThroughputTable>(a_table());
  const auto semantics = make_commensal({.sharing = Sharing::kPairs}, trace);
  std::vector<policies::NodeSpec> nodes = policies::equal_nodes(1, 2);
  nodes[0].gpu_type = "k80";
  EXPECT_THAT([&] { semantics->arrange(trace, nodes); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("job j (zero on 2 GPUs)")));
}

TEST(SharedGpusTest, AnElasticJobIsAsFastAsItHasGpus) {
  std::vector<TraceJob> jobs{recorded("grows", 0, 400, policies::AskedClass::kGuaranteed, 0.6),
                             recorded("waits", 10, 1000, policies::AskedClass::kGuaranteed, 0.6)};
  for (TraceJob& job : jobs) job.max_gpus = 4;
  const Trace trace{.source = "made up", .jobs = jobs};
  const auto semantics = make_commensal({}, trace);
  const auto policy = policies::make_policy("dragon", {});
  const policies::Cluster cluster(policies::equal_nodes(1, 4));
  const Outcome outcome = simulate(trace, cluster, *semantics, "dragon", *policy, {});
  // Four GPUs for 40 s, until the other has waited for 30 s and takes one; then three.
  EXPECT_EQ(outcome.jobs[1].first_start, 40);
  EXPECT_THAT(outcome.jobs[0].end, DoubleNear(40 + (400 - 4 * 40) / 3.0, 1e-9));
  const auto with_costs = make_commensal({.restart = 3}, trace);
  // It lost one GPU once: three seconds of its work are done again.
  EXPECT_THAT(simulate(trace, cluster, *with_costs, "dragon", *policy, {}).jobs[0].end,
              DoubleNear(40 + (400 - 4 * 40 + 3) / 3.0, 1e-9));
}

}  // namespace
}  // namespace commensal::simulator::coexecution_test

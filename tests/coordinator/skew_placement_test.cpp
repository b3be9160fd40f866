// SPDX-License-Identifier: Apache-2.0
// Tiresias' placement by skew: who goes close together, who goes anywhere, and what is known of
// models.
#include "coordinator/policies/skew_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/engines/simulator/model_skew.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/cluster_state.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::policies::skew_placement_test {
namespace {

using ::testing::ElementsAre;

class SkewPlacementTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  JobIndex submit(std::int32_t gpus, double skew) {
    ClusterJob job = job_of(gpus, 1000);
    job.skew = skew;
    return state_.arrive(job);
  }
  void decide() { state_.commit(state_.decide(*policy_, placer_, {}, now_++)); }
  [[nodiscard]] bool runs(JobIndex job) const {
    return state_.job(job).phase == JobPhase::kRunning;
  }
  [[nodiscard]] std::vector<NodeIndex> nodes_of(JobIndex job) const {
    std::vector<NodeIndex> nodes;
    for (const GpuPart& part : state_.job(job).placement) nodes.push_back(part.node);
    return nodes;
  }

  ClusterState state_{Cluster(equal_nodes(3, 4))};
  std::unique_ptr<ClusterPolicy> policy_ = make_policy(GetParam(), {{"placement", "skew"}});
  CountedPlacer placer_;
  Time now_ = 0;
};

TEST_P(SkewPlacementTest, HighSkewGoesToTheFewestMachinesAndLowSkewToWhatIsLeftOver) {
  const JobIndex first = submit(3, 0.7);
  const JobIndex second = submit(3, 0.7);
  decide();
  EXPECT_THAT(nodes_of(first), ElementsAre(0, 0, 0));
  EXPECT_THAT(nodes_of(second), ElementsAre(1, 1, 1));
  const JobIndex low = submit(3, 0.1);
  decide();
  EXPECT_THAT(nodes_of(low), ElementsAre(0, 1, 2)) << "the fullest machines first";
}

TEST_P(SkewPlacementTest, HighSkewWaitsWhereItWouldBeSpread) {
  std::vector<JobIndex> pairs;
  for (int i = 0; i < 3; ++i) pairs.push_back(submit(3, 0.7));
  decide();
  const JobIndex high = submit(2, 0.7);
  decide();
  EXPECT_FALSE(runs(high)) << "three GPUs are free, on three machines";
  state_.end(pairs[0]);
  decide();
  EXPECT_THAT(nodes_of(high), ElementsAre(0, 0));
}

TEST_P(SkewPlacementTest, LargeJobsOfHighSkewGetAsManyMachinesAsTheyNeedAndNoMore) {
  (void)submit(1, 0.1);
  decide();
  const JobIndex six = submit(6, 0.7);
  decide();
  EXPECT_THAT(nodes_of(six), ElementsAre(1, 1, 1, 1, 0, 0));
}

INSTANTIATE_TEST_SUITE_P(Policies, SkewPlacementTest,
                         ::testing::Values("las", "2d-las", "2d-gittins", "srtf", "srsf",
                                           "smallest-first", "tiresias"),
                         [](const auto& policy) {
                           std::string name(policy.param);
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return "policy_" + name;
                         });

TEST(SkewPlacementOptionsTest, ChecksItsValues) {
  EXPECT_THROW((void)make_policy("las", {{"placement", "close"}}), std::invalid_argument);
  EXPECT_THROW((void)make_policy("las", {{"skew-above", "2"}}), std::invalid_argument);
}

TEST(ModelSkewTest, IsHighForModelsWithALargeDenseLayerAndUnknownForOthers) {
  using simulator::model_skew;
  for (const auto* model : {"vgg11", "vgg16", "vgg19", "alexnet"}) {
    EXPECT_GT(model_skew(model), 0.5) << model;
    EXPECT_LT(model_skew(model), 1) << model;
  }
  for (const auto* model : {"resnet18", "resnet50", "inception3", "bert", "gpt2"}) {
    EXPECT_LT(model_skew(model), 0.5) << model;
    EXPECT_GT(model_skew(model), 0) << model;
  }
  EXPECT_EQ(model_skew("no such model"), -1);
}

TEST(ModelSkewTest, ComesToPoliciesByTheNameInTheTrace) {
  simulator::Trace trace{.source = "made up", .jobs = {}};
  for (const auto* model : {"vgg16", "vgg16", "resnet50"}) {
    simulator::TraceJob job;
    job.name = "job" + std::to_string(trace.jobs.size());
    job.model = model;
    job.gpus = 2;
    job.duration = 100;
    trace.jobs.push_back(job);
  }
  trace.jobs[0].gpus = 1;
  trace.jobs[0].duration = 50;
  const Cluster cluster(equal_nodes(2, 2));
  const auto semantics = simulator::make_semantics("commensal", "srtf", trace);
  const auto policy = make_policy("srtf", {{"placement", "skew"}});
  std::vector<std::vector<GpuPart>> placed(3);
  const auto outcome =
      simulator::simulate(trace, cluster, *semantics, "srtf", *policy, {},
                          [&](ClusterState& state, Time /*now*/, std::size_t /*waiting*/) {
                            for (const JobIndex job : state.running())
                              placed[job] = state.job(job).placement;
                          });
  EXPECT_EQ(placed[1][0].node, placed[1][1].node);
  EXPECT_NE(placed[0][0].node, placed[1][0].node);
}

}  // namespace
}  // namespace commensal::policies::skew_placement_test

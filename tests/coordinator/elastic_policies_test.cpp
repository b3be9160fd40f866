// SPDX-License-Identifier: Apache-2.0
// Decisions of tiresias and optimus+oracle, as in Pollux' simulator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/registry.h"
#include "coordinator/policies/scaling_model.h"

namespace commensal::policies::elastic_policies_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ClusterJob asks(std::int32_t gpus, std::int32_t most = 1) {
  ClusterJob job;
  job.gpus = job.min_gpus = gpus;
  job.max_gpus = most;
  return job;
}

/// Step times by profile, from one GPU on.
class TableModel final : public ScalingModel {
 public:
  [[nodiscard]] std::optional<double> step_seconds(const ClusterJob& job,
                                                   std::int32_t gpus) const override {
    const auto& known = seconds.at(job.profile);
    if (static_cast<std::size_t>(gpus) > known.size()) return std::nullopt;
    return known[static_cast<std::size_t>(gpus) - 1];
  }
  [[nodiscard]] double remaining_steps(const ClusterJob& job) const override {
    return steps.at(job.profile);
  }
  [[nodiscard]] double epoch_steps(const ClusterJob& /*job*/) const override { return 10; }
  [[nodiscard]] double batch(const ClusterJob& /*job*/) const override { return 64; }
  [[nodiscard]] std::vector<prediction::LossPoint> losses(const ClusterJob& job) const override {
    const auto found = loss_after.find(job.profile);
    return found == loss_after.end() ? std::vector<prediction::LossPoint>{} : found->second;
  }
  std::map<std::uint32_t, std::vector<prediction::LossPoint>> loss_after;
  std::map<std::uint32_t, std::vector<double>> seconds;
  std::map<std::uint32_t, double> steps;
};

class ElasticPoliciesTest : public ::testing::Test {
 protected:
  ClusterPlan decide(const ClusterPolicy& policy, Time now = 0) {
    ClusterPlan plan = state_.decide(policy, placer_, {.scaling = &model_}, now);
    state_.commit(plan);
    return plan;
  }
  /// Adds a job of its own profile.
  JobIndex elastic(double steps, std::vector<double> seconds, std::int32_t most) {
    ClusterJob job = asks(1, most);
    job.profile = static_cast<std::uint32_t>(model_.steps.size());
    model_.steps[job.profile] = steps;
    model_.seconds[job.profile] = std::move(seconds);
    return state_.arrive(job);
  }
  std::vector<NodeIndex> nodes_of(JobIndex job) {
    std::vector<NodeIndex> nodes;
    for (const GpuPart& part : state_.jobs()[job].placement) nodes.push_back(part.node);
    return nodes;
  }
  std::int32_t held(JobIndex job) { return state_.jobs()[job].held(); }

  ClusterState state_{Cluster(equal_nodes(2, 4))};
  MostFreePlacer placer_;
  TableModel model_;
  std::unique_ptr<ClusterPolicy> tiresias_ = make_policy("tiresias", {});
  std::unique_ptr<ClusterPolicy> optimus_ = make_policy("optimus+oracle", {});
};

TEST_F(ElasticPoliciesTest, PlacesFromTheNodeWithMostFreeTheLowestOfEqualOnes) {
  const JobIndex a = state_.arrive(asks(1));
  const JobIndex b = state_.arrive(asks(6));
  decide(*tiresias_);
  EXPECT_THAT(nodes_of(a), ElementsAre(0));
  EXPECT_THAT(nodes_of(b), ElementsAre(1, 1, 1, 1, 0, 0));
}

TEST_F(ElasticPoliciesTest, TiresiasPassesWhoDoesNotFit) {
  state_.arrive(asks(6));
  const JobIndex large = state_.arrive(asks(4));
  const JobIndex small = state_.arrive(asks(2));
  decide(*tiresias_);
  EXPECT_EQ(held(large), 0);
  EXPECT_EQ(held(small), 2);
}

TEST_F(ElasticPoliciesTest, TiresiasStopsAJobAtItsLimitForOneThatHasHadLess) {
  const JobIndex old = state_.arrive(asks(8));
  decide(*tiresias_);
  state_.jobs()[old].attained = 7199;  // eight GPUs: 57,592 GPU-seconds
  const JobIndex young = state_.arrive(asks(4));
  EXPECT_THAT(decide(*tiresias_).decisions, IsEmpty());
  state_.jobs()[old].attained = 7200;
  decide(*tiresias_);
  EXPECT_EQ(held(old), 0);
  EXPECT_EQ(held(young), 4);
  // Nobody is promoted: what is left is too little, and later jobs go first.
  const JobIndex later = state_.arrive(asks(4));
  decide(*tiresias_);
  EXPECT_EQ(held(old), 0);
  EXPECT_EQ(held(later), 4);
}

TEST_F(ElasticPoliciesTest, TiresiasLeavesWhoIsKeptWhereItIs) {
  const JobIndex a = state_.arrive(asks(3));
  const JobIndex b = state_.arrive(asks(3));
  decide(*tiresias_);
  state_.end(a);
  state_.arrive(asks(5));
  EXPECT_EQ(decide(*tiresias_).decisions.size(), 1U);
  EXPECT_THAT(nodes_of(b), ElementsAre(1, 1, 1));
}

TEST_F(ElasticPoliciesTest, OptimusGivesTheNextGpuToWhoGainsMost) {
  const JobIndex slow = elastic(10, {8, 7.5, 7.4, 7.3, 7.2, 7.1, 7}, 7);
  const JobIndex fast = elastic(10, {8, 4, 2, 1, 2}, 7);
  decide(*optimus_);
  // The second stops where one more makes it slower; the rest goes to the first.
  EXPECT_EQ(held(fast), 4);
  EXPECT_EQ(held(slow), 4);
}

TEST_F(ElasticPoliciesTest, OptimusWeighsByRemainingStepsAndTheFirstOfEqualOnes) {
  const JobIndex few = elastic(1, {8, 4, 2, 1, 0.5, 0.4, 0.3}, 7);
  const JobIndex many = elastic(100, {8, 4, 3.9, 3.8, 3.7, 3.6, 3.5}, 7);
  const JobIndex twin = elastic(100, {8, 4, 3.9, 3.8, 3.7, 3.6, 3.5}, 7);
  decide(*optimus_);
  EXPECT_EQ(held(few), 1);
  EXPECT_EQ(held(many), 4);
  EXPECT_EQ(held(twin), 3);
}

TEST_F(ElasticPoliciesTest, OptimusKeepsToTheMostThatAJobTakes) {
  const JobIndex one = elastic(10, {8, 4, 2}, 1);
  const JobIndex two = elastic(10, {8, 4, 2}, 2);
  const JobIndex unknown = elastic(10, {8}, 8);
  decide(*optimus_);
  EXPECT_EQ(held(one), 1);
  EXPECT_EQ(held(two), 2);
  EXPECT_EQ(held(unknown), 1);
}

TEST_F(ElasticPoliciesTest, OptimusGivesOneGpuEachInTheOrderOfArrival) {
  std::vector<JobIndex> jobs;
  for (int i = 0; i < 9; ++i) jobs.push_back(elastic(10, {8, 4}, 2));
  decide(*optimus_);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(held(jobs[static_cast<std::size_t>(i)]), 1);
  EXPECT_EQ(held(jobs[8]), 0);
}

TEST_F(ElasticPoliciesTest, OptimusMovesOnlyWhoseNumberOfGpusChanges) {
  const JobIndex fixed = elastic(10, {8, 4}, 2);
  const JobIndex elastic_job = elastic(10, {8, 4, 3, 2, 1, 0.9}, 6);
  decide(*optimus_);
  EXPECT_EQ(held(elastic_job), 6);
  const Placement before = state_.jobs()[fixed].placement;
  const JobIndex late = elastic(10, {8, 4}, 2);
  const ClusterPlan plan = decide(*optimus_);
  EXPECT_EQ(state_.jobs()[fixed].placement, before);
  EXPECT_EQ(held(elastic_job), 4);
  EXPECT_EQ(held(late), 2);
  // The smaller one is placed first.
  ASSERT_EQ(plan.decisions.size(), 2U);
  EXPECT_EQ(plan.decisions[0].job, late);
  EXPECT_EQ(plan.decisions[0].action, Action::kStart);
  EXPECT_EQ(plan.decisions[1].action, Action::kMove);
}

TEST_F(ElasticPoliciesTest, PredictedOptimusGivesToTheJobWhoseLossStillFalls) {
  const std::vector<double> seconds{8, 4, 3, 2.5, 2.2, 2, 1.9, 1.8};
  const JobIndex done = elastic(1000, seconds, 8);
  const JobIndex busy = elastic(1, seconds, 8);
  for (double step = 10; step <= 100; step += 10) {
    model_.loss_after[0].push_back({step, 1});
    model_.loss_after[1].push_back({step, 1 / (0.01 * step + 1)});
  }
  decide(*make_policy("optimus", {}));
  EXPECT_EQ(held(done) + held(busy), 8);
  EXPECT_GT(held(busy), held(done));
}

TEST_F(ElasticPoliciesTest, PredictedOptimusGoesOnBehindWhatItHasTried) {
  // It tries one, two, four and eight GPUs, and knows t = 8 / n by them; nothing between is asked.
  state_ = ClusterState(Cluster(equal_nodes(4, 4)));
  const JobIndex job = elastic(10, {8, 4, 99, 2, 99, 99, 99, 1}, 16);
  decide(*make_policy("optimus", {}));
  EXPECT_EQ(held(job), 16);
}

TEST_F(ElasticPoliciesTest, PredictedOptimusCountsAYoungJobsGainALittleLess) {
  state_ = ClusterState(Cluster(equal_nodes(1, 3)));
  const JobIndex young = elastic(1, {8, 4}, 2);
  const JobIndex old = elastic(1, {8, 4}, 2);
  for (double step = 10; step <= 100; step += 10) {
    model_.loss_after[1].push_back({step, 1 / (0.01 * step + 1)});
  }
  // So that it has as many steps left as the ten epochs of ten steps that the young one counts.
  const auto curve = prediction::LossCurve::fit(model_.loss_after[1]);
  const double threshold =
      (curve->loss(199) - curve->loss(209)) / model_.loss_after[1].front().loss;
  decide(*make_policy("optimus", {{"threshold", std::to_string(threshold)}}));
  EXPECT_EQ(held(young), 1);
  EXPECT_EQ(held(old), 2);
}

TEST_F(ElasticPoliciesTest, PredictedOptimusDividesEveryTenMinutesOrWhenNobodyRuns) {
  const auto policy = make_policy("optimus", {});
  const JobIndex first = elastic(10, {8, 4}, 2);
  EXPECT_EQ(decide(*policy, 100).wake, 700);
  const JobIndex second = elastic(10, {8, 4}, 2);
  decide(*policy, 699);
  EXPECT_EQ(held(second), 0);
  decide(*policy, 700);
  EXPECT_EQ(held(second), 2);
  state_.end(first);
  state_.end(second);
  const JobIndex third = elastic(10, {8, 4}, 2);
  decide(*policy, 710);
  EXPECT_EQ(held(third), 2);
}

TEST_F(ElasticPoliciesTest, PredictedOptimusRefusesOptionsThatMakeNoSense) {
  EXPECT_THROW((void)make_policy("optimus", {{"interval", "-1"}}), std::invalid_argument);
  EXPECT_THROW((void)make_policy("optimus", {{"threshold", "0"}}), std::invalid_argument);
}

TEST_F(ElasticPoliciesTest, OptimusSaysWhenItKnowsNoStepTimes) {
  state_.arrive(asks(1));
  EXPECT_THROW((void)state_.decide(*optimus_, placer_, {}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace commensal::policies::elastic_policies_test

// SPDX-License-Identifier: Apache-2.0
// DRAGON's three steps, each on a small cluster: taking workers back, starting, growing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::policies::dragon_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class DragonTest : public ::testing::Test {
 protected:
  void cluster(std::int32_t nodes, std::int32_t gpus_per_node) {
    state_.emplace(Cluster(equal_nodes(nodes, gpus_per_node)));
  }

  JobIndex submit(std::int32_t least, std::int32_t most, std::int32_t priority = 0) {
    ClusterJob job = job_of(least, 1000, now_);
    job.min_gpus = least;
    job.max_gpus = most;
    job.priority = priority;
    return state_->arrive(job);
  }

  ClusterPlan decide_at(Time now) {
    now_ = now;
    ClusterPlan plan = state_->decide(*policy_, placer_, {}, now);
    state_->commit(plan);
    return plan;
  }

  [[nodiscard]] std::int32_t workers(JobIndex job) const { return state_->job(job).held(); }
  [[nodiscard]] std::vector<NodeIndex> nodes_of(JobIndex job) const {
    std::vector<NodeIndex> nodes;
    for (const GpuPart& part : state_->job(job).placement) nodes.push_back(part.node);
    return nodes;
  }

  std::optional<ClusterState> state_;
  std::unique_ptr<ClusterPolicy> policy_ = make_policy("dragon", {});
  FirstNodePlacer placer_;
  Time now_ = 0;
};

TEST_F(DragonTest, OneJobARoundStartsWithAsManyWorkersAsFitOnOneServerIfOneHoldsAll) {
  cluster(2, 4);
  const JobIndex first = submit(1, 3);
  const JobIndex second = submit(2, 4);
  const JobIndex third = submit(1, 4);
  EXPECT_EQ(decide_at(0).wake, 1) << "the next round follows";
  EXPECT_THAT(nodes_of(first), ElementsAre(0, 0, 0));
  EXPECT_EQ(workers(second), 0);
  decide_at(1);
  EXPECT_THAT(nodes_of(second), ElementsAre(1, 1, 1, 1));
  decide_at(2);
  EXPECT_EQ(workers(third), 1) << "as many as fit";
}

TEST_F(DragonTest, TheFirstThatFitsWithItsLeastIsNotAlwaysTheFirst) {
  cluster(1, 4);
  (void)submit(2, 2);
  decide_at(0);
  const JobIndex large = submit(3, 4);
  const JobIndex small = submit(1, 2);
  decide_at(1);
  EXPECT_EQ(workers(large), 0);
  EXPECT_EQ(workers(small), 2);
}

TEST_F(DragonTest, WhoHasWaitedForHalfAMinuteIsGivenWorkersOfOthers) {
  cluster(2, 2);
  const JobIndex elastic = submit(1, 4);
  decide_at(0);
  EXPECT_EQ(workers(elastic), 4);
  now_ = 10;
  const JobIndex waits = submit(2, 2);
  EXPECT_EQ(decide_at(10).wake, 40);
  EXPECT_EQ(workers(waits), 0);
  const ClusterPlan plan = decide_at(40);
  ASSERT_THAT(plan.decisions, SizeIs(2));
  EXPECT_EQ(plan.decisions[0].action, Action::kMove) << "shrink before others start";
  EXPECT_THAT(nodes_of(elastic), ElementsAre(0, 0)) << "those on the other server go first";
  EXPECT_THAT(nodes_of(waits), ElementsAre(1, 1)) << "its least, and no more was taken";
}

TEST_F(DragonTest, NobodyFallsBelowItsLeastAndIfThatIsTooLittleNothingIsTaken) {
  cluster(1, 4);
  const JobIndex first = submit(2, 2);
  const JobIndex second = submit(1, 2);
  decide_at(0);
  decide_at(1);
  EXPECT_EQ(workers(second), 2);
  now_ = 2;
  const JobIndex waits = submit(3, 3);
  const JobIndex later = submit(1, 1);
  EXPECT_THAT(decide_at(100).decisions, IsEmpty());
  state_->end(first);  // two are free, and the second may give one
  decide_at(101);
  EXPECT_EQ(workers(second), 1);
  EXPECT_EQ(workers(waits), 3);
  EXPECT_EQ(workers(later), 0);
}

TEST_F(DragonTest, ShrinkingGoesThroughRunningJobsInTheOrderOfTheirStarts) {
  cluster(1, 6);
  const JobIndex first = submit(1, 3);
  const JobIndex second = submit(1, 3);
  decide_at(0);
  decide_at(1);
  now_ = 2;
  const JobIndex waits = submit(3, 3);
  decide_at(32);
  EXPECT_EQ(workers(first), 1);
  EXPECT_EQ(workers(second), 2);
  EXPECT_EQ(workers(waits), 3);
}

TEST_F(DragonTest, AJobOfHigherPriorityThanAllThatRunDoesNotWait) {
  cluster(1, 2);
  const JobIndex low = submit(1, 2, 1);
  decide_at(0);
  const JobIndex equal = submit(1, 1, 1);
  const JobIndex high = submit(1, 1, 0);
  decide_at(1);
  EXPECT_EQ(workers(low), 1);
  EXPECT_EQ(workers(high), 1);
  EXPECT_EQ(workers(equal), 0);
}

TEST_F(DragonTest, RunningJobsGrowWhenNothingWasDoneForAMinute) {
  cluster(1, 4);
  const JobIndex blocker = submit(2, 2);
  const JobIndex elastic = submit(1, 3);
  decide_at(0);
  decide_at(1);
  EXPECT_EQ(workers(elastic), 2);
  decide_at(2);
  state_->end(blocker);
  EXPECT_EQ(decide_at(30).wake, 61);
  EXPECT_EQ(workers(elastic), 2);
  decide_at(61);
  EXPECT_EQ(workers(elastic), 3) << "its most, though two were free";
}

}  // namespace
}  // namespace commensal::policies::dragon_test

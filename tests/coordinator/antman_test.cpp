// SPDX-License-Identifier: Apache-2.0
// AntMan's rules, each on a small cluster: queues, quotas, reservations, lending, upgrades.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/registry.h"

namespace commensal::policies::antman_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AntManTest : public ::testing::Test {
 protected:
  void cluster(std::int32_t nodes, std::int32_t gpus_per_node, std::vector<Tenant> tenants = {}) {
    state_.emplace(Cluster(equal_nodes(nodes, gpus_per_node)), std::move(tenants));
  }

  JobIndex submit(AskedClass asked, std::int32_t gpus, TenantIndex tenant = 0,
                  std::int32_t load_milli = 600) {
    ClusterJob job;
    job.asked = asked;
    job.gpus = job.min_gpus = job.max_gpus = gpus;
    job.tenant = tenant;
    job.load_milli = load_milli;
    return state_->arrive(job);
  }
  JobIndex guaranteed(std::int32_t gpus, TenantIndex tenant = 0) {
    return submit(AskedClass::kGuaranteed, gpus, tenant);
  }
  JobIndex opportunistic(std::int32_t gpus, std::int32_t load_milli = 600) {
    return submit(AskedClass::kOpportunistic, gpus, 0, load_milli);
  }

  ClusterPlan decide() {
    ClusterPlan plan = state_->decide(*policy_, placer_, {}, now_++);
    state_->commit(plan);
    return plan;
  }

  [[nodiscard]] bool runs(JobIndex job) const {
    return state_->job(job).phase == JobPhase::kRunning;
  }
  [[nodiscard]] bool runs_as(JobIndex job, JobClass job_class) const {
    return runs(job) && state_->job(job).job_class == job_class;
  }
  [[nodiscard]] std::vector<NodeIndex> nodes_of(const Placement& placement) const {
    std::vector<NodeIndex> nodes;
    for (const GpuPart& part : placement) nodes.push_back(part.node);
    return nodes;
  }

  std::optional<ClusterState> state_;
  std::unique_ptr<ClusterPolicy> policy_ = make_policy("antman", {});
  FirstNodePlacer placer_;
  Time now_ = 0;
};

TEST_F(AntManTest, AGuaranteedJobGetsTheFullestNodeThatHasEnough) {
  cluster(3, 4);
  (void)guaranteed(3);
  decide();
  const JobIndex fits_beside = guaranteed(1);
  const JobIndex needs_more = guaranteed(2);
  decide();
  EXPECT_THAT(nodes_of(state_->job(fits_beside).placement), ElementsAre(0));
  EXPECT_THAT(nodes_of(state_->job(needs_more).placement), ElementsAre(1, 1));
}

TEST_F(AntManTest, AQueueIsServedInTheOrderOfArrivalAndNobodyPassesItsHead) {
  cluster(1, 4);
  const JobIndex first = guaranteed(3);
  const JobIndex second = guaranteed(4);
  const JobIndex third = guaranteed(1);
  decide();
  EXPECT_TRUE(runs(first));
  EXPECT_FALSE(runs(second));
  EXPECT_FALSE(runs(third)) << "the GPU that is free is kept for the second";
  EXPECT_THAT(state_->job(second).reserved, SizeIs(1));
}

TEST_F(AntManTest, AGangThatDoesNotFitReservesWhatIsThereAndCompletesFromIt) {
  cluster(2, 2);
  const JobIndex small = guaranteed(1);
  decide();
  const JobIndex gang = guaranteed(4);
  const ClusterPlan plan = decide();
  ASSERT_THAT(plan.decisions, SizeIs(1));
  EXPECT_EQ(plan.decisions[0].action, Action::kReserve);
  EXPECT_THAT(to_string(plan.decisions[0].reason), HasSubstr("2 of 4 GPUs are kept for it"));
  EXPECT_THAT(nodes_of(state_->job(gang).reserved), ElementsAre(1, 1));
  state_->end(small);
  decide();
  EXPECT_TRUE(runs(gang));
  EXPECT_THAT(state_->job(gang).reserved, IsEmpty());
  EXPECT_THAT(nodes_of(state_->job(gang).placement), ElementsAre(1, 1, 0, 0));
}

TEST_F(AntManTest, AnotherTenantsGuaranteedJobDoesNotGetWhatIsReserved) {
  cluster(1, 3, {{"vision", 4}, {"speech", 4}});
  const JobIndex running = guaranteed(1, 0);
  (void)guaranteed(1, 0);
  decide();
  const JobIndex waiting = guaranteed(2, 1);
  decide();
  ASSERT_THAT(state_->job(waiting).reserved, SizeIs(1));
  const JobIndex other = guaranteed(1, 0);
  decide();
  EXPECT_FALSE(runs(other));
  state_->end(running);
  decide();
  EXPECT_TRUE(runs(waiting)) << "its tenant has less of its quota in use";
  EXPECT_FALSE(runs(other));
}

TEST_F(AntManTest, TwoGangsDoNotKeepFromEachOtherWhatTheyWaitFor) {
  for (const std::int32_t gpus_per_node : {4, 1}) {  // on one node, and over nodes
    cluster(4 / gpus_per_node, gpus_per_node, {{"vision", 4}, {"speech", 4}, {"text", 4}});
    const JobIndex first = guaranteed(1, 2);
    const JobIndex second = guaranteed(1, 2);
    decide();
    const JobIndex vision = guaranteed(3, 0);
    decide();
    ASSERT_THAT(state_->job(vision).reserved, SizeIs(2));
    state_->end(first);
    // A GPU is free as the second gang comes; it must not hold it while the first waits for it.
    const JobIndex speech = guaranteed(3, 1);
    decide();
    if (!runs(vision)) {
      state_->end(second);
      decide();
    }
    EXPECT_TRUE(runs(vision));
    EXPECT_FALSE(runs(speech));
    EXPECT_THAT(state_->job(speech).reserved, IsEmpty()) << "3 + 3 are more than there are";
    state_->end(vision);
    if (runs(second)) state_->end(second);
    decide();
    EXPECT_TRUE(runs(speech));
  }
}

TEST_F(AntManTest, ReservedGpusAreLentToOpportunisticJobs) {
  cluster(1, 2);
  (void)guaranteed(1);
  decide();
  const JobIndex waiting = guaranteed(2);
  decide();
  ASSERT_THAT(state_->job(waiting).reserved, SizeIs(1));
  const JobIndex guest = opportunistic(1);
  decide();
  ASSERT_TRUE(runs_as(guest, JobClass::kOpportunistic));
  EXPECT_EQ(state_->job(guest).placement[0], state_->job(waiting).reserved[0]);
}

TEST_F(AntManTest, OpportunisticJobsGoToTheLeastLoadedGpusBelowEightyPercent) {
  cluster(1, 3);
  (void)submit(AskedClass::kGuaranteed, 1, 0, 900);
  (void)submit(AskedClass::kGuaranteed, 1, 0, 300);
  decide();
  const JobIndex first = opportunistic(1, 400);
  decide();
  const JobIndex second = opportunistic(1, 400);
  decide();
  EXPECT_EQ(state_->job(first).placement[0].gpu, 2) << "that is idle";
  EXPECT_EQ(state_->job(second).placement[0].gpu, 1) << "30 % is less than the first guest's 40 %";
  const JobIndex third = opportunistic(2, 400);
  decide();
  EXPECT_TRUE(runs(third)) << "70 % and 40 %";
  const JobIndex fourth = opportunistic(1, 400);
  decide();
  EXPECT_FALSE(runs(fourth)) << "all are at 80 % and more";
}

TEST_F(AntManTest, AnOpportunisticGangStartsWholeOrNotAtAll) {
  cluster(1, 2);
  (void)submit(AskedClass::kGuaranteed, 1, 0, 900);
  decide();
  const JobIndex gang = opportunistic(2);
  const JobIndex single = opportunistic(1);
  EXPECT_THAT(decide().decisions, IsEmpty()) << "one GPU is busy; nobody passes the gang";
  EXPECT_FALSE(runs(gang));
  EXPECT_FALSE(runs(single));
}

TEST_F(AntManTest, NobodyIsAboveItsQuotaAndOpportunisticJobsCostNone) {
  cluster(2, 4, {{"vision", 4}});
  const JobIndex within = guaranteed(3);
  const JobIndex above = guaranteed(2);
  const JobIndex guest = opportunistic(2);
  decide();
  EXPECT_TRUE(runs(within));
  EXPECT_FALSE(runs(above)) << "5 of 4";
  EXPECT_TRUE(runs(guest));
  EXPECT_EQ(state_->tenants()[0].charged_milli, 3000);
  state_->end(within);
  decide();
  EXPECT_TRUE(runs(above));
  EXPECT_EQ(state_->tenants()[0].charged_milli, 2000);
}

TEST_F(AntManTest, TheTenantWithTheLeastOfItsQuotaInUseComesFirst) {
  cluster(1, 4, {{"vision", 4}, {"speech", 4}});
  (void)guaranteed(2, 0);
  decide();
  const JobIndex vision = guaranteed(2, 0);
  const JobIndex speech = guaranteed(2, 1);
  decide();
  EXPECT_TRUE(runs(speech));
  EXPECT_FALSE(runs(vision));
}

TEST_F(AntManTest, OfTenantsThatUseEquallyMuchTheOneWhoseFirstJobCameFirstIsServed) {
  cluster(1, 1, {{"vision", 4}, {"speech", 4}});
  const JobIndex first = guaranteed(1, 0);
  const JobIndex second = guaranteed(1, 1);
  const JobIndex third = guaranteed(1, 0);
  decide();
  state_->end(first);
  decide();
  EXPECT_TRUE(runs(second)) << "neither uses anything at this moment";
  EXPECT_FALSE(runs(third));
}

TEST_F(AntManTest, AnAutoJobBeginsBesideOthersAndIsUpgradedWhereItRuns) {
  cluster(1, 2, {{"vision", 1}});
  const JobIndex charged = guaranteed(1);
  decide();
  const JobIndex automatic = submit(AskedClass::kAuto, 1);
  decide();
  ASSERT_TRUE(runs_as(automatic, JobClass::kOpportunistic)) << "the quota is used up";
  const Placement where = state_->job(automatic).placement;
  state_->end(charged);
  const ClusterPlan plan = decide();
  ASSERT_THAT(plan.decisions, SizeIs(1));
  EXPECT_EQ(plan.decisions[0].action, Action::kUpgrade);
  EXPECT_TRUE(runs_as(automatic, JobClass::kGuaranteed));
  EXPECT_EQ(state_->job(automatic).placement, where);
  EXPECT_EQ(state_->tenants()[0].charged_milli, 1000);
}

TEST_F(AntManTest, AnAutoJobIsNotUpgradedOnAGuaranteedJobsGpu) {
  cluster(1, 1, {{"vision", 2}});
  (void)submit(AskedClass::kGuaranteed, 1, 0, 300);
  decide();
  const JobIndex automatic = submit(AskedClass::kAuto, 1);
  decide();
  ASSERT_TRUE(runs_as(automatic, JobClass::kOpportunistic));
  decide();
  EXPECT_TRUE(runs_as(automatic, JobClass::kOpportunistic));
}

// Guaranteed jobs that wait come before auto jobs.

TEST_F(AntManTest, AGuaranteedJobThatWaitsComesBeforeTheUpgradesOfAnotherTenant) {
  cluster(1, 1, {{"vision", 1}, {"nlp", 4}});
  const JobIndex first = submit(AskedClass::kAuto, 1, 0, 300);
  decide();
  ASSERT_TRUE(runs_as(first, JobClass::kGuaranteed));
  const JobIndex runs_beside = submit(AskedClass::kAuto, 1, 0, 300);
  decide();
  ASSERT_TRUE(runs_as(runs_beside, JobClass::kOpportunistic));
  const JobIndex waits = guaranteed(1, 1);
  const JobIndex later = submit(AskedClass::kAuto, 1, 0, 300);
  decide();
  state_->end(first);
  decide();
  EXPECT_TRUE(runs_as(waits, JobClass::kGuaranteed));
  EXPECT_TRUE(runs_as(runs_beside, JobClass::kOpportunistic)) << "it goes on";
  EXPECT_FALSE(runs_as(later, JobClass::kGuaranteed));
  state_->end(waits);
  decide();
  EXPECT_TRUE(runs_as(runs_beside, JobClass::kGuaranteed));
}

TEST_F(AntManTest, AnAutoJobThatWaitsKeepsNoGuaranteedJobOfItsTenantWaiting) {
  cluster(1, 1);
  const JobIndex first = submit(AskedClass::kGuaranteed, 1, 0, 900);
  decide();
  const JobIndex waits_too = submit(AskedClass::kAuto, 1);
  const JobIndex waits = guaranteed(1);
  EXPECT_THAT(decide().decisions, IsEmpty()) << "the GPU is loaded to more than 80 %";
  state_->end(first);
  decide();
  EXPECT_TRUE(runs_as(waits, JobClass::kGuaranteed));
  EXPECT_TRUE(runs_as(waits_too, JobClass::kOpportunistic)) << "beside it";
}

TEST_F(AntManTest, AnAutoJobBehindAGuaranteedOneOfItsTenantBeginsBesideOthers) {
  cluster(1, 1);
  (void)submit(AskedClass::kGuaranteed, 1, 0, 300);
  (void)guaranteed(1);
  const JobIndex behind = submit(AskedClass::kAuto, 1);
  decide();
  EXPECT_TRUE(runs_as(behind, JobClass::kOpportunistic));
}

TEST_F(AntManTest, NothingIsUpgradedThatWouldDelayAGang) {
  for (const std::int32_t gpus_per_node : {4, 1}) {  // on one node, and over nodes
    cluster(4 / gpus_per_node, gpus_per_node, {{"vision", 4}, {"nlp", 4}});
    const JobIndex holds = guaranteed(1, 0);
    decide();
    const JobIndex gang = guaranteed(4, 1);
    const JobIndex beside = submit(AskedClass::kAuto, 1, 0, 300);
    for (int i = 0; i < 3; ++i) decide();
    EXPECT_TRUE(runs_as(beside, JobClass::kOpportunistic));
    state_->end(holds);
    decide();
    EXPECT_TRUE(runs_as(gang, JobClass::kGuaranteed));
  }
}

TEST_F(AntManTest, AnAutoJobBecomesGuaranteedWhereAGangThatWaitsCannotBe) {
  std::vector<NodeSpec> nodes = equal_nodes(2, 4);
  nodes[1].gpus = 2;
  state_.emplace(Cluster(nodes), std::vector<Tenant>{{"vision", 4}, {"nlp", 4}});
  const JobIndex holds = guaranteed(4, 0);
  decide();
  const JobIndex gang = guaranteed(4, 1);
  const JobIndex small = guaranteed(2, 1);
  const JobIndex elsewhere = submit(AskedClass::kAuto, 2, 2, 300);
  decide();
  EXPECT_FALSE(runs(small)) << "its tenant's quota is the gang's";
  EXPECT_TRUE(runs_as(elsewhere, JobClass::kGuaranteed)) << "on two GPUs no gang of four can be";
  state_->end(holds);
  decide();
  EXPECT_TRUE(runs(gang));
}

TEST_F(AntManTest, WhoIsAboveItsQuotaKeepsNoOtherTenantsJobFromAnUpgrade) {
  cluster(1, 2, {{"vision", 2}, {"nlp", 1}});
  (void)guaranteed(1, 1);
  decide();
  (void)guaranteed(1, 1);
  const JobIndex other = submit(AskedClass::kAuto, 1, 0);
  decide();
  EXPECT_TRUE(runs_as(other, JobClass::kGuaranteed));
}

TEST_F(AntManTest, ATenantsQuotaIsKeptForItsGuaranteedJobsThatWait) {
  cluster(1, 8, {{"vision", 4}});
  const JobIndex holds = guaranteed(2);
  decide();
  const JobIndex waits = guaranteed(4);
  const JobIndex beside = submit(AskedClass::kAuto, 1);
  decide();
  EXPECT_TRUE(runs_as(beside, JobClass::kOpportunistic)) << "3 of 4 would never leave room for 4";
  state_->end(holds);
  decide();
  EXPECT_TRUE(runs(waits));
}

TEST_F(AntManTest, LargeGangsStayInTheRackThatHasMostNodesForThem) {
  cluster(24, 1);  // eight nodes a rack
  (void)guaranteed(1);
  decide();  // the first rack has seven left
  const JobIndex gang = guaranteed(8);
  decide();
  EXPECT_THAT(nodes_of(state_->job(gang).placement), ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
}

TEST_F(AntManTest, MinimumSharesAreFilledUpToTheWholeGpu) {
  cluster(1, 2);
  const auto needs = [&](std::int32_t share_milli, std::int32_t load_milli) {
    ClusterJob job;
    job.asked = AskedClass::kOpportunistic;
    job.load_milli = load_milli;
    job.minima.share_milli = share_milli;
    return state_->arrive(job);
  };
  const JobIndex large = needs(700, 100);
  const JobIndex small = needs(300, 200);
  decide();
  ASSERT_TRUE(runs(large) && runs(small));
  const JobIndex second = needs(600, 100);
  const JobIndex behind = needs(0, 100);
  decide();
  EXPECT_EQ(state_->job(second).placement, state_->job(small).placement)
      << "the least loaded GPU has no room for its minimum";
  decide();
  EXPECT_EQ(state_->job(behind).placement, state_->job(large).placement);
  const JobIndex waits = needs(400, 100);
  const JobIndex after = needs(100, 100);
  decide();
  EXPECT_FALSE(runs(waits));
  EXPECT_FALSE(runs(after)) << "nobody passes the first that waits";
  state_->end(large);
  decide();
  EXPECT_TRUE(runs(waits));
}

TEST_F(AntManTest, AGuaranteedJobThatStartsInTheSameDecisionTakesItsMemory) {
  std::vector<NodeSpec> nodes = equal_nodes(1, 1);
  nodes[0].gpu_memory_mib = 1000;
  state_.emplace(Cluster(nodes), std::vector<Tenant>{});
  ClusterJob job;
  job.minima.memory_mib = 700;
  const JobIndex first = state_->arrive(job);
  job.asked = AskedClass::kOpportunistic;
  job.minima.memory_mib = 301;
  const JobIndex second = state_->arrive(job);
  decide();
  EXPECT_TRUE(runs(first));
  EXPECT_FALSE(runs(second));
  state_->end(first);
  decide();
  EXPECT_TRUE(runs(second));
}

TEST_F(AntManTest, ATypeThatAJobDoesNotTakeIsPassedOver) {
  std::vector<NodeSpec> nodes = equal_nodes(2, 1);
  nodes[0].gpu_type = "old";
  nodes[1].gpu_type = "new";
  state_.emplace(Cluster(nodes), std::vector<Tenant>{});
  ClusterJob job;
  job.gpu_types = 1U << 1;
  const JobIndex picky = state_->arrive(job);
  decide();
  EXPECT_THAT(nodes_of(state_->job(picky).placement), ElementsAre(1));
}

}  // namespace
}  // namespace commensal::policies::antman_test

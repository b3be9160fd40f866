// SPDX-License-Identifier: Apache-2.0
// Philly's rules, each on a small cluster: fair share of quotas, lending and taking back, locality
// that relaxes with time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::policies::philly_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class PhillyTest : public ::testing::Test {
 protected:
  void cluster(std::vector<NodeSpec> nodes, std::vector<Tenant> tenants = {}) {
    state_.emplace(Cluster(std::move(nodes)), std::move(tenants));
  }

  JobIndex submit(std::int32_t gpus, TenantIndex tenant = 0,
                  AskedClass asked = AskedClass::kGuaranteed) {
    ClusterJob job = job_of(gpus, 1000, now_);
    job.tenant = tenant;
    job.asked = asked;
    return state_->arrive(job);
  }

  ClusterPlan decide_at(Time now) {
    now_ = now;
    ClusterPlan plan = state_->decide(*policy_, placer_, {}, now);
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
  [[nodiscard]] std::set<std::int32_t> racks_of(JobIndex job) const {
    std::set<std::int32_t> racks;
    for (const GpuPart& part : state_->job(job).placement) {
      racks.insert(state_->cluster().nodes()[part.node].rack);
    }
    return racks;
  }

  static std::vector<NodeSpec> racks(std::int32_t count, std::int32_t servers, std::int32_t gpus) {
    std::vector<NodeSpec> nodes = equal_nodes(count * servers, gpus);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      nodes[i].rack = static_cast<std::int32_t>(i) / servers;
    }
    return nodes;
  }

  std::optional<ClusterState> state_;
  std::unique_ptr<ClusterPolicy> policy_ = make_policy("philly", {});
  FirstNodePlacer placer_;
  Time now_ = 0;
};

// Fair share.

TEST_F(PhillyTest, TheTenantThatUsesLeastOfItsQuotaIsServedFirst) {
  cluster(equal_nodes(1, 8), {{.name = "a", .quota = 4}, {.name = "b", .quota = 8}});
  (void)submit(2, 0);
  (void)submit(2, 1);
  decide_at(0);  // a uses half of its quota, b a quarter
  const JobIndex of_a = submit(2, 0);
  const JobIndex of_b = submit(2, 1);
  const JobIndex more_of_b = submit(2, 1);
  const ClusterPlan plan = decide_at(1);
  ASSERT_THAT(plan.decisions, SizeIs(2));
  EXPECT_EQ(plan.decisions[0].job, of_b);
  EXPECT_EQ(plan.decisions[1].job, of_a) << "both used half, the first in order goes on";
  EXPECT_FALSE(runs(more_of_b));
}

TEST_F(PhillyTest, IdleGpusAreLentBeyondAQuotaAndChargedWhenItHasRoom) {
  cluster(equal_nodes(1, 8), {{.name = "a", .quota = 4}, {.name = "b", .quota = 4}});
  const JobIndex first = submit(4, 0);
  const JobIndex second = submit(3, 0);
  decide_at(0);
  EXPECT_TRUE(runs_as(first, JobClass::kGuaranteed));
  EXPECT_TRUE(runs_as(second, JobClass::kOpportunistic));
  state_->end(first);
  decide_at(10);
  EXPECT_TRUE(runs_as(second, JobClass::kGuaranteed));
}

TEST_F(PhillyTest, WhoDoesNotFitIsPassedAndAJobThatAsksForNoQuotaIsLentGpus) {
  cluster(equal_nodes(1, 4), {{.name = "a", .quota = 4}});
  (void)submit(2);
  const JobIndex large = submit(3);
  const JobIndex small = submit(1, 0, AskedClass::kOpportunistic);
  decide_at(0);
  EXPECT_FALSE(runs(large));
  EXPECT_TRUE(runs_as(small, JobClass::kOpportunistic));
}

TEST_F(PhillyTest, LentGpusAreTakenBackOnlyWhenNearlyAllAreUsed) {
  cluster(racks(1, 10, 2), {{.name = "a", .quota = 2}, {.name = "b", .quota = 18}});
  for (int i = 0; i < 8; ++i) (void)submit(2, 0);
  (void)submit(1, 0);
  decide_at(0);
  (void)submit(1, 1);
  decide_at(1);  // 18 of 20 GPUs: 90 %
  const JobIndex pair = submit(2, 1);
  decide_at(2);
  EXPECT_TRUE(runs(pair));
  const JobIndex third = submit(2, 1);  // all GPUs are used
  const ClusterPlan plan = decide_at(3);
  EXPECT_TRUE(runs_as(third, JobClass::kGuaranteed));
  ASSERT_THAT(plan.decisions, SizeIs(2));
  EXPECT_EQ(plan.decisions[0].action, Action::kStop);
  EXPECT_EQ(plan.decisions[0].job, 7U) << "of those with two GPUs the last started";
}

TEST_F(PhillyTest, BelowThatNobodyIsStoppedForAJobThatLacksLocality) {
  cluster(equal_nodes(2, 4), {{.name = "a", .quota = 2}, {.name = "b", .quota = 6}});
  const JobIndex first = submit(2, 0);
  (void)submit(3, 0);  // lent: on the other server
  decide_at(0);
  const JobIndex whole = submit(4, 1);
  EXPECT_THAT(decide_at(1).decisions, IsEmpty()) << "3 of 8 GPUs are free, no server is";
  EXPECT_FALSE(runs(whole));
  EXPECT_TRUE(runs(first));
}

TEST_F(PhillyTest, AStoppedJobKeepsItsPlaceInTheQueue) {
  cluster(equal_nodes(1, 4), {{.name = "a", .quota = 0}, {.name = "b", .quota = 4}});
  const JobIndex lent = submit(4, 0);
  decide_at(0);
  const JobIndex later = submit(4, 0);
  const JobIndex own = submit(4, 1);
  decide_at(1);
  EXPECT_FALSE(runs(lent));
  EXPECT_TRUE(runs(own));
  state_->end(own);
  decide_at(2);
  EXPECT_TRUE(runs(lent));
  EXPECT_FALSE(runs(later));
}

// Guaranteed jobs that wait come before auto jobs.

TEST_F(PhillyTest, ATenantsQuotaIsItsGuaranteedJobsBeforeItsAutoJobsAreCharged) {
  cluster(equal_nodes(1, 4), {{.name = "a", .quota = 2}});
  const JobIndex first = submit(2);
  const JobIndex lent = submit(2, 0, AskedClass::kAuto);
  decide_at(0);
  ASSERT_TRUE(runs_as(lent, JobClass::kOpportunistic));
  const JobIndex waits = submit(2);
  decide_at(1);
  state_->end(first);
  decide_at(2);
  EXPECT_TRUE(runs_as(waits, JobClass::kGuaranteed));
  EXPECT_TRUE(runs_as(lent, JobClass::kOpportunistic));
  state_->end(waits);
  decide_at(3);
  EXPECT_TRUE(runs_as(lent, JobClass::kGuaranteed));
}

TEST_F(PhillyTest, AnAutoJobIsNotChargedOnAServerThatAGuaranteedJobWaitsFor) {
  cluster(equal_nodes(1, 4), {{.name = "a", .quota = 2}, {.name = "b", .quota = 4}});
  const JobIndex first = submit(2, 0);
  const JobIndex lent = submit(1, 0, AskedClass::kAuto);
  decide_at(0);
  ASSERT_TRUE(runs_as(lent, JobClass::kOpportunistic));
  const JobIndex waits = submit(4, 1);
  decide_at(1);
  state_->end(first);
  decide_at(2);
  EXPECT_FALSE(runs(waits)) << "a quarter is used";
  EXPECT_TRUE(runs_as(lent, JobClass::kOpportunistic)) << "so it can be stopped";
}

TEST_F(PhillyTest, WhatAnAutoJobHoldsAGuaranteedJobMayTake) {
  cluster(racks(1, 2, 2), {{.name = "a", .quota = 4}, {.name = "b", .quota = 4}});
  (void)submit(1, 0);
  decide_at(0);
  const JobIndex holds = submit(4, 1, AskedClass::kAuto);
  decide_at(1);
  ASSERT_THAT(state_->job(holds).reserved, SizeIs(2));
  const JobIndex later = submit(2, 0);
  decide_at(2);
  EXPECT_TRUE(runs_as(later, JobClass::kGuaranteed));
  EXPECT_THAT(state_->job(holds).reserved, IsEmpty());
}

// Locality.

TEST_F(PhillyTest, RacksAreRankedByServersThatHaveEnoughAndServersByPacking) {
  cluster(racks(2, 3, 4));
  (void)submit(2);
  decide_at(0);  // on a server of rack 0: rack 1 has more servers with four free GPUs
  EXPECT_THAT(nodes_of(state_->job(0).placement), ElementsAre(0, 0));
  const JobIndex gang = submit(8);
  const JobIndex pair = submit(2);
  decide_at(1);
  EXPECT_EQ(racks_of(gang), std::set<std::int32_t>{1});
  EXPECT_THAT(nodes_of(state_->job(pair).placement), ElementsAre(0, 0))
      << "rack 0 has most servers with two free GPUs, and the fullest of them is packed";
}

TEST_F(PhillyTest, AnIncompleteGangHoldsServersUntilTheTimeoutAndThenBacksOff) {
  cluster(racks(1, 2, 2));
  const JobIndex blocker = submit(1);
  decide_at(0);
  const JobIndex gang = submit(4);
  EXPECT_EQ(decide_at(10).wake, 160);
  EXPECT_THAT(nodes_of(state_->job(gang).reserved), ElementsAre(1, 1));
  const JobIndex other = submit(2);
  decide_at(20);
  EXPECT_FALSE(runs(other)) << "the free server is held";
  decide_at(160);
  EXPECT_THAT(state_->job(gang).reserved, IsEmpty());
  EXPECT_TRUE(runs(other));
  state_->end(blocker);
  state_->end(other);
  EXPECT_EQ(decide_at(200).wake, 280) << "it backs off for two minutes, though all is free";
  decide_at(280);
  EXPECT_TRUE(runs(gang));
}

TEST_F(PhillyTest, LocalityIsRelaxedOneLevelAfterThreeTriesOfIt) {
  cluster(racks(2, 2, 2), {{.name = "a", .quota = 8}});
  for (int i = 0; i < 4; ++i) (void)submit(1);
  decide_at(0);
  state_->end(1);  // one GPU is used on each of three servers, all of the rack 1 are free but one
  state_->end(3);
  const JobIndex gang = submit(4);
  Time began = 0;
  for (Time now = 1; now < 3000 && !runs(gang); now += 1) {
    decide_at(now);
    began = now;
  }
  // Two servers of one rack, then any servers of one rack: three tries each; then across racks.
  EXPECT_EQ(began, 1 + 6 * (150 + 120));
  EXPECT_EQ(racks_of(gang), (std::set<std::int32_t>{0, 1}));
}

TEST_F(PhillyTest, AJobThatNoRackCouldHoldGoesAcrossRacksAtOnce) {
  cluster(racks(2, 2, 2));
  const JobIndex all = submit(8);
  decide_at(0);
  EXPECT_TRUE(runs(all));
}

TEST_F(PhillyTest, WhoWaitsForItsQuotaDoesNotRelaxMeanwhile) {
  cluster(racks(2, 1, 4), {{.name = "a", .quota = 4}, {.name = "b", .quota = 4}});
  const JobIndex own = submit(4, 0);
  const JobIndex other = submit(4, 1);
  decide_at(0);
  const JobIndex waits = submit(4, 0);
  for (Time now = 1; now < 5000; now += 100) {
    EXPECT_EQ(decide_at(now).wake, kNever) << "there is nothing to try";
  }
  state_->end(other);
  (void)submit(2, 1);
  decide_at(5000);
  state_->end(own);
  decide_at(5001);
  EXPECT_THAT(nodes_of(state_->job(waits).placement), Each(0U));
}

TEST_F(PhillyTest, TimeStandsStillForAJobWhileTooFewGpusAreIdle) {
  cluster(racks(2, 2, 2));
  std::vector<JobIndex> singles;
  for (int i = 0; i < 8; ++i) singles.push_back(submit(1));
  decide_at(0);
  const JobIndex pair = submit(2);
  state_->end(singles[0]);
  EXPECT_EQ(decide_at(1).wake, kNever);
  EXPECT_EQ(decide_at(4000).wake, kNever);
  state_->end(singles[2]);  // a GPU of each server of the first rack
  EXPECT_EQ(decide_at(4001).wake, 4151) << "the first try";
  EXPECT_FALSE(runs(pair));
}

TEST_F(PhillyTest, GangsThatCouldNotBothBeServedDoNotBothHold) {
  cluster(racks(1, 6, 1));
  for (int i = 0; i < 2; ++i) (void)submit(1);
  decide_at(0);
  const JobIndex first = submit(5);
  decide_at(1);
  state_->end(0);
  const JobIndex blocker = submit(1, 0);
  const JobIndex second = submit(5);
  decide_at(2);
  EXPECT_TRUE(runs(first)) << "it is before the others";
  EXPECT_THAT(state_->job(second).reserved, IsEmpty());
  (void)blocker;
  state_->end(first);
  const JobIndex third = submit(6);
  decide_at(3);  // the blocker starts: four are free for the second, which lacks one
  EXPECT_THAT(state_->job(second).reserved, SizeIs(4));
  EXPECT_THAT(state_->job(third).reserved, IsEmpty());
  decide_at(153);  // the second's try is over
  EXPECT_THAT(state_->job(second).reserved, IsEmpty());
  EXPECT_THAT(state_->job(third).reserved, SizeIs(4));
}

TEST_F(PhillyTest, RefusesOptionsThatMakeNoSense) {
  EXPECT_THROW((void)make_policy("philly", {{"timeout", "0"}}), std::invalid_argument);
  EXPECT_THROW((void)make_policy("philly", {{"tries", "0"}}), std::invalid_argument);
}

}  // namespace
}  // namespace commensal::policies::philly_test

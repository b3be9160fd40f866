// SPDX-License-Identifier: Apache-2.0
// Seconds of waiting for a quota, and though it had room.
#include "coordinator/engines/simulator/wait_causes.h"

#include <gtest/gtest.h>

#include "coordinator/engines/simulator/metrics.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::simulator::wait_causes_test {
namespace {

using policies::ClusterState;
using policies::JobIndex;

/// Four GPUs on two servers, a tenant that may have all of them.
class WaitCausesTest : public ::testing::Test {
 protected:
  JobIndex submit(std::int32_t gpus,
                  policies::AskedClass asked = policies::AskedClass::kGuaranteed) {
    policies::ClusterJob job = policies::job_of(gpus, 1000, now_);
    job.asked = asked;
    outcome_.jobs.push_back({.submit = now_, .gpus = gpus});
    return state_.arrive(job);
  }
  void decide_at(Time now) {
    now_ = now;
    state_.commit(state_.decide(*policy_, placer_, {}, now));
    causes_.observe(state_, now);
  }
  [[nodiscard]] std::optional<double> for_quota(JobIndex job) {
    causes_.write(outcome_);
    return outcome_.jobs[job].waited_for_quota;
  }

  ClusterState state_{policies::Cluster(policies::equal_nodes(2, 2)),
                      {{.name = "tenant", .quota = 4}}};
  std::unique_ptr<policies::ClusterPolicy> policy_ = policies::make_policy("philly", {});
  policies::CountedPlacer placer_;
  WaitCauses causes_;
  Outcome outcome_;
  Time now_ = 0;
};

TEST_F(WaitCausesTest, TheQuotaIsTheCauseWhileItHasNoRoomAndFragmentationAfterwards) {
  const JobIndex first = submit(1);
  const JobIndex second = submit(1);
  const JobIndex third = submit(1);  // on the second server
  const JobIndex pair = submit(2);
  decide_at(0);
  state_.end(first);
  decide_at(110);  // the quota has room, and a GPU of each server is free: no place
  EXPECT_EQ(state_.job(pair).phase, policies::JobPhase::kWaiting);
  state_.end(second);
  decide_at(140);
  EXPECT_EQ(state_.job(pair).phase, policies::JobPhase::kRunning);
  outcome_.jobs[pair].waited = 140;
  EXPECT_EQ(for_quota(pair), 110);
  EXPECT_EQ(for_quota(third), 0);
  const auto metrics = metrics_of(outcome_);
  EXPECT_DOUBLE_EQ(metrics.at("avg_queue_fair_share"), 110 / 4.0);
  EXPECT_DOUBLE_EQ(metrics.at("avg_queue_fragmentation"), 30 / 4.0);
}

TEST_F(WaitCausesTest, WhoAsksForNoQuotaWaitsForAShare) {
  for (int i = 0; i < 3; ++i) (void)submit(1);
  (void)submit(1, policies::AskedClass::kOpportunistic);
  const JobIndex waits = submit(1, policies::AskedClass::kOpportunistic);
  decide_at(0);
  state_.end(0);
  decide_at(50);
  outcome_.jobs[waits].waited = 50;
  EXPECT_EQ(for_quota(waits), 50);
}

TEST_F(WaitCausesTest, ASecondWaitAfterAStopCounts) {
  state_ = ClusterState(policies::Cluster(policies::equal_nodes(1, 2)),
                        {{.name = "few", .quota = 0}, {.name = "other", .quota = 2}});
  const JobIndex lent = submit(2);
  decide_at(0);
  (void)submit(2);
  state_.jobs()[1].tenant = 1;
  decide_at(10);  // it is stopped for the other's
  EXPECT_EQ(state_.job(lent).phase, policies::JobPhase::kWaiting);
  state_.end(1);
  decide_at(35);
  outcome_.jobs[lent].waited = 25;
  EXPECT_EQ(for_quota(lent), 25);
}

TEST_F(WaitCausesTest, WithoutQuotasNothingIsSaid) {
  state_ = ClusterState(policies::Cluster(policies::equal_nodes(1, 1)));
  (void)submit(1);
  const JobIndex waits = submit(1);
  decide_at(0);
  decide_at(10);
  EXPECT_FALSE(for_quota(waits).has_value());
  EXPECT_FALSE(metrics_of(outcome_).contains("avg_queue_fair_share"));
}

}  // namespace
}  // namespace commensal::simulator::wait_causes_test

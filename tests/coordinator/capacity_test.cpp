// SPDX-License-Identifier: Apache-2.0
// YARN's capacity scheduler, each rule on a small cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/registry.h"

namespace commensal::policies::capacity_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CapacityTest : public ::testing::Test {
 protected:
  JobIndex submit(std::int32_t gpus, TenantIndex tenant) {
    ClusterJob job;
    job.gpus = job.min_gpus = job.max_gpus = gpus;
    job.tenant = tenant;
    return state_.arrive(job);
  }

  /// Starts what the policy says; returns who starts, in its order.
  std::vector<JobIndex> decide() {
    const ClusterPlan plan = state_.decide(*policy_, placer_, {}, now_++);
    state_.commit(plan);
    std::vector<JobIndex> started;
    for (const Decision& decision : plan.decisions) {
      EXPECT_EQ(decision.action, Action::kStart);
      started.push_back(decision.job);
    }
    return started;
  }

  ClusterState state_{Cluster(equal_nodes(2, 4)),
                      {{.name = "a", .quota = 6}, {.name = "b", .quota = 4}}};
  std::unique_ptr<ClusterPolicy> policy_ = make_policy("capacity", {});
  FirstNodePlacer placer_;
  Time now_ = 0;
};

TEST_F(CapacityTest, TheTenantWithLeastOfItsQuotaInUseIsServedNext) {
  const JobIndex a1 = submit(3, 0);
  const JobIndex a2 = submit(1, 0);
  const JobIndex b1 = submit(1, 1);
  const JobIndex b2 = submit(1, 1);
  // a has 3 of 6 then, b 0 and 1 of 4, and at equal parts who came first is first.
  EXPECT_THAT(decide(), ElementsAre(a1, b1, b2, a2));
}

TEST_F(CapacityTest, AQuotaBindsThoughGpusAreIdleAndStopsItsOwnQueueOnly) {
  const JobIndex b1 = submit(3, 1);
  const JobIndex b2 = submit(2, 1);  // 5 of 4
  const JobIndex b3 = submit(1, 1);  // would fit, behind one that does not
  const JobIndex a1 = submit(2, 0);
  EXPECT_THAT(decide(), ElementsAre(b1, a1)) << "neither uses any: who came first";
  state_.end(b1);
  EXPECT_THAT(decide(), ElementsAre(b2, b3));
}

TEST_F(CapacityTest, AGangWaitsForAllItsGpusAndNobodyIsStoppedForIt) {
  const JobIndex a1 = submit(2, 0);
  EXPECT_THAT(decide(), ElementsAre(a1));
  const JobIndex b1 = submit(4, 1);
  EXPECT_THAT(decide(), ElementsAre(b1)) << "on the other node";
  const JobIndex a2 = submit(3, 0);  // within the quota; two GPUs are free
  EXPECT_THAT(decide(), IsEmpty());
  state_.end(a1);
  EXPECT_THAT(decide(), ElementsAre(a2));
}

}  // namespace
}  // namespace commensal::policies::capacity_test

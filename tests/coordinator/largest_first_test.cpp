// SPDX-License-Identifier: Apache-2.0
// The worked example of docs/policies.md is a policy.
#include <gtest/gtest.h>

#include "coordinator/policies/makers.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::policies {

std::unique_ptr<ClusterPolicy> make_largest_first(Options& options);

}  // namespace commensal::policies

namespace commensal::policies::largest_first_test {
namespace {

TEST(LargestFirstTest, TheLargestThatFitsStartsFirstAndTheOthersWait) {
  Options none({});
  const auto policy = make_largest_first(none);
  const CountedPlacer placer;
  ClusterState state{Cluster(equal_nodes(1, 4))};
  for (const std::int32_t gpus : {1, 3, 2, 1}) state.arrive(job_of(gpus, 10));
  const ClusterPlan plan = state.decide(*policy, placer, {}, 0);
  ASSERT_EQ(plan.decisions.size(), 2U);
  EXPECT_EQ(plan.decisions[0].job, 1U);
  EXPECT_EQ(plan.decisions[1].job, 0U);
  EXPECT_EQ(to_string(plan.decisions[0].reason), "of those that fit it asks for most GPUs: 3");
  state.commit(plan);
  EXPECT_TRUE(state.decide(*policy, placer, {}, 1).decisions.empty());
  state.end(1);
  EXPECT_EQ(state.decide(*policy, placer, {}, 10).decisions[0].job, 2U);
}

}  // namespace
}  // namespace commensal::policies::largest_first_test

// SPDX-License-Identifier: Apache-2.0
// Quasi-shortest-service-first, as Helios' artifact has it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "coordinator/policies/registry.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::policies::qssf_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class QssfTest : public ::testing::Test {
 protected:
  /// Decides, and returns who starts.
  std::vector<JobIndex> starts(Time now) {
    plan_ = state_.decide(*policy_, placer_, {}, now);
    state_.commit(plan_);
    std::vector<JobIndex> started;
    for (const Decision& decision : plan_.decisions) {
      EXPECT_EQ(decision.action, Action::kStart);
      started.push_back(decision.job);
    }
    return started;
  }

  std::unique_ptr<ClusterPolicy> policy_ = make_policy("qssf", {});
  CountedPlacer placer_;
  ClusterState state_{Cluster(equal_nodes(1, 4))};
  ClusterPlan plan_;
};

TEST_F(QssfTest, WhoFindsTheQueueEmptyIsServedByGpus) {
  state_.arrive(job_of(4, 10));
  state_.arrive(job_of(2, 10));
  state_.arrive(job_of(1, 9999));
  state_.arrive(job_of(1, 1));
  EXPECT_THAT(starts(0), ElementsAre(2, 3, 1));  // however long they are predicted to be
  EXPECT_THAT(to_string(plan_.decisions[0].reason), HasSubstr("fewest GPUs: 1"));
}

TEST_F(QssfTest, InAQueueLeastPredictedGpuTimeComesFirst) {
  state_.arrive(job_of(4, 100));
  ASSERT_THAT(starts(0), ElementsAre(0));
  state_.arrive(job_of(2, 50));
  ASSERT_THAT(starts(1), IsEmpty());
  state_.arrive(job_of(4, 20));  // 80 GPU-s: less than the 100 of job 1
  state_.arrive(job_of(1, 90));  // 90 GPU-s: longer than job 1, but less service
  ASSERT_THAT(starts(2), IsEmpty());
  state_.end(0);
  EXPECT_THAT(starts(100), ElementsAre(2));
  EXPECT_THAT(to_string(plan_.decisions[0].reason), HasSubstr("80 GPU-s"));
  state_.end(2);
  EXPECT_THAT(starts(120), ElementsAre(3, 1));
}

TEST_F(QssfTest, TheFirstThatDoesNotFitStopsTheQueue) {
  state_.arrive(job_of(3, 100));
  ASSERT_THAT(starts(0), ElementsAre(0));
  state_.arrive(job_of(2, 10));
  ASSERT_THAT(starts(1), IsEmpty());
  state_.arrive(job_of(1, 500));  // would fit
  EXPECT_THAT(starts(2), IsEmpty());
}

TEST_F(QssfTest, WhoIsLeftOfAnEmptyQueueIsEstimatedASecondLater) {
  state_.arrive(job_of(3, 100));
  ASSERT_THAT(starts(0), ElementsAre(0));
  state_.arrive(job_of(2, 1000));
  state_.arrive(job_of(3, 10));
  ASSERT_THAT(starts(5), IsEmpty());  // by GPUs job 1 is first
  EXPECT_EQ(plan_.wake, 6);
  ASSERT_THAT(starts(6), IsEmpty());  // by GPU-time job 2 is
  EXPECT_EQ(plan_.wake, kNever);
  state_.end(0);
  EXPECT_THAT(starts(100), ElementsAre(2));
}

TEST_F(QssfTest, APriorityThatWasGivenStays) {
  state_.arrive(job_of(4, 100));
  ASSERT_THAT(starts(0), ElementsAre(0));
  state_.arrive(job_of(4, 10));
  state_.arrive(job_of(4, 20));
  ASSERT_THAT(starts(1), IsEmpty());
  ASSERT_THAT(starts(2), IsEmpty());
  state_.jobs()[1].duration = 1000;
  state_.end(0);
  EXPECT_THAT(starts(100), ElementsAre(1));
}

TEST_F(QssfTest, EqualServiceComesByGpusAndThenInOrder) {
  state_.arrive(job_of(4, 100));
  ASSERT_THAT(starts(0), ElementsAre(0));
  state_.arrive(job_of(2, 10));
  ASSERT_THAT(starts(1), IsEmpty());
  state_.arrive(job_of(1, 20));
  state_.arrive(job_of(1, 20));
  ASSERT_THAT(starts(2), IsEmpty());
  state_.end(0);
  EXPECT_THAT(starts(100), ElementsAre(2, 3, 1));
}

TEST_F(QssfTest, IsShownItsOwnEstimatesUnlessAskedOtherwise) {
  EXPECT_EQ(policy_->predictor(), "qssf");
  EXPECT_EQ(make_policy("sjf", {})->predictor(), "truth");
}

}  // namespace
}  // namespace commensal::policies::qssf_test

// SPDX-License-Identifier: Apache-2.0
// Deficits over rounds, pairs on the same GPUs, and what the policies gavel and gandiva make of
// them.
#include "coordinator/policies/round_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/registry.h"

namespace commensal::policies::round_book_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// One model that is twice as fast on the fast type; two of it lose a quarter each on one GPU.
class RoundsTest : public ::testing::Test {
 protected:
  RoundsTest() {
    table_.set_alone(0, 0, 2);
    table_.set_alone(1, 0, 1);
    table_.set_together(0, 0, 0, {1.5, 1.5});
    table_.set_together(1, 0, 0, {0.75, 0.75});
  }

  void use(const std::string& policy, std::map<std::string, std::string> options = {}) {
    policy_ = make_policy(policy, options);
  }
  void arrive(std::int32_t gpus = 1) {
    ClusterJob job;
    job.gpus = job.min_gpus = job.max_gpus = gpus;
    job.duration = job.remaining = 1e6;
    state_.arrive(job);
  }
  /// A round of 360 s; returns how many seconds of it each job has run.
  void round() {
    state_.commit(
        state_.decide(*policy_, placer_, {.scaling = nullptr, .throughputs = &table_}, now_));
    for (const JobIndex job : state_.running()) state_.jobs()[job].attained += 360;
    now_ += 360;
  }
  [[nodiscard]] double ran(JobIndex job) const { return state_.job(job).attained; }

  ThroughputTable table_{{"fast", "slow"}, {"model"}};
  Cluster cluster_{
      {{.name = "a", .gpu_type = "fast", .gpus = 1}, {.name = "b", .gpu_type = "slow", .gpus = 1}}};
  ClusterState state_{cluster_};
  CountedPlacer placer_;
  std::unique_ptr<ClusterPolicy> policy_;
  Time now_ = 0;
};

TEST_F(RoundsTest, EqualSharesBecomeEqualTimesOverRounds) {
  use("gavel", {{"objective", "isolated"}});
  for (int job = 0; job < 4; ++job) arrive();
  for (int i = 0; i < 40; ++i) round();
  for (JobIndex job = 0; job < 4; ++job) EXPECT_NEAR(ran(job), 40 * 360 / 2, 2 * 360) << job;
}

TEST_F(RoundsTest, ThroughputKeepsOneJobOnTheFastType) {
  use("gavel", {{"objective", "max throughput"}});
  arrive();
  for (int i = 0; i < 5; ++i) round();
  EXPECT_EQ(ran(0), 5 * 360);
  EXPECT_EQ(state_.job(0).placement, (Placement{{.node = 0, .gpu = 0}}));
}

TEST_F(RoundsTest, SharesAreNotComputedAnewBeforeTheirTime) {
  use("gavel", {{"objective", "isolated"}});
  arrive();
  round();
  round();  // at 360: from now on the last reset is not at zero
  arrive();
  round();  // at 720: reset
  arrive();
  round();  // at 1080: too early, the third has no share
  EXPECT_EQ(ran(2), 0);
  while (now_ < 720 + 1920) round();
  for (int i = 0; i < 6; ++i) round();
  EXPECT_GT(ran(2), 0);
}

TEST_F(RoundsTest, FirstComeFirstServedKeepsOthersWaiting) {
  use("fifo", {{"types", "aware"}});
  for (int job = 0; job < 3; ++job) arrive();
  for (int i = 0; i < 3; ++i) round();
  EXPECT_EQ(ran(0), 3 * 360);
  EXPECT_EQ(ran(1), 3 * 360);
  EXPECT_EQ(ran(2), 0);
}

TEST_F(RoundsTest, GandivaPairsJobsOnlyUnderOverload) {
  use("gandiva");
  arrive();
  arrive();
  round();
  EXPECT_EQ(state_.job(0).placement.front().milli, kWholeGpu);
  arrive();
  arrive();
  round();
  EXPECT_EQ(state_.running().size(), 4U);
  for (const JobIndex job : state_.running()) {
    EXPECT_EQ(state_.job(job).placement.front().milli, kWholeGpu / 2);
  }
}

TEST_F(RoundsTest, GandivaPartsPairsThatAreSlowerThanOneAlone) {
  table_.set_together(0, 0, 0, {0.4, 0.4});
  table_.set_together(1, 0, 0, {0.2, 0.2});
  use("gandiva");
  for (int job = 0; job < 3; ++job) arrive();
  round();
  const Notes before = state_.notes();
  arrive();
  round();
  EXPECT_NE(state_.notes().lists[4], before.lists[4]);  // it drew again: no pair was kept
}

TEST_F(RoundsTest, GandivaWithoutPackingSharesNoGpu) {
  use("gandiva", {{"packing", "off"}});
  for (int job = 0; job < 4; ++job) arrive();
  for (int i = 0; i < 20; ++i) {
    round();
    EXPECT_EQ(state_.running().size(), 2U);
  }
  for (JobIndex job = 0; job < 4; ++job) EXPECT_GT(ran(job), 0);
}

TEST_F(RoundsTest, EqualNotesGiveEqualPlans) {
  use("gandiva", {{"seed", "7"}});
  for (int job = 0; job < 4; ++job) arrive();
  ClusterState other = state_;
  const JobModels models{.scaling = nullptr, .throughputs = &table_};
  EXPECT_EQ(state_.decide(*policy_, placer_, models, 0),
            other.decide(*policy_, placer_, models, 0));
  EXPECT_EQ(state_.notes(), other.notes());
}

TEST_F(RoundsTest, WithoutThroughputsItSaysSo) {
  use("gavel");
  arrive();
  EXPECT_THAT([&] { (void)state_.decide(*policy_, placer_, {}, 0); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("needs throughputs")));
}

TEST_F(RoundsTest, ATypeWithoutThroughputsIsNamed) {
  EXPECT_THAT(
      [&] {
        (void)table_.types_of({"fast", "h100"});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("\"h100\"")));
}

TEST_F(RoundsTest, AnUnknownObjectiveIsNamed) {
  EXPECT_THAT(
      [] {
        (void)make_policy("gavel", {{"objective", "best"}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("best")));
}

}  // namespace
}  // namespace commensal::policies::round_book_test

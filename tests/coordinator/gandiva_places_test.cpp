// SPDX-License-Identifier: Apache-2.0
// Gandiva's choice of servers, migration and grow-shrink, on a few servers of one type.
#include "coordinator/policies/gandiva_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::policies::gandiva_places_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// One model; two of it on the same GPUs are no slower, or (for option packing) do not fit.
class GandivaPlacesTest : public ::testing::Test {
 protected:
  GandivaPlacesTest() { table_.set_alone(0, 0, 1); }

  void cluster(std::int32_t nodes, std::int32_t gpus_per_node) {
    state_ = ClusterState(Cluster(equal_nodes(nodes, gpus_per_node)));
  }
  JobIndex arrive(std::int32_t gpus, std::int32_t most = 0) {
    ClusterJob job = job_of(gpus, 1e6);
    job.max_gpus = std::max(gpus, most);
    return state_.arrive(job);
  }
  /// A round of 360 s, in which shares are computed anew if somebody came or left.
  ClusterPlan round() {
    ClusterPlan plan =
        state_.decide(*policy_, placer_, {.scaling = nullptr, .throughputs = &table_}, now_);
    state_.commit(plan);
    for (const JobIndex job : state_.running()) state_.jobs()[job].attained += 360;
    now_ += 1920;
    return plan;
  }
  void use(std::map<std::string, std::string> options) {
    policy_ = make_policy("gandiva", options);
  }
  [[nodiscard]] std::vector<NodeIndex> nodes_of(JobIndex job) const {
    std::vector<NodeIndex> nodes;
    for (const GpuPart& part : state_.job(job).placement) nodes.push_back(part.node);
    return nodes;
  }

  ThroughputTable table_{{"gpu"}, {"model"}};
  ClusterState state_{Cluster(equal_nodes(1, 1))};
  CountedPlacer placer_;
  std::unique_ptr<ClusterPolicy> policy_ = make_policy("gandiva", {});
  Time now_ = 1;
};

TEST_F(GandivaPlacesTest, JobsOfOneSizeShareServersAndOthersGetAnUnusedOne) {
  cluster(3, 4);
  const JobIndex pair = arrive(2);
  round();
  const JobIndex single = arrive(1);
  const JobIndex other_pair = arrive(2);
  round();
  EXPECT_THAT(nodes_of(pair), ElementsAre(0, 0));
  EXPECT_THAT(nodes_of(single), ElementsAre(1));
  EXPECT_THAT(nodes_of(other_pair), ElementsAre(0, 0));
  const JobIndex third_pair = arrive(2);
  round();
  EXPECT_THAT(nodes_of(third_pair), ElementsAre(2, 2));
  const JobIndex large = arrive(2);
  const JobIndex last = arrive(3);
  round();
  EXPECT_THAT(nodes_of(large), ElementsAre(2, 2));
  EXPECT_THAT(nodes_of(last), ElementsAre(1, 1, 1))
      << "none of its size is left: any that holds it";
}

TEST_F(GandivaPlacesTest, ASpreadJobIsGatheredWhenSomebodyHasLeft) {
  cluster(2, 4);
  const JobIndex left = arrive(3);
  const JobIndex right = arrive(3);
  const JobIndex spread = arrive(2);
  round();
  EXPECT_THAT(nodes_of(spread), ElementsAre(0, 1));
  EXPECT_THAT(round().decisions, IsEmpty()) << "nobody has left";
  state_.end(right);
  const ClusterPlan plan = round();
  EXPECT_THAT(nodes_of(spread), ElementsAre(1, 1));
  EXPECT_EQ(to_string(plan.decisions.at(0).reason), "migrates: one server holds it again");
  EXPECT_THAT(nodes_of(left), ElementsAre(0, 0, 0));
}

TEST_F(GandivaPlacesTest, TheUsedServerWithMostFreeGpusIsEmptied) {
  cluster(3, 4);
  std::vector<JobIndex> jobs;
  for (int i = 0; i < 8; ++i) jobs.push_back(arrive(1));
  round();
  state_.end(jobs[0]);
  round();
  std::map<NodeIndex, int> on;
  for (const JobIndex job : state_.running()) ++on[state_.job(job).placement[0].node];
  EXPECT_EQ(on.size(), 2U);
  // Now one server has lost most: its last job joins the others.
  std::vector<JobIndex> of_one;
  for (const JobIndex job : state_.running()) {
    if (nodes_of(job)[0] == on.begin()->first) of_one.push_back(job);
  }
  for (std::size_t i = 0; i + 1 < of_one.size(); ++i) state_.end(of_one[i]);
  const JobIndex other = state_.running().front() == of_one.back() ? state_.running().back()
                                                                   : state_.running().front();
  state_.end(other);
  round();
  on.clear();
  for (const JobIndex job : state_.running()) ++on[state_.job(job).placement[0].node];
  EXPECT_THAT(on, SizeIs(1));
}

TEST_F(GandivaPlacesTest, MigrationCanBeLeftOut) {
  use({{"migration", "off"}});
  cluster(2, 4);
  (void)arrive(3);
  const JobIndex right = arrive(3);
  const JobIndex spread = arrive(2);
  round();
  state_.end(right);
  EXPECT_THAT(round().decisions, IsEmpty());
  EXPECT_THAT(nodes_of(spread), ElementsAre(0, 1));
}

TEST_F(GandivaPlacesTest, JobsThatTakeMoreGrowIntoIdleGpusOfTheirServerAndGiveThemBack) {
  cluster(2, 4);
  const JobIndex fixed = arrive(1);
  const JobIndex elastic = arrive(1, 8);
  round();
  EXPECT_THAT(nodes_of(fixed), ElementsAre(0));
  EXPECT_THAT(nodes_of(elastic), ElementsAre(0, 0, 0)) << "of its own server only";
  EXPECT_THAT(round().decisions, IsEmpty()) << "what it has it keeps";
  const JobIndex late = arrive(1);
  const JobIndex whole = arrive(4);
  round();
  EXPECT_THAT(nodes_of(whole), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(nodes_of(late), ElementsAre(0));
  EXPECT_THAT(nodes_of(elastic), ElementsAre(0, 0));
}

TEST_F(GandivaPlacesTest, GrowingCanBeLeftOutAndNobodyGrowsWhoDoesNotTakeMore) {
  cluster(1, 4);
  const JobIndex fixed = arrive(1);
  round();
  EXPECT_THAT(nodes_of(fixed), ElementsAre(0));
  use({{"grow-shrink", "off"}});
  const JobIndex elastic = arrive(1, 4);
  round();
  EXPECT_THAT(nodes_of(elastic), ElementsAre(0));
}

TEST_F(GandivaPlacesTest, APairStaysTogetherWhereItIsMoved) {
  table_.set_together(0, 0, 0, {0.9, 0.9});
  cluster(1, 2);
  for (int i = 0; i < 3; ++i) (void)arrive(1);
  for (int i = 0; i < 6; ++i) round();
  std::map<std::uint16_t, int> on;
  for (const JobIndex job : state_.running()) ++on[state_.job(job).placement[0].gpu];
  EXPECT_EQ(state_.running().size(), 3U);
  EXPECT_THAT(on, SizeIs(2));
}

}  // namespace
}  // namespace commensal::policies::gandiva_places_test

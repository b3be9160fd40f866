// SPDX-License-Identifier: Apache-2.0
// The rules of the packers, each on a small cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <stdexcept>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/registry.h"
#include "coordinator/policies/typical_jobs.h"

namespace commensal::policies::packing_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

NodeSpec node(std::int32_t gpus, std::int64_t cores, const std::string& type = "t4") {
  NodeSpec spec;
  spec.gpus = gpus;
  spec.cpu_milli = cores * 1000;
  spec.memory_mib = 1000;
  spec.gpu_type = type;
  return spec;
}

ClusterJob asks(std::int32_t gpus, std::int64_t cores = 1, std::int32_t gpu_milli = kWholeGpu) {
  ClusterJob job;
  job.gpus = job.min_gpus = job.max_gpus = gpus;
  job.gpu_milli = gpus == 0 ? 0 : gpu_milli;
  job.cpu_milli = cores * 1000;
  return job;
}
ClusterJob asks_part(std::int32_t gpu_milli, std::int64_t cores = 1) {
  return asks(1, cores, gpu_milli);
}

class PackingTest : public ::testing::Test {
 protected:
  void policy(const std::string& name, const std::map<std::string, std::string>& options = {}) {
    policy_ = make_policy(name, options);
  }
  void cluster(std::vector<NodeSpec> nodes, std::vector<Tenant> tenants = {}) {
    state_.emplace(Cluster(std::move(nodes)), std::move(tenants));
  }

  ClusterPlan decide() {
    ClusterPlan plan = state_->decide(*policy_, placer_, {.typical = typical_}, now_++);
    state_->commit(plan);
    return plan;
  }
  /// Where a job goes that arrives now; empty: it waits.
  Placement place(ClusterJob job) {
    const JobIndex index = state_->arrive(std::move(job));
    (void)decide();
    last_ = index;
    return state_->job(index).placement;
  }

  std::optional<ClusterState> state_;
  std::unique_ptr<ClusterPolicy> policy_ = make_policy("best-fit", {});
  CountedPlacer placer_;
  const TypicalJobs* typical_ = nullptr;
  JobIndex last_ = kNoJob;
  Time now_ = 0;
};

Placement at(NodeIndex node, std::uint16_t gpu, std::uint16_t milli = kWholeGpu) {
  return {{node, gpu, milli}};
}

TEST_F(PackingTest, PartsShareTheGpuWithTheLeastLeft) {
  cluster({node(2, 8)});
  EXPECT_EQ(place(asks_part(300)), at(0, 0, 300));
  EXPECT_EQ(place(asks_part(800)), at(0, 1, 800));
  EXPECT_EQ(place(asks_part(200)), at(0, 1, 200));
  EXPECT_EQ(place(asks_part(700)), at(0, 0, 700));
  EXPECT_THAT(place(asks_part(1)), IsEmpty());
}

TEST_F(PackingTest, ManyPartsOfOneGpuAreNoWholeOne) {
  cluster({node(2, 8)});
  (void)place(asks_part(100));
  EXPECT_EQ(place(asks(1)), at(0, 1));
  EXPECT_THAT(place(asks(1)), IsEmpty());
}

TEST_F(PackingTest, CoresMemoryAndTypesAreKept) {
  cluster({node(4, 4, "t4"), node(4, 8, "v100")});
  ClusterJob on_v100 = asks(1, 1);
  on_v100.gpu_types = state_->cluster().type_bits({"v100", "a100"});
  EXPECT_EQ(place(on_v100), at(1, 0));
  EXPECT_EQ(place(asks(1, 6)), at(1, 1));
  ClusterJob much_memory = asks(0, 0);
  much_memory.memory_mib = 1001;
  EXPECT_THAT(place(much_memory), IsEmpty());
  EXPECT_EQ(place(asks(1, 4)), at(0, 0));
  EXPECT_THAT(place(asks(1, 2)), IsEmpty());
}

TEST_F(PackingTest, JobsWithoutGpusHoldCoresOnly) {
  cluster({node(1, 4)});
  EXPECT_EQ(place(asks(0, 3)), at(0, kHostOnly, 0));
  EXPECT_EQ(state_->job(last_).held(), 0);
  EXPECT_EQ(state_->cluster().free_gpus(), 1);
  EXPECT_EQ(state_->cluster().free_cpu(0), 1000);
}

TEST_F(PackingTest, WhoDoesNotFitIsPassedAndComesFirstOnceSomethingEnds) {
  cluster({node(2, 8)});
  (void)place(asks(1));
  const JobIndex running = last_;
  EXPECT_THAT(place(asks(2)), IsEmpty());
  const JobIndex large = last_;
  EXPECT_THAT(place(asks(1)), SizeIs(1));
  const JobIndex small = last_;
  state_->end(running);
  EXPECT_THAT(decide().decisions, IsEmpty());
  state_->end(small);
  EXPECT_THAT(decide().decisions, SizeIs(1));
  EXPECT_EQ(state_->job(large).phase, JobPhase::kRunning);
}

TEST_F(PackingTest, QuotasAreKept) {
  cluster({node(4, 8)}, {{.name = "a", .quota = 1}});
  EXPECT_THAT(place(asks_part(600)), SizeIs(1));
  EXPECT_THAT(place(asks_part(500)), IsEmpty());
  EXPECT_THAT(place(asks_part(400)), SizeIs(1));
}

TEST_F(PackingTest, JobsLargerThanANodeTakeFreeNodes) {
  cluster({node(2, 8), node(2, 8), node(2, 8)});
  (void)place(asks_part(500));
  const Placement placement = place(asks(3));
  EXPECT_EQ(placement, (Placement{{1, 0}, {1, 1}, {2, 0}}));
}

TEST_F(PackingTest, BestFitLeavesLeastBehind) {
  cluster({node(8, 64), node(2, 16), node(4, 64)});
  EXPECT_EQ(place(asks(1)), at(1, 0));
  EXPECT_EQ(place(asks(2)), (Placement{{2, 0}, {2, 1}}));
}

TEST_F(PackingTest, DotProductTakesWhereFreeAndAskedAreLeastAlike) {
  policy("dot-product");
  cluster({node(8, 16), node(2, 64)});
  // Many cores asked: the node with few; many GPUs asked would be the other way round.
  EXPECT_EQ(place(asks_part(100, 10)), at(0, 0, 100));
  EXPECT_EQ(place(asks(2, 1)), (Placement{{1, 0}, {1, 1}}));
}

TEST_F(PackingTest, GpuPackingOpensNodesLastAndGpusBefore) {
  policy("gpu-packing");
  cluster({node(2, 64), node(2, 64), node(8, 64)});
  EXPECT_EQ(place(asks_part(500)), at(0, 0, 500));
  EXPECT_EQ(place(asks_part(600)), at(0, 1, 600));  // a free GPU of a node in use
  EXPECT_EQ(place(asks_part(300)), at(0, 1, 300));  // the fuller of those in use
  EXPECT_EQ(place(asks(1)), at(1, 0));              // the smaller of two free nodes
}

TEST_F(PackingTest, GpuClusteringKeepsKindsApart) {
  policy("gpu-clustering");
  cluster({node(2, 64), node(2, 64), node(2, 64)});
  EXPECT_EQ(place(asks_part(500)), at(0, 0, 500));
  EXPECT_EQ(place(asks(1)), at(1, 0));              // a free node before one of another kind
  EXPECT_EQ(place(asks_part(700)), at(0, 1, 700));  // its own kind before a free node
  EXPECT_EQ(place(asks(1)), at(1, 1));
  EXPECT_EQ(place(asks_part(900)), at(2, 0, 900));
  EXPECT_EQ(place(asks(1)), at(2, 1));  // only others are left
  // Who has ended is of no kind: node 1 is free again, and node 2 has others, too.
  state_->end(1);
  state_->end(3);
  EXPECT_EQ(place(asks(2)), (Placement{{1, 0}, {1, 1}}));
}

TEST_F(PackingTest, RandomFollowsFromTheSeedAndReachesEverything) {
  std::set<std::pair<NodeIndex, std::uint16_t>> seen;
  for (int seed = 0; seed < 60; ++seed) {
    policy("random", {{"seed", std::to_string(seed)}});
    cluster({node(2, 64), node(1, 64)});
    const Placement first = place(asks_part(100));
    cluster({node(2, 64), node(1, 64)});
    EXPECT_EQ(place(asks_part(100)), first);
    seen.emplace(first.front().node, first.front().gpu);
  }
  EXPECT_THAT(seen, ElementsAre(std::pair(0, 0), std::pair(0, 1), std::pair(1, 0)));
}

TEST_F(PackingTest, RandomNeedsAWholeSeed) {
  EXPECT_THROW(policy("random", {{"seed", "-1"}}), std::invalid_argument);
  EXPECT_THROW(policy("random", {{"seed", "0.5"}}), std::invalid_argument);
}

TEST(TypicalJobsTest, CountsAsFragmentWhatAJobCannotUse) {
  const TypicalJobs typical({{{.cpu_milli = 1000, .gpu_milli = 500, .gpus = 1}, 2},
                             {{.cpu_milli = 9000, .gpu_milli = 1000, .gpus = 1}, 1},
                             {{.cpu_milli = 0, .gpu_milli = 1000, .gpus = 2}, 1},
                             {{.cpu_milli = 0, .gpu_milli = 500, .gpus = 1, .gpu_types = 2}, 1},
                             {{.cpu_milli = 1000}, 1}});
  ASSERT_EQ(typical.weight(), 6);
  const std::vector<std::int32_t> left{1000, 400};
  TypicalJobs::Weights weights;
  typical.weigh(0, 4000, weights);
  // Two find 400 of no use; all of 1,400 is of none to: too few cores, one GPU only, another type,
  // no GPU asked for.
  EXPECT_EQ(typical.fragment(left, weights), 2 * 400 + 4 * 1400);
  typical.weigh(1, 9000, weights);
  EXPECT_EQ(typical.fragment(left, weights), 4 * 400 + 2 * 1400);
  typical.weigh(0, 999, weights);
  EXPECT_EQ(typical.fragment(left, weights), 6 * 1400);
}

TEST(TypicalJobsTest, LeavesOutTheRarestPartInTwenty) {
  std::vector<std::pair<TypicalRequest, std::int64_t>> requests;
  requests.emplace_back(TypicalRequest{.gpu_milli = 1000, .gpus = 1}, 95);
  for (std::int64_t i = 1; i <= 5; ++i) {
    requests.emplace_back(TypicalRequest{.cpu_milli = i, .gpu_milli = 1000, .gpus = 8}, 1);
  }
  EXPECT_EQ(TypicalJobs(requests).weight(), 95);
  requests.front().second = 94;
  EXPECT_EQ(TypicalJobs(requests).weight(), 95);  // of 99, 94.05 are needed
}

TEST_F(PackingTest, FgdKeepsGpusWholeForThoseThatAskForWholeOnes) {
  const TypicalJobs typical({{{.cpu_milli = 1000, .gpu_milli = 1000, .gpus = 1}, 9},
                             {{.cpu_milli = 1000, .gpu_milli = 500, .gpus = 1}, 1}});
  typical_ = &typical;
  policy("fgd");
  cluster({node(2, 64), node(2, 64)});
  (void)place(asks_part(500));
  EXPECT_EQ(place(asks_part(400)), at(0, 0, 400));
  // Nobody can use the 100 that are left of it: a part of them costs nothing, to break a GPU would.
  EXPECT_EQ(place(asks_part(50)), at(0, 0, 50));
  EXPECT_EQ(place(asks(2)), (Placement{{1, 0}, {1, 1}}));
}

TEST_F(PackingTest, FgdSpendsCoresWhereNoGpuNeedsThem) {
  const TypicalJobs typical({{{.cpu_milli = 8000, .gpu_milli = 1000, .gpus = 1}, 1}});
  typical_ = &typical;
  policy("fgd");
  cluster({node(4, 8), node(1, 64)});
  EXPECT_EQ(place(asks(0, 4)), at(1, kHostOnly, 0));
  policy("gpu-packing");  // the twin without the rule: the first node
  cluster({node(4, 8), node(1, 64)});
  EXPECT_EQ(place(asks(0, 4)), at(0, kHostOnly, 0));
}

TEST_F(PackingTest, FgdCountsWhatArrivesIfNothingIsKnown) {
  policy("fgd");
  cluster({node(1, 64), node(2, 64)});
  for (int i = 0; i < 3; ++i) (void)state_->arrive(asks(2));
  (void)decide();
  // Pairs are typical: one GPU is taken where there is no pair.
  EXPECT_EQ(place(asks_part(100)), at(0, 0, 100));
}

}  // namespace
}  // namespace commensal::policies::packing_test

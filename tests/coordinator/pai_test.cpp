// SPDX-License-Identifier: Apache-2.0
// Reserving and packing, each rule on a small cluster: parts of GPUs, classes, high-end machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/registry.h"
#include "tests/coordinator/made_up_cluster.h"

namespace commensal::policies::pai_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

constexpr NodeIndex kHighEnd = 0;  // V100; the others are T4
constexpr NodeIndex kLowEnd = 1;
constexpr NodeIndex kOtherLowEnd = 2;

class PaiTest : public ::testing::Test {
 protected:
  PaiTest()
      : state_(Cluster({{.name = "v", .gpu_type = "V100M32", .gpus = 4, .cpu_milli = 32000},
                        {.name = "t", .gpu_type = "T4", .gpus = 2, .cpu_milli = 32000},
                        {.name = "u", .gpu_type = "T4", .gpus = 2, .cpu_milli = 32000}})) {}

  JobIndex submit(std::int32_t gpus, std::int32_t gpu_milli = kWholeGpu, std::uint32_t group = 0,
                  std::int64_t cpu_milli = 0) {
    ClusterJob job = job_of(gpus, 1000);
    job.gpu_milli = gpu_milli;
    job.group = group;
    job.cpu_milli = cpu_milli;
    return state_.arrive(job);
  }

  void decide() { state_.commit(state_.decide(*policy_, placer_, {}, now_++)); }

  [[nodiscard]] std::vector<NodeIndex> nodes_of(JobIndex job) const {
    std::vector<NodeIndex> nodes;
    for (const GpuPart& part : state_.job(job).placement) nodes.push_back(part.node);
    return nodes;
  }

  ClusterState state_;
  std::unique_ptr<ClusterPolicy> policy_ = make_policy("pai", {});
  FirstNodePlacer placer_;
  Time now_ = 0;
};

TEST_F(PaiTest, PartsShareAGpuOfALessAdvancedMachineThatIsInUse) {
  const JobIndex half = submit(1, 500);
  const JobIndex quarter = submit(1, 250);
  decide();
  EXPECT_THAT(nodes_of(half), ElementsAre(kLowEnd));
  EXPECT_EQ(state_.job(half).placement[0].gpu, state_.job(quarter).placement[0].gpu);
  const JobIndex whole = submit(1);
  decide();
  EXPECT_THAT(nodes_of(whole), ElementsAre(kLowEnd)) << "before a machine that is free";
}

TEST_F(PaiTest, SeveralWholeGpusGoToHighEndMachinesAndOthersOnlyWhenNothingElseFits) {
  const JobIndex high = submit(2);
  for (int i = 0; i < 4; ++i) (void)submit(1);
  decide();
  EXPECT_THAT(nodes_of(high), Each(kHighEnd));
  for (JobIndex job = 1; job <= 4; ++job) {
    EXPECT_THAT(nodes_of(job), ElementsAre(job <= 2 ? kLowEnd : kOtherLowEnd));
  }
  const JobIndex fifth = submit(1);
  decide();
  EXPECT_THAT(nodes_of(fifth), ElementsAre(kHighEnd));
}

TEST_F(PaiTest, TheClassOfAJobIsThatOfMostOfItsGroupBefore) {
  const JobIndex first = submit(2, kWholeGpu, 7);   // high-GPU, as it asks for two
  const JobIndex second = submit(1, kWholeGpu, 7);  // asks for one, but its group did not
  const JobIndex other = submit(1, kWholeGpu, 8);
  decide();
  EXPECT_THAT(nodes_of(first), Each(kHighEnd));
  EXPECT_THAT(nodes_of(second), ElementsAre(kHighEnd));
  EXPECT_THAT(nodes_of(other), ElementsAre(kLowEnd));
}

TEST_F(PaiTest, OfEquallyFullMachinesTheOneWithMostCoresLeft) {
  ClusterJob only_cores = job_of(1, 1000);
  only_cores.gpus = only_cores.min_gpus = only_cores.max_gpus = 0;
  only_cores.cpu_milli = 16000;
  only_cores.gpu_types = 0;
  const JobIndex host = state_.arrive(only_cores);
  decide();
  EXPECT_THAT(nodes_of(host), ElementsAre(kLowEnd));
  const JobIndex job = submit(1, kWholeGpu, 0, 1000);
  decide();
  EXPECT_THAT(nodes_of(job), ElementsAre(kOtherLowEnd));
}

TEST_F(PaiTest, HighEndIsWhatTheOptionSays) {
  policy_ = make_policy("pai", {{"high-end", "t4"}});
  const JobIndex high = submit(2);
  const JobIndex other = submit(1);
  decide();
  EXPECT_THAT(nodes_of(high), Each(kLowEnd));
  EXPECT_THAT(nodes_of(other), ElementsAre(kHighEnd));
}

TEST_F(PaiTest, AGangThatNoMachineHoldsTakesHighEndOnesFirst) {
  state_ = ClusterState(Cluster({{.name = "t", .gpu_type = "T4", .gpus = 2},
                                 {.name = "v", .gpu_type = "v100", .gpus = 2},
                                 {.name = "w", .gpu_type = "v100", .gpus = 2}}));
  const JobIndex gang = submit(4);
  decide();
  EXPECT_THAT(nodes_of(gang), ElementsAre(1, 1, 2, 2));
  EXPECT_THAT(state_.job(gang).placement, SizeIs(4));
}

}  // namespace
}  // namespace commensal::policies::pai_test

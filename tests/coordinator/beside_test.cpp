// SPDX-License-Identifier: Apache-2.0
// What fits beside what on one GPU, with its reason.
#include "coordinator/policies/beside.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "coordinator/policies/cluster_state.h"

namespace commensal::policies::beside_test {
namespace {

ClusterJob needs(std::int32_t share_milli, std::int64_t memory_mib = 0) {
  ClusterJob job;
  job.minima = {.share_milli = share_milli, .memory_mib = memory_mib};
  return job;
}

std::string why(const Minima& others, const Minima& own, std::int64_t memory_mib = 0) {
  const auto lack = lacks(others, own, memory_mib);
  return lack ? to_string(*lack) : "fits";
}

TEST(BesideTest, SharesUpToTheWholeGpuFit) {
  EXPECT_EQ(why({.share_milli = 400}, {.share_milli = 600}), "fits");
  EXPECT_EQ(why({.share_milli = 401}, {.share_milli = 600}),
            "its minimum share of 0.6 does not fit beside the 0.401 of others");
  EXPECT_EQ(why({}, {.share_milli = 1000}), "fits");
}

TEST(BesideTest, MemoryUpToAllOfItFits) {
  EXPECT_EQ(why({.memory_mib = 300}, {.memory_mib = 700}, 1000), "fits");
  EXPECT_EQ(why({.memory_mib = 301}, {.memory_mib = 700}, 1000),
            "its minimum of 700 MiB of memory is more than the 699 MiB that others leave");
}

TEST(BesideTest, MemoryThatIsNotKnownIsNotLookedAt) {
  EXPECT_EQ(why({.memory_mib = 1'000'000}, {.memory_mib = 1'000'000}, 0), "fits");
}

TEST(BesideTest, WhoNeedsNothingFitsBesideMoreThanThereIs) {
  EXPECT_EQ(why({.share_milli = 1200, .memory_mib = 1200}, {}, 1000), "fits");
  EXPECT_EQ(why({.share_milli = 0, .memory_mib = 1200}, {.share_milli = 100}, 1000), "fits");
  EXPECT_EQ(why({.share_milli = 1200, .memory_mib = 0}, {.memory_mib = 100}, 1000), "fits");
}

TEST(BesideTest, TheShareOfAGuaranteedJobTakesNothingFromOthers) {
  const ClusterJob job = needs(500, 700);
  EXPECT_EQ(minima_of(job, JobClass::kOpportunistic), job.minima);
  EXPECT_EQ(minima_of(job, JobClass::kGuaranteed), (Minima{.share_milli = 0, .memory_mib = 700}));
}

class MinimaDraftTest : public ::testing::Test {
 protected:
  MinimaDraftTest()
      : cluster_({{.name = "a", .gpu_type = "v100", .gpus = 2, .gpu_memory_mib = 1000}}) {}
  Cluster cluster_;
};

TEST_F(MinimaDraftTest, CountsWhatIsThereAndWhatThePlanAdds) {
  cluster_.take_minima({.node = 0, .gpu = 0}, {.share_milli = 300, .memory_mib = 100});
  MinimaDraft draft(cluster_);
  EXPECT_TRUE(draft.fits(needs(400), 0, 0));
  draft.take(needs(400), JobClass::kOpportunistic, {{.node = 0, .gpu = 0}});
  EXPECT_FALSE(draft.fits(needs(400), 0, 0));
  EXPECT_TRUE(draft.fits(needs(300), 0, 0));
  EXPECT_TRUE(draft.fits(needs(1000), 0, 1)) << "another GPU";
  EXPECT_EQ(cluster_.gpu(0, 0).minima.share_milli, 300) << "a draft changes nothing";
}

TEST_F(MinimaDraftTest, AGuaranteedJobTakesMemoryAndNoShare) {
  MinimaDraft draft(cluster_);
  draft.take(needs(900, 900), JobClass::kGuaranteed, {{.node = 0, .gpu = 0}});
  EXPECT_TRUE(draft.fits(needs(1000, 100), 0, 0));
  EXPECT_FALSE(draft.fits(needs(0, 101), 0, 0));
}

TEST_F(MinimaDraftTest, AJobWithoutAGpuTakesNothing) {
  MinimaDraft draft(cluster_);
  draft.take(needs(900, 900), JobClass::kOpportunistic, {{.node = 0, .gpu = kHostOnly}});
  EXPECT_TRUE(draft.fits(needs(1000, 1000), 0, 0));
}

/// Starts, ends and upgrades what it is told to.
class Told final : public ClusterPolicy {
 public:
  void decide(const ClusterView& /*view*/, Notes& /*notes*/, ClusterPlan& plan) const override {
    plan = next;
  }
  ClusterPlan next;
};

TEST(MinimaOfAStateTest, TheSumsAreThoseOfTheJobsOnEachGpuWhateverHappened) {
  std::mt19937 random(7);
  const auto draw = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  ClusterState state{Cluster(equal_nodes(2, 2))};
  const MostFreePlacer placer;
  Told told;
  for (int step = 0; step < 500; ++step) {
    told.next = {};
    ClusterJob job = needs(draw(4) * 50, draw(3) * 100);
    job.asked = AskedClass::kOpportunistic;
    const JobIndex fresh = state.arrive(job);
    const GpuPart part{.node = static_cast<NodeIndex>(draw(1)),
                       .gpu = static_cast<std::uint16_t>(draw(1))};
    const Minima own = minima_of(job, JobClass::kOpportunistic);
    if (!lacks(state.cluster().gpu(part.node, part.gpu).minima, own, 0)) {
      told.next.decisions.push_back(
          {fresh, Action::kStart, {part}, {"drawn"}, JobClass::kOpportunistic});
    }
    for (const JobIndex runs : state.running()) {
      const GpuPart& at = state.job(runs).placement.front();
      const bool open = state.cluster().open(at.node, at.gpu);
      if (open && draw(9) == 0 && state.job(runs).job_class == JobClass::kOpportunistic) {
        told.next.decisions.push_back({runs, Action::kUpgrade, {}, {"drawn"}});
        break;
      }
    }
    state.commit(state.decide(told, placer, {}, step));
    if (!state.running().empty() && draw(2) > 0) {
      state.end(state.running()[static_cast<std::size_t>(
          draw(static_cast<int>(state.running().size()) - 1))]);
    }
    for (NodeIndex node = 0; node < 2; ++node) {
      for (std::uint16_t gpu = 0; gpu < 2; ++gpu) {
        Minima sum;
        for (const JobIndex runs : state.running()) {
          if (state.job(runs).placement.front() != GpuPart{.node = node, .gpu = gpu}) continue;
          const Minima one = minima_of(state.job(runs), state.job(runs).job_class);
          sum.share_milli += one.share_milli;
          sum.memory_mib += one.memory_mib;
        }
        ASSERT_EQ(state.cluster().gpu(node, gpu).minima, sum) << "after step " << step;
        ASSERT_LE(sum.share_milli, kWholeGpu) << "after step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace commensal::policies::beside_test

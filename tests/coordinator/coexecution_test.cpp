// SPDX-License-Identifier: Apache-2.0
// Speeds of jobs that share a GPU, and what they do to a small cluster.
#include "coordinator/engines/simulator/coexecution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "coordinator/engines/simulator/shared_gpus.h"
#include "coordinator/engines/simulator/simulation.h"
#include "coordinator/policies/registry.h"

namespace commensal::simulator {
namespace {

using ::testing::DoubleNear;

constexpr double kNone = 0;

TEST(CoexecutionTest, AloneEverybodyIsAsFastAsAlone) {
  for (const Sharing sharing : {Sharing::kGate, Sharing::kDefault, Sharing::kMps}) {
    const SharingModel model{.sharing = sharing};
    EXPECT_EQ(speeds_on_gpu(model, 0.9, {}).guaranteed, 1);
    EXPECT_EQ(speeds_on_gpu(model, kNone, std::vector{0.9}).opportunistic, 1);
  }
}

TEST(CoexecutionTest, BehindTheGateTheGuaranteedJobIsSlowerByTheObjectiveAtMost) {
  const SharingModel model{.slo = 0.02, .efficiency = 0.5};
  const SharingSpeeds speeds = speeds_on_gpu(model, 0.6, std::vector{1.0});
  EXPECT_DOUBLE_EQ(speeds.guaranteed, 1 / 1.02);
  EXPECT_DOUBLE_EQ(speeds.opportunistic, 0.5 * (1 - 0.6 / 1.02)) << "half of the oracle";
}

TEST(CoexecutionTest, OthersDivideWhatIsLeftAndNoneIsFasterThanAlone) {
  const SharingModel model{.slo = 0.01, .efficiency = 1};
  const double left = 1 - 0.5 / 1.01;
  EXPECT_DOUBLE_EQ(speeds_on_gpu(model, 0.5, std::vector{1.0, 1.0}).opportunistic, left / 2);
  EXPECT_EQ(speeds_on_gpu(model, 0.5, std::vector{0.1}).opportunistic, 1) << "it wants a tenth";
}

TEST(CoexecutionTest, TheDriversSlicesSlowEverybodyAlike) {
  const SharingModel slices{.sharing = Sharing::kDefault};
  const SharingSpeeds speeds = speeds_on_gpu(slices, 0.2, std::vector{0.2});
  EXPECT_EQ(speeds.guaranteed, 0.5) << "idle time inside of a slice is lost";
  EXPECT_EQ(speeds.opportunistic, 0.5);
  const SharingModel mps{.sharing = Sharing::kMps};
  EXPECT_EQ(speeds_on_gpu(mps, 0.2, std::vector{0.2}).guaranteed, 1) << "they fit side by side";
  EXPECT_EQ(speeds_on_gpu(mps, 1.0, std::vector{1.0}).guaranteed, 0.5);
}

TraceJob recorded(const char* name, double submit, double duration, policies::AskedClass asked,
                  double busy) {
  TraceJob job;
  job.name = name;
  job.submit = submit;
  job.duration = duration;
  job.asked = asked;
  job.busy = busy;
  return job;
}

Outcome run(const std::vector<TraceJob>& jobs, const SharingModel& model) {
  const Trace trace{.source = "made up", .jobs = jobs};
  const auto semantics = make_commensal(model);
  const auto policy = policies::make_policy("antman", {});
  const policies::Cluster cluster(policies::equal_nodes(1, 1));
  return simulate(trace, cluster, *semantics, "antman", *policy, {});
}

TEST(SharedGpusTest, AnOpportunisticJobRunsInTheGapsAndAtFullSpeedAfterwards) {
  const SharingModel model{.slo = 0.01, .efficiency = 1};
  const Outcome outcome = run({recorded("prod", 0, 101, policies::AskedClass::kGuaranteed, 0.505),
                               recorded("sweep", 0, 100, policies::AskedClass::kOpportunistic, 1)},
                              model);
  const double guaranteed_end = 101 * 1.01;
  EXPECT_THAT(outcome.jobs[0].end, DoubleNear(guaranteed_end, 1e-9));
  // Until then at half speed: 1 - 0.505 / 1.01.
  EXPECT_THAT(outcome.jobs[1].end, DoubleNear(guaranteed_end + 100 - guaranteed_end / 2, 1e-9));
}

TEST(SharedGpusTest, AGuaranteedJobThatComesLaterSlowsTheOther) {
  const SharingModel model{.slo = 0.01, .efficiency = 1};
  const Outcome outcome =
      run({recorded("sweep", 0, 100, policies::AskedClass::kOpportunistic, 1),
           recorded("prod", 60, 1000, policies::AskedClass::kGuaranteed, 0.505)},
          model);
  EXPECT_THAT(outcome.jobs[0].end, DoubleNear(60 + 40 * 2, 1e-9));
  EXPECT_EQ(outcome.jobs[1].first_start, 60) << "it does not wait for the other";
  // 80 s beside the other, of which 80 / 1.01 count.
  EXPECT_THAT(outcome.jobs[1].end, DoubleNear(60 + 80 + 1000 - 80 / 1.01, 1e-9));
}

TEST(SharedGpusTest, WithoutTheGateTheGuaranteedJobPays) {
  const std::vector<TraceJob> jobs{
      recorded("prod", 0, 100, policies::AskedClass::kGuaranteed, 0.5),
      recorded("sweep", 0, 1000, policies::AskedClass::kOpportunistic, 1)};
  EXPECT_LT(run(jobs, {}).jobs[0].end, 101.1);
  EXPECT_EQ(run(jobs, {.sharing = Sharing::kDefault}).jobs[0].end, 200);
}

/// The same rules, with jobs that take up to four GPUs.
class UpToFour final : public Semantics {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return shared_->name(); }
  [[nodiscard]] const policies::Placer& placer(std::string_view policy) const override {
    return shared_->placer(policy);
  }
  void prepare(const TraceJob& recorded, ClusterJob& job, Work& work) override {
    shared_->prepare(recorded, job, work);
    job.max_gpus = 4;
  }
  void settle(const Change& change) override { shared_->settle(change); }

 private:
  std::unique_ptr<Semantics> shared_ = make_commensal({});
};

TEST(SharedGpusTest, AnElasticJobIsAsFastAsItHasGpus) {
  const Trace trace{.source = "made up",
                    .jobs = {recorded("grows", 0, 400, policies::AskedClass::kGuaranteed, 0.6),
                             recorded("waits", 10, 1000, policies::AskedClass::kGuaranteed, 0.6)}};
  UpToFour semantics;
  const auto policy = policies::make_policy("dragon", {});
  const policies::Cluster cluster(policies::equal_nodes(1, 4));
  const Outcome outcome = simulate(trace, cluster, semantics, "dragon", *policy, {});
  // Four GPUs for 40 s, until the other has waited for 30 s and takes one; then three.
  EXPECT_EQ(outcome.jobs[1].first_start, 40);
  EXPECT_THAT(outcome.jobs[0].end, DoubleNear(40 + (400 - 4 * 40) / 3.0, 1e-9));
}

}  // namespace
}  // namespace commensal::simulator

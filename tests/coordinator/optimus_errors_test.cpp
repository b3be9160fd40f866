// SPDX-License-Identifier: Apache-2.0
// Optimus' predictions beside the truth.
#include "coordinator/engines/simulator/optimus_errors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/coordinator/made_up_cluster.h"

namespace commensal::simulator::optimus_errors_test {
namespace {

using policies::Cluster;
using policies::ClusterJob;
using policies::ClusterState;
using policies::equal_nodes;

/// Epochs of ten steps, of which a job has twenty; steps of 8 s / GPUs; losses 1 / (k + 1).
class ToyModel final : public policies::ScalingModel {
 public:
  [[nodiscard]] std::optional<double> step_seconds(const ClusterJob& /*job*/,
                                                   std::int32_t gpus) const override {
    return 8.0 / gpus + (gpus == 3 ? 1 : 0);  // which a fit to 1, 2, 4 and 8 cannot know
  }
  [[nodiscard]] double remaining_steps(const ClusterJob& job) const override {
    return 200.0 - 10 * job.epoch;
  }
  [[nodiscard]] double epoch_steps(const ClusterJob& /*job*/) const override { return 10; }
  [[nodiscard]] double batch(const ClusterJob& /*job*/) const override { return 32; }
  [[nodiscard]] std::vector<prediction::LossPoint> losses(const ClusterJob& job) const override {
    std::vector<prediction::LossPoint> points;
    for (int epoch = 1; epoch <= job.epoch; ++epoch) {
      points.push_back({10.0 * epoch, 1 / (10.0 * epoch + 1)});
    }
    return points;
  }
};

class OptimusErrorsTest : public ::testing::Test {
 protected:
  OptimusErrorsTest() {
    state_.arrive(policies::job_of(1, 100));
    state_.arrive(policies::job_of(1, 100));
  }

  /// Starts a job on the first GPUs.
  void start(policies::JobIndex job, std::uint32_t gpus) {
    policies::Placement placement;
    for (std::uint32_t gpu = 0; gpu < gpus; ++gpu) {
      placement.push_back({.node = 0, .gpu = static_cast<std::uint16_t>(gpu)});
    }
    state_.commit({{{job, policies::Action::kStart, placement, {"a test"}}}});
  }

  ToyModel model_;
  ClusterState state_{Cluster(equal_nodes(1, 8))};
  OptimusErrors errors_{model_, 0.01};
};

TEST_F(OptimusErrorsTest, AYoungJobIsGivenTenEpochs) {
  start(0, 2);
  errors_.look(state_);
  const auto rows = errors_.steps_left().by_key();
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].key, "ten epochs more");
  EXPECT_DOUBLE_EQ(rows[0].mape_percent, 50);  // 100 steps of 200
  EXPECT_EQ(errors_.steps_left().alike().jobs, 0U);
}

TEST_F(OptimusErrorsTest, EachEpochCountsOnceAndOnlyOfWhoRuns) {
  start(0, 2);
  errors_.look(state_);
  errors_.look(state_);
  EXPECT_EQ(errors_.steps_left().jobs(), 1U);
  state_.jobs()[0].epoch = 12;
  errors_.look(state_);
  EXPECT_EQ(errors_.steps_left().jobs(), 2U);
  const auto rows = errors_.steps_left().by_key();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].key, "losses, third quarter");  // 120 of 200 steps
  EXPECT_EQ(errors_.steps_left().alike().jobs, 1U);
}

TEST_F(OptimusErrorsTest, StepTimesAreComparedOnTheGpusThatAreHeld) {
  start(0, 2);
  errors_.look(state_);
  EXPECT_NEAR(errors_.step_times().alike().mape_percent, 0, 1e-6);
  OptimusErrors other(model_, 0.01);
  ClusterState three{Cluster(equal_nodes(1, 8))};
  three.arrive(policies::job_of(1, 100));
  three.commit({{{0, policies::Action::kStart, {{0, 0}, {0, 1}, {0, 2}}, {"a test"}}}});
  other.look(three);
  EXPECT_NEAR(other.step_times().alike().mape_percent, 100 * 1 / (8.0 / 3 + 1), 1e-6);
}

}  // namespace
}  // namespace commensal::simulator::optimus_errors_test

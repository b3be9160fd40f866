// SPDX-License-Identifier: Apache-2.0
// Rules by which a profile is used: how a batch is divided, how long a step takes, what it is
// worth.
#include "coordinator/engines/simulator/training_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/coordinator/toy_profile.h"

namespace commensal::simulator::training_profile_test {
namespace {

using ::testing::ElementsAre;

class TrainingProfileTest : public ::testing::Test {
 protected:
  TrainingProfile toy_ = toy_profile();
};

TEST_F(TrainingProfileTest, PacksGpusFourToANode) {
  EXPECT_THAT(packed(3), ElementsAre(3));
  EXPECT_THAT(packed(9), ElementsAre(4, 4, 1));
}

TEST_F(TrainingProfileTest, DividesABatchAndRoundsUp) {
  EXPECT_EQ(toy_.split(32, 4), (BatchSplit{.gpus = 4, .atomic = 8, .accumulations = 0}));
  EXPECT_EQ(toy_.split(32, 3), (BatchSplit{.gpus = 3, .atomic = 11, .accumulations = 0}));
  EXPECT_EQ(toy_.split(32, 3).batch(), 33);
}

TEST_F(TrainingProfileTest, AccumulatesWhatDoesNotFitAGpu) {
  // 22 samples a GPU, 16 at most: two turns of 11; but no more than 64 in all, so of 10.
  EXPECT_EQ(toy_.split(64, 3), (BatchSplit{.gpus = 3, .atomic = 10, .accumulations = 1}));
}

TEST_F(TrainingProfileTest, OneGpuAccumulatesABatchThatIsNotTheSmallest) {
  EXPECT_EQ(toy_.split(16, 1), (BatchSplit{.gpus = 1, .atomic = 16, .accumulations = 0}));
  EXPECT_EQ(toy_.split(18, 1), (BatchSplit{.gpus = 1, .atomic = 9, .accumulations = 1}));
  EXPECT_EQ(toy_.split(16, 1, true), (BatchSplit{.gpus = 1, .atomic = 8, .accumulations = 1}));
  EXPECT_EQ(toy_.split(64, 1), (BatchSplit{.gpus = 1, .atomic = 16, .accumulations = 3}));
}

TEST_F(TrainingProfileTest, InterpolatesAListedPlacementByLocalBatch) {
  EXPECT_DOUBLE_EQ(toy_.step_seconds({2}, {.gpus = 2, .atomic = 12}).value(), 1.5);
  // The turn before does not synchronise: 1.5 + (1.5 - 0.375).
  EXPECT_DOUBLE_EQ(toy_.step_seconds({2}, {.gpus = 2, .atomic = 12, .accumulations = 1}).value(),
                   2.625);
}

TEST_F(TrainingProfileTest, TakesTheSmallestRotationOfAPlacement) {
  EXPECT_EQ(toy_.step_seconds({2, 1}, {.gpus = 3, .atomic = 8}), 2.0);
  EXPECT_EQ(toy_.step_seconds({1, 2}, {.gpus = 3, .atomic = 8}), 2.0);
}

TEST_F(TrainingProfileTest, TriangulatesOtherPlacementsByNodesGpusAndBatch) {
  // On a line between four and sixteen GPUs of four nodes.
  EXPECT_NEAR(toy_.step_seconds({2, 2, 2, 2}, {.gpus = 8, .atomic = 8}).value(), 4, 1e-12);
  EXPECT_NEAR(toy_.step_seconds({4, 2, 2, 2}, {.gpus = 10, .atomic = 16}).value(), 8, 1e-12);
}

TEST_F(TrainingProfileTest, KnowsNoStepTimeOutsideOfWhatWasMeasured) {
  EXPECT_FALSE(toy_.step_seconds({2}, {.gpus = 2, .atomic = 7}));
  EXPECT_FALSE(toy_.step_seconds({2}, {.gpus = 2, .atomic = 17}));
  EXPECT_FALSE(toy_.step_seconds({4, 4, 4, 4, 1}, {.gpus = 17, .atomic = 8}));
}

TEST_F(TrainingProfileTest, GainsByTheNoiseOfGradients) {
  EXPECT_DOUBLE_EQ(toy_.gain(16, 0), 1);              // no variance
  EXPECT_DOUBLE_EQ(toy_.gain(32, 0), 2 / (0.5 + 1));  // scale 2, variance 1
  EXPECT_DOUBLE_EQ(toy_.gain(64, 1), 4 / (0.75 + 1));
  // Half way between two batches that were measured: variance 2, scale 3.
  EXPECT_DOUBLE_EQ(toy_.gain(48, 0), 3 / (2.0 / 3 + 1));
  EXPECT_THROW((void)toy_.gain(65, 0), std::invalid_argument);
  EXPECT_THROW((void)toy_.gain(15, 0), std::invalid_argument);
  EXPECT_THROW((void)toy_.gain(16, 2), std::invalid_argument);
}

TEST_F(TrainingProfileTest, EndsAnEpochAtTheLeastProgressOfAllBatches) {
  EXPECT_EQ(toy_.epochs(), 2);
  EXPECT_EQ(toy_.progress_after(0), 10);
  EXPECT_EQ(toy_.progress_after(1), 20);
}

TEST_F(TrainingProfileTest, CountsRemainingStepsUpToTheLastEpoch) {
  EXPECT_DOUBLE_EQ(toy_.remaining_steps(16, 0), 10);
  EXPECT_DOUBLE_EQ(toy_.remaining_steps(32, 0), 5);
  EXPECT_DOUBLE_EQ(toy_.remaining_steps(24, 0), 7.5);
  EXPECT_EQ(toy_.remaining_steps(16, 1), 1);  // in the last epoch
}

TEST_F(TrainingProfileTest, TakesForLossWhatAnAccuracyLacks) {
  EXPECT_DOUBLE_EQ(toy_.loss_after(16, 0), 40);  // 60 of 100
  EXPECT_DOUBLE_EQ(toy_.loss_after(24, 1), 30);
  EXPECT_DOUBLE_EQ(toy_.steps_after(32, 1), 10);
}

TEST_F(TrainingProfileTest, AddsUpTheEpochsOfAJobThatRunsAlone) {
  EXPECT_DOUBLE_EQ(toy_.seconds_alone(16, 2).value(), 20);  // steps of 1 s, worth 1
  EXPECT_FALSE(toy_.seconds_alone(16, 4));                  // four samples a GPU were not measured
}

TEST_F(TrainingProfileTest, LimitsGpusByTheSmallestLocalBatch) {
  EXPECT_EQ(toy_.most_gpus(64), 8);
  EXPECT_EQ(toy_.most_gpus(4), 1);
}

TEST_F(TrainingProfileTest, RefusesAProfileWithoutEpochs) {
  MeasuredSteps steps;
  steps.placements["1"] = {{8, {1, 0.5}}};
  steps.scaled = {{1, 1, 8}, {4, 4, 8}, {4, 16, 8}, {4, 4, 16}, {2, 3, 12}};
  steps.scaled_seconds.resize(5);
  EXPECT_THROW(TrainingProfile("bare", steps, {}), std::invalid_argument);
  EXPECT_THROW(TrainingProfile("bare", steps, {{16, {}}}), std::invalid_argument);
}

}  // namespace
}  // namespace commensal::simulator::training_profile_test

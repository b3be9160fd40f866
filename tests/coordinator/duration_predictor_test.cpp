// SPDX-License-Identifier: Apache-2.0
// Durations by keys and by similar names, and how far off they are.
#include "coordinator/prediction/duration_predictor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "coordinator/prediction/name_similarity.h"
#include "coordinator/prediction/prediction_errors.h"

namespace commensal::prediction::duration_predictor_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

Submission job_of(std::string_view user, std::string_view group, std::int32_t gpus = 1) {
  return {.user = user, .group = group, .name = {}, .gpus = gpus};
}

Submission named(std::string_view user, std::string_view name, std::int32_t gpus = 1) {
  return {.user = user, .group = {}, .name = name, .gpus = gpus};
}

TEST(DurationPredictorTest, KnowsNothingAtFirstAndThenTheMeanOfAll) {
  for (const std::string_view name : all_predictors()) {
    const auto predictor = make_predictor(name);
    const Submission job{.user = "ann", .group = "g", .name = "bert"};
    EXPECT_EQ(predictor->predict(job).seconds, 0) << name;
    EXPECT_EQ(predictor->predict(job).key, "nothing") << name;
    predictor->learn({.user = "bob", .group = "h", .name = "vgg"}, 10);
    predictor->learn({.user = "eve", .group = "i", .name = "gan"}, 30);
    EXPECT_EQ(predictor->predict(job).seconds, 20) << name;
    EXPECT_EQ(predictor->predict(job).key, "all jobs") << name;
    EXPECT_FALSE(predictor->predict(job).alike) << name;
  }
}

TEST(DurationPredictorTest, TheFinestKeyWithAHistoryComesFirst) {
  const auto predictor = make_predictor("group-request");
  predictor->learn(job_of("ann", "g", 1), 100);
  EXPECT_EQ(predictor->predict(job_of("bob", "g", 2)).key, "group");
  predictor->learn(job_of("bob", "g", 1), 40);
  predictor->learn(job_of("bob", "g", 1), 60);
  const Prediction of_user = predictor->predict(job_of("bob", "g", 2));
  EXPECT_EQ(of_user.key, "group, user");
  EXPECT_EQ(of_user.seconds, 50);
  predictor->learn(job_of("bob", "g", 2), 7);
  const Prediction finest = predictor->predict(job_of("bob", "g", 2));
  EXPECT_EQ(finest.key, "group, user, request");
  EXPECT_EQ(finest.seconds, 7);
  EXPECT_TRUE(finest.alike);
}

TEST(DurationPredictorTest, ByGroupTheRequestIsOfNoAccount) {
  const auto predictor = make_predictor("group");
  predictor->learn(job_of("bob", "g", 1), 50);
  predictor->learn(job_of("bob", "g", 2), 10);
  EXPECT_EQ(predictor->predict(job_of("bob", "g", 2)).seconds, 30);
  EXPECT_EQ(predictor->predict(job_of("bob", "g", 2)).key, "group, user");
}

TEST(DurationPredictorTest, ByUserTheGroupIsOfNoAccount) {
  const auto predictor = make_predictor("user");
  predictor->learn(job_of("bob", "g"), 50);
  predictor->learn(job_of("ann", "h"), 10);
  EXPECT_EQ(predictor->predict(job_of("bob", "h")).seconds, 50);
}

TEST(DurationPredictorTest, PartsOfAGpuAreAnotherRequest) {
  const auto predictor = make_predictor("group-request");
  Submission half = job_of("ann", "g");
  half.gpu_milli = 500;
  predictor->learn(half, 10);
  predictor->learn(job_of("ann", "g"), 90);
  EXPECT_EQ(predictor->predict(half).seconds, 10);
}

TEST(DurationPredictorTest, WhatIsNotStatedIsLikeNothing) {
  for (const std::string_view name : all_predictors()) {
    const auto predictor = make_predictor(name);
    predictor->learn({}, 10);
    EXPECT_FALSE(predictor->predict({}).alike) << name;
  }
}

TEST(DurationPredictorTest, ANameThatDoesNotExistIsRefused) {
  EXPECT_THAT([] { (void)make_predictor("oracle"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("oracle")));
}

TEST(SimilarNamesPredictorTest, TheUsersJobsOfThisNameAndRequestComeFirst) {
  const auto predictor = make_predictor("qssf");
  predictor->learn(named("ann", "bert"), 100);
  EXPECT_EQ(predictor->predict(named("bob", "bert", 2)).key, "name");
  predictor->learn(named("bob", "bert", 1), 40);
  EXPECT_EQ(predictor->predict(named("bob", "bert", 2)).key, "name, user");
  EXPECT_EQ(predictor->predict(named("bob", "bert", 2)).seconds, 40);
  predictor->learn(named("bob", "bert", 2), 10);
  EXPECT_EQ(predictor->predict(named("bob", "bert", 2)).key, "name, user, request");
  EXPECT_EQ(predictor->predict(named("bob", "bert", 2)).seconds, 10);
}

TEST(SimilarNamesPredictorTest, OfANewNameTheTwoMostSimilarOnesCount) {
  const auto predictor = make_predictor("qssf");
  predictor->learn(named("ann", "train_b1"), 1000);  // as similar, but earlier in the alphabet
  predictor->learn(named("ann", "train_b2"), 10);
  predictor->learn(named("ann", "train_b3"), 20);
  predictor->learn(named("ann", "eval"), 5000);
  const Prediction similar = predictor->predict(named("ann", "train_b4"));
  EXPECT_EQ(similar.seconds, 15);
  EXPECT_EQ(similar.key, "similar name, user, request");
  EXPECT_EQ(predictor->predict(named("ann", "train_b4", 4)).key, "similar name, user");
  EXPECT_EQ(predictor->predict(named("eve", "train_b4")).key, "similar name");
}

TEST(SimilarNamesPredictorTest, WithoutASimilarNameTheUsersMeanCounts) {
  const auto predictor = make_predictor("qssf");
  predictor->learn(named("ann", "bert"), 10);
  predictor->learn(named("bob", "vgg"), 30);
  EXPECT_EQ(predictor->predict(named("bob", "zzzz")).key, "user");
  EXPECT_EQ(predictor->predict(named("bob", "zzzz")).seconds, 30);
  EXPECT_EQ(predictor->predict(named("eve", "zzzz")).key, "all jobs");
}

TEST(SimilarNamesPredictorTest, OfTheUsersOwnGpuTimeWholeSecondsCount) {
  const auto predictor = make_predictor("qssf");
  predictor->learn(named("ann", "bert", 2), 10);
  predictor->learn(named("ann", "bert", 2), 10.5);
  EXPECT_EQ(predictor->predict(named("ann", "bert", 2)).seconds, 10);  // 20.5 GPU-s are 20
  EXPECT_EQ(predictor->predict(named("bob", "bert", 2)).seconds, 10.25);
}

// The figures are those of Python's difflib.
TEST(NameSimilarityTest, IsThatOfDifflib) {
  EXPECT_DOUBLE_EQ(similarity("bert-pretrain-12", "bert-pretrain-13"), 0.9375);
  EXPECT_DOUBLE_EQ(similarity("abxcd", "abcd"), 8.0 / 9);
  EXPECT_DOUBLE_EQ(similarity("qabxcd", "abycdf"), 8.0 / 12);
  EXPECT_DOUBLE_EQ(similarity("tide", "diet"), 0.25);  // not symmetric
  EXPECT_DOUBLE_EQ(similarity("diet", "tide"), 0.5);
  EXPECT_DOUBLE_EQ(similarity("resnet", "vgg"), 0);
  EXPECT_DOUBLE_EQ(similarity("", ""), 1);
}

TEST(NameSimilarityTest, TheClosestAreThoseOfDifflib) {
  EXPECT_THAT(closest_names("train_b4", {"train_b1", "eval", "train_b2", "train_b3", "tr"}, 2, 0.6),
              ElementsAre("train_b3", "train_b2"));
  EXPECT_THAT(closest_names("zebra", {"eval", "horse"}, 2, 0.6), IsEmpty());
}

TEST(PredictionErrorsTest, AreInPercentOfTheTruth) {
  PredictionErrors errors;
  errors.add({.seconds = 110, .key = "group", .alike = true}, 100);
  errors.add({.seconds = 50, .key = "group", .alike = true}, 100);
  errors.add({.seconds = 100, .key = "group", .alike = true}, 100);
  errors.add({.seconds = 4, .key = Prediction::kEverything}, 1);
  errors.add({}, 0);  // counts as a second
  EXPECT_EQ(errors.jobs(), 5U);
  EXPECT_EQ(errors.alike().jobs, 3U);
  EXPECT_DOUBLE_EQ(errors.alike().mape_percent, 20);
  EXPECT_DOUBLE_EQ(errors.alike().median_error_percent, 10);
  const auto rows = errors.by_key();
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].key, "all jobs");
  EXPECT_DOUBLE_EQ(rows[0].mape_percent, 300);
  EXPECT_EQ(rows[1].key, "group");
  EXPECT_EQ(rows[2].key, "nothing");
  EXPECT_EQ(rows[2].mape_percent, 0);
}

TEST(PredictionErrorsTest, WithoutAJobAllIsZero) {
  EXPECT_EQ(PredictionErrors{}.alike().mape_percent, 0);
  EXPECT_THAT(PredictionErrors{}.by_key(), IsEmpty());
}

}  // namespace
}  // namespace commensal::prediction::duration_predictor_test

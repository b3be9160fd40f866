// SPDX-License-Identifier: Apache-2.0
// Gavel's linear programs on cases whose best division is known.
#include "coordinator/policies/gavel_shares.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "coordinator/policies/gavel_fifo.h"

namespace commensal::policies::gavel_shares_test {
namespace {

constexpr double kClose = 1e-6;

/// Two jobs of one GPU each, one GPU of each of two types; the second job is slow on the second
/// type.
ShareProblem two_jobs() {
  return {.rates = {{1, 1}, {3, 1}},
          .gpus = {1, 1},
          .weights = {1, 1},
          .steps = {100, 300},
          .capacity = {1, 1}};
}

double got(const ShareProblem& problem, const Shares& shares, std::size_t job) {
  double steps = 0;
  for (std::size_t type = 0; type < shares[job].size(); ++type) {
    steps += shares[job][type] * problem.rates[job][type];
  }
  return steps;
}

void expect_possible(const ShareProblem& problem, const Shares& shares) {
  for (std::size_t type = 0; type < problem.capacity.size(); ++type) {
    double gpus = 0;
    for (std::size_t job = 0; job < shares.size(); ++job) {
      gpus += shares[job][type] * problem.gpus[job];
    }
    EXPECT_LE(gpus, problem.capacity[type] + kClose);
  }
  for (const std::vector<double>& row : shares) {
    double time = 0;
    for (const double share : row) time += share;
    EXPECT_LE(time, 1 + kClose);
  }
}

TEST(GavelSharesTest, EqualPartsOfEveryType) {
  const Shares shares = equal_shares(two_jobs());
  for (const auto& row : shares) EXPECT_EQ(row, (std::vector<double>{0.5, 0.5}));
}

TEST(GavelSharesTest, EqualPartsGiveNobodyMoreThanAllOfTheTime) {
  ShareProblem problem = two_jobs();
  problem.capacity = {8, 8};
  for (const auto& row : equal_shares(problem)) EXPECT_DOUBLE_EQ(row[0] + row[1], 1);
}

TEST(GavelSharesTest, FairnessGivesTheSlowTypeToWhomItDoesNotHurt) {
  const ShareProblem problem = two_jobs();
  const Shares shares = max_min_shares(problem);
  expect_possible(problem, shares);
  // Proportional parts are worth 1 and 2: the first cannot have more than one, the second has 3.
  EXPECT_NEAR(got(problem, shares, 0), 1, kClose);
  EXPECT_GE(got(problem, shares, 1), 2 - kClose);
}

TEST(GavelSharesTest, FairnessGoesByWeight) {
  const ShareProblem problem{
      .rates = {{1}, {1}}, .gpus = {1, 1}, .weights = {1, 3}, .steps = {1, 1}, .capacity = {1}};
  const Shares shares = max_min_shares(problem);
  EXPECT_NEAR(shares[0][0], 0.25, kClose);
  EXPECT_NEAR(shares[1][0], 0.75, kClose);
}

TEST(GavelSharesTest, FairnessCountsGpuTime) {
  const ShareProblem problem{
      .rates = {{1}, {1}}, .gpus = {1, 2}, .weights = {1, 1}, .steps = {1, 1}, .capacity = {2}};
  const Shares shares = max_min_shares(problem);
  EXPECT_NEAR(shares[0][0], 1, kClose);
  EXPECT_NEAR(shares[1][0], 0.5, kClose);
}

TEST(GavelSharesTest, MakespanIsWithinFivePercentOfTheLeast) {
  const ShareProblem problem = two_jobs();
  ShareProblem longer = problem;
  for (double& steps : longer.steps) steps *= 1000;  // 100,000 s at best, each on its type
  const Shares shares = least_makespan_shares(longer);
  expect_possible(longer, shares);
  for (std::size_t job = 0; job < 2; ++job) {
    EXPECT_GE(got(longer, shares, job) * 100'000 * 1.05, longer.steps[job]);
  }
}

TEST(GavelSharesTest, MakespanSearchesBeyondItsFirstBound) {
  ShareProblem problem = two_jobs();
  for (double& steps : problem.steps) steps *= 1e5;
  const Shares shares = least_makespan_shares(problem);
  for (std::size_t job = 0; job < 2; ++job) {
    EXPECT_GE(got(problem, shares, job) * 1e7 * 1.05, problem.steps[job]);
  }
}

TEST(GavelSharesTest, MakespanOfAJobThatRunsNowhereIsAnError) {
  ShareProblem problem = two_jobs();
  problem.rates[0] = {0, 0};
  EXPECT_THROW((void)least_makespan_shares(problem), std::runtime_error);
}

TEST(GavelSharesTest, ThroughputGoesToWhoIsFastest) {
  ShareProblem problem = two_jobs();
  problem.capacity = {1, 0};
  const Shares shares = max_throughput_shares(problem);
  EXPECT_NEAR(shares[0][0], 0, kClose);
  EXPECT_NEAR(shares[1][0], 1, kClose);
}

/// Two jobs on one GPU: together each has three quarters of its speed alone.
ShareProblem a_pair() {
  return {.rates = {{4}, {8}},
          .gpus = {1, 1},
          .weights = {1, 1},
          .steps = {100'000, 200'000},
          .capacity = {1},
          .pairs = {{.first = 0, .second = 1, .first_rates = {3}, .second_rates = {6}}}};
}

TEST(GavelSharesTest, FairnessWithPackingSharesGpusWherePairsAreFasterThanTurns) {
  ShareProblem problem = a_pair();
  const Shares shares = max_min_shares(problem);
  ASSERT_EQ(shares.size(), 3U) << "a row for the pair, behind those of the jobs";
  EXPECT_NEAR(shares[2][0], 1, kClose);
  EXPECT_NEAR(shares[0][0] + shares[1][0], 0, kClose);
  problem.pairs.clear();
  EXPECT_NEAR(max_min_shares(problem)[0][0], 0.5, kClose) << "the twin without pairs takes turns";
}

TEST(GavelSharesTest, MakespanWithPackingIsShorter) {
  const ShareProblem problem = a_pair();
  const Shares shares = least_makespan_shares(problem);
  const double seconds = 100'000 / 3.0 * 1.05;  // 50,000 one after the other
  EXPECT_GE((shares[0][0] * 4 + shares[2][0] * 3) * seconds, 100'000);
  EXPECT_GE((shares[1][0] * 8 + shares[2][0] * 6) * seconds, 200'000);
}

TEST(GavelSharesTest, ThroughputWithPackingCountsBothOfAPair) {
  ShareProblem problem = a_pair();
  EXPECT_NEAR(max_throughput_shares(problem)[2][0], 1, kClose);
  problem.pairs[0].first_rates = {1};  // 7 together, and 8 of the second alone
  EXPECT_NEAR(max_throughput_shares(problem)[1][0], 1, kClose);
}

TEST(GavelSharesTest, InPairsTooNobodyHasMoreThanAllOfTheTime) {
  ShareProblem problem = a_pair();
  problem.rates.push_back({4});
  problem.gpus.push_back(1);
  problem.weights.push_back(1);
  problem.steps.push_back(1);
  problem.capacity = {2};
  problem.pairs.push_back({.first = 0, .second = 2, .first_rates = {3}, .second_rates = {3}});
  const Shares shares = max_throughput_shares(problem);
  EXPECT_LE(shares[0][0] + shares[3][0] + shares[4][0], 1 + kClose);
  double gpus = 0;
  for (const auto& row : shares) gpus += row[0];
  EXPECT_LE(gpus, 2 + kClose);
}

TEST(GavelSharesTest, TheQueueStopsAtTheFirstThatDoesNotFit) {
  ShareProblem problem{.rates = {{1, 2}, {1, 2}, {1, 2}},
                       .gpus = {1, 2, 1},
                       .weights = {1, 1, 1},
                       .steps = {1, 1, 1},
                       .capacity = {1, 1}};
  EXPECT_EQ(fastest_types(problem), (Shares{{0, 1}, {0, 0}, {0, 0}}));
  problem.gpus[1] = 1;
  EXPECT_EQ(fastest_types(problem), (Shares{{0, 1}, {1, 0}, {0, 0}}));
}

TEST(GavelSharesTest, WhoEndsHandsItsTypeToTheFirstInTheQueue) {
  ShareProblem problem{
      .rates = {{1}, {1}}, .gpus = {1, 1}, .weights = {1, 1}, .steps = {1, 1}, .capacity = {1}};
  Notes notes;
  SeededRandom random(0, 0);
  EXPECT_EQ(kept_types({0, 1}, problem, notes, random), (Shares{{1}, {0}}));
  problem.rates.pop_back();
  problem.gpus.pop_back();
  EXPECT_EQ(kept_types({1}, problem, notes, random), (Shares{{1}}));
}

TEST(SeededRandomTest, DrawsWhatPythonDraws) {
  SeededRandom random(0, 0);  // random.Random(0): randrange(100) four times
  EXPECT_EQ(random.below(100), 49U);
  EXPECT_EQ(random.below(100), 97U);
  EXPECT_EQ(random.below(100), 53U);
  SeededRandom later(0, random.drawn());
  EXPECT_EQ(later.below(100), random.below(100));
  std::vector<int> values{0, 1, 2, 3, 4};  // random.Random(5).shuffle
  SeededRandom(5, 0).shuffle(values);
  EXPECT_EQ(values, (std::vector<int>{0, 1, 3, 2, 4}));
  EXPECT_EQ(SeededRandom(1, 0).two_of(10), (std::pair<std::uint32_t, std::uint32_t>{2, 1}));
  EXPECT_EQ(SeededRandom(1, 0).two_of(50), (std::pair<std::uint32_t, std::uint32_t>{8, 36}));
}

}  // namespace
}  // namespace commensal::policies::gavel_shares_test

// SPDX-License-Identifier: Apache-2.0
// Go's numbers: the well-known first ones of seed 1, and what shuffles and permutations keep.
#include "coordinator/engines/simulator/go_random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace commensal::simulator::go_random_test {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAreArray;

TEST(GoRandomTest, DrawsWhatGoDraws) {
  GoRandom random(1);
  std::vector<std::size_t> drawn;
  for (int i = 0; i < 10; ++i) drawn.push_back(random.draw(100));
  EXPECT_THAT(drawn, ElementsAre(81, 87, 47, 59, 81, 18, 25, 40, 56, 0));
  EXPECT_EQ(GoRandom(1).bits(), 5577006791947779410U);
}

TEST(GoRandomTest, SeedsDiffer) { EXPECT_NE(GoRandom(1).bits(), GoRandom(2).bits()); }

TEST(GoRandomTest, ShufflesAndPermutesEachOnce) {
  std::vector<std::size_t> all(100);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::size_t> shuffled = all;
  GoRandom random(7);
  random.shuffle(shuffled);
  EXPECT_NE(shuffled, all);
  EXPECT_THAT(shuffled, UnorderedElementsAreArray(all));
  EXPECT_THAT(random.permutation(100), UnorderedElementsAreArray(all));
}

}  // namespace
}  // namespace commensal::simulator::go_random_test

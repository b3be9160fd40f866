// SPDX-License-Identifier: Apache-2.0
// Sizes of segments and chunks, and the choice of chunks that move.
#include "allocator/move_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace commensal::move_planner_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

ChunkView device(std::uint64_t last_use, Bytes used = 1_MiB) {
  ChunkView chunk;
  chunk.tier = Tier::kDevice;
  chunk.size = 2_MiB;
  chunk.used = used;
  chunk.last_use = last_use;
  return chunk;
}

ChunkView host(Bytes touched, Bytes written = 0_B, bool lazy = false) {
  ChunkView chunk;
  chunk.tier = Tier::kHost;
  chunk.size = 2_MiB;
  chunk.used = 1_MiB;
  chunk.touched = touched;
  chunk.written = written;
  chunk.lazy = lazy;
  return chunk;
}

TEST(MovePlannerTest, ChunksGrowWithTheirSegment) {
  EXPECT_EQ(chunk_size_for(64_MiB, 2_MiB), 2_MiB);
  EXPECT_EQ(chunk_size_for(256_MiB, 2_MiB), 2_MiB);
  EXPECT_EQ(chunk_size_for(1_GiB, 2_MiB), 8_MiB);
  EXPECT_EQ(chunk_size_for(4_GiB, 2_MiB), 32_MiB);
  EXPECT_EQ(chunk_size_for(64_MiB, 3_MiB), 3_MiB);
  EXPECT_EQ(chunk_size_for(1_GiB, 3_MiB), 9_MiB);
}

TEST(MovePlannerTest, SegmentsHoldTheirBlockTwice) {
  EXPECT_EQ(plan_segment(256_MiB, 1_MiB).size, 256_MiB);
  EXPECT_EQ(plan_segment(256_MiB, 200_MiB).size, 1_GiB);
  EXPECT_EQ(plan_segment(1_GiB * 4096, 1_MiB).size, 16_GiB);
  EXPECT_FALSE(plan_segment(256_MiB, 200_MiB).dedicated);
  EXPECT_EQ(plan_segment(256_MiB, 5_GiB).size, 5_GiB);
  EXPECT_TRUE(plan_segment(256_MiB, 5_GiB).dedicated);
}

TEST(MovePlannerTest, TheOptimizersStateIsNeededFromTheBackwardPassOn) {
  for (const Phase now : {Phase::kUnknown, Phase::kData, Phase::kForward}) {
    EXPECT_FALSE(needed_next(Phase::kOptimizer, now));
    EXPECT_TRUE(needed_next(Phase::kUnknown, now));
  }
  for (const Phase now : {Phase::kBackward, Phase::kOptimizer}) {
    EXPECT_TRUE(needed_next(Phase::kOptimizer, now));
    EXPECT_FALSE(needed_next(Phase::kUnknown, now));
  }
}

TEST(MovePlannerTest, WhatThePhaseNeedsNextStaysAndComesBackFirst) {
  std::vector<ChunkView> chunks{device(1), device(9)};
  chunks[1].born = Phase::kOptimizer;
  EXPECT_THAT(choose_spills(chunks, 4_MiB, 64_MiB, Phase::kForward), ElementsAre(1, 0));
  EXPECT_THAT(choose_spills(chunks, 4_MiB, 64_MiB, Phase::kBackward), ElementsAre(0, 1));
  std::vector<ChunkView> slow{host(0_B), host(0_B)};
  slow[1].born = Phase::kOptimizer;
  ReturnBudget budget;
  budget.room = budget.bytes = budget.batch = 64_MiB;
  budget.now = Phase::kForward;
  EXPECT_THAT(choose_returns(slow, budget), ElementsAre(0, 1));
  budget.now = Phase::kBackward;
  EXPECT_THAT(choose_returns(slow, budget), ElementsAre(1, 0));
}

TEST(MovePlannerTest, BetweenSafePointsOnlyWhatDoesNotMakeRoomByItself) {
  const auto plan = [](Bytes resident, Bytes limit, Bytes soon_free, Bytes idle = 0_B) {
    return plan_ahead(AheadView{resident, limit, soon_free, idle, 0_B});
  };
  EXPECT_EQ(plan(10_MiB, 6_MiB, 0_B).out, 4_MiB);
  EXPECT_EQ(plan(10_MiB, 6_MiB, 3_MiB).out, 1_MiB);
  EXPECT_EQ(plan(10_MiB, 6_MiB, 5_MiB).out, 0_B);
  EXPECT_EQ(plan(10_MiB, 6_MiB, 5_MiB).in, 0_B);
  EXPECT_EQ(plan(6_MiB, 10_MiB, 5_MiB).out, 0_B);
  EXPECT_EQ(plan(6_MiB, 10_MiB, 5_MiB).in, 4_MiB);
  EXPECT_EQ(plan(6_MiB, 10_MiB, 5_MiB, 2_MiB).in, 6_MiB);
}

TEST(MovePlannerTest, WhatRestsHasTheRoomThatAStepLeavesAtItsPeak) {
  const auto plan = [](Bytes limit, Bytes at_peak) {
    return plan_ahead(AheadView{0_B, limit, 0_B, 0_B, at_peak});
  };
  EXPECT_EQ(plan(10_MiB, 12_MiB).rest_out, 2_MiB);
  EXPECT_EQ(plan(10_MiB, 12_MiB).rest_room, 0_B);
  EXPECT_EQ(plan(10_MiB, 7_MiB).rest_out, 0_B);
  EXPECT_EQ(plan(10_MiB, 7_MiB).rest_room, 3_MiB);
  EXPECT_EQ(plan(10_MiB, 12_MiB).out, 0_B) << "a safe point would not move it";
}

TEST(MovePlannerTest, TrialsThatFailBecomeRare) {
  TrialPace pace;
  std::uint64_t trials = 0;
  for (std::uint64_t safe_point = 0; safe_point < 1000; ++safe_point) {
    if (!pace.due(safe_point)) continue;
    ++trials;
    pace.note_touched(safe_point + 1);
  }
  EXPECT_LE(trials, 6 + 1000 / TrialPace::kLongest);
  EXPECT_GE(trials, 1000 / (TrialPace::kLongest + 1));
  std::uint64_t untouched = 0;
  for (std::uint64_t safe_point = 1000; safe_point < 1400; ++safe_point) {
    untouched += pace.due(safe_point) ? 1 : 0;
  }
  EXPECT_GE(untouched, 200U) << "what rests is found out in the end";
}

TEST(MovePlannerTest, WhatIsTouchedAgainAndAgainIsTriedSeldom) {
  EXPECT_EQ(hot_for(1), kHotSafePoints);
  EXPECT_EQ(hot_for(2), 2 * kHotSafePoints);
  EXPECT_EQ(hot_for(200), 64 * kHotSafePoints);
  EXPECT_EQ(ahead_rest(1), 4U);
  EXPECT_EQ(ahead_rest(2), 8U);
  EXPECT_EQ(ahead_rest(255), 256U);
}

TEST(MovePlannerTest, AQuarterOfAChunkTouchedInAStepIsInUse) {
  EXPECT_TRUE(in_use(2_MiB, 2_MiB));
  EXPECT_TRUE(in_use(512_KiB, 2_MiB));
  EXPECT_FALSE(in_use(512_KiB - 1_B, 2_MiB)) << "some rows of a data set";
  EXPECT_FALSE(in_use(0_B, 0_B));
}

TEST(MovePlannerTest, WhatIsNotInUseIsHeldToTheRoomForRest) {
  std::vector<ChunkView> chunks{host(0_B), host(1_MiB), host(0_B), host(0_B)};
  chunks[1].hot = true;
  chunks[2].hot = true;
  chunks[3].keep = true;
  ReturnBudget budget{.room = 1_GiB, .bytes = 1_GiB, .batch = 1_GiB, .rest_room = 0_B};
  EXPECT_THAT(choose_returns(chunks, budget), UnorderedElementsAre(1, 2, 3));
  budget.rest_room = chunks[0].size;
  EXPECT_THAT(choose_returns(chunks, budget), UnorderedElementsAre(0, 1, 2, 3));
}

TEST(MovePlannerTest, EvictsTheColdestUntilEnough) {
  const std::vector<ChunkView> chunks{device(5), device(1), device(3), device(2, 0_B), host(0_B)};
  EXPECT_THAT(choose_spills(chunks, 3_MiB, 64_MiB), ElementsAre(1, 2));
  EXPECT_THAT(choose_spills(chunks, 1_GiB, 64_MiB), ElementsAre(1, 2, 0));
  EXPECT_THAT(choose_spills(chunks, 1_GiB, 1_MiB), ElementsAre(1)) << "at least one";
  EXPECT_THAT(choose_spills(chunks, 0_B, 64_MiB), IsEmpty());
}

TEST(MovePlannerTest, OfEquallyColdChunksTheFullerGoes) {
  const std::vector<ChunkView> chunks{device(1, 1_MiB), device(1, 2_MiB)};
  EXPECT_THAT(choose_spills(chunks, 1_MiB, 64_MiB), ElementsAre(1));
}

TEST(MovePlannerTest, TagsGoOneByOneAfterColdChunksAndKeptOnesLast) {
  std::vector<ChunkView> chunks{device(9), device(1), device(7), device(2), device(8), device(3)};
  chunks[1].tag = 1;  // tag 1 was used last at 7, tag 2 at 3
  chunks[2].tag = 1;
  chunks[3].tag = 2;
  chunks[5].tag = 2;
  chunks[4].tag = 3;
  chunks[4].keep = true;
  EXPECT_THAT(choose_spills(chunks, 1_GiB, 64_MiB), ElementsAre(0, 3, 5, 1, 2, 4));
  chunks[3].hot = true;
  EXPECT_THAT(choose_spills(chunks, 1_GiB, 64_MiB), ElementsAre(0, 5, 1, 2, 3, 4));
}

TEST(MovePlannerTest, KeptChunksComeBackFirst) {
  std::vector<ChunkView> chunks{host(64_KiB), host(0_B)};
  chunks[1].keep = true;
  ReturnBudget budget;
  budget.room = budget.bytes = budget.batch = 1_GiB;
  EXPECT_THAT(choose_returns(chunks, budget), ElementsAre(1, 0));
}

TEST(MovePlannerTest, SkipsWhatFailedAMomentAgo) {
  std::vector<ChunkView> chunks{device(1), device(2)};
  chunks[0].skip = true;
  EXPECT_THAT(choose_spills(chunks, 1_GiB, 64_MiB), ElementsAre(1));
}

TEST(MovePlannerTest, RespillsThoseWithMostToWin) {
  const std::vector<ChunkView> chunks{host(64_KiB, 64_KiB), host(0_B), host(1_MiB, 1_MiB)};
  EXPECT_THAT(choose_spills(chunks, 1_MiB, 64_MiB), ElementsAre(2));
  EXPECT_THAT(choose_spills(chunks, 2_MiB, 64_MiB), ElementsAre(2, 0));
}

TEST(MovePlannerTest, HotChunksGoOnlyAfterThoseThatAreOutAlready) {
  std::vector<ChunkView> chunks{device(1), device(2), host(2_MiB, 2_MiB), device(3)};
  chunks[0].hot = chunks[1].hot = true;
  EXPECT_THAT(choose_spills(chunks, 1_GiB, 64_MiB), ElementsAre(3, 2, 0, 1));
  EXPECT_THAT(choose_spills(chunks, 4_MiB, 64_MiB), ElementsAre(3, 2)) << "in one batch";
}

TEST(MovePlannerTest, ReturnsTheMostTouchedThatFit) {
  const std::vector<ChunkView> chunks{host(0_B), host(1_MiB), host(0_B, 0_B, true), device(1)};
  ReturnBudget budget{1_MiB, 1_GiB, 64_MiB, false};
  EXPECT_THAT(choose_returns(chunks, budget), ElementsAre(1)) << "its touched half counts already";
  budget.room = 1_GiB;
  EXPECT_THAT(choose_returns(chunks, budget), ElementsAre(1, 0));
  budget.lazy = true;
  EXPECT_THAT(choose_returns(chunks, budget), ElementsAre(1, 0, 2));
  budget.bytes = 1_MiB;
  EXPECT_THAT(choose_returns(chunks, budget), ElementsAre(1));
  budget.room = 0_B;
  EXPECT_THAT(choose_returns(chunks, budget), IsEmpty());
}

TEST(MovePlannerTest, ACacheIsLargeBesideWhatIsLive) {
  EXPECT_FALSE(cache_is_large(64_MiB, 0_B));
  EXPECT_TRUE(cache_is_large(65_MiB, 0_B));
  EXPECT_FALSE(cache_is_large(300_MiB, 1_GiB));
  EXPECT_TRUE(cache_is_large(321_MiB, 1_GiB));
}

}  // namespace
}  // namespace commensal::move_planner_test

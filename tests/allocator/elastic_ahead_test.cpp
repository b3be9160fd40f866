// SPDX-License-Identifier: Apache-2.0
// Moves between safe points: only what a safe point would have to move, and never in anybody's way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "allocator/background_mover.h"
#include "allocator/elastic_allocator.h"
#include "allocator/move_planner.h"
#include "tests/allocator/moving_source.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::elastic_ahead_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

AllocationContext in(Phase phase) {
  AllocationContext context;
  context.phase = phase;
  return context;
}

class ElasticAheadTest : public ::testing::Test {
 protected:
  // One chunk of the fake source, filled by one block.
  static constexpr Bytes kChunk = 64_KiB;

  void* chunk_of(Phase phase) { return allocator_.allocate(kChunk, 0, in(phase)); }
  std::vector<void*> chunks(std::size_t count, Phase phase) {
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < count; ++i) {
      blocks.push_back(chunk_of(phase));
      std::memset(blocks.back(), static_cast<int>(i + 1), kChunk.count());
    }
    return blocks;
  }
  void give_up(std::vector<void*>& blocks) {
    for (void* block : blocks) EXPECT_TRUE(allocator_.deallocate(block));
    blocks.clear();
  }
  // Works until there is nothing left to do. Returns bytes moved, either way.
  Bytes work_to_the_end(Bytes most = kChunk) {
    Bytes moved;
    for (int i = 0; i < 1000; ++i) {
      const AheadReport report = allocator_.work_ahead(most);
      moved += report.moved_out + report.moved_in;
      if (!report.more) return moved;
    }
    ADD_FAILURE() << "it never ends";
    return moved;
  }
  static ElasticAllocatorOptions options() {
    ElasticAllocatorOptions options;
    options.small_block = 1_KiB;
    options.chunk_size = kChunk;
    return options;
  }
  Bytes resident() const { return allocator_.stats().device + allocator_.stats().host_touched; }

  MovingSource source_;
  ElasticAllocator allocator_{source_, options()};
};

TEST_F(ElasticAheadTest, WithoutALimitThereIsNothingToDo) {
  auto blocks = chunks(4, Phase::kUnknown);
  const AheadReport report = allocator_.work_ahead(kChunk);
  EXPECT_EQ(report.moved_out + report.moved_in, 0_B);
  EXPECT_FALSE(report.more);
  give_up(blocks);
}

TEST_F(ElasticAheadTest, TheSafePointFindsItsLimitMet) {
  auto blocks = chunks(8, Phase::kUnknown);
  const Bytes held = resident();
  (void)allocator_.post_limit(held - kChunk * 3);
  EXPECT_EQ(work_to_the_end(), kChunk * 3);
  EXPECT_LE(resident(), held - kChunk * 3);
  const AllocatorStats before = allocator_.stats();
  EXPECT_EQ(before.moved_ahead, kChunk * 3);
  EXPECT_EQ(before.moved_out, kChunk * 3);
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().moves, before.moves) << "the safe point moved something itself";
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(static_cast<unsigned char*>(blocks[i])[7], i + 1);
  }
  give_up(blocks);
}

TEST_F(ElasticAheadTest, WhatDiesWithinTheStepMakesRoomByItself) {
  auto weights = chunks(4, Phase::kUnknown);
  auto activations = chunks(4, Phase::kForward);
  const Bytes held = resident();
  (void)allocator_.post_limit(held - kChunk * 4);
  EXPECT_EQ(work_to_the_end(), 0_B) << "the activations will be gone";
  (void)allocator_.post_limit(held - kChunk * 6);
  EXPECT_EQ(work_to_the_end(), kChunk * 2);
  give_up(activations);
  allocator_.step_ended();
  const std::uint64_t moves = allocator_.stats().moves;
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().moves, moves);
  give_up(weights);
}

// A step that needs four chunks at its peak, beside what it keeps.
class BelowThePeakTest : public ElasticAheadTest {
 protected:
  static constexpr std::size_t kAtPeak = 4;
  // Returns how many of the step's chunks were made on the slower tier.
  std::size_t step() {
    auto activations = chunks(kAtPeak, Phase::kForward);
    const std::size_t made_slow = slow(activations);
    give_up(activations);
    allocator_.step_ended();
    (void)allocator_.safe_point();
    (void)work_to_the_end();
    return made_slow;
  }
  std::size_t slow(const std::vector<void*>& blocks) {
    return static_cast<std::size_t>(std::count_if(blocks.begin(), blocks.end(), [&](void* block) {
      return source_.fake().tier_at(block) != Tier::kDevice;
    }));
  }
};

TEST_F(BelowThePeakTest, WhatRestsMakesRoomForTheStepAndStaysAway) {
  auto resting = chunks(4, Phase::kUnknown);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(), 0U);
  (void)allocator_.post_limit(kChunk * 6);
  for (int i = 0; i < 3; ++i) (void)step();
  EXPECT_EQ(slow(resting), 2U) << "the step has four chunks, two are left for what rests";
  const AllocatorStats before = allocator_.stats();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(step(), 0U) << i;
  EXPECT_EQ(allocator_.stats().moves, before.moves) << "it came back, and left again";
  EXPECT_EQ(allocator_.stats().moved_in, before.moved_in);

  (void)allocator_.post_limit(kChunk * 8);
  EXPECT_EQ(step(), 0U);
  EXPECT_EQ(slow(resting), 0U) << "there is room at the peak";
  for (std::size_t i = 0; i < resting.size(); ++i) {
    EXPECT_EQ(static_cast<unsigned char*>(resting[i])[7], i + 1);
  }
  give_up(resting);
}

TEST_F(BelowThePeakTest, WhatOverflowsDoesNotMakeTrialsRare) {
  auto resting = chunks(16, Phase::kUnknown);
  for (int i = 0; i < 3; ++i) (void)step();
  (void)allocator_.post_limit(kChunk * 17);
  for (int i = 0; i < 20; ++i) (void)step();  // a chunk at a time makes room
  EXPECT_EQ(slow(resting), 3U);
  EXPECT_EQ(step(), 0U);
  give_up(resting);
}

TEST_F(BelowThePeakTest, WhatEachStepTouchesIsTriedOnce) {
  auto weights = chunks(4, Phase::kUnknown);
  for (int i = 0; i < 3; ++i) (void)step();
  (void)allocator_.post_limit(kChunk * 6);
  for (int i = 0; i < 3; ++i) (void)step();
  const Bytes before = allocator_.stats().moved_out;
  for (int i = 0; i < 20; ++i) {
    for (void* block : weights) std::memset(block, i, kChunk.count());
    (void)step();
  }
  EXPECT_LE(allocator_.stats().moved_out, before + kChunk * weights.size())
      << "each of them left at most once more";
  give_up(weights);
}

TEST_F(BelowThePeakTest, WhatIsReadHereAndThereRests) {
  auto data = chunks(4, Phase::kUnknown);
  for (int i = 0; i < 3; ++i) (void)step();
  (void)allocator_.post_limit(kChunk * 7 - 1_KiB);  // room for the pages that are read
  for (int i = 0; i < 3; ++i) (void)step();
  ASSERT_EQ(slow(data), 2U);
  const AllocatorStats before = allocator_.stats();
  for (std::uint64_t i = 1; i <= 30; ++i) {  // in the end nearly half of each was read once
    for (void* block : data) {
      if (source_.fake().tier_at(block) == Tier::kDevice) continue;
      source_.fake().set_touched(static_cast<std::byte*>(block), {1_KiB * i, 0_B});
    }
    EXPECT_EQ(step(), 0U) << i;
  }
  EXPECT_EQ(slow(data), 2U);
  EXPECT_EQ(allocator_.stats().moves, before.moves) << "a few rows made it come back";
  give_up(data);
}

TEST_F(BelowThePeakTest, WhatAStepUsesComesBackAndStaysForLong) {
  auto data = chunks(4, Phase::kUnknown);
  for (int i = 0; i < 3; ++i) (void)step();
  (void)allocator_.post_limit(kChunk * 6);
  for (int i = 0; i < 3; ++i) (void)step();
  ASSERT_EQ(slow(data), 2U);
  void* const used = *std::find_if(data.begin(), data.end(), [&](void* block) {
    return source_.fake().tier_at(block) != Tier::kDevice;
  });
  source_.fake().set_touched(static_cast<std::byte*>(used), {kChunk, 0_B});
  for (std::uint64_t i = 0; i < kHotSafePoints / 2; ++i) {
    (void)step();
    EXPECT_EQ(source_.fake().tier_at(used), Tier::kDevice) << i;
  }
  give_up(data);
}

TEST_F(ElasticAheadTest, WhatOverflowedServesTheStepAgain) {
  auto weights = chunks(2, Phase::kUnknown);
  (void)allocator_.post_limit(kChunk * 2);
  void* const first = chunk_of(Phase::kForward);
  EXPECT_EQ(source_.fake().tier_at(first), Tier::kHost);
  const std::uint64_t made = source_.fake().calls(FakeCall::kCreate);
  EXPECT_TRUE(allocator_.deallocate(first));
  for (int i = 0; i < 5; ++i) {
    void* const next = chunk_of(Phase::kForward);
    EXPECT_EQ(source_.fake().tier_at(next), Tier::kHost);
    EXPECT_TRUE(allocator_.deallocate(next));
  }
  EXPECT_EQ(source_.fake().calls(FakeCall::kCreate), made) << "given back and made anew";
  EXPECT_EQ(source_.fake().created(Tier::kHost), kChunk);
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(source_.fake().created(Tier::kHost), 0_B) << "the step is over";
  give_up(weights);
}

TEST_F(ElasticAheadTest, WhatOverflowedMakesRoomForWhatDoesNotFitIntoIt) {
  ElasticAllocatorOptions narrow = options();
  narrow.limit = 0_B;
  narrow.host_cap = kChunk;
  MovingSource source;
  ElasticAllocator allocator(source, narrow);
  void* const large = allocator.allocate(kChunk, 0, in(Phase::kForward));
  EXPECT_TRUE(allocator.deallocate(large));
  void* const small = allocator.allocate(512_B, 0, in(Phase::kForward));  // in chunks of its own
  EXPECT_NE(small, nullptr);
  EXPECT_EQ(source.fake().created(Tier::kHost), kChunk);
  EXPECT_THROW((void)allocator.allocate(kChunk, 0, in(Phase::kForward)), OutOfMemory);
  EXPECT_TRUE(allocator.deallocate(small));
}

TEST_F(ElasticAheadTest, ActivationsOnTheSlowerTierMoveNoWeights) {
  auto weights = chunks(4, Phase::kUnknown);
  (void)allocator_.post_limit(kChunk * 4);
  auto activations = chunks(2, Phase::kForward);
  for (void* block : activations) {
    ASSERT_EQ(source_.fake().tier_at(block), Tier::kHost);
    source_.fake().set_touched(static_cast<std::byte*>(block), {kChunk, kChunk});
  }
  EXPECT_EQ(work_to_the_end(), 0_B) << "they are gone at the next safe point";
  give_up(activations);
  EXPECT_EQ(work_to_the_end(), 0_B) << "they are free already";
  const std::uint64_t moves = allocator_.stats().moves;
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().moves, moves);
  give_up(weights);
}

TEST_F(BelowThePeakTest, AStepThatNeedsLessNowLeavesItsRoom) {
  auto resting = chunks(4, Phase::kUnknown);
  for (int i = 0; i < 3; ++i) (void)step();
  (void)allocator_.post_limit(kChunk * 6);
  for (int i = 0; i < 3; ++i) (void)step();
  ASSERT_EQ(slow(resting), 2U);
  for (int i = 0; i < 3; ++i) {  // an evaluation: the peak of long ago does not count
    allocator_.step_ended();
    (void)allocator_.safe_point();
    (void)work_to_the_end();
  }
  EXPECT_EQ(slow(resting), 0U);
  give_up(resting);
}

TEST_F(BelowThePeakTest, WhoAsksForItGetsWhatFitsNow) {
  auto resting = chunks(4, Phase::kUnknown);
  for (int i = 0; i < 3; ++i) (void)step();
  (void)allocator_.post_limit(kChunk * 6);
  for (int i = 0; i < 3; ++i) (void)step();
  ASSERT_EQ(slow(resting), 2U);
  EXPECT_EQ(allocator_.grow(kChunk).done, kChunk);
  EXPECT_EQ(slow(resting), 1U);
  give_up(resting);
}

TEST_F(ElasticAheadTest, TheOptimizersStateGoesBeforeTheWeights) {
  auto state = chunks(3, Phase::kOptimizer);
  auto weights = chunks(3, Phase::kUnknown);
  std::memset(state[0], 9, kChunk.count());
  allocator_.step_ended();  // the next op is a forward pass
  (void)allocator_.post_limit(resident() - kChunk * 3);
  EXPECT_EQ(work_to_the_end(), 0_B) << "the step touches it before its safe point";
  EXPECT_TRUE(allocator_.safe_point().complete());
  for (void* block : state) EXPECT_EQ(source_.fake().tier_at(block), Tier::kHost);
  for (void* block : weights) EXPECT_EQ(source_.fake().tier_at(block), Tier::kDevice);
  // In the backward pass it is what is needed next.
  void* const gradient = chunk_of(Phase::kBackward);
  EXPECT_TRUE(allocator_.deallocate(gradient));
  allocator_.expect_work_ahead(true);
  (void)allocator_.post_limit(resident() + kChunk * 2);  // one is for the gradients
  EXPECT_TRUE(allocator_.safe_point().complete());
  (void)allocator_.work_ahead(kChunk);
  EXPECT_EQ(static_cast<int>(std::count_if(
                state.begin(), state.end(),
                [&](void* block) { return source_.fake().tier_at(block) == Tier::kDevice; })),
            1);
  give_up(state);
  give_up(weights);
}

TEST_F(ElasticAheadTest, MemoryComesBackBetweenSafePoints) {
  auto blocks = chunks(8, Phase::kUnknown);
  const Bytes held = resident();
  EXPECT_TRUE(allocator_.set_limit(held - kChunk * 6).complete());
  allocator_.expect_work_ahead(true);
  (void)allocator_.post_limit(held);
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().moved_in, 0_B) << "the job waited for it";
  EXPECT_EQ(work_to_the_end(), kChunk * 6);
  EXPECT_EQ(allocator_.stats().host, 0_B);
  EXPECT_EQ(resident(), held);
  give_up(blocks);
}

TEST_F(ElasticAheadTest, NoMoreComesBackThanTheLimitLeavesRoomFor) {
  auto blocks = chunks(8, Phase::kUnknown);
  const Bytes held = resident();
  EXPECT_TRUE(allocator_.set_limit(held - kChunk * 6).complete());
  allocator_.expect_work_ahead(true);
  (void)allocator_.post_limit(held - kChunk * 4);
  EXPECT_EQ(work_to_the_end(1_MiB), kChunk * 2);
  EXPECT_LE(resident(), held - kChunk * 4);
  EXPECT_EQ(work_to_the_end(1_MiB), 0_B) << "the same bytes must not go to and fro";
  give_up(blocks);
}

TEST_F(ElasticAheadTest, Law2_WhatChangesWhileItIsCopiedStaysUntilTheSafePoint) {
  auto blocks = chunks(1, Phase::kUnknown);
  source_.fake().hooks().before_fence = [&] { std::memset(blocks[0], 77, 100); };
  (void)allocator_.post_limit(0_B);
  const AheadReport report = allocator_.work_ahead(kChunk);
  EXPECT_EQ(report.moved_out, 0_B);
  EXPECT_THAT(report.reason, HasSubstr("changed"));
  EXPECT_EQ(work_to_the_end(), 0_B) << "it is not tried again before a safe point";
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(static_cast<unsigned char*>(blocks[0])[0], 77);
  EXPECT_EQ(static_cast<unsigned char*>(blocks[0])[100], 1);
  EXPECT_EQ(source_.fake().tier_at(blocks[0]), Tier::kHost);
  source_.fake().hooks() = {};
  give_up(blocks);
}

TEST_F(ElasticAheadTest, Law2_LostWithoutTheComparison) {
  source_.compare(false);
  auto blocks = chunks(1, Phase::kUnknown);
  source_.fake().hooks().before_fence = [&] { std::memset(blocks[0], 77, 100); };
  (void)allocator_.post_limit(0_B);
  EXPECT_EQ(work_to_the_end(), kChunk);
  EXPECT_EQ(static_cast<unsigned char*>(blocks[0])[0], 1) << "the comparison is not what keeps it";
  source_.fake().hooks() = {};
  give_up(blocks);
}

/// Runs one call of another thread in the middle of a copy.
class CallInTheMiddle {
 public:
  explicit CallInTheMiddle(MovingSource& source) : source_(source) {}
  AheadReport run(ElasticAllocator& allocator, const std::function<void()>& call) {
    source_.fake().hooks().more_turns = [&] {
      if (!thread_.joinable() && !done_) {
        thread_ = std::thread([&] {
          call();
          done_ = true;
        });
      }
      std::this_thread::yield();
      return !done_.load();  // goes on until the call was served
    };
    const AheadReport report = allocator.work_ahead(1_MiB);
    EXPECT_TRUE(thread_.joinable()) << "nothing was copied";
    if (thread_.joinable()) thread_.join();
    source_.fake().hooks() = {};
    return report;
  }

 private:
  MovingSource& source_;
  std::thread thread_;
  std::atomic<bool> done_{false};
};

TEST_F(ElasticAheadTest, ACallThatMovesMemoryGoesFirst) {
  auto blocks = chunks(4, Phase::kUnknown);
  (void)allocator_.post_limit(resident() - kChunk * 2);
  CallInTheMiddle middle(source_);
  LimitTicket ticket;
  const AheadReport report = middle.run(allocator_, [&] { ticket = allocator_.set_limit(0_B); });
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_TRUE(report.more) << "it was interrupted";
  EXPECT_EQ(report.moved_out, 0_B);
  EXPECT_EQ(resident(), 0_B);
  EXPECT_EQ(allocator_.stats().moved_ahead, 0_B);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(static_cast<unsigned char*>(blocks[i])[0], i + 1);
  }
  give_up(blocks);
  EXPECT_EQ(source_.fake().violations(), std::vector<std::string>{});
}

TEST_F(ElasticAheadTest, AChunkThatDiesMeanwhileStaysMappedUntilItHasMoved) {
  auto blocks = chunks(2, Phase::kUnknown);
  (void)allocator_.post_limit(resident() - kChunk);
  CallInTheMiddle middle(source_);
  void* large = nullptr;
  (void)middle.run(allocator_, [&] {
    give_up(blocks);
    // Needs all the device: free chunks go, but not the one that is being copied.
    large = allocator_.allocate(kChunk * 2);
  });
  ASSERT_NE(large, nullptr);
  std::memset(large, 1, (kChunk * 2).count());
  EXPECT_TRUE(allocator_.deallocate(large));
  EXPECT_TRUE(allocator_.set_limit(0_B).complete());
  EXPECT_EQ(resident(), 0_B);
  EXPECT_EQ(source_.fake().violations(), std::vector<std::string>{});
}

TEST_F(ElasticAheadTest, EachFailureLeavesTheJobRunningAndTheSafePointMoves) {
  for (const FakeCall call : {FakeCall::kCreate, FakeCall::kBeginCopy, FakeCall::kCopy,
                              FakeCall::kFence, FakeCall::kSwap, FakeCall::kRelease}) {
    SCOPED_TRACE(to_string(call));
    auto blocks = chunks(2, Phase::kUnknown);
    (void)allocator_.post_limit(resident() - kChunk);
    source_.fake().fail_always(call);
    const AheadReport report = allocator_.work_ahead(kChunk);
    if (call != FakeCall::kRelease) {
      EXPECT_EQ(report.moved_out, 0_B);
      EXPECT_FALSE(report.reason.empty());
    }
    source_.fake().fail_never(call);
    EXPECT_TRUE(allocator_.safe_point().complete());
    EXPECT_EQ(static_cast<unsigned char*>(blocks[0])[0], 1);
    EXPECT_EQ(static_cast<unsigned char*>(blocks[1])[0], 2);
    give_up(blocks);
    EXPECT_TRUE(allocator_.set_limit(0_B).complete());
    EXPECT_EQ(source_.fake().created(Tier::kDevice), 0_B);
    (void)allocator_.set_limit(Bytes{UINT64_MAX});
    EXPECT_EQ(source_.fake().violations(), std::vector<std::string>{});
  }
}

TEST_F(ElasticAheadTest, NothingMovesWhereItIsARisk) {
  auto blocks = chunks(2, Phase::kUnknown);
  source_.fake().set_move_risk("kernel I/O without a thread");
  (void)allocator_.post_limit(0_B);
  const AheadReport report = allocator_.work_ahead(kChunk);
  EXPECT_EQ(report.moved_out, 0_B);
  EXPECT_EQ(report.reason, "kernel I/O without a thread");
  EXPECT_FALSE(report.more);
  source_.fake().set_move_risk("");
  give_up(blocks);
}

TEST(BackgroundMoverTest, ABatchIsCopiedWithinAQuarterOfAStep) {
  EXPECT_EQ(batch_for(0ms), 8_MiB) << "no step is known";
  EXPECT_EQ(batch_for(1ms), 8_MiB);
  EXPECT_EQ(batch_for(62500us), 16_MiB);
  EXPECT_EQ(batch_for(1s), 32_MiB);
  EXPECT_EQ(batch_for(std::chrono::hours{1000}), 32_MiB);
}

TEST(BackgroundMoverTest, RestsSoThatTheRateHolds) {
  EXPECT_EQ(rest_after(512_MiB, 250ms, 1_GiB), 250ms);
  EXPECT_EQ(rest_after(512_MiB, 600ms, 1_GiB), 0ms) << "slower than the rate already";
  EXPECT_EQ(rest_after(0_B, 1ms, 1_GiB), 0ms);
  EXPECT_EQ(rest_after(1_GiB, 1ms, 0_B), 0ms) << "no bound";
}

// Waits until something holds, at most half a minute.
bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 30'000 && !holds(); ++i) std::this_thread::sleep_for(1ms);
  return holds();
}

TEST(BackgroundMoverTest, MovesWhenItIsWoken) {
  MovingSource source;
  ElasticAllocator allocator(source, {});
  PatternedBlocks blocks(allocator);
  for (int i = 0; i < 8; ++i) ASSERT_NE(blocks.add(1_MiB), nullptr);
  std::atomic<int> told{0};
  BackgroundMover mover(allocator, {.rate = 0_B, .batch = 256_KiB}, [&] { ++told; });
  ASSERT_EQ(mover.start(), "");
  (void)allocator.post_limit(3_MiB);
  mover.wake();
  EXPECT_TRUE(eventually([&] { return allocator.stats().device <= 3_MiB; }));
  EXPECT_TRUE(eventually([&] { return told > 0; }));
  (void)allocator.post_limit(64_MiB);
  mover.wake();
  EXPECT_TRUE(eventually([&] { return allocator.stats().host.is_zero(); }));
  mover.stop();
  mover.stop();  // twice does no harm
  blocks.expect_all();
  blocks.remove_all();
}

}  // namespace
}  // namespace commensal::elastic_ahead_test

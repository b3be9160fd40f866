// SPDX-License-Identifier: Apache-2.0
// Recently freed blocks, counts and the order of use, for one thread and for several.
#include "allocator/front_lane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "allocator/block_pool.h"
#include "allocator/elastic_allocator.h"
#include "tests/allocator/fake_memory_source.h"

namespace commensal::front_lane_test {
namespace {

constexpr std::size_t kUnit = 64;
constexpr std::size_t kChunk = std::size_t{1} << 20U;

class FrontLaneTest : public ::testing::Test {
 protected:
  FrontLaneTest() {
    // Addresses that nobody touches.
    auto* begin = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40U);
    segment_ = std::make_unique<Segment>(AddressRange{begin, Bytes{8 * kChunk}}, kChunk, kUnit);
    pool_.add_segment(*segment_);
    const GrowthPlace place = pool_.find_place(8 * kChunk, true);
    const BlockPool::Held held = pool_.hold(place, 8 * kChunk, true).value();
    for (Chunk& chunk : segment_->chunks) chunk.tier = Tier::kDevice;
    pool_.give_back(pool_.take_held(held, 8 * kChunk), 0);
    counted_ = pool_.take(kUnit, true);
  }
  // A block that was freed.
  BlockId freed(std::size_t size) {
    const BlockId id = pool_.take(size, true);
    pool_[id].state = BlockState::kRecent;
    return id;
  }
  bool keep(FrontLane& lane, BlockId id) {
    const ShortLock lock(lane.mutex);
    return lane.keep(pool_.nodes(), 0, id);
  }
  BlockId take(FrontLane& lane, std::size_t size) {
    const ShortLock lock(lane.mutex);
    return lane.take(pool_.nodes(), 0, size);
  }
  // A block of so many bytes, asked for or freed (less than none) in a lane.
  void count(FrontLane& lane, std::int64_t asked) {
    Block& block = pool_[counted_];
    block.asked = static_cast<std::size_t>(asked > 0 ? asked : -asked);
    const ShortLock lock(lane.mutex);
    if (asked > 0) {
      lane.count_birth(block);
    } else {
      lane.count_death(block);
    }
  }
  std::uint64_t use(FrontLane& lane, BlockId id) {
    const ShortLock lock(lane.mutex);
    lane.count_birth(pool_[id]);
    return last_use(id);
  }
  std::uint64_t last_use(BlockId id) { return segment_->uses.latest(pool_[id].first_chunk); }

  std::unique_ptr<Segment> segment_;
  BlockPool pool_{kUnit, 0};
  FrontLanes lanes_{{kUnit}};
  BlockId counted_ = 0;
};

TEST_F(FrontLaneTest, ServesTheLastFreedBlockOfTheSameSizeFirst) {
  const BlockId first = freed(640);
  const BlockId second = freed(640);
  const BlockId other = freed(704);
  for (const BlockId id : {first, second, other}) ASSERT_TRUE(keep(lanes_[0], id));
  EXPECT_EQ(lanes_.recent_bytes(), Bytes{640 + 640 + 704});
  EXPECT_EQ(take(lanes_[0], 640), second);
  EXPECT_EQ(pool_[second].state, BlockState::kLive);
  EXPECT_EQ(take(lanes_[0], 640), first);
  EXPECT_EQ(take(lanes_[0], 640), 0U) << "704 is another size";
  EXPECT_EQ(take(lanes_[1], 704), 0U) << "another lane's";
  EXPECT_EQ(take(lanes_[0], 704), other);
  EXPECT_EQ(lanes_.recent_bytes(), 0_B);
}

TEST_F(FrontLaneTest, KeepsNoLargeBlocks) {
  constexpr std::size_t kMost = FrontLane::kMostUnits * kUnit;
  EXPECT_TRUE(keep(lanes_[0], freed(kMost)));
  EXPECT_FALSE(keep(lanes_[0], freed(kMost + kUnit)));
  EXPECT_EQ(lanes_.recent_bytes(), Bytes{kMost});
}

TEST(FrontLanesTest, KeepsBlocksOfUpToAMebibyteWhereUnitsAreLarge) {
  constexpr std::size_t kPage = 4096;
  BlockTable nodes;
  nodes.reserve(2);
  FrontLanes lanes{{kUnit, kPage}};
  FrontLane& lane = lanes[0];
  const auto keeps = [&](std::size_t size) {
    const BlockId id = nodes.try_acquire();
    nodes[id].size = size;
    const ShortLock lock(lane.mutex);
    return lane.keep(nodes, 1, id);
  };
  EXPECT_TRUE(keeps(FrontLane::kLargest));
  EXPECT_FALSE(keeps(FrontLane::kLargest + kPage));
}

TEST_F(FrontLaneTest, AFlushHandsOutEveryBlockOnce) {
  std::set<BlockId> kept;
  for (std::size_t i = 1; i <= 20; ++i) {
    const BlockId id = freed((i % 5 + 1) * kUnit);
    ASSERT_TRUE(keep(lanes_[2], id));
    kept.insert(id);
  }
  std::set<BlockId> seen;
  FrontLane& lane = lanes_[2];
  const ShortLock lock(lane.mutex);
  lane.flush(pool_.nodes(), 0, [&](BlockId id) { EXPECT_TRUE(seen.insert(id).second); });
  EXPECT_EQ(seen, kept);
  EXPECT_EQ(lanes_.recent_bytes(), 0_B);
  lane.flush(pool_.nodes(), 0, [](BlockId) { ADD_FAILURE() << "nothing is left"; });
}

TEST_F(FrontLaneTest, CountsAreExactForOneThread) {
  count(lanes_[3], 1000);
  count(lanes_[3], 500);
  count(lanes_[3], -1000);
  count(lanes_[3], 200);
  EXPECT_EQ(lanes_.live(), 700_B);
  EXPECT_EQ(lanes_.peak_live(), 1500_B);
  EXPECT_EQ(lanes_.births(), 3U);
  EXPECT_EQ(lanes_.deaths(), 1U);
}

TEST_F(FrontLaneTest, ThePeakOfSeveralThreadsIsOffByLittle) {
  for (std::size_t i = 0; i < FrontLanes::kLanes; ++i) {
    for (int k = 0; k < 1000; ++k) count(lanes_[i], 10'000);
  }
  for (std::size_t i = 0; i < FrontLanes::kLanes; ++i) {
    for (int k = 0; k < 1000; ++k) count(lanes_[i], -10'000);
  }
  const Bytes most{FrontLanes::kLanes * 10'000'000};
  EXPECT_EQ(lanes_.live(), 0_B);
  EXPECT_LE(lanes_.peak_live(), most);
  EXPECT_GE(lanes_.peak_live() + Bytes{FrontLanes::kLanes << 20U}, most);
}

TEST_F(FrontLaneTest, TheOrderOfUseIsExactInOneLaneAndCoarseInSeveral) {
  const BlockId here = freed(kUnit);
  (void)freed(kChunk);  // between them
  const BlockId there = freed(kChunk);
  std::uint64_t before = use(lanes_[0], here);
  for (int i = 0; i < 10; ++i) {
    const std::uint64_t now = use(lanes_[0], i % 2 == 0 ? there : here);
    EXPECT_EQ(now, before + 1);
    before = now;
  }
  EXPECT_EQ(lanes_.now(), before);
  // Now there are two: what one does later than the other shows after 256 operations.
  for (int i = 0; i < 600; ++i) (void)use(lanes_[1], here);
  for (int i = 0; i < 600; ++i) (void)use(lanes_[0], there);
  EXPECT_GT(last_use(there), last_use(here));
  EXPECT_GE(lanes_.now(), 1000U);
}

TEST_F(FrontLaneTest, ABlockOverSeveralChunksUsesAllOfThem) {
  const BlockId wide = freed(3 * kChunk);
  const std::uint64_t now = use(lanes_[5], wide);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(segment_->uses.latest(pool_[wide].first_chunk + i), now);
  }
  EXPECT_EQ(segment_->uses.latest(pool_[wide].first_chunk + 4), 0U);
}

TEST_F(FrontLaneTest, FindsSegmentsAlsoAfterTheyWent) {
  SegmentTable table;
  std::byte* const address = segment_->range.begin;
  std::byte* const above = address + (std::size_t{16} << 26U);  // shares a place among the hints
  const AddressRange other{above, Bytes{8 * kChunk}};
  Segment& first = table.add(std::move(segment_));
  Segment& second = table.add(std::make_unique<Segment>(other, kChunk, kUnit));
  FrontLane& lane = lanes_[0];
  const ShortLock lock(lane.mutex);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(lane.find_segment(address, table), &first);
    EXPECT_EQ(lane.find_segment(above, table), &second);
    EXPECT_EQ(lane.find_segment(above + 8 * kChunk, table), nullptr);
  }
  lane.forget_segments();
  const std::unique_ptr<Segment> gone = table.remove(second);
  EXPECT_EQ(lane.find_segment(above, table), nullptr);
  EXPECT_EQ(lane.find_segment(address, table), &first);
}

TEST(FrontLanesTest, AThreadHasOneLaneAndTheNextThreadAnother) {
  FrontLanes lanes{{kUnit}};
  FrontLane& mine = lanes.mine();
  EXPECT_EQ(&lanes.mine(), &mine);
  std::set<const FrontLane*> seen{&mine};
  for (std::size_t i = 0; i < FrontLanes::kLanes; ++i) {
    std::thread{[&] { seen.insert(&lanes.mine()); }}.join();
  }
  EXPECT_EQ(seen.size(), FrontLanes::kLanes);
}

TEST(FrontLanesTest, AFreeByAnotherThreadServesTheOneThatAsked) {
  FakeMemorySource source;
  ElasticAllocator allocator(source, {});
  void* block = allocator.allocate(1000_B);
  std::thread{[&] { EXPECT_TRUE(allocator.deallocate(block)); }}.join();
  EXPECT_EQ(allocator.stats().live, 0_B);
  EXPECT_EQ(allocator.stats().frees, 1U);
  EXPECT_FALSE(allocator.deallocate(block)) << "it is free";
  EXPECT_EQ(allocator.allocate(1000_B), block);
  EXPECT_TRUE(allocator.deallocate(block));
}

TEST(FrontLanesTest, WhatOneThreadFreedServesAnotherWhenMemoryIsTight) {
  FakeMemorySource::Options options;
  options.host_capacity = 0_B;
  FakeMemorySource source(options);
  ElasticAllocator allocator(source, {});
  (void)allocator.set_limit(8_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(allocator.allocate(Bytes{FrontLane::kLargest}));
  for (void* block : blocks) ASSERT_TRUE(allocator.deallocate(block));
  std::thread{[&] {
    void* whole = allocator.allocate(8_MiB);
    EXPECT_NE(whole, nullptr);
    EXPECT_TRUE(allocator.deallocate(whole));
  }}.join();
}

// Every thread frees what the one before it asked for.
TEST(FrontLanesTest, BlocksThatWanderBetweenThreadsAreCountedOnce) {
  FakeMemorySource source;
  ElasticAllocator allocator(source, {});
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  std::vector<std::atomic<void*>> given(kThreads);
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      auto& mine = given[static_cast<std::size_t>(number)];
      auto& last = given[static_cast<std::size_t>((number + 1) % kThreads)];
      for (int i = 0; i < kRounds; ++i) {
        void* old =
            mine.exchange(allocator.allocate(Bytes{static_cast<std::uint64_t>(64 + i % 7 * 64)}));
        EXPECT_TRUE(allocator.deallocate(old));
        EXPECT_TRUE(allocator.deallocate(last.exchange(nullptr)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& left : given) {
    if (void* block = left.exchange(nullptr)) {
      EXPECT_TRUE(allocator.deallocate(block));
    }
  }
  EXPECT_EQ(allocator.stats().live, 0_B);
  EXPECT_EQ(allocator.stats().allocations, std::uint64_t{kThreads} * kRounds);
  EXPECT_EQ(allocator.stats().frees, allocator.stats().allocations);
  EXPECT_EQ(allocator.stats().cached, allocator.stats().device);
}

}  // namespace
}  // namespace commensal::front_lane_test

// SPDX-License-Identifier: Apache-2.0
// Split, merge and placement inside a pool, without memory behind the addresses.
#include "allocator/block_pool.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

namespace commensal::block_pool_test {
namespace {

constexpr std::size_t kUnit = 4096;
constexpr std::size_t kChunk = 64 * kUnit;

class BlockPoolTest : public ::testing::Test {
 protected:
  BlockPoolTest() {
    // Addresses that nobody touches.
    auto* begin = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40U);
    segment_ = std::make_unique<Segment>(AddressRange{begin, Bytes{16 * kChunk}}, kChunk, kUnit);
    pool_.add_segment(*segment_);
  }
  // Maps what a request needs and serves it.
  BlockId grow(std::size_t size, Tier tier = Tier::kDevice) {
    const bool fast = tier == Tier::kDevice;
    const GrowthPlace place = pool_.find_place(size, fast);
    if (place.segment == nullptr) return 0;
    const BlockPool::Held held = pool_.hold(place, size, fast).value();
    for (std::size_t i = 0; i < place.chunks; ++i) {
      segment_->chunks[place.first_chunk + i].tier = tier;
    }
    mapped_ += place.chunks;
    return pool_.take_held(held, size);
  }
  BlockId take(std::size_t size) {
    const BlockId id = pool_.take(size, true);
    return id != 0 ? id : grow(size);
  }
  void unmap(std::size_t chunk) {
    const BlockId carved = pool_.carve(*segment_, chunk);
    segment_->chunks[chunk].tier = Tier::kFree;
    pool_.make_hole(carved);
    --mapped_;
  }
  std::byte* at(std::size_t chunk) { return segment_->chunk_begin(chunk); }

  std::unique_ptr<Segment> segment_;
  BlockPool pool_{kUnit, 0};
  std::size_t mapped_ = 0;
};

TEST_F(BlockPoolTest, ABlockSpansChunks) {
  const BlockId block = take(3 * kChunk + kUnit);
  EXPECT_EQ(mapped_, 4U);
  EXPECT_EQ(pool_[block].address, at(0));
  EXPECT_EQ(segment_->chunks[3].used, kUnit);
  EXPECT_EQ(segment_->chunks[1].head, block);
  EXPECT_EQ(segment_->chunks[2].tail, block);
  pool_.give_back(block, 1);
  EXPECT_EQ(pool_.used_bytes(), 0U);
  EXPECT_EQ(pool_[pool_.take(4 * kChunk, true)].address, at(0)) << "merged whole";
}

TEST_F(BlockPoolTest, AHoleSeparatesNeighbours) {
  const BlockId block = take(3 * kChunk);
  pool_.give_back(block, 1);
  unmap(1);
  EXPECT_EQ(pool_.take(2 * kChunk, true), 0U);
  EXPECT_EQ(pool_[pool_.take(kChunk, true)].size, kChunk);
  const BlockId whole = grow(2 * kChunk);
  EXPECT_EQ(mapped_, 3U) << "the hole was filled";
  EXPECT_NE(whole, 0U);
}

TEST_F(BlockPoolTest, APlaceIsOnlyHeldWhileTheMemoryBesideItIsStillFree) {
  pool_.give_back(take(2 * kChunk), 1);
  const GrowthPlace place = pool_.find_place(3 * kChunk, true);
  ASSERT_EQ(place.chunks, 1U) << "the free memory beside it counts";
  const BlockId other = pool_.take(kChunk, true);  // another thread, before the place is held
  EXPECT_FALSE(pool_.hold(place, 3 * kChunk, true).has_value());
  EXPECT_NE(pool_.take(kChunk, true), 0U) << "what is left stays in the bins";
  EXPECT_TRUE(pool_.hold(place, kChunk, true).has_value());
  EXPECT_EQ(pool_[other].size, kChunk);
}

TEST_F(BlockPoolTest, FillsAHoleBetweenFreeMemory) {
  pool_.give_back(take(3 * kChunk), 1);
  unmap(1);
  const BlockId whole = grow(3 * kChunk);
  EXPECT_EQ(mapped_, 3U);
  EXPECT_EQ(pool_[whole].address, at(0));
}

TEST_F(BlockPoolTest, FreeMemoryOfBothTiersStaysApart) {
  pool_.give_back(take(3 * kChunk), 1);
  pool_.begin_retier(*segment_, 1);
  segment_->chunks[1].tier = Tier::kHost;
  pool_.end_retier(*segment_, 1);
  EXPECT_EQ(pool_.take(2 * kChunk, true), 0U);
  EXPECT_EQ(pool_.take(2 * kChunk, false), 0U);
  const BlockId slow = pool_.take(kChunk, false);
  EXPECT_EQ(pool_[slow].address, at(1));
  pool_.give_back(slow, 1);
  pool_.begin_retier(*segment_, 1);
  segment_->chunks[1].tier = Tier::kDevice;
  pool_.end_retier(*segment_, 1);
  EXPECT_EQ(pool_[pool_.take(3 * kChunk, true)].address, at(0)) << "merged again";
}

TEST_F(BlockPoolTest, DroppingAGrowthRestoresTheFreeMemory) {
  const BlockId block = take(kChunk + kUnit);
  const GrowthPlace place = pool_.find_place(2 * kChunk, true);
  EXPECT_EQ(place.first_chunk, 2U);
  const BlockPool::Held held = pool_.hold(place, 2 * kChunk, true).value();
  EXPECT_EQ(pool_.take(kUnit, true), 0U) << "held";
  pool_.drop(held);
  EXPECT_NE(pool_.take(kChunk - kUnit, true), 0U);
  EXPECT_NE(block, 0U);
}

TEST_F(BlockPoolTest, FindsABlockAnywhereInACrowdedList) {
  // Many blocks of one size class, only the one that was freed first (last in the list) fits.
  std::vector<BlockId> blocks;
  const BlockId large = take(40 * kUnit + kUnit);
  std::vector<BlockId> walls;
  walls.push_back(take(kUnit));
  for (int i = 0; i < 15; ++i) {
    blocks.push_back(take(40 * kUnit));
    walls.push_back(take(kUnit));
  }
  for (const Chunk& chunk : segment_->chunks) {
    if (chunk.tail == 0) continue;
    while (pool_.take(kUnit, true) != 0) continue;  // no free memory but what follows
  }
  pool_.give_back(large, 1);
  for (const BlockId id : blocks) pool_.give_back(id, 1);
  EXPECT_EQ(pool_.take(41 * kUnit, true), large);
}

TEST_F(BlockPoolTest, RandomUseKeepsEveryUnitAccountedFor) {
  std::mt19937_64 random(7);
  std::vector<BlockId> live;
  std::size_t bytes = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 || live.empty()) {
      const std::size_t size = (1 + random() % 40) * kUnit;
      const BlockId id = take(size);
      if (id == 0) continue;
      live.push_back(id);
      bytes += size;
    } else {
      std::swap(live[random() % live.size()], live.back());
      bytes -= pool_[live.back()].size;
      pool_.give_back(live.back(), 1);
      live.pop_back();
    }
    ASSERT_EQ(pool_.used_bytes(), bytes);
  }
  for (const BlockId id : live) pool_.give_back(id, 1);
  std::size_t used = 0;
  for (const Chunk& chunk : segment_->chunks) used += chunk.used;
  EXPECT_EQ(used, 0U);
  EXPECT_NE(pool_.take(mapped_ * kChunk, true), 0U) << "one whole block again";
}

TEST_F(BlockPoolTest, WhatIsHeldBesideAPlaceIsNotFree) {
  const BlockId block = take(2 * kChunk);
  EXPECT_FALSE(pool_.is_free(*segment_, 0)) << "live";
  EXPECT_FALSE(pool_.is_free(*segment_, 5)) << "no memory";
  pool_.give_back(block, 0);
  EXPECT_TRUE(pool_.is_free(*segment_, 0));
  EXPECT_TRUE(pool_.is_free(*segment_, 1));
  const GrowthPlace place = pool_.find_place(3 * kChunk, true);
  ASSERT_EQ(place.chunks, 1U);
  const BlockPool::Held held = pool_.hold(place, 3 * kChunk, true).value();
  EXPECT_FALSE(pool_.is_free(*segment_, 0)) << "held";
  EXPECT_FALSE(pool_.is_free(*segment_, 1));
  pool_.drop(held);
  EXPECT_TRUE(pool_.is_free(*segment_, 0));
}

TEST_F(BlockPoolTest, ABlockIsOnTheDeviceWhenEveryChunkOfItIs) {
  const BlockId block = take(3 * kChunk);
  EXPECT_TRUE(pool_.on_device(pool_[block]));
  for (const std::size_t chunk : {0U, 1U, 2U}) {
    segment_->chunks[chunk].tier = Tier::kHost;
    EXPECT_FALSE(pool_.on_device(pool_[block])) << chunk;
    segment_->chunks[chunk].tier = Tier::kDevice;
  }
}

}  // namespace
}  // namespace commensal::block_pool_test

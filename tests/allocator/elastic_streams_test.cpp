// SPDX-License-Identifier: Apache-2.0
// Streams: what one has freed serves no other, whatever is asked for; alignment of blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "allocator/pool_table.h"
#include "tests/allocator/moving_source.h"

namespace commensal::elastic_streams_test {
namespace {

using ::testing::HasSubstr;

constexpr StreamId kCopies = 7;
constexpr StreamId kOther = 8;

class ElasticStreamsTest : public ::testing::Test {
 protected:
  ~ElasticStreamsTest() override { EXPECT_THAT(fake().violations(), ::testing::IsEmpty()); }
  FakeMemorySource& fake() { return source_.fake(); }

  void* add(StreamId stream, Bytes size = 1_MiB, TagId tag = 0) {
    return allocator_.allocate(size, stream, AllocationContext{Phase::kUnknown, tag});
  }
  void remove(void* block) { EXPECT_TRUE(allocator_.deallocate(block)); }

  MovingSource source_;
  ElasticAllocator allocator_{source_, {}};
};

TEST_F(ElasticStreamsTest, AFreedBlockServesItsOwnStreamAgainAndNoOther) {
  for (const StreamId owner : {StreamId{0}, kCopies}) {
    void* const block = add(owner);
    remove(block);
    std::vector<void*> others;
    for (const StreamId stream : {StreamId{0}, kCopies, kOther}) {
      if (stream == owner) continue;
      others.push_back(add(stream));
      EXPECT_NE(others.back(), block) << "of " << owner << " for " << stream;
    }
    void* const again = add(owner);
    EXPECT_EQ(again, block) << owner;
    remove(again);
    for (void* other : others) remove(other);
  }
}

TEST_F(ElasticStreamsTest, PartsOfAFreedBlockServeNoOtherStreamEither) {
  void* const block = add(kCopies, 8_MiB);
  remove(block);
  for (int i = 0; i < 64; ++i) {
    auto* const other = static_cast<std::byte*>(add(kOther, 64_KiB));
    const auto* const begin = static_cast<const std::byte*>(block);
    ASSERT_FALSE(other >= begin && other < begin + (8_MiB).count()) << i;
  }
}

TEST_F(ElasticStreamsTest, ChunksGoFromOneStreamToAnotherThroughTheSourceOnly) {
  void* const first = add(kCopies, 32_MiB);
  remove(first);
  const Bytes held = allocator_.stats().device;
  allocator_.post_limit(held);
  void* const second = add(kOther, 32_MiB);  // fits only in place of the first one
  EXPECT_NE(second, first);
  EXPECT_LE(allocator_.stats().device, held);
  EXPECT_EQ(allocator_.stats().host, Bytes{});
  remove(second);
}

TEST_F(ElasticStreamsTest, BlocksOfStreamsMoveAndKeepTheirContent) {
  std::vector<std::pair<unsigned char*, StreamId>> blocks;
  for (const StreamId stream : {StreamId{0}, kCopies, kOther}) {
    auto* const block = static_cast<unsigned char*>(add(stream, 4_MiB));
    std::memset(block, static_cast<int>(stream + 1), (4_MiB).count());
    blocks.emplace_back(block, stream);
  }
  EXPECT_TRUE(allocator_.set_limit(4_MiB).complete());
  EXPECT_LE(allocator_.stats().device, 4_MiB);
  EXPECT_GE(allocator_.stats().host, 8_MiB);
  EXPECT_TRUE(allocator_.set_limit(1_GiB).complete());
  for (const auto& [block, stream] : blocks) {
    EXPECT_EQ(block[0], stream + 1);
    EXPECT_EQ(block[(4_MiB).count() - 1], stream + 1);
    remove(block);
  }
}

TEST_F(ElasticStreamsTest, ATagHasItsBlocksOfAllStreams) {
  const TagId tag = allocator_.open_tag("cache");
  void* const one = add(0, 4_MiB, tag);
  void* const two = add(kCopies, 4_MiB, tag);
  EXPECT_EQ(allocator_.tags().at(0).live, 8_MiB);
  EXPECT_TRUE(allocator_.park_tag(tag).complete());
  EXPECT_EQ(allocator_.tags().at(0).device, Bytes{});
  EXPECT_EQ(allocator_.tags().at(0).saved, 8_MiB);
  EXPECT_TRUE(allocator_.wake_tag(tag).complete());
  remove(two);
  void* const plain = add(kCopies, 4_MiB);
  EXPECT_NE(plain, two);  // of the stream without a tag
  remove(plain);
  remove(one);
}

TEST_F(ElasticStreamsTest, TheMapTellsWhoseASegmentIs) {
  void* const block = add(kCopies);
  const std::vector<SegmentMap> map = allocator_.memory_map(true);
  ASSERT_EQ(map.size(), 1U);
  EXPECT_EQ(map[0].stream, kCopies);
  EXPECT_EQ(map[0].tag, "");
  EXPECT_TRUE(map[0].range.contains(block));
  remove(block);
}

TEST_F(ElasticStreamsTest, StreamsAreCountedAsAllOtherMemory) {
  void* const block = add(kCopies, 5_MiB);
  const AllocatorStats stats = allocator_.stats();
  EXPECT_EQ(stats.live, 5_MiB);
  EXPECT_GE(stats.device, 5_MiB);
  EXPECT_EQ(allocator_.size_of(block), 5_MiB);
  EXPECT_TRUE(allocator_.owns(block));
  remove(block);
  EXPECT_EQ(allocator_.stats().live, Bytes{});
  EXPECT_GE(allocator_.release_cached(), 5_MiB);
  EXPECT_EQ(allocator_.stats().device, Bytes{});
}

TEST_F(ElasticStreamsTest, ZeroBytesAndMoreThanAnyRange) {
  EXPECT_EQ(add(kCopies, Bytes{}), nullptr);
  try {
    (void)add(kCopies, Bytes{std::uint64_t{1} << 50U});
    FAIL() << "a block of a pebibyte";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("larger than any address range"));
  }
}

TEST(BlockAlignment, EveryBlockHasIt) {
  for (const Bytes alignment : {64_B, 512_B, 4_KiB}) {
    MovingSource source;
    ElasticAllocatorOptions options;
    options.alignment = alignment;
    ElasticAllocator allocator(source, options);
    std::vector<void*> blocks;
    for (const StreamId stream : {StreamId{0}, kCopies}) {
      for (std::uint64_t size = 1; size < 300'000; size = size * 3 + 1) {
        blocks.push_back(allocator.allocate(Bytes{size}, stream));
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back()) % alignment.count(), 0U)
            << size << " B of " << to_string(alignment);
      }
    }
    EXPECT_EQ(std::set<void*>(blocks.begin(), blocks.end()).size(), blocks.size());
    for (void* block : blocks) EXPECT_TRUE(allocator.deallocate(block));
  }
}

TEST(BlockAlignment, NoPowerOfTwoOrOutOfRangeIsRefusedByName) {
  MovingSource source;
  for (const std::uint64_t alignment : {0U, 32U, 96U, 8192U}) {
    ElasticAllocatorOptions options;
    options.alignment = Bytes{alignment};
    try {
      const ElasticAllocator allocator(source, options);
      ADD_FAILURE() << alignment;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), HasSubstr(": " + std::to_string(alignment)));
    }
  }
}

class PoolTableTest : public ::testing::Test {
 protected:
  PoolTable table_{BlockPool{64, 0}, BlockPool{4096, 1}, BlockPool{64, 2}, BlockPool{4096, 3}};
};

TEST_F(PoolTableTest, AKeyHasOnePoolForEver) {
  const std::size_t first = table_.number_for({kCopies, 0}, 512);
  const std::size_t second = table_.number_for({kCopies, 3}, 512);
  EXPECT_EQ(first, PoolTable::kByLifetime);
  EXPECT_EQ(second, PoolTable::kByLifetime + 1);
  EXPECT_EQ(table_.number_for({kCopies, 0}, 512), first);
  EXPECT_EQ(table_.key(second), (PoolKey{kCopies, 3}));
  EXPECT_TRUE(table_.key(2).none());
  EXPECT_EQ(table_[first].unit(), 512U);
  std::size_t pools = 0;
  table_.each([&](const BlockPool& pool) { EXPECT_EQ(pool.number(), pools++); });
  EXPECT_EQ(pools, 6U);
}

TEST_F(PoolTableTest, OneTooManyIsRefusedAndChangesNothing) {
  for (StreamId stream = 1; stream <= PoolTable::kMostApart; ++stream) {
    ASSERT_NE(table_.number_for({stream, 0}, 512), 0U) << stream;
  }
  EXPECT_EQ(table_.number_for({PoolTable::kMostApart + 1, 0}, 512), 0U);
  EXPECT_EQ(table_.number_for({PoolTable::kMostApart + 1, 0}, 512), 0U);
  EXPECT_EQ(table_.number_for({PoolTable::kMostApart, 0}, 512), PoolTable::kPools - 1);
}

}  // namespace
}  // namespace commensal::elastic_streams_test

// SPDX-License-Identifier: Apache-2.0
// Blocks of the elastic allocator: placement, reuse, accounting, exhaustion.
#include "allocator/elastic_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/allocator/moving_source.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::elastic_allocator_test {
namespace {

using ::testing::HasSubstr;

class ElasticAllocatorTest : public ::testing::Test {
 protected:
  static ElasticAllocatorOptions with_limit(Bytes limit) {
    ElasticAllocatorOptions options;
    options.limit = limit;
    options.move_deadline = std::chrono::seconds{60};  // a slow machine is no fault
    return options;
  }
  ~ElasticAllocatorTest() override { EXPECT_TRUE(source_.violations().empty()); }

  FakeMemorySource source_;
};

TEST_F(ElasticAllocatorTest, ServesAlignedBlocksOfEverySize) {
  ElasticAllocator allocator(source_, {});
  PatternedBlocks blocks(allocator);
  for (std::size_t size = 1; size < (40U << 20U); size = size * 3 / 2 + 1) {
    std::byte* block = blocks.add(Bytes{size});
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(allocator.size_of(block), Bytes{size});
    EXPECT_TRUE(allocator.owns(block));
  }
  blocks.expect_all();
  blocks.remove_all();
  EXPECT_EQ(allocator.stats().live, 0_B);
}

TEST_F(ElasticAllocatorTest, AnswersWhatIsNotItsOwn) {
  ElasticAllocator allocator(source_, {});
  EXPECT_EQ(allocator.allocate(0_B), nullptr);
  EXPECT_TRUE(allocator.deallocate(nullptr));
  int foreign = 0;
  EXPECT_FALSE(allocator.owns(&foreign));
  EXPECT_FALSE(allocator.deallocate(&foreign));
  auto* block = static_cast<std::byte*>(allocator.allocate(1_KiB));
  EXPECT_EQ(allocator.size_of(block + 64), 0_B);
  EXPECT_FALSE(allocator.deallocate(block + 64));
  EXPECT_TRUE(allocator.deallocate(block));
  EXPECT_FALSE(allocator.deallocate(block)) << "freed twice";
  EXPECT_EQ(allocator.stats().frees, 1U);
}

TEST_F(ElasticAllocatorTest, ServesTheLatestFreedBlockOfASizeFirst) {
  ElasticAllocator allocator(source_, {});
  void* first = allocator.allocate(5000_B);
  void* second = allocator.allocate(5000_B);
  EXPECT_TRUE(allocator.deallocate(first));
  EXPECT_TRUE(allocator.deallocate(second));
  EXPECT_EQ(allocator.allocate(5000_B), second);
  EXPECT_EQ(allocator.allocate(5000_B), first);
}

TEST_F(ElasticAllocatorTest, MergesNeighboursBeforeItGrows) {
  ElasticAllocator allocator(source_, {});
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(allocator.allocate(128_KiB));
  const std::uint64_t chunks = source_.calls(FakeCall::kCreate);
  for (void* block : blocks) EXPECT_TRUE(allocator.deallocate(block));
  void* whole = allocator.allocate(2_MiB);
  EXPECT_EQ(whole, blocks.front());
  EXPECT_EQ(source_.calls(FakeCall::kCreate), chunks);
  EXPECT_TRUE(allocator.deallocate(whole));
}

TEST_F(ElasticAllocatorTest, GrowsBesideFreeMemoryOfTheLastChunk) {
  ElasticAllocator allocator(source_, {});
  void* first = allocator.allocate(1_MiB);
  (void)allocator.allocate(3_MiB);  // one half in the first chunk, the rest in a second one
  EXPECT_EQ(allocator.stats().device, 4_MiB);
  EXPECT_TRUE(allocator.deallocate(first));
}

TEST_F(ElasticAllocatorTest, TakesTheBestFit) {
  ElasticAllocator allocator(source_, {});
  std::vector<void*> blocks;
  for (const Bytes size : {6_MiB, 3_MiB, 5_MiB, 3_MiB, 4_MiB, 3_MiB}) {
    blocks.push_back(allocator.allocate(size));
  }
  for (const std::size_t i : {0U, 2U, 4U}) EXPECT_TRUE(allocator.deallocate(blocks[i]));
  EXPECT_EQ(allocator.allocate(3900_KiB), blocks[4]);
  EXPECT_EQ(allocator.allocate(4900_KiB), blocks[2]);
  EXPECT_EQ(allocator.allocate(5900_KiB), blocks[0]);
}

TEST_F(ElasticAllocatorTest, NeverTouchesFreedMemory) {
  ElasticAllocator allocator(source_, {});
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 64; ++i) {
    blocks.push_back(static_cast<unsigned char*>(allocator.allocate(300_KiB)));
    std::memset(blocks.back(), 0x5A, (300_KiB).count());
  }
  for (unsigned char* block : blocks) EXPECT_TRUE(allocator.deallocate(block));
  for (const unsigned char* block : blocks) {
    for (std::size_t i = 0; i < (300_KiB).count(); ++i) ASSERT_EQ(block[i], 0x5A);
  }
}

TEST_F(ElasticAllocatorTest, TakesFreesFromAnyThread) {
  ElasticAllocator allocator(source_, {});
  void* block = allocator.allocate(1_MiB);
  std::thread([&] { EXPECT_TRUE(allocator.deallocate(block)); }).join();
  EXPECT_EQ(allocator.stats().live, 0_B);
}

TEST_F(ElasticAllocatorTest, KeepsItsAccountingWhenOutOfMemory) {
  FakeMemorySource::Options none;
  none.host_capacity = 0_B;
  none.host_reason = "/dev/shm gives no memory back";
  FakeMemorySource source(none);
  ElasticAllocator allocator(source, with_limit(32_MiB));
  PatternedBlocks blocks(allocator);
  ASSERT_NE(blocks.add(20_MiB), nullptr);
  const AllocatorStats before = allocator.stats();
  const Bytes reserved = source.reserved();
  try {
    (void)allocator.allocate(20_MiB);
    FAIL() << "more than the limit was served";
  } catch (const OutOfMemory& error) {
    const std::string what = error.what();
    EXPECT_THAT(what, HasSubstr("out of memory: asked 20 MiB, limit 32 MiB, in use 20 MiB "
                                "(live 20 MiB), slower tier 0 B of 0 B (/dev/shm gives no memory "
                                "back); tried: 1. own cache: 0 B released, needs "));
    EXPECT_THAT(what, HasSubstr("MiB more on the device; 2. slower tier: no slower tier: "
                                "/dev/shm gives no memory back"));
  }
  const AllocatorStats after = allocator.stats();
  EXPECT_EQ(after.device, before.device);
  EXPECT_EQ(after.host, before.host);
  EXPECT_EQ(after.live, before.live);
  EXPECT_EQ(after.cached, before.cached);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.out_of_memory, before.out_of_memory + 1);
  EXPECT_EQ(source.reserved(), reserved);
  blocks.expect_all();
  blocks.remove_all();
}

TEST_F(ElasticAllocatorTest, OutOfMemoryTellsTheWholeStoryInOrder) {
  FakeMemorySource::Options little;
  little.host_capacity = 4_MiB;
  FakeMemorySource source(little);
  ElasticAllocator allocator(source, with_limit(8_MiB));
  EXPECT_TRUE(allocator.deallocate(allocator.allocate(6_MiB)));  // the cache that is released
  allocator.on_pressure([](Bytes needed) { return "refused " + to_string(needed); });
  try {
    (void)allocator.allocate(20_MiB);
    FAIL() << "more than both tiers was served";
  } catch (const OutOfMemory& error) {
    EXPECT_STREQ(error.what(),
                 "out of memory: asked 20 MiB, limit 8 MiB, in use 0 B (live 0 B), slower tier 0 B "
                 "of 4 MiB; tried: 1. own cache: 6 MiB released, needs 20 MiB more on the device; "
                 "2. others: refused 20 MiB; 3. slower tier: slower tier full: 0 B of 4 MiB");
  }
}

TEST_F(ElasticAllocatorTest, RefusesAbsurdSizes) {
  ElasticAllocator allocator(source_, {});
  EXPECT_THROW((void)allocator.allocate(Bytes{UINT64_MAX}), OutOfMemory);
  EXPECT_THROW((void)allocator.allocate(Bytes{UINT64_MAX / 2}), OutOfMemory);
  EXPECT_EQ(allocator.stats().live, 0_B);
}

TEST_F(ElasticAllocatorTest, ServesFromTheSlowerTierAboveTheLimit) {
  ElasticAllocator allocator(source_, with_limit(4_MiB));
  PatternedBlocks blocks(allocator);
  ASSERT_NE(blocks.add(3_MiB), nullptr);
  std::byte* above = blocks.add(5_MiB);
  ASSERT_NE(above, nullptr);
  EXPECT_EQ(source_.tier_at(above + (4_MiB).count()), Tier::kHost);
  EXPECT_LE(allocator.stats().device, 4_MiB);
  EXPECT_GE(allocator.stats().host, 4_MiB);
  blocks.remove_all();
}

TEST_F(ElasticAllocatorTest, HoldsTheCapOfTheSlowerTier) {
  ElasticAllocatorOptions options = with_limit(2_MiB);
  options.host_cap = 6_MiB;
  ElasticAllocator allocator(source_, options);
  PatternedBlocks blocks(allocator);
  ASSERT_NE(blocks.add(8_MiB), nullptr);
  EXPECT_EQ(blocks.add(1_MiB), nullptr);
  EXPECT_EQ(allocator.stats().host, 6_MiB);
  blocks.remove_all();
}

TEST_F(ElasticAllocatorTest, GivesUpFreeChunksElsewhereBeforeTheSlowerTier) {
  ElasticAllocator allocator(source_, with_limit(8_MiB));
  void* small = allocator.allocate(1_KiB);  // 2 MiB of the small pool
  void* large = allocator.allocate(6_MiB);
  EXPECT_TRUE(allocator.deallocate(small));
  void* more = allocator.allocate(2_MiB);
  EXPECT_EQ(allocator.stats().host, 0_B);
  EXPECT_EQ(allocator.stats().device, 8_MiB);
  EXPECT_TRUE(allocator.deallocate(large));
  EXPECT_TRUE(allocator.deallocate(more));
}

TEST_F(ElasticAllocatorTest, AsksUnderPressureWithoutALock) {
  ElasticAllocator allocator(source_, with_limit(2_MiB));
  int asked = 0;
  allocator.on_pressure([&](Bytes needed) {
    ++asked;
    EXPECT_EQ(needed, 10_MiB);
    EXPECT_EQ(allocator.stats().live, 0_B);   // would deadlock under a lock
    void* inner = allocator.allocate(3_MiB);  // does not ask again
    EXPECT_TRUE(allocator.deallocate(inner));
    allocator.post_limit(64_MiB);
    return "64 MiB";
  });
  void* block = allocator.allocate(10_MiB);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(source_.tier_at(block), Tier::kDevice);
  EXPECT_TRUE(allocator.deallocate(block));
}

TEST_F(ElasticAllocatorTest, FallsBackWhenNobodyGivesWay) {
  ElasticAllocator allocator(source_, with_limit(2_MiB));
  int asked = 0;
  allocator.on_pressure([&](Bytes) {
    ++asked;
    return "nobody gives way";
  });
  void* block = allocator.allocate(10_MiB);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(source_.tier_at(block), Tier::kDevice) << "what fits stays on the device";
  EXPECT_EQ(allocator.stats().host, 8_MiB);
  EXPECT_TRUE(allocator.deallocate(block));
}

TEST_F(ElasticAllocatorTest, AsksTheSourceForItsGranularity) {
  for (const Bytes granularity : {4_KiB, 12_KiB, 192_KiB, 3_MiB, 64_MiB}) {
    FakeMemorySource::Options odd;
    odd.granularity = granularity;
    FakeMemorySource source(odd);
    ElasticAllocator allocator(source, with_limit(256_MiB));
    PatternedBlocks blocks(allocator);
    for (const Bytes size : {1_KiB, 100_KiB, 3_MiB, 40_MiB}) {
      ASSERT_NE(blocks.add(size), nullptr) << to_string(granularity);
    }
    EXPECT_EQ(allocator.stats().device.count() % granularity.count(), 0U);
    (void)allocator.set_limit(0_B);
    EXPECT_EQ(allocator.stats().device, 0_B) << to_string(granularity);
    blocks.expect_all();
    blocks.remove_all();
    EXPECT_TRUE(source.violations().empty());
  }
}

TEST_F(ElasticAllocatorTest, GivesAVeryLargeBlockItsOwnAddresses) {
  ElasticAllocator allocator(source_, {});
  void* block = allocator.allocate(3_GiB);  // never touched: costs no memory
  EXPECT_EQ(source_.reserved(), 3_GiB);
  EXPECT_TRUE(allocator.deallocate(block));
  EXPECT_EQ(allocator.release_cached(), 3_GiB);
  EXPECT_EQ(source_.reserved(), 0_B);
}

TEST_F(ElasticAllocatorTest, ReservesLessWhereAddressesAreScarce) {
  FakeMemorySource::Options scarce;
  scarce.address_space = 24_MiB;
  FakeMemorySource source(scarce);
  ElasticAllocator allocator(source, {});
  PatternedBlocks blocks(allocator);
  for (int i = 0; i < 10; ++i) ASSERT_NE(blocks.add(10_MiB), nullptr);
  EXPECT_THAT(allocator.reservation_notes(), HasSubstr("instead of 256 MiB"));
  EXPECT_THAT(allocator.reservation_notes(), HasSubstr("no address space"));
  EXPECT_THROW((void)allocator.allocate(30_MiB), OutOfMemory);
  blocks.remove_all();
}

TEST_F(ElasticAllocatorTest, GivesBackWhatStaysUnusedForSomeSafePoints) {
  ElasticAllocator allocator(source_, {});
  void* block = allocator.allocate(200_MiB);
  EXPECT_FALSE(allocator.work_pending());
  EXPECT_TRUE(allocator.deallocate(block));
  EXPECT_TRUE(allocator.work_pending());
  for (int i = 0; i < 5; ++i) (void)allocator.safe_point();
  EXPECT_EQ(allocator.stats().device, 200_MiB) << "kept, because it may be used again";
  for (int i = 0; i < 10; ++i) (void)allocator.safe_point();
  EXPECT_LE(allocator.stats().device, 66_MiB);
  EXPECT_FALSE(allocator.work_pending());
}

TEST_F(ElasticAllocatorTest, KeepsWhatIsUsedAgainBetweenSafePoints) {
  ElasticAllocator allocator(source_, {});
  for (int i = 0; i < 20; ++i) {
    void* block = allocator.allocate(200_MiB);
    EXPECT_TRUE(allocator.deallocate(block));
    (void)allocator.safe_point();
  }
  EXPECT_EQ(source_.calls(FakeCall::kUnmap), 0U);
}

TEST_F(ElasticAllocatorTest, GivesEverythingBackAtTheEnd) {
  {
    ElasticAllocator allocator(source_, with_limit(4_MiB));
    for (int i = 0; i < 6; ++i) (void)allocator.allocate(3_MiB);  // never freed
    (void)allocator.park();
  }
  EXPECT_EQ(source_.created(Tier::kDevice) + source_.created(Tier::kHost), 0_B);
  EXPECT_EQ(source_.reserved(), 0_B);
}

}  // namespace
}  // namespace commensal::elastic_allocator_test

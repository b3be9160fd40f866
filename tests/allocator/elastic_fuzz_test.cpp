// SPDX-License-Identifier: Apache-2.0
// Random operations on the elastic allocator; after each, contents and sums must hold.
#include <gtest/gtest.h>

#include "tests/allocator/fuzz.h"
#include "tests/allocator/moving_source.h"

namespace commensal::elastic_fuzz_test {
namespace {

ElasticAllocatorOptions small_chunks() {
  ElasticAllocatorOptions options;
  options.limit = 3_MiB;
  options.chunk_size = 48_KiB;  // small, so that many chunks move in little time
  return options;
}

FakeMemorySource::Options small_ranges() {
  FakeMemorySource::Options options;
  options.granularity = 12_KiB;   // odd on purpose
  options.address_space = 2_MiB;  // many segments
  return options;
}

TEST(ElasticFuzzTest, Law2_LiveDataSurvivesRandomOperations) {
  MovingSource source(small_ranges());
  ElasticAllocator allocator(source, small_chunks());
  FuzzOptions options;
  options.seed = fuzz_seed();
  options.operations = fuzz_operations(40'000, 8'000);
  std::uint64_t count = 0;
  options.before = [&](std::mt19937_64&) {
    if (++count % 1000 == 0) source.fake().clear_log();
  };
  ElasticFuzz(allocator, options).run();
  EXPECT_TRUE(source.fake().violations().empty());
  EXPECT_GT(allocator.stats().moved_out, 0_MiB);
}

TEST(ElasticFuzzTest, Law2_LiveDataSurvivesASourceThatFailsAtRandom) {
  FakeMemorySource::Options narrow = small_ranges();
  narrow.device_capacity = 4_MiB;
  narrow.host_capacity = 4_MiB;
  MovingSource source(narrow);
  {
    ElasticAllocator allocator(source, small_chunks());
    FuzzOptions options;
    options.seed = fuzz_seed();
    options.operations = fuzz_operations(40'000, 8'000);
    std::uint64_t count = 0;
    options.before = [&](std::mt19937_64& random) {
      if (++count % 1000 == 0) source.fake().clear_log();
      if (random() % 16 != 0) return;
      const auto call = static_cast<FakeCall>(random() % kFakeCalls);
      source.fake().fail_at(call, 1 + random() % 4);
      source.fake().set_move_risk(random() % 8 == 0 ? "a thread blocks the signal" : "");
    };
    ElasticFuzz(allocator, options).run();
    EXPECT_TRUE(source.fake().violations().empty());
    for (std::size_t i = 0; i < kFakeCalls; ++i) source.fake().fail_never(static_cast<FakeCall>(i));
    (void)allocator.release_cached();
    EXPECT_EQ(source.fake().created(Tier::kDevice) + source.fake().created(Tier::kHost), 0_B);
  }
  EXPECT_EQ(source.fake().reserved(), 0_B);
}

TEST(ElasticFuzzTest, AMoveThatSkipsTheComparisonIsCaught) {
  // Shows that the fuzz notices lost writes: one write between copy and fence, comparison off.
  MovingSource source(small_ranges());
  ElasticAllocator allocator(source, small_chunks());
  PatternedBlocks blocks(allocator);
  std::byte* block = blocks.add(512_KiB);
  ASSERT_NE(block, nullptr);
  source.compare(false);
  source.fake().hooks().copied = [&](std::byte*, Bytes) { blocks.rewrite(block); };
  (void)allocator.set_limit(0_B);
  EXPECT_EQ(blocks.damaged(), 1U);
}

}  // namespace
}  // namespace commensal::elastic_fuzz_test

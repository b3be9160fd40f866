// SPDX-License-Identifier: Apache-2.0
// Every call of the source fails once at every position; nothing is lost and a retry succeeds.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/moving_source.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::elastic_failure_test {
namespace {

/// Something that the allocator does, and how to tell that it was done in the end.
struct Scenario {
  const char* name;
  std::function<void(ElasticAllocator&, PatternedBlocks&)> prepare;
  std::function<void(ElasticAllocator&, PatternedBlocks&)> act;  ///< may be called again
  std::function<bool(const AllocatorStats&)> done;
};

std::vector<Scenario> scenarios() {
  const auto fill = [](ElasticAllocator&, PatternedBlocks& blocks) {
    for (const Bytes size : {320_KiB, 70_KiB, 192_KiB, 1_KiB, 256_KiB}) (void)blocks.add(size);
    blocks.remove(blocks.add(384_KiB));
  };
  const auto fill_and_shrink = [fill](ElasticAllocator& allocator, PatternedBlocks& blocks) {
    fill(allocator, blocks);
    (void)allocator.set_limit(0_B);
  };
  return {
      {"Allocate", [](ElasticAllocator&, PatternedBlocks&) {},
       [](ElasticAllocator&, PatternedBlocks& blocks) {
         while (blocks.entries().size() < 3) {
           if (blocks.add(448_KiB) == nullptr) return;
         }
       },
       [](const AllocatorStats& stats) { return stats.live == 1344_KiB; }},
      {"AllocateOnTheSlowerTier",
       [](ElasticAllocator& allocator, PatternedBlocks&) { (void)allocator.set_limit(384_KiB); },
       [](ElasticAllocator&, PatternedBlocks& blocks) {
         while (blocks.entries().size() < 3) {
           if (blocks.add(448_KiB) == nullptr) return;
         }
       },
       [](const AllocatorStats& stats) { return stats.live == 1344_KiB; }},
      {"SetLimit", fill,
       [](ElasticAllocator& allocator, PatternedBlocks&) { (void)allocator.set_limit(128_KiB); },
       [](const AllocatorStats& stats) { return stats.device <= 128_KiB; }},
      {"Shrink", fill,
       [](ElasticAllocator& allocator, PatternedBlocks&) {
         (void)allocator.shrink(saturating_sub(allocator.stats().device, 256_KiB));
       },
       [](const AllocatorStats& stats) { return stats.device <= 256_KiB; }},
      {"Grow", fill_and_shrink,
       [](ElasticAllocator& allocator, PatternedBlocks&) {
         (void)allocator.post_limit(1_GiB);
         (void)allocator.grow(1_GiB);
       },
       [](const AllocatorStats& stats) { return stats.host + stats.parked == 0_B; }},
      {"SafePointGrows", fill_and_shrink,
       [](ElasticAllocator& allocator, PatternedBlocks&) { (void)allocator.set_limit(1_GiB); },
       [](const AllocatorStats& stats) { return stats.host + stats.parked == 0_B; }},
      {"Park", fill, [](ElasticAllocator& allocator, PatternedBlocks&) { (void)allocator.park(); },
       [](const AllocatorStats& stats) { return stats.device == 0_B; }},
      {"ReleaseCached", fill,
       [](ElasticAllocator& allocator, PatternedBlocks&) { (void)allocator.release_cached(); },
       [](const AllocatorStats& stats) {
         return stats.device <= 1_MiB && stats.cached <= 256_KiB;
       }},
  };
}

class ElasticFailureTest : public ::testing::TestWithParam<Scenario> {};

TEST_P(ElasticFailureTest, Law2_EveryFailureRollsBackAndARetrySucceeds) {
  std::size_t failures = 0;
  for (std::size_t call = 0; call < kFakeCalls; ++call) {
    for (std::uint64_t position = 1;; ++position) {
      MovingSource source;
      FakeMemorySource& fake = source.fake();
      ElasticAllocatorOptions options;
      options.chunk_size = 128_KiB;
      ElasticAllocator allocator(source, options);
      PatternedBlocks blocks(allocator);
      GetParam().prepare(allocator, blocks);
      const auto failing = static_cast<FakeCall>(call);
      const std::uint64_t before = fake.calls(failing);
      fake.fail_at(failing, position);
      GetParam().act(allocator, blocks);
      const bool failed = fake.calls(failing) >= before + position;

      const std::string where = std::string(to_string(failing)) + " " + std::to_string(position);
      const AllocatorStats stats = allocator.stats();
      EXPECT_EQ(stats.live, blocks.live()) << where;
      EXPECT_EQ(stats.device, fake.created(Tier::kDevice)) << where;
      EXPECT_EQ(stats.host + stats.parked, fake.created(Tier::kHost)) << where;
      blocks.expect_all();

      fake.fail_never(failing);
      GetParam().act(allocator, blocks);
      EXPECT_TRUE(GetParam().done(allocator.stats())) << where;
      blocks.expect_all();
      (void)allocator.safe_point();  // takes back what the source had refused
      EXPECT_EQ(fake.created(Tier::kDevice), fake.mapped(Tier::kDevice)) << where;
      EXPECT_EQ(fake.created(Tier::kHost), fake.mapped(Tier::kHost)) << where;
      blocks.expect_all();
      blocks.remove_all();
      EXPECT_TRUE(fake.violations().empty()) << where << ": " << fake.violations().front();
      if (!failed) break;  // the scenario does not call it so often
      ++failures;
    }
  }
  EXPECT_GT(failures, 0U);
}

INSTANTIATE_TEST_SUITE_P(Everything, ElasticFailureTest, ::testing::ValuesIn(scenarios()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace commensal::elastic_failure_test

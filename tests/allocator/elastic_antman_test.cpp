// SPDX-License-Identifier: Apache-2.0
// Without live moves: overflow at allocation, wholly free chunks released at safe points, no more.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/moving_source.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::elastic_antman_test {
namespace {

constexpr const char* kStays = "live memory stays: memory policy antman";

class ElasticAntmanTest : public ::testing::Test {
 protected:
  ~ElasticAntmanTest() override {
    blocks_.expect_all();
    blocks_.remove_all();
    expect_no_move();
    EXPECT_TRUE(source_.fake().violations().empty());
  }
  static ElasticAllocatorOptions options() {
    ElasticAllocatorOptions options;
    options.move_live = false;
    options.by_lifetime = false;
    return options;
  }
  void expect_no_move() const {
    const AllocatorStats stats = allocator_.stats();
    EXPECT_EQ(stats.moved_out, 0_B);
    EXPECT_EQ(stats.moved_in, 0_B);
  }
  [[nodiscard]] Tier tier_at(const std::byte* at) { return source_.fake().tier_at(at); }

  MovingSource source_;
  ElasticAllocator allocator_{source_, options()};
  PatternedBlocks blocks_{allocator_};
};

TEST_F(ElasticAntmanTest, WhatDoesNotFitOverflowsWhenItIsAllocated) {
  (void)allocator_.set_limit(4_MiB);
  (void)blocks_.add(10_MiB);
  EXPECT_EQ(allocator_.stats().device, 4_MiB);
  EXPECT_EQ(allocator_.stats().host, 6_MiB);
  EXPECT_EQ(source_.fake().calls(FakeCall::kFence), 0U);
}

TEST_F(ElasticAntmanTest, LiveMemoryStaysAboveALoweredLimitUntilItDies) {
  std::byte* const block = blocks_.add(8_MiB);
  LimitTicket ticket = allocator_.set_limit(2_MiB);
  EXPECT_EQ(ticket.done, 0_B);
  EXPECT_EQ(ticket.deferred, 6_MiB);
  EXPECT_EQ(ticket.reason, kStays);
  EXPECT_EQ(allocator_.stats().deferred_reason, kStays);
  EXPECT_EQ(allocator_.stats().device, 8_MiB);
  EXPECT_EQ(source_.fake().calls(FakeCall::kFence), 0U);
  blocks_.remove(block);
  ticket = allocator_.safe_point();
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_LE(allocator_.stats().device, 2_MiB);
}

TEST_F(ElasticAntmanTest, OverflowedBlocksStayOnTheSlowerTierUntilTheyDie) {
  (void)allocator_.set_limit(2_MiB);
  std::byte* const block = blocks_.add(8_MiB);
  ASSERT_EQ(allocator_.stats().host, 6_MiB);
  LimitTicket ticket = allocator_.set_limit(64_MiB);
  EXPECT_EQ(ticket.deferred, 6_MiB) << "room for it, and still not fast";
  EXPECT_EQ(ticket.reason, kStays);
  for (int step = 0; step < 3; ++step) (void)allocator_.safe_point();
  EXPECT_EQ(allocator_.stats().host, 6_MiB);
  std::byte* const next = blocks_.add(8_MiB);
  EXPECT_EQ(tier_at(next), Tier::kDevice) << "the next step's tensors are fast again";
  blocks_.remove(block);
  (void)allocator_.safe_point();
  EXPECT_EQ(allocator_.stats().host, 0_B);
}

TEST_F(ElasticAntmanTest, WhollyFreeChunksAreReleasedAtStepBordersAndOthersAreNot) {
  std::vector<std::byte*> all;
  for (int i = 0; i < 16; ++i) all.push_back(blocks_.add(1_MiB));
  for (std::size_t i = 4; i < all.size(); ++i) {
    if (i != 9) blocks_.remove(all[i]);  // one block keeps its chunk
  }
  (void)allocator_.post_limit(1_MiB);
  EXPECT_EQ(allocator_.stats().device, 16_MiB) << "only at a step border";
  const LimitTicket ticket = allocator_.safe_point();
  EXPECT_EQ(allocator_.stats().device, 6_MiB);
  EXPECT_EQ(ticket.deferred, 5_MiB);
  EXPECT_EQ(ticket.reason, kStays);
}

TEST_F(ElasticAntmanTest, TouchedPagesOfAnOverflowGoBackToTheSlowerTier) {
  (void)allocator_.set_limit(0_B);
  std::byte* const block = blocks_.add(2_MiB);
  source_.fake().set_touched(block, {2_MiB, 2_MiB});
  EXPECT_EQ(allocator_.stats().host_touched, 2_MiB);
  const LimitTicket ticket = allocator_.safe_point();
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_EQ(allocator_.stats().host_touched, 0_B);
  EXPECT_EQ(tier_at(block), Tier::kHost);
}

TEST_F(ElasticAntmanTest, ShrinkParkAndGrowMoveNothingEither) {
  (void)blocks_.add(8_MiB);
  blocks_.remove(blocks_.add(4_MiB));
  const LimitTicket shrunk = allocator_.shrink(6_MiB);
  EXPECT_EQ(shrunk.done, 4_MiB);
  EXPECT_EQ(shrunk.reason, kStays);
  const LimitTicket parked = allocator_.park();
  EXPECT_EQ(parked.deferred, 8_MiB);
  EXPECT_EQ(parked.reason, kStays);
  (void)allocator_.set_limit(2_MiB);
  (void)blocks_.add(4_MiB);
  (void)allocator_.set_limit(64_MiB);
  const LimitTicket grown = allocator_.grow(64_MiB);
  EXPECT_EQ(grown.done, 0_B);
  EXPECT_EQ(grown.reason, kStays);
}

TEST_F(ElasticAntmanTest, NoBlockEverChangesItsTier) {
  std::mt19937_64 random(20201104);
  std::map<std::byte*, Tier> placed;
  for (int i = 0; i < 1500; ++i) {
    SCOPED_TRACE("seed 20201104, operation " + std::to_string(i));
    const std::uint64_t dice = random() % 10;
    if (dice < 5 || placed.empty()) {
      std::byte* const block = blocks_.add(Bytes{1 + random() % (512_KiB).count()});
      ASSERT_NE(block, nullptr);
      placed[block] = tier_at(block);
    } else if (dice < 9) {
      const auto victim = std::next(placed.begin(), static_cast<long>(random() % placed.size()));
      blocks_.remove(victim->first);
      placed.erase(victim);
    } else {
      (void)allocator_.post_limit(Bytes{(random() % 48) << 20U});
      (void)allocator_.safe_point();
    }
    if (i % 50 != 0) continue;
    for (const auto& [block, tier] : placed) ASSERT_EQ(tier_at(block), tier);
    blocks_.expect_all();
  }
}

}  // namespace
}  // namespace commensal::elastic_antman_test

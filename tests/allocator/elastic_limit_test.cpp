// SPDX-License-Identifier: Apache-2.0
// The limit of the elastic allocator: what gives way, what comes back, and what a ticket says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/moving_source.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::elastic_limit_test {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

class HandClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override {
    return TimePoint(Duration(nanoseconds_.load()));
  }
  void advance(Duration by) { nanoseconds_ += by.count(); }

 private:
  std::atomic<std::int64_t> nanoseconds_{1'000'000'000};
};

class ElasticLimitTest : public ::testing::Test {
 protected:
  ~ElasticLimitTest() override {
    blocks_.expect_all();
    blocks_.remove_all();
    EXPECT_TRUE(fake().violations().empty());
  }
  FakeMemorySource& fake() { return source_.fake(); }
  void expect_within_limit() {
    const AllocatorStats stats = allocator_.stats();
    EXPECT_LE(stats.device + stats.host_touched, stats.limit + stats.deferred);
  }

  MovingSource source_;
  HandClock clock_;
  ElasticAllocator allocator_{source_, {}, clock_};
  PatternedBlocks blocks_{allocator_};
};

/// Adds up what is claimed, or refuses.
class Claimed final : public MemoryClaims {
 public:
  [[nodiscard]] const char* claim(Bytes bytes) noexcept override {
    if (refusal != nullptr) return refusal;
    held += bytes;
    return nullptr;
  }
  void give_back(Bytes bytes) noexcept override { held -= bytes; }

  Bytes held;
  const char* refusal = nullptr;
};

TEST_F(ElasticLimitTest, WhatIsHeldOfTheDeviceWasClaimed) {
  Claimed claims;
  allocator_.claim_with(&claims);
  std::byte* block = blocks_.add(8_MiB);
  EXPECT_EQ(claims.held, 8_MiB);
  (void)allocator_.set_limit(2_MiB);
  EXPECT_EQ(claims.held, 2_MiB) << "live memory that moved out";
  (void)allocator_.set_limit(32_MiB);
  EXPECT_EQ(claims.held, allocator_.stats().device);
  EXPECT_EQ(claims.held, 8_MiB) << "it came back";
  fake().fail_next(FakeCall::kCreate);
  blocks_.remove(blocks_.add(4_MiB));
  EXPECT_EQ(claims.held, allocator_.stats().device) << "what could not be made counts no more";
  blocks_.remove(block);
  (void)allocator_.release_cached();
  EXPECT_EQ(claims.held, 0_B);
  claims.held = 1_GiB;  // at the end of the allocator nobody looks
}

TEST_F(ElasticLimitTest, WhatMayNotBeTakenIsServedFromTheSlowerTier) {
  Claimed claims;
  allocator_.claim_with(&claims);
  std::byte* before = blocks_.add(2_MiB);
  claims.refusal = "the limit was taken back";
  std::byte* block = blocks_.add(8_MiB);
  EXPECT_EQ(fake().tier_at(before), Tier::kDevice);
  EXPECT_EQ(fake().tier_at(block), Tier::kHost);
  (void)allocator_.safe_point();
  EXPECT_EQ(fake().tier_at(block), Tier::kHost) << "nor does it come back";
  EXPECT_EQ(claims.held, 2_MiB);
  claims.refusal = nullptr;
  (void)allocator_.safe_point();
  EXPECT_EQ(fake().tier_at(block), Tier::kDevice);
  blocks_.remove(block);
  blocks_.remove(before);
  (void)allocator_.release_cached();
}

TEST_F(ElasticLimitTest, LiveMemoryThatIsToStayStaysAndComesBack) {
  std::byte* stays = blocks_.add(8_MiB);
  (void)allocator_.set_limit(4_MiB);
  ASSERT_EQ(allocator_.stats().host, 4_MiB);
  allocator_.keep_live(true);
  LimitTicket ticket = allocator_.set_limit(2_MiB);
  EXPECT_EQ(ticket.deferred, 2_MiB);
  EXPECT_EQ(ticket.reason, "live memory stays: the job is guaranteed");
  EXPECT_EQ(allocator_.stats().moved_out, 4_MiB) << "before that";
  EXPECT_FALSE(allocator_.work_ahead(8_MiB).more);
  (void)allocator_.set_limit(32_MiB);
  EXPECT_EQ(allocator_.stats().host, 0_B) << "it came back";
  allocator_.keep_live(false);
  EXPECT_TRUE(allocator_.set_limit(2_MiB).complete());
  EXPECT_EQ(fake().tier_at(stays), Tier::kHost);
  (void)allocator_.set_limit(32_MiB);
}

TEST_F(ElasticLimitTest, GivesFreeChunksBackWithoutAFence) {
  std::byte* block = blocks_.add(8_MiB);
  blocks_.remove(block);
  const LimitTicket ticket = allocator_.set_limit(2_MiB);
  EXPECT_TRUE(ticket.complete());
  EXPECT_EQ(ticket.done, 6_MiB);
  EXPECT_EQ(fake().calls(FakeCall::kFence), 0U);
  EXPECT_EQ(allocator_.stats().given_back, 6_MiB);
  EXPECT_EQ(allocator_.stats().moved_out, 0_B);
}

TEST_F(ElasticLimitTest, MovesLiveChunksUnderStableAddresses) {
  std::byte* block = blocks_.add(8_MiB);
  const LimitTicket ticket = allocator_.set_limit(2_MiB);
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_EQ(ticket.done, 6_MiB);
  EXPECT_EQ(allocator_.stats().device, 2_MiB);
  EXPECT_EQ(allocator_.stats().host, 6_MiB);
  EXPECT_EQ(allocator_.stats().moved_out, 6_MiB);
  EXPECT_EQ(allocator_.stats().moves, 1U);
  EXPECT_EQ(source_.fake().created(Tier::kDevice), 2_MiB);
  blocks_.expect_all();
  blocks_.rewrite(block);
}

TEST_F(ElasticLimitTest, ColdChunksGoFirst) {
  std::byte* cold = blocks_.add(2_MiB);
  std::byte* warm = blocks_.add(2_MiB);
  (void)allocator_.set_limit(2_MiB);
  EXPECT_EQ(fake().tier_at(cold), Tier::kHost);
  EXPECT_EQ(fake().tier_at(warm), Tier::kDevice);
}

TEST_F(ElasticLimitTest, OneFenceCoversABoundedBatch) {
  (void)blocks_.add(160_MiB);
  (void)allocator_.set_limit(0_B);
  EXPECT_EQ(allocator_.stats().moves, 3U);  // 64, 64 and 32 MiB
}

TEST_F(ElasticLimitTest, AnswersStaleRevisions) {
  EXPECT_EQ(allocator_.set_limit(64_MiB, 7).revision, 7U);
  const LimitTicket stale = allocator_.set_limit(1_MiB, 6);
  EXPECT_TRUE(stale.stale);
  EXPECT_FALSE(stale.complete());
  EXPECT_EQ(stale.limit, 64_MiB);
  EXPECT_EQ(stale.revision, 7U);
  EXPECT_EQ(stale.reason, "stale: revision 6 is older than 7");
  EXPECT_TRUE(allocator_.post_limit(1_MiB, 3).stale);
  EXPECT_EQ(allocator_.set_limit(64_MiB, 7).revision, 7U) << "twice does no harm";
  EXPECT_EQ(allocator_.set_limit(32_MiB).revision, 8U) << "0 takes the next number";
  EXPECT_EQ(allocator_.stats().limit, 32_MiB);
}

TEST_F(ElasticLimitTest, APostedLimitWaitsForTheSafePoint) {
  (void)blocks_.add(8_MiB);
  const LimitTicket posted = allocator_.post_limit(4_MiB);
  EXPECT_EQ(posted.deferred, 4_MiB);
  EXPECT_EQ(posted.reason, "waits for the next safe point");
  EXPECT_EQ(allocator_.stats().device, 8_MiB);
  EXPECT_TRUE(allocator_.work_pending());
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().device, 4_MiB);
}

TEST_F(ElasticLimitTest, ANewerLimitOvertakesARunningMove) {
  (void)blocks_.add(256_MiB);
  bool posted = false;
  fake().hooks().after_unfence = [&] {
    if (!std::exchange(posted, true)) (void)allocator_.post_limit(128_MiB, 9);
  };
  const LimitTicket ticket = allocator_.set_limit(0_B, 8);
  EXPECT_EQ(ticket.revision, 9U);
  EXPECT_EQ(ticket.limit, 128_MiB);
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_EQ(allocator_.stats().device, 128_MiB);
}

TEST_F(ElasticLimitTest, DefersLiveChunksWhileMovingIsNotSafe) {
  std::byte* free = blocks_.add(4_MiB);
  (void)blocks_.add(4_MiB);
  blocks_.remove(free);
  fake().set_move_risk("thread 17 blocks the signal");
  const LimitTicket ticket = allocator_.set_limit(0_B);
  EXPECT_EQ(ticket.done, 4_MiB) << "free chunks still go";
  EXPECT_EQ(ticket.deferred, 4_MiB);
  EXPECT_EQ(ticket.reason, "thread 17 blocks the signal");
  EXPECT_EQ(allocator_.stats().deferred, 4_MiB);
  EXPECT_EQ(allocator_.stats().deferred_reason, "thread 17 blocks the signal");
  expect_within_limit();
  EXPECT_TRUE(allocator_.work_pending());
  fake().set_move_risk("");
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().deferred, 0_B);
  EXPECT_EQ(allocator_.stats().deferred_reason, "");
}

TEST_F(ElasticLimitTest, DefersWhenTheWritersDoNotStop) {
  (void)blocks_.add(4_MiB);
  fake().fail_always(FakeCall::kFence);
  const LimitTicket ticket = allocator_.set_limit(1_MiB);
  EXPECT_EQ(ticket.done, 0_B);
  EXPECT_EQ(ticket.deferred, 3_MiB);
  EXPECT_EQ(ticket.reason, "a thread did not stop in time");
  EXPECT_EQ(allocator_.stats().moves, 0U);
  fake().fail_never(FakeCall::kFence);
  EXPECT_TRUE(allocator_.safe_point().complete());
}

TEST_F(ElasticLimitTest, ReturnsAtTheDeadlineWithTheRestDeferred) {
  (void)blocks_.add(256_MiB);
  fake().hooks().before_fence = [&] { clock_.advance(1500ms); };
  const LimitTicket ticket = allocator_.set_limit(0_B);
  EXPECT_EQ(ticket.done, 128_MiB) << "two batches fit";
  EXPECT_EQ(ticket.deferred, 128_MiB);
  EXPECT_EQ(ticket.reason, "the deadline of 2000 ms passed");
  EXPECT_EQ(allocator_.stats().safe_point_wait, 3000ms);
  expect_within_limit();
  fake().hooks().before_fence = nullptr;
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().device, 0_B);
}

TEST_F(ElasticLimitTest, Law2_AWriteBetweenCopyAndFenceIsKept) {
  std::byte* block = blocks_.add(2_MiB);
  fake().hooks().copied = [&](std::byte*, Bytes) { blocks_.rewrite(block); };
  EXPECT_TRUE(allocator_.set_limit(0_B).complete());
  EXPECT_EQ(fake().tier_at(block), Tier::kHost);
  EXPECT_EQ(fake().calls(FakeCall::kFence), 2U) << "left alone first, copied inside then";
  EXPECT_EQ(blocks_.damaged(), 0U);
  EXPECT_TRUE(allocator_.set_limit(64_MiB).complete());
  EXPECT_EQ(fake().tier_at(block), Tier::kDevice);
  EXPECT_EQ(blocks_.damaged(), 0U);
}

TEST_F(ElasticLimitTest, SaysWhyThereIsNoSlowerTier) {
  FakeMemorySource::Options none;
  none.host_capacity = 0_B;
  none.host_reason = "/tmp/x gives no memory back";
  FakeMemorySource source(none);
  ElasticAllocator allocator(source, {});
  void* block = allocator.allocate(4_MiB);
  const LimitTicket ticket = allocator.set_limit(2_MiB);
  EXPECT_EQ(ticket.deferred, 2_MiB);
  EXPECT_EQ(ticket.reason, "no slower tier: /tmp/x gives no memory back");
  EXPECT_TRUE(allocator.deallocate(block));
}

TEST_F(ElasticLimitTest, StopsAtTheCapOfTheSlowerTier) {
  ElasticAllocatorOptions options;
  options.host_cap = 4_MiB;
  ElasticAllocator allocator(source_, options);
  void* block = allocator.allocate(10_MiB);
  const LimitTicket ticket = allocator.set_limit(2_MiB);
  EXPECT_EQ(ticket.done, 4_MiB);
  EXPECT_EQ(ticket.deferred, 4_MiB);
  EXPECT_EQ(ticket.reason, "slower tier full: 4 MiB of 4 MiB");
  EXPECT_TRUE(allocator.deallocate(block));
}

TEST_F(ElasticLimitTest, CountsTouchedPagesAndDropsCleanOnesFirst) {
  std::byte* block = blocks_.add(4_MiB);
  (void)allocator_.set_limit(2_MiB);
  std::byte* away = fake().tier_at(block) == Tier::kHost ? block : block + (2_MiB).count();
  fake().set_touched(away, {512_KiB, 0_B});
  EXPECT_EQ(allocator_.stats().host_touched, 512_KiB);
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().host_touched, 0_B);
  EXPECT_EQ(allocator_.stats().moves, 1U) << "nothing had to move for it";
}

TEST_F(ElasticLimitTest, ExchangesAWrittenChunkForAColdOne) {
  std::byte* block = blocks_.add(4_MiB);
  (void)allocator_.set_limit(2_MiB);
  std::byte* first = block;
  std::byte* second = block + (2_MiB).count();
  std::byte* away = fake().tier_at(first) == Tier::kHost ? first : second;
  fake().set_touched(away, {2_MiB, 2_MiB});
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(fake().tier_at(away), Tier::kDevice) << "it is in use: it came back";
  EXPECT_EQ(allocator_.stats().device, 2_MiB);
  expect_within_limit();
}

// All of 8 MiB is written in each step, and half of it may stay.
TEST_F(ElasticLimitTest, WhatIsUsedInEachStepDoesNotChangePlacesInEachStep) {
  std::byte* block = blocks_.add(8_MiB);
  (void)allocator_.set_limit(4_MiB);
  const auto step = [&] {
    for (std::byte* chunk = block; chunk < block + (8_MiB).count(); chunk += (2_MiB).count()) {
      if (fake().tier_at(chunk) == Tier::kHost) fake().set_touched(chunk, {2_MiB, 2_MiB});
    }
    EXPECT_TRUE(allocator_.safe_point().complete());
    expect_within_limit();
  };
  for (int i = 0; i < 4; ++i) step();  // each chunk is tried once
  const AllocatorStats before = allocator_.stats();
  for (int i = 0; i < 10; ++i) step();
  const AllocatorStats after = allocator_.stats();
  EXPECT_EQ(after.moved_out, before.moved_out);
  EXPECT_EQ(after.moved_in, before.moved_in);
  EXPECT_EQ(after.moves, before.moves + 10) << "one fence a step writes the excess";
}

TEST_F(ElasticLimitTest, WritesTouchedChunksOutAgainWhenNothingElseIsLeft) {
  std::byte* block = blocks_.add(2_MiB);
  (void)allocator_.set_limit(0_B);
  fake().set_touched(block, {64_KiB, 64_KiB});
  EXPECT_TRUE(allocator_.work_pending());
  const LimitTicket ticket = allocator_.safe_point();
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_EQ(ticket.done, 64_KiB);
  EXPECT_EQ(allocator_.stats().host_touched, 0_B);
  EXPECT_EQ(fake().tier_at(block), Tier::kHost);
}

TEST_F(ElasticLimitTest, ReleasesChunksOfTheSlowerTierWithoutBlocks) {
  std::byte* block = blocks_.add(4_MiB);
  (void)allocator_.set_limit(0_B);
  blocks_.remove(block);
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().host, 0_B);
  EXPECT_EQ(fake().created(Tier::kHost), 0_B);
  EXPECT_FALSE(allocator_.work_pending());
}

TEST_F(ElasticLimitTest, BringsMostTouchedChunksBackFirst) {
  std::byte* block = blocks_.add(8_MiB);
  (void)allocator_.set_limit(0_B);
  fake().set_touched(block + (2_MiB).count(), {64_KiB, 0_B});
  fake().set_touched(block + (6_MiB).count(), {1_MiB, 0_B});
  const LimitTicket ticket = allocator_.set_limit(4_MiB);
  EXPECT_TRUE(ticket.complete());
  EXPECT_EQ(ticket.done, 4_MiB);
  EXPECT_EQ(fake().tier_at(block + (2_MiB).count()), Tier::kDevice);
  EXPECT_EQ(fake().tier_at(block + (6_MiB).count()), Tier::kDevice);
  EXPECT_EQ(allocator_.stats().moved_in, 4_MiB);
  EXPECT_TRUE(allocator_.set_limit(Bytes{UINT64_MAX}).complete());
  EXPECT_EQ(allocator_.stats().host, 0_B);
  EXPECT_FALSE(allocator_.work_pending());
}

TEST_F(ElasticLimitTest, FreeChunksMakeRoomForLiveOnes) {
  std::byte* block = blocks_.add(4_MiB);
  (void)allocator_.set_limit(0_B);
  (void)allocator_.post_limit(4_MiB);
  std::byte* other = blocks_.add(4_MiB);
  EXPECT_EQ(fake().tier_at(other), Tier::kDevice);
  blocks_.remove(other);
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(fake().tier_at(block), Tier::kDevice);
  EXPECT_EQ(allocator_.stats().device, 4_MiB);
}

TEST_F(ElasticLimitTest, ShrinkGivesBackWithoutChangingTheLimit) {
  (void)blocks_.add(8_MiB);
  const LimitTicket ticket = allocator_.shrink(3_MiB);
  EXPECT_TRUE(ticket.complete());
  EXPECT_EQ(ticket.done, 4_MiB) << "whole chunks";
  EXPECT_EQ(allocator_.stats().limit, Bytes{UINT64_MAX});
  (void)allocator_.safe_point();
  EXPECT_EQ(allocator_.stats().device, 4_MiB) << "stays out until touched or asked for";
  EXPECT_EQ(allocator_.grow(1_MiB).done, 2_MiB);
  EXPECT_EQ(allocator_.grow(100_MiB).done, 2_MiB);
  EXPECT_EQ(allocator_.stats().device, 8_MiB);
}

TEST_F(ElasticLimitTest, GrowStopsAtTheLimit) {
  (void)blocks_.add(8_MiB);
  (void)allocator_.set_limit(2_MiB);
  const LimitTicket ticket = allocator_.grow(100_MiB);
  EXPECT_TRUE(ticket.complete());
  EXPECT_EQ(ticket.done, 0_B);
  EXPECT_EQ(allocator_.stats().device, 2_MiB);
}

TEST_F(ElasticLimitTest, ParksEverythingUntilItIsTouched) {
  std::byte* block = blocks_.add(8_MiB);
  void* small = allocator_.allocate(100_B);
  const LimitTicket ticket = allocator_.park();
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_EQ(ticket.done, 10_MiB);
  EXPECT_EQ(allocator_.stats().device, 0_B);
  EXPECT_EQ(allocator_.stats().parked, 10_MiB);
  EXPECT_EQ(allocator_.stats().host, 0_B);
  (void)allocator_.safe_point();
  EXPECT_EQ(allocator_.stats().parked, 10_MiB);
  EXPECT_TRUE(allocator_.park().complete()) << "twice";
  fake().set_touched(block, {64_KiB, 0_B});
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(fake().tier_at(block), Tier::kDevice);
  EXPECT_EQ(allocator_.stats().parked, 8_MiB);
  EXPECT_TRUE(allocator_.deallocate(small)) << "freed while parked";
  (void)allocator_.safe_point();
  EXPECT_EQ(allocator_.stats().parked, 6_MiB);
  EXPECT_EQ(allocator_.grow(1_GiB).done, 6_MiB);
  EXPECT_EQ(allocator_.stats().parked, 0_B);
}

TEST_F(ElasticLimitTest, ALargerLimitBringsParkedChunksBack) {
  (void)blocks_.add(8_MiB);
  (void)allocator_.set_limit(16_MiB);
  (void)allocator_.park();
  EXPECT_TRUE(allocator_.set_limit(16_MiB).complete());
  EXPECT_EQ(allocator_.stats().device, 0_B) << "not larger";
  EXPECT_TRUE(allocator_.set_limit(17_MiB).complete());
  EXPECT_EQ(allocator_.stats().device, 8_MiB);
}

TEST_F(ElasticLimitTest, ASafePointCostsNothingWhenNothingIsToBeDone) {
  (void)blocks_.add(8_MiB);
  EXPECT_FALSE(allocator_.work_pending());
  fake().clear_log();
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_TRUE(fake().log().empty());
  EXPECT_EQ(allocator_.stats().safe_point_wait, Duration{});
}

// On the way on which a thread gets its own block back nothing of the limit is looked at, so that
// it cannot cost anything there; what has to be done is one atomic load at a safe point.
TEST_F(ElasticLimitTest, P18_ALimitIsLookedAtOnlyWhereChunksAreMade) {
  void* const block = allocator_.allocate(1000_B);
  EXPECT_TRUE(allocator_.deallocate(block));
  EXPECT_FALSE(allocator_.work_pending());
  const Bytes held = allocator_.stats().device;
  EXPECT_EQ(allocator_.post_limit(0_B).deferred, held);
  EXPECT_TRUE(allocator_.work_pending());
  fake().clear_log();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(allocator_.allocate(1000_B), block) << "the limit of zero is not looked at";
    EXPECT_TRUE(allocator_.deallocate(block));
  }
  EXPECT_TRUE(fake().log().empty());
  EXPECT_EQ(allocator_.stats().device, held);
  void* const large = allocator_.allocate(16_MiB);
  EXPECT_EQ(fake().tier_at(static_cast<std::byte*>(large)), Tier::kHost) << "here it is";
  EXPECT_TRUE(allocator_.deallocate(large));
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().device, 0_B);
}

TEST_F(ElasticLimitTest, DescribesWhereEveryChunkIs) {
  std::byte* block = blocks_.add(4_MiB);
  (void)allocator_.set_limit(2_MiB);
  const std::vector<ChunkResidency> chunks = allocator_.residency();
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks[0].address, block);
  EXPECT_NE(chunks[0].tier, chunks[1].tier);
  EXPECT_EQ(chunks[0].live, 2_MiB);
  EXPECT_EQ(chunks[0].size, 2_MiB);
}

TEST_F(ElasticLimitTest, ServesFreeMemoryOfTheDeviceBeforeThatOfTheSlowerTier) {
  std::byte* low = blocks_.add(1_MiB);
  (void)blocks_.add(1_MiB);
  std::byte* high = blocks_.add(2_MiB);
  (void)allocator_.set_limit(2_MiB);  // the first chunk goes
  ASSERT_EQ(fake().tier_at(low), Tier::kHost);
  ASSERT_EQ(fake().tier_at(high), Tier::kDevice);
  blocks_.remove(low);
  blocks_.remove(high);
  std::byte* next = blocks_.add(1_MiB);
  EXPECT_EQ(fake().tier_at(next), Tier::kDevice);
  (void)blocks_.add(1_MiB);
  EXPECT_EQ(fake().tier_at(blocks_.add(1_MiB)), Tier::kHost) << "now the slower one serves";
  EXPECT_EQ(allocator_.stats().host, 2_MiB) << "without growing";
}

TEST_F(ElasticLimitTest, ParkedUntilItGrowsALargerLimitBringsNothingBack) {
  (void)blocks_.add(8_MiB);
  (void)allocator_.set_limit(16_MiB);
  EXPECT_TRUE(allocator_.park(Parking::kUntilGrow).complete());
  (void)allocator_.set_limit(32_MiB);
  EXPECT_EQ(allocator_.stats().parked, 8_MiB);
  EXPECT_TRUE(allocator_.grow(8_MiB).complete());
  EXPECT_EQ(allocator_.stats().device, 8_MiB);
  EXPECT_TRUE(allocator_.park().complete());
  (void)allocator_.set_limit(64_MiB);
  EXPECT_EQ(allocator_.stats().device, 8_MiB) << "the other way of parking";
}

}  // namespace
}  // namespace commensal::elastic_limit_test

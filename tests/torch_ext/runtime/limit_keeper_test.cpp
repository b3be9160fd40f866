// SPDX-License-Identifier: Apache-2.0
// Own bound against grant, revisions, and what is answered when.
#include "torch_ext/runtime/limit_keeper.h"

#include <gtest/gtest.h>

#include "allocator/host/host_memory_source.h"
#include "torch_ext/runtime/session_devices.h"

namespace commensal::limit_keeper_test {
namespace {

const TimePoint kNow{std::chrono::hours{1}};

class LimitKeeperTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::optional<LimitAnswer> grant(Bytes limit, Revision revision) {
    return limits_.grant(limit, revision, kNow);
  }
  HostMemorySource source_;
  ElasticAllocator allocator_{source_, ElasticAllocatorOptions{}};
  LimitKeeper limits_{allocator_, 64_MiB};
};

TEST_F(LimitKeeperTest, WithoutACoordinatorTheOwnBoundHolds) {
  EXPECT_EQ(limits_.effective(), 64_MiB);
  EXPECT_TRUE(limits_.bound_by_itself());
  (void)limits_.set_own(32_MiB, true);
  EXPECT_EQ(limits_.effective(), 32_MiB);
  EXPECT_EQ(allocator_.stats().limit, 32_MiB);
}

TEST_F(LimitKeeperTest, AGrantThatNeedsNoMoveIsAppliedAtOnce) {
  const auto answer = grant(16_MiB, 3);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->outcome, wire::Outcome::kApplied);
  EXPECT_EQ(answer->revision, 3U);
  EXPECT_EQ(allocator_.stats().limit, 16_MiB);
  EXPECT_FALSE(limits_.waiting_since());
}

TEST_F(LimitKeeperTest, AnOlderRevisionIsStaleAndTheSameOneDoesNoHarm) {
  (void)grant(16_MiB, 3);
  const auto old = grant(8_MiB, 2);
  ASSERT_TRUE(old);
  EXPECT_EQ(old->outcome, wire::Outcome::kStale);
  EXPECT_EQ(limits_.effective(), 16_MiB);
  const auto again = grant(16_MiB, 3);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->outcome, wire::Outcome::kApplied);
  EXPECT_FALSE(limits_.note_revision(2));
  EXPECT_TRUE(limits_.note_revision(4));
}

TEST_F(LimitKeeperTest, AShrinkIsAnsweredByTheSafePoint) {
  void* const block = allocator_.allocate(24_MiB);
  EXPECT_FALSE(grant(4_MiB, 5));
  EXPECT_EQ(limits_.waiting_since(), kNow);
  EXPECT_TRUE(allocator_.deallocate(block));
  const auto answer = limits_.after_safe_point(allocator_.safe_point());
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->outcome, wire::Outcome::kApplied);
  EXPECT_EQ(answer->revision, 5U);
  EXPECT_FALSE(limits_.waiting_since());
  const AllocatorStats stats = allocator_.stats();
  EXPECT_LE(stats.device + stats.host_touched, 4_MiB);
}

TEST_F(LimitKeeperTest, WhatIsDeferredIsToldOnceAndThenApplied) {
  void* const block = allocator_.allocate(24_MiB);
  EXPECT_FALSE(grant(4_MiB, 5));
  LimitTicket ticket;
  ticket.revision = UINT64_MAX;
  ticket.deferred = 20_MiB;
  ticket.reason = "io_uring in use";
  const auto first = limits_.after_safe_point(ticket);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->outcome, wire::Outcome::kDeferred);
  EXPECT_EQ(first->reason, "io_uring in use");
  EXPECT_EQ(first->deferred, 20_MiB);
  EXPECT_FALSE(limits_.after_safe_point(ticket));
  ticket.deferred = 0_B;
  const auto second = limits_.after_safe_point(ticket);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->outcome, wire::Outcome::kApplied);
  EXPECT_TRUE(allocator_.deallocate(block));
}

TEST_F(LimitKeeperTest, ASafePointOfAnOlderLimitAnswersNothing) {
  void* const block = allocator_.allocate(24_MiB);
  EXPECT_FALSE(grant(4_MiB, 5));
  LimitTicket before;
  before.revision = 0;
  EXPECT_FALSE(limits_.after_safe_point(before));
  EXPECT_TRUE(limits_.waiting_since());
  EXPECT_TRUE(allocator_.deallocate(block));
}

TEST_F(LimitKeeperTest, TheSmallerHoldsUntilTheCoordinatorTookTheOwnBoundOver) {
  (void)grant(48_MiB, 1);
  EXPECT_EQ(limits_.effective(), 48_MiB);
  EXPECT_FALSE(limits_.bound_by_itself());
  const LimitTicket larger = limits_.set_own(60_MiB, true);
  EXPECT_EQ(limits_.effective(), 48_MiB);
  EXPECT_NE(larger.reason.find("the coordinator grants 48 MiB"), std::string::npos);
  (void)limits_.set_own(20_MiB, true);
  EXPECT_EQ(limits_.effective(), 20_MiB);
  EXPECT_TRUE(limits_.bound_by_itself());
  limits_.own_bound_answered(true);
  (void)grant(40_MiB, 2);  // somebody has raised MAX again
  EXPECT_EQ(limits_.effective(), 40_MiB);
}

TEST_F(LimitKeeperTest, ARefusedOwnBoundStays) {
  (void)grant(48_MiB, 1);
  (void)limits_.set_own(20_MiB, true);
  limits_.own_bound_answered(false);
  (void)grant(64_MiB, 2);
  EXPECT_EQ(limits_.effective(), 20_MiB);
}

// Memory that somebody else serves, in the place of the allocator's.
class OtherMemory final : public DeviceMemory {
 public:
  LimitTicket post_limit(Bytes limit) override {
    limit_ = limit;
    return {.revision = ++revision_, .limit = limit, .done = {}, .deferred = {}, .reason = {}};
  }
  LimitTicket safe_point() override {
    ++safe_points;
    return {.revision = revision_,
            .limit = limit_,
            .done = {},
            .deferred = saturating_sub(held, limit_),
            .reason = "live memory stays"};
  }
  [[nodiscard]] bool work_pending() const noexcept override { return held > limit_; }
  [[nodiscard]] AllocatorStats stats() const override {
    AllocatorStats stats;
    stats.device = held;
    stats.limit = limit_;
    return stats;
  }

  Bytes held;
  int safe_points = 0;

 private:
  Bytes limit_{UINT64_MAX};
  Revision revision_ = 0;
};

TEST_F(LimitKeeperTest, LimitsAreOfTheMemoryThatStandsIn) {
  OtherMemory other;
  other.held = 32_MiB;
  limits_.move_to(other, 64_MiB);
  EXPECT_EQ(other.stats().limit, 64_MiB);  // the own bound
  EXPECT_FALSE(grant(16_MiB, 5));
  EXPECT_EQ(other.stats().limit, 16_MiB);
  EXPECT_EQ(allocator_.stats().limit, Bytes{UINT64_MAX});  // has nothing to do with it
  const auto late = limits_.after_safe_point(other.safe_point());
  ASSERT_TRUE(late);
  EXPECT_EQ(late->outcome, wire::Outcome::kDeferred);
  EXPECT_EQ(late->deferred, 16_MiB);
  other.held = 8_MiB;
  const auto done = limits_.after_safe_point(other.safe_point());
  ASSERT_TRUE(done);
  EXPECT_EQ(done->outcome, wire::Outcome::kApplied);
  (void)limits_.set_own(4_MiB, true);
  EXPECT_EQ(other.safe_points, 3);
  EXPECT_EQ(other.stats().limit, 4_MiB);
}

TEST_F(LimitKeeperTest, TheOwnBoundHoldsAtOnceOnAnotherDevice) {
  OtherMemory other;
  other.held = 32_MiB;
  SessionDevices devices(allocator_, "GPU-0", 64_MiB);
  LimitKeeper& limits = devices.add(other, "GPU-1", 64_MiB).limits;
  EXPECT_EQ(other.stats().limit, 64_MiB);
  EXPECT_FALSE(limits.grant(16_MiB, 5, TimePoint{}));
  EXPECT_EQ(other.stats().limit, 16_MiB);
  EXPECT_FALSE(limits.if_met()) << "it holds more";
  other.held = 8_MiB;  // freed by the program
  const auto answer = limits.if_met();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->revision, 5U);
  EXPECT_EQ(answer->outcome, wire::Outcome::kApplied);
  EXPECT_FALSE(limits.if_met()) << "once";
  EXPECT_EQ(other.safe_points, 0);
}

TEST_F(LimitKeeperTest, AGrantOfTheDeviceBeforeDoesNotCountOnThatOfTheMemory) {
  void* const block = allocator_.allocate(24_MiB);
  EXPECT_FALSE(grant(4_MiB, 5));
  OtherMemory other;
  limits_.move_to(other, std::nullopt);
  EXPECT_FALSE(limits_.waiting_since());
  EXPECT_EQ(limits_.effective(), std::nullopt);
  EXPECT_EQ(limits_.revision(), 0U) << "a registration would tell it to the new coordinator";
  EXPECT_EQ(other.stats().limit, kNoLimit);
  EXPECT_TRUE(grant(16_MiB, 1)) << "revisions begin anew";
  EXPECT_EQ(other.stats().limit, 16_MiB);
  EXPECT_TRUE(allocator_.deallocate(block));
}

}  // namespace
}  // namespace commensal::limit_keeper_test

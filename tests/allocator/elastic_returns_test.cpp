// SPDX-License-Identifier: Apache-2.0
// What comes back by itself needs leave, piece by piece; what is asked for does not.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/moving_source.h"

namespace commensal::elastic_returns_test {
namespace {

constexpr Bytes kChunk = 64_KiB;

/// Answers as a test says, and notes what it was asked.
class FakePace final : public ReturnPace {
 public:
  [[nodiscard]] ReturnLeave leave(Bytes least, Bytes wanted) noexcept override {
    ++asked;
    newest_wanted = wanted;
    if (most.is_zero()) return {Bytes{}, "guaranteed job busy"};
    return {std::clamp(most, least, wanted), ""};
  }
  void returned(Bytes copied, Duration took) noexcept override {
    back += copied;
    negative = negative || took < Duration::zero();
  }
  Bytes most;
  int asked = 0;
  Bytes newest_wanted;
  Bytes back;
  bool negative = false;
};

class ElasticReturnsTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kBlocks = 8;
  ElasticReturnsTest() {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      blocks_.push_back(allocator_.allocate(kChunk));
      std::memset(blocks_.back(), static_cast<int>(i + 1), kChunk.count());
    }
    held_ = allocator_.stats().device;
  }
  ~ElasticReturnsTest() override {
    EXPECT_FALSE(pace_.negative);
    for (std::size_t i = 0; i < kBlocks; ++i) {
      EXPECT_EQ(static_cast<unsigned char*>(blocks_[i])[9], i + 1);
      allocator_.deallocate(blocks_[i]);
    }
    allocator_.pace_returns(nullptr);
  }
  /// The limit falls until a step has ended, then there is room again.
  void out_and_room_again() {
    EXPECT_TRUE(allocator_.set_limit(held_ - kChunk * 4).complete());
    ASSERT_EQ(away(), kChunk * 4);
    (void)allocator_.post_limit(held_);
  }
  [[nodiscard]] Bytes away() const { return allocator_.stats().host; }

  static ElasticAllocatorOptions options() {
    ElasticAllocatorOptions options;
    options.small_block = 1_KiB;
    options.chunk_size = kChunk;
    return options;
  }
  MovingSource source_;
  FakePace pace_;
  ElasticAllocator allocator_{source_, options()};
  std::vector<void*> blocks_;
  Bytes held_;
};

TEST_F(ElasticReturnsTest, C15_WithoutLeaveNothingIsCopiedBackAndTheReasonIsTold) {
  allocator_.pace_returns(&pace_);
  out_and_room_again();
  const std::uint64_t moves = allocator_.stats().moves;
  const LimitTicket ticket = allocator_.safe_point();
  EXPECT_TRUE(ticket.complete()) << "the limit holds: " << ticket.reason;
  AllocatorStats stats = allocator_.stats();
  EXPECT_EQ(away(), kChunk * 4);
  EXPECT_EQ(stats.moves, moves);
  EXPECT_EQ(stats.held_back, kChunk * 4);
  EXPECT_EQ(stats.held_back_reason, "guaranteed job busy");
  EXPECT_EQ(stats.held_back_times, 1U);
  EXPECT_EQ(stats.deferred, 0_B);
  EXPECT_EQ(pace_.newest_wanted, kChunk * 4);
  EXPECT_TRUE(allocator_.work_pending()) << "the next safe point asks again";

  pace_.most = kChunk * 100;
  EXPECT_TRUE(allocator_.safe_point().complete());
  stats = allocator_.stats();
  EXPECT_EQ(away(), 0_B);
  EXPECT_EQ(pace_.back, kChunk * 4);
  EXPECT_EQ(stats.held_back, 0_B);
  EXPECT_EQ(stats.held_back_reason, "");
  EXPECT_EQ(stats.held_back_times, 1U);
}

TEST_F(ElasticReturnsTest, C15_WhereNobodyIsAskedItIsCopiedAtOnce) {
  out_and_room_again();
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(away(), 0_B) << "whatever the guaranteed job does";
  EXPECT_EQ(pace_.asked, 0);
}

TEST_F(ElasticReturnsTest, AsMuchComesAsFitsAtLeastAChunk) {
  allocator_.pace_returns(&pace_);
  out_and_room_again();
  pace_.most = kChunk * 2 + 1_B;
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(pace_.asked, 2) << "two chunks, then two more";
  EXPECT_EQ(away(), 0_B);
  EXPECT_EQ(pace_.back, kChunk * 4);

  out_and_room_again();
  pace_.most = 1_B;
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(away(), 0_B) << "a chunk comes as a whole";
}

TEST_F(ElasticReturnsTest, TheMoverAsksToo) {
  allocator_.pace_returns(&pace_);
  out_and_room_again();
  allocator_.expect_work_ahead(true);
  AheadReport report = allocator_.work_ahead(kChunk * 4);
  EXPECT_EQ(report.moved_in, 0_B);
  EXPECT_FALSE(report.more) << "it looks again when it would look for more";
  EXPECT_EQ(allocator_.stats().held_back, kChunk * 4);
  pace_.most = kChunk * 2;
  report = allocator_.work_ahead(kChunk * 4);
  EXPECT_EQ(report.moved_in, kChunk * 2);
  EXPECT_EQ(pace_.back, kChunk * 2);
}

TEST_F(ElasticReturnsTest, WhatGoesOutNeedsNoLeave) {
  allocator_.pace_returns(&pace_);
  EXPECT_TRUE(allocator_.set_limit(held_ - kChunk * 4).complete());
  EXPECT_EQ(away(), kChunk * 4);
  (void)allocator_.post_limit(held_ - kChunk * 6);
  EXPECT_EQ(allocator_.work_ahead(kChunk * 2).moved_out, kChunk * 2);
  EXPECT_EQ(pace_.asked, 0);
}

TEST_F(ElasticReturnsTest, ALowerLimitGoesBeforeWhatWaits) {
  allocator_.pace_returns(&pace_);
  out_and_room_again();
  EXPECT_TRUE(allocator_.safe_point().complete());
  const int asked = pace_.asked;
  EXPECT_TRUE(allocator_.set_limit(held_ - kChunk * 6).complete()) << "nobody waits for the gap";
  EXPECT_EQ(away(), kChunk * 6);
  EXPECT_EQ(pace_.asked, asked);
  EXPECT_EQ(allocator_.stats().held_back, 0_B) << "there is no room";
}

TEST_F(ElasticReturnsTest, WhoAsksForItGetsItAtOnce) {
  allocator_.pace_returns(&pace_);
  out_and_room_again();
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(away(), kChunk * 4);
  EXPECT_TRUE(allocator_.grow(kChunk * 8).complete());
  EXPECT_EQ(away(), 0_B);
  EXPECT_EQ(allocator_.stats().held_back, 0_B);
}

TEST_F(ElasticReturnsTest, WhatWasParkedByRequestIsHeldBackAndNotForgotten) {
  allocator_.pace_returns(&pace_);
  EXPECT_TRUE(allocator_.set_limit(held_).complete());
  EXPECT_TRUE(allocator_.park().complete());
  EXPECT_TRUE(allocator_.set_limit(held_ * 2).complete());  // wakes it
  EXPECT_EQ(allocator_.stats().device, 0_B);
  EXPECT_GE(allocator_.stats().held_back_times, 1U);
  pace_.most = kChunk * 100;
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().parked, 0_B);
  EXPECT_EQ(away(), 0_B);
}

}  // namespace
}  // namespace commensal::elastic_returns_test

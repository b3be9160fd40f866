// SPDX-License-Identifier: Apache-2.0
// What the fake memory source adds to the contract: failing on demand, hooks, noticing misuse.
#include "tests/allocator/fake_memory_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <vector>

namespace commensal::fake_memory_source_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FakeMemorySourceTest : public ::testing::Test {
 protected:
  FakeMemorySource source_;
  Bytes chunk_ = source_.granularity();
  AddressRange range_ = source_.reserve(chunk_ * 4);
  MemoryHandle device_ = source_.create(Tier::kDevice, chunk_);
  MemoryHandle host_ = source_.create(Tier::kHost, chunk_);
};

TEST_F(FakeMemorySourceTest, EachCallFailsOnDemandChangesNothingAndCanBeRepeated) {
  const auto fails_then_works = [&](FakeCall call, const std::function<void()>& action) {
    source_.fail_at(call, 1);
    EXPECT_ANY_THROW(action()) << to_string(call);
    EXPECT_NO_THROW(action()) << to_string(call);
  };
  AddressRange range;
  fails_then_works(FakeCall::kReserve, [&] { range = source_.reserve(chunk_); });
  fails_then_works(FakeCall::kUnreserve, [&] { source_.unreserve(range); });
  fails_then_works(FakeCall::kCreate, [&] { (void)source_.create(Tier::kDevice, chunk_); });
  fails_then_works(FakeCall::kMap, [&] { source_.map(range_.begin, device_); });
  CopyTicket ticket;
  fails_then_works(FakeCall::kBeginCopy,
                   [&] { ticket = source_.begin_copy(range_.begin, device_, host_); });
  source_.end_copy(ticket);
  fails_then_works(FakeCall::kUnmap, [&] { source_.unmap(range_.begin, device_); });
  fails_then_works(FakeCall::kRelease, [&] { source_.release(device_); });
  EXPECT_THAT(source_.violations(), IsEmpty());
}

TEST_F(FakeMemorySourceTest, TheNthCallFails) {
  source_.fail_at(FakeCall::kCreate, 3);
  EXPECT_NO_THROW((void)source_.create(Tier::kDevice, chunk_));
  EXPECT_NO_THROW((void)source_.create(Tier::kDevice, chunk_));
  EXPECT_THROW((void)source_.create(Tier::kDevice, chunk_), SourceError);
  EXPECT_NO_THROW((void)source_.create(Tier::kDevice, chunk_));
  source_.fail_always(FakeCall::kCreate);
  EXPECT_THROW((void)source_.create(Tier::kDevice, chunk_), SourceError);
  EXPECT_THROW((void)source_.create(Tier::kDevice, chunk_), SourceError);
  source_.fail_never(FakeCall::kCreate);
  EXPECT_NO_THROW((void)source_.create(Tier::kDevice, chunk_));
  EXPECT_EQ(source_.calls(FakeCall::kCreate), 9U);  // two of them in the fixture
}

TEST_F(FakeMemorySourceTest, CopyFenceAndSwapFailWithoutThrowing) {
  source_.map(range_.begin, device_);
  CopyTicket ticket = source_.begin_copy(range_.begin, device_, host_);
  source_.fail_next(FakeCall::kCopy);
  EXPECT_EQ(source_.wait_copy(ticket), CopyState::kFailed);
  EXPECT_THAT(source_.copy_error(ticket), HasSubstr("told to fail"));
  source_.end_copy(ticket);
  ticket = source_.begin_copy(range_.begin, device_, host_);
  ASSERT_EQ(source_.wait_copy(ticket), CopyState::kDone);
  source_.fail_next(FakeCall::kFence);
  EXPECT_FALSE(source_.fence(1ms).stopped);
  EXPECT_FALSE(source_.fenced());
  ASSERT_TRUE(source_.fence(1ms).stopped);
  source_.fail_next(FakeCall::kSwap);
  EXPECT_EQ(source_.swap(ticket, OnChange::kCopyInside), SwapResult::kFailed);
  EXPECT_EQ(source_.swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
  source_.unfence();
  source_.end_copy(ticket);
  EXPECT_THAT(source_.violations(), IsEmpty());
}

TEST_F(FakeMemorySourceTest, HooksCutInBetweenCopyAndSwap) {
  source_.map(range_.begin, device_);
  source_.hooks().copied = [](std::byte* address, Bytes) { *address = std::byte{1}; };
  CopyTicket ticket = source_.begin_copy(range_.begin, device_, host_);
  ASSERT_EQ(source_.wait_copy(ticket), CopyState::kDone);
  ASSERT_TRUE(source_.fence(1ms).stopped);
  EXPECT_EQ(source_.swap(ticket, OnChange::kLeave), SwapResult::kChanged);
  source_.unfence();
  source_.end_copy(ticket);
  source_.hooks().copied = nullptr;
  source_.hooks().before_fence = [&] { range_.begin[9] = std::byte{2}; };
  ticket = source_.begin_copy(range_.begin, device_, host_);
  ASSERT_EQ(source_.wait_copy(ticket), CopyState::kDone);
  ASSERT_TRUE(source_.fence(1ms).stopped);
  EXPECT_EQ(source_.swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
  source_.unfence();
  EXPECT_EQ(source_.tier_at(range_.begin + 9), Tier::kHost);
  EXPECT_EQ(range_.begin[9], std::byte{2});
}

TEST_F(FakeMemorySourceTest, WhatCannotBeThrownIsWrittenDown) {
  source_.unfence();
  EXPECT_THAT(source_.violations(), SizeIs(1));
  source_.end_copy(CopyTicket{77});
  EXPECT_THAT(source_.violations(), SizeIs(2));
  EXPECT_EQ(source_.trim(range_.begin, host_), Bytes{});
  EXPECT_THAT(source_.violations(), SizeIs(3));
}

TEST_F(FakeMemorySourceTest, AddressesWithoutMemoryFault) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  source_.map(range_.begin, device_);
  range_.begin[chunk_.count() - 1] = std::byte{1};
  EXPECT_DEATH(range_.begin[chunk_.count()] = std::byte{1}, "");
  source_.unmap(range_.begin, device_);
  EXPECT_DEATH(range_.begin[0] = std::byte{1}, "");
}

TEST_F(FakeMemorySourceTest, TouchedAndTrimAreAsTold) {
  source_.map(range_.begin, host_);
  source_.set_touched(range_.begin, {8_KiB, 4_KiB});
  EXPECT_EQ(source_.touched(range_.begin, host_).resident, 8_KiB);
  EXPECT_EQ(source_.trim(range_.begin, host_), 4_KiB);
  EXPECT_EQ(source_.touched(range_.begin, host_).resident, 4_KiB);
  EXPECT_EQ(source_.touched(range_.begin, host_).written, 4_KiB);
}

TEST_F(FakeMemorySourceTest, CountsAndRisk) {
  source_.map(range_.begin, device_);
  EXPECT_EQ(source_.created(Tier::kDevice), chunk_);
  EXPECT_EQ(source_.mapped(Tier::kDevice), chunk_);
  EXPECT_EQ(source_.mapped(Tier::kHost), Bytes{});
  EXPECT_EQ(source_.reserved(), chunk_ * 4);
  EXPECT_TRUE(source_.move_risk().safe);
  source_.set_move_risk("io_uring is in use");
  EXPECT_FALSE(source_.move_risk().safe);
  EXPECT_EQ(source_.move_risk().reason, "io_uring is in use");
  source_.set_capacity(Tier::kDevice, chunk_);
  EXPECT_THROW((void)source_.create(Tier::kDevice, chunk_), OutOfMemory);
}

}  // namespace
}  // namespace commensal::fake_memory_source_test

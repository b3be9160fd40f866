// SPDX-License-Identifier: Apache-2.0
// A cap on PyTorch's own allocator: its fraction, its cache, and what a capture forbids.
#include "torch_ext/cuda/cap_only.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/torch_ext/cuda/fake_cuda_calls.h"
#include "tests/torch_ext/cuda/mock_cuda_allocator.h"

namespace commensal::cap_only_test {
namespace {

using ::testing::_;
using ::testing::NiceMock;
using ::testing::Return;

const c10::MempoolId_t kNoPool{0, 0};
constexpr std::int64_t kMiB = 1 << 20;

bool g_border = true;
bool g_capturing = false;

class CapOnlyTest : public ::testing::Test {
 protected:
  CapOnlyTest() {
    g_border = true;
    g_capturing = false;
    calls_.total = static_cast<std::size_t>(1024 * kMiB);
    ON_CALL(native_, getDeviceStats(_)).WillByDefault([this](c10::DeviceIndex) {
      MockCudaAllocator::DeviceStats stats;
      stats.reserved_bytes[0].current = reserved_;
      stats.allocated_bytes[0].current = live_;
      stats.active_bytes[0].current = live_;
      return stats;
    });
    // As PyTorch's own: the fraction is told as the bytes that it came to.
    ON_CALL(native_, getMemoryFraction(_)).WillByDefault([this](c10::DeviceIndex) {
      return static_cast<double>(static_cast<std::size_t>(fraction_ * 1e6)) / 1e6;
    });
    ON_CALL(native_, setMemoryFraction(_, _))
        .WillByDefault([this](double fraction, c10::DeviceIndex) { fraction_ = fraction; });
    ON_CALL(native_, emptyCache(_)).WillByDefault([this](auto) { reserved_ = live_; });
  }
  CapOnly& cap() {
    if (cap_ == nullptr) cap_ = std::make_unique<CapOnly>(native_, calls_, options_);
    return *cap_;
  }

  NiceMock<MockCudaAllocator> native_;
  FakeCudaCalls calls_;
  CapOnly::Options options_{
      .device = 0, .may_act = [] { return g_border; }, .capturing = [] { return g_capturing; }};
  std::unique_ptr<CapOnly> cap_;
  std::int64_t reserved_ = 0;
  std::int64_t live_ = 0;
  double fraction_ = 1.0;
};

TEST_F(CapOnlyTest, ALimitIsAFractionOfTheDevice) {
  EXPECT_FALSE(cap().work_pending());
  (void)cap().post_limit(256_MiB);
  EXPECT_EQ(fraction_, 1.0);  // not before the end of a step
  EXPECT_TRUE(cap().work_pending());
  EXPECT_TRUE(cap().safe_point().complete());
  EXPECT_DOUBLE_EQ(fraction_, 0.25);
  EXPECT_FALSE(cap().work_pending());
  (void)cap().post_limit(512_MiB);
  (void)cap().safe_point();
  EXPECT_DOUBLE_EQ(fraction_, 0.5);
  (void)cap().post_limit(Bytes{UINT64_MAX});
  (void)cap().safe_point();
  EXPECT_EQ(fraction_, 1.0);
}

TEST_F(CapOnlyTest, ALowerLimitGivesBackWhatIsCachedAndLiveMemoryStays) {
  reserved_ = 300 * kMiB;
  live_ = 200 * kMiB;
  EXPECT_CALL(native_, emptyCache(kNoPool)).Times(1);
  (void)cap().post_limit(128_MiB);
  const LimitTicket ticket = cap().safe_point();
  EXPECT_EQ(ticket.done, 100_MiB);
  EXPECT_EQ(ticket.deferred, 72_MiB);
  EXPECT_EQ(ticket.reason, "live memory stays: GPU memory is native");
  EXPECT_FALSE(cap().work_pending());  // nothing has died since
  const AllocatorStats stats = cap().stats();
  EXPECT_EQ(stats.limit, 128_MiB);
  EXPECT_EQ(stats.device, 200_MiB);
  EXPECT_EQ(stats.live, 200_MiB);
  EXPECT_EQ(stats.deferred, 72_MiB);
  EXPECT_EQ(stats.deferred_reason, "live memory stays: GPU memory is native");
  EXPECT_EQ(stats.given_back, 100_MiB);
}

TEST_F(CapOnlyTest, WhatDiesAboveTheLimitGoesAtTheNextSafePoint) {
  reserved_ = live_ = 200 * kMiB;
  (void)cap().post_limit(128_MiB);
  EXPECT_EQ(cap().safe_point().deferred, 72_MiB);
  live_ = 100 * kMiB;
  EXPECT_TRUE(cap().work_pending());
  EXPECT_TRUE(cap().safe_point().complete());
  EXPECT_EQ(reserved_, 100 * kMiB);
}

TEST_F(CapOnlyTest, NothingIsDoneDuringACaptureOrElsewhere) {
  reserved_ = 300 * kMiB;
  EXPECT_CALL(native_, emptyCache(_)).Times(0);
  EXPECT_CALL(native_, setMemoryFraction(_, _)).Times(0);
  (void)cap().post_limit(128_MiB);
  g_capturing = true;
  LimitTicket ticket = cap().safe_point();
  EXPECT_EQ(ticket.reason, "a graph is captured");
  EXPECT_EQ(ticket.deferred, 172_MiB);
  g_capturing = false;
  g_border = false;
  ticket = cap().safe_point();
  EXPECT_EQ(ticket.reason, "applies at the end of the training thread's step");
  EXPECT_TRUE(cap().work_pending());
}

TEST_F(CapOnlyTest, WhereCapturesAreNotKnownNothingIsGivenBack) {
  options_.capturing = nullptr;
  reserved_ = 300 * kMiB;
  EXPECT_CALL(native_, emptyCache(_)).Times(0);
  (void)cap().post_limit(128_MiB);
  EXPECT_EQ(cap().safe_point().deferred, 172_MiB);
  EXPECT_DOUBLE_EQ(fraction_, 0.125);
  EXPECT_FALSE(cap().work_pending());
}

TEST_F(CapOnlyTest, AFractionOfTheProgramsHoldsBesides) {
  fraction_ = 0.5;  // set before
  (void)cap().post_limit(768_MiB);
  (void)cap().safe_point();
  EXPECT_DOUBLE_EQ(fraction_, 0.5);
  (void)cap().post_limit(100_MiB);
  (void)cap().safe_point();
  EXPECT_LT(fraction_, 0.1);
  fraction_ = 0.25;  // set while it runs
  (void)cap().post_limit(512_MiB);
  (void)cap().safe_point();
  EXPECT_DOUBLE_EQ(fraction_, 0.25);
}

TEST_F(CapOnlyTest, ALimitThatGrewIsAppliedAtOnceWhereThereIsNoRoom) {
  (void)cap().post_limit(256_MiB);
  (void)cap().safe_point();
  EXPECT_FALSE(cap().raise());
  (void)cap().post_limit(128_MiB);
  EXPECT_FALSE(cap().raise()) << "a smaller one waits for the end of a step";
  (void)cap().safe_point();
  g_border = false;
  (void)cap().post_limit(512_MiB);
  EXPECT_TRUE(cap().raise());
  EXPECT_DOUBLE_EQ(fraction_, 0.5);
  EXPECT_FALSE(cap().raise());
}

TEST_F(CapOnlyTest, WhereThereIsNoFractionLimitsAreNotedAndNothingMore) {
  ON_CALL(native_, getMemoryFraction(_)).WillByDefault([](c10::DeviceIndex) -> double {
    throw std::runtime_error("no fraction here\nException raised from");
  });
  EXPECT_CALL(native_, setMemoryFraction(_, _)).Times(0);
  EXPECT_CALL(native_, emptyCache(_)).Times(0);
  EXPECT_EQ(cap().problem(), "no fraction here");
  (void)cap().post_limit(256_MiB);
  EXPECT_TRUE(cap().safe_point().complete());
  EXPECT_FALSE(cap().work_pending());
  (void)cap().post_limit(512_MiB);
  EXPECT_FALSE(cap().raise());
  EXPECT_EQ(cap().stats().limit, 512_MiB);
}

}  // namespace
}  // namespace commensal::cap_only_test

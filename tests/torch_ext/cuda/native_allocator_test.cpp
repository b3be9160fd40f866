// SPDX-License-Identifier: Apache-2.0
// What is heard of PyTorch's own allocator: devices, captures, want of room; and that the rest is
// forwarded.
#include "torch_ext/cuda/native_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/torch_ext/cuda/fake_cuda_calls.h"
#include "tests/torch_ext/cuda/mock_cuda_allocator.h"

namespace commensal::native_allocator_test {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::NiceMock;
using ::testing::Return;

const c10::MempoolId_t kPool{1, 0};

class Heard final : public NativeListener {
 public:
  bool used(int device) noexcept override {
    devices.push_back(device);
    return trains;
  }
  void served() noexcept override { ++blocks; }
  bool make_room(int /*device*/, Bytes size) noexcept override {
    asked = size;
    return room;
  }
  Bytes limit(int /*device*/) noexcept override { return bound; }

  std::vector<int> devices;
  int blocks = 0;
  Bytes asked;
  Bytes bound{UINT64_MAX};
  bool trains = true;
  bool room = false;
};

class NativeAllocatorTest : public ::testing::Test {
 protected:
  void no_room(int times) {
    EXPECT_CALL(native_, raw_alloc(_)).WillRepeatedly(Return(&block_));
    EXPECT_CALL(native_, raw_alloc(_))
        .Times(times)
        .WillRepeatedly([](std::size_t) -> void* {
          throw c10::OutOfMemoryError({"f", "f.cpp", 1}, "CUDA out of memory.");
        })
        .RetiresOnSaturation();
  }

  NiceMock<MockCudaAllocator> native_;
  FakeCudaCalls calls_;
  Heard heard_;
  NativeAllocator allocator_{native_, calls_, heard_};
  int block_ = 0;
};

TEST_F(NativeAllocatorTest, EachDeviceIsToldOnceBeforeItsFirstBlock) {
  calls_.device = 1;
  (void)allocator_.allocate(0);
  EXPECT_TRUE(heard_.devices.empty()) << "nothing takes no device";
  (void)allocator_.allocate(16);
  (void)allocator_.raw_alloc(16);
  calls_.device = 0;
  (void)allocator_.raw_alloc_with_stream(16, nullptr);
  (void)allocator_.allocate(16);
  EXPECT_THAT(heard_.devices, ElementsAre(1, 0));
  EXPECT_EQ(heard_.blocks, 4);
}

TEST_F(NativeAllocatorTest, AProcessThatIsNoRankYetIsAskedAgain) {
  heard_.trains = false;
  (void)allocator_.allocate(16);
  heard_.trains = true;
  (void)allocator_.allocate(16);
  (void)allocator_.allocate(16);
  EXPECT_THAT(heard_.devices, ElementsAre(0, 0));
}

TEST_F(NativeAllocatorTest, KnowsOfCapturesWhichItLeavesAlone) {
  EXPECT_FALSE(allocator_.capturing());
  EXPECT_CALL(native_, beginAllocateToPool(0, kPool, _));
  allocator_.beginAllocateToPool(0, kPool, [](cudaStream_t) { return false; });
  EXPECT_TRUE(allocator_.capturing());
  (void)allocator_.allocate(16);
  EXPECT_TRUE(heard_.devices.empty()) << "beginning a device calls CUDA";
  EXPECT_CALL(native_, endAllocateToPool(0, kPool));
  allocator_.endAllocateToPool(0, kPool);
  EXPECT_FALSE(allocator_.capturing());
  (void)allocator_.allocate(16);
  EXPECT_THAT(heard_.devices, ElementsAre(0));
}

TEST_F(NativeAllocatorTest, APoolOfTheThreadsIsNoCapture) {
  allocator_.beginAllocateToPool(0, kPool, [](cudaStream_t) { return true; });
  EXPECT_FALSE(allocator_.capturing());
  (void)allocator_.allocate(16);
  EXPECT_THAT(heard_.devices, ElementsAre(0));
}

TEST_F(NativeAllocatorTest, WhereRoomIsMadeABlockIsTriedOnceMore) {
  no_room(1);
  heard_.room = true;
  EXPECT_EQ(allocator_.raw_alloc(4096), &block_);
  EXPECT_EQ(heard_.asked, 4_KiB);
}

TEST_F(NativeAllocatorTest, WhereNoneIsPyTorchSaysSoInItsWords) {
  no_room(1);
  try {
    (void)allocator_.raw_alloc(4096);
    FAIL() << "there was no room";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_STREQ(error.what_without_backtrace(), "CUDA out of memory.");
  }
  no_room(2);
  heard_.room = true;
  EXPECT_THROW((void)allocator_.raw_alloc(4096), c10::OutOfMemoryError) << "not for ever";
}

TEST_F(NativeAllocatorTest, WhatIsFreeIsToldWithinTheLimit) {
  constexpr std::size_t kMiB = 1 << 20;
  ON_CALL(native_, getMemoryInfo(_)).WillByDefault(Return(std::pair(600 * kMiB, 1024 * kMiB)));
  ON_CALL(native_, getDeviceStats(_)).WillByDefault([](c10::DeviceIndex) {
    MockCudaAllocator::DeviceStats stats;
    stats.reserved_bytes[0].current = 64 * kMiB;
    return stats;
  });
  EXPECT_EQ(allocator_.getMemoryInfo(0), std::pair(600 * kMiB, 1024 * kMiB));
  heard_.bound = 256_MiB;
  EXPECT_EQ(allocator_.getMemoryInfo(0), std::pair(192 * kMiB, 256 * kMiB));
  heard_.bound = 32_MiB;
  EXPECT_EQ(allocator_.getMemoryInfo(0), std::pair(std::size_t{0}, 32 * kMiB));
}

TEST_F(NativeAllocatorTest, BlocksKeepTheirDeleter) {
  EXPECT_CALL(native_, raw_deleter()).WillOnce(Return(nullptr));
  EXPECT_EQ(allocator_.raw_deleter(), nullptr);
}

}  // namespace
}  // namespace commensal::native_allocator_test

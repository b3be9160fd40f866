// SPDX-License-Identifier: Apache-2.0
// Memory of one GPU that another one may use: rights of what is mapped, and of what will be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <vector>

#include "tests/allocator/cuda/cuda_machine.h"

namespace commensal::peer_access_test {
namespace {

using ::testing::HasSubstr;

/// Says before the driver starts what machine it is to simulate.
const bool kTwoDevices = ::setenv("SIMULATED_CUDA_DEVICES", "2", 0) == 0;
constexpr int kPeer = 1;

class PeerAccessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kTwoDevices);
    COMMENSAL_NEEDS_CUDA();
    int count = 0;
    machine().symbol<CUresult(int*)>("cuDeviceGetCount")(&count);
    if (count < 2) GTEST_SKIP() << "needs two devices";
    machine().enter();
    if (machine().simulated()) machine().clear();
    source_ = std::make_unique<CudaMemorySource>();
    chunk_ = source_->granularity();
    begin_ = source_->reserve(chunk_ * 8).begin;
  }
  void TearDown() override {
    if (machine().reason().empty() && machine().simulated()) machine().clear();
  }

  static CudaMachine& machine() { return CudaMachine::get(); }
  std::byte* at(std::uint64_t chunk) { return begin_ + chunk_.count() * chunk; }
  MemoryHandle mapped(Tier tier, std::uint64_t chunk) {
    const MemoryHandle handle = source_->create(tier, chunk_);
    source_->map(at(chunk), handle);
    return handle;
  }
  static bool open_to(int device, std::byte* address) {
    unsigned long long flags = 0;
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, device};
    machine().symbol<CUresult(unsigned long long*, const CUmemLocation*, CUdeviceptr)>(
        "cuMemGetAccess")(&flags, &location, to_cuda(address));
    return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }

  std::unique_ptr<CudaMemorySource> source_;
  Bytes chunk_;
  std::byte* begin_ = nullptr;
};

TEST_F(PeerAccessTest, WhatIsMappedIsOpenToAPeerOnceItIsLetIn) {
  for (const std::uint64_t chunk : {0U, 1U, 4U}) (void)mapped(Tier::kDevice, chunk);
  for (const std::uint64_t chunk : {2U, 3U}) (void)mapped(Tier::kHost, chunk);
  EXPECT_FALSE(open_to(kPeer, at(0)));
  if (machine().simulated()) machine().clear();
  source_->let_in(kPeer);
  for (std::uint64_t chunk = 0; chunk < 5; ++chunk) {
    EXPECT_TRUE(open_to(kPeer, at(chunk))) << chunk;
    EXPECT_TRUE(open_to(0, at(chunk))) << chunk;
  }
  if (!machine().simulated()) return;
  EXPECT_EQ(machine().calls("cuMemSetAccess"), 3U);  // one for each run on one tier
  source_->let_in(kPeer);
  source_->let_in(0);  // its own
  EXPECT_EQ(machine().calls("cuMemSetAccess"), 3U);
}

TEST_F(PeerAccessTest, WhatIsMappedLaterIsOpenToo) {
  source_->let_in(kPeer);
  const MemoryHandle first = mapped(Tier::kDevice, 0);
  const std::vector<MemoryHandle> run{source_->create(Tier::kDevice, chunk_),
                                      source_->create(Tier::kHost, chunk_)};
  EXPECT_EQ(source_->map_run(at(1), run).mapped, 2U);
  for (std::uint64_t chunk = 0; chunk < 3; ++chunk) EXPECT_TRUE(open_to(kPeer, at(chunk))) << chunk;
  // Also where a chunk has changed its place.
  const MemoryHandle target = source_->create(Tier::kHost, chunk_);
  const CopyTicket ticket = source_->begin_copy(at(0), first, target);
  ASSERT_EQ(source_->wait_copy(ticket), CopyState::kDone);
  ASSERT_TRUE(source_->fence(std::chrono::seconds{10}).stopped);
  EXPECT_EQ(source_->swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
  source_->unfence();
  source_->end_copy(ticket);
  EXPECT_TRUE(open_to(kPeer, at(0)));
}

TEST_F(PeerAccessTest, ARefusalIsUndoneAndSaysWhy) {
  COMMENSAL_NEEDS_SIMULATION();
  for (const std::uint64_t chunk : {0U, 2U, 4U}) (void)mapped(Tier::kDevice, chunk);
  machine().clear();
  machine().fail("cuMemSetAccess", 3);
  try {
    source_->let_in(kPeer);
    FAIL() << "let in";
  } catch (const SourceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuMemSetAccess for device 1"));
    EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_UNKNOWN"));
  }
  (void)mapped(Tier::kDevice, 6);
  for (const std::uint64_t chunk : {0U, 2U, 4U, 6U}) {
    EXPECT_FALSE(open_to(kPeer, at(chunk))) << chunk;
    EXPECT_TRUE(open_to(0, at(chunk))) << chunk;
  }
  source_->let_in(kPeer);
  for (const std::uint64_t chunk : {0U, 2U, 4U, 6U})
    EXPECT_TRUE(open_to(kPeer, at(chunk))) << chunk;
}

TEST_F(PeerAccessTest, MappingForAPeerThatIsRefusedMapsNothing) {
  COMMENSAL_NEEDS_SIMULATION();
  source_->let_in(kPeer);
  const MemoryHandle handle = source_->create(Tier::kDevice, chunk_);
  machine().clear();
  machine().fail("cuMemSetAccess", 1);
  EXPECT_THROW(source_->map(at(0), handle), SourceError);
  source_->map(at(0), handle);
  EXPECT_TRUE(open_to(kPeer, at(0)));
}

TEST_F(PeerAccessTest, ADeviceThatIsNotThereIsNamed) {
  EXPECT_THROW(source_->let_in(77), SourceError);
  (void)mapped(Tier::kDevice, 0);
  EXPECT_TRUE(open_to(0, at(0)));
}

}  // namespace
}  // namespace commensal::peer_access_test

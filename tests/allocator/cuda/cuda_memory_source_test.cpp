// SPDX-License-Identifier: Apache-2.0
// What the CUDA memory source promises beyond the contract: how it calls the driver, and when.
#include "allocator/cuda/cuda_memory_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "allocator/cuda/fingerprint.h"
#include "tests/allocator/cuda/cuda_machine.h"
#include "tests/allocator/cuda/library_named.h"

namespace commensal::cuda_memory_source_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class CudaMemorySourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    COMMENSAL_NEEDS_CUDA();
    machine().enter();
    if (machine().simulated()) {
      machine().clear();
      used_before_ = machine().used();
    }
    make();
  }
  void TearDown() override {
    if (!machine().reason().empty()) return;
    if (machine().simulated()) machine().clear();
    source_.reset();
    if (machine().simulated()) {
      EXPECT_EQ(machine().used(), used_before_) << "what is left of the device";
    }
  }

  static CudaMachine& machine() { return CudaMachine::get(); }
  void make(CudaMemorySource::Options options = {}) {
    source_.reset();
    source_ = std::make_unique<CudaMemorySource>(options);
    chunk_ = source_->granularity();
  }
  CudaMemorySource& source() { return *source_; }
  Bytes chunk() const { return chunk_; }

  std::byte* reserve(std::uint64_t chunks = 8) { return source().reserve(chunk_ * chunks).begin; }
  MemoryHandle mapped(Tier tier, std::byte* address) {
    const MemoryHandle handle = source().create(tier, chunk_);
    source().map(address, handle);
    return handle;
  }
  void fill(std::byte* address, unsigned char value) {
    const std::vector<unsigned char> bytes(chunk_.count(), value);
    CudaMachine::access().store(address, bytes.data(), bytes.size());
  }
  bool filled(const std::byte* address, unsigned char value) {
    std::vector<unsigned char> bytes(chunk_.count());
    CudaMachine::access().load(bytes.data(), address, bytes.size());
    return std::all_of(bytes.begin(), bytes.end(), [&](unsigned char b) { return b == value; });
  }
  CopyTicket copied(std::byte* address, MemoryHandle from, MemoryHandle to) {
    const CopyTicket ticket = source().begin_copy(address, from, to);
    EXPECT_EQ(source().wait_copy(ticket), CopyState::kDone) << source().copy_error(ticket);
    return ticket;
  }
  SwapResult swap(CopyTicket ticket, OnChange on_change = OnChange::kLeave) {
    const FenceResult fence = source().fence(std::chrono::seconds{10});
    EXPECT_TRUE(fence.stopped) << fence.reason;
    const SwapResult result = source().swap(ticket, on_change);
    source().unfence();
    return result;
  }
  static CUmemAllocationProp properties_at(std::byte* address) {
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties{};
    EXPECT_EQ(machine().symbol<CUresult(CUmemGenericAllocationHandle*, void*)>(
                  "cuMemRetainAllocationHandle")(&handle, address),
              CUDA_SUCCESS);
    EXPECT_EQ(machine().symbol<CUresult(CUmemAllocationProp*, CUmemGenericAllocationHandle)>(
                  "cuMemGetAllocationPropertiesFromHandle")(&properties, handle),
              CUDA_SUCCESS);
    EXPECT_EQ(CudaDriver::get().cuMemRelease(handle), CUDA_SUCCESS);
    return properties;
  }

 private:
  std::unique_ptr<CudaMemorySource> source_;
  Bytes chunk_;
  Bytes used_before_;
};

using CudaSimulationTest = CudaMemorySourceTest;  // tests that only the simulated driver can serve

// --- handles -------------------------------------------------------------------------------

TEST_F(CudaMemorySourceTest, P5_HandlesAreMadeShareableAndFitForRdma) {
  std::byte* address = reserve();
  const MemoryHandle handle = mapped(Tier::kDevice, address);
  const CUmemAllocationProp made = properties_at(address);
  EXPECT_EQ(made.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  const DeviceContext context(0);
  if (context.attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0) {
    EXPECT_EQ(made.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }
  if (context.attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0) {
    EXPECT_EQ(made.allocFlags.gpuDirectRDMACapable, 1);
  }
  source().unmap(address, handle);
}

// With a right of the CPU's the driver would copy with the CPU what begins on the host, and the
// process would end where the range goes on in memory of the device.
TEST_F(CudaMemorySourceTest, P31_WhatLiesOnBothTiersIsCopiedInOneCall) {
  if (source().capacity(Tier::kHost).is_zero()) GTEST_SKIP() << source().host_tier_reason();
  std::byte* address = reserve();
  (void)mapped(Tier::kHost, address);
  (void)mapped(Tier::kDevice, address + chunk().count());
  EXPECT_NE(properties_at(address).location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  std::vector<unsigned char> bytes(2 * chunk().count());
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * 7);
  const MemoryAccess access = CudaMachine::access();
  access.store(address, bytes.data(), bytes.size());
  std::vector<unsigned char> back(bytes.size());
  access.load(back.data(), address, back.size());
  EXPECT_EQ(back, bytes);
}

TEST_F(CudaSimulationTest, P26_MemoryIsBackAtTheDriverWhenReleaseReturns) {
  COMMENSAL_NEEDS_SIMULATION();
  const Bytes before = machine().used();
  const MemoryHandle handle = source().create(Tier::kDevice, chunk() * 3);
  EXPECT_EQ(machine().used(), before + chunk() * 3);
  source().release(handle);
  EXPECT_EQ(machine().used(), before);
  const MemoryHandle host = source().create(Tier::kHost, chunk() * 3);
  EXPECT_EQ(machine().used(), before) << "host memory is none of the device";
  source().release(host);
}

TEST_F(CudaSimulationTest, P21_RegrowingWithinTheLeaseCreatesNothing) {
  COMMENSAL_NEEDS_SIMULATION();
  source().set_lease(chunk() * 4);
  std::vector<MemoryHandle> handles;
  for (int i = 0; i < 4; ++i) handles.push_back(source().create(Tier::kDevice, chunk()));
  for (const MemoryHandle& handle : handles) source().release(handle);
  EXPECT_EQ(source().kept(Tier::kDevice), chunk() * 4);
  const std::uint64_t created = machine().calls("cuMemCreate");
  for (MemoryHandle& handle : handles) handle = source().create(Tier::kDevice, chunk());
  EXPECT_EQ(machine().calls("cuMemCreate"), created);
  EXPECT_EQ(source().kept(Tier::kDevice), 0_B);
  source().set_lease({});  // the twin: without a lease nothing is kept, and all is made anew
  for (const MemoryHandle& handle : handles) source().release(handle);
  for (MemoryHandle& handle : handles) handle = source().create(Tier::kDevice, chunk());
  EXPECT_EQ(machine().calls("cuMemCreate"), created + handles.size());
  for (const MemoryHandle& handle : handles) source().release(handle);
}

TEST_F(CudaSimulationTest, WhatIsKeptAndWhatIsInUseStayWithinTheLease) {
  COMMENSAL_NEEDS_SIMULATION();
  const Bytes before = machine().used();
  source().set_lease(chunk() * 3);
  const MemoryHandle first = source().create(Tier::kDevice, chunk() * 2);
  const MemoryHandle second = source().create(Tier::kDevice, chunk() * 2);  // above the lease
  source().release(first);
  EXPECT_EQ(source().kept(Tier::kDevice), 0_B) << "above the lease it goes back";
  EXPECT_EQ(machine().used(), before + chunk() * 2);
  source().release(second);
  EXPECT_EQ(source().kept(Tier::kDevice), chunk() * 2);
  const MemoryHandle third = source().create(Tier::kDevice, chunk() * 3);
  EXPECT_EQ(source().kept(Tier::kDevice), 0_B) << "makes room for what is in use";
  EXPECT_EQ(machine().used(), before + chunk() * 3);
  source().release(third);
  EXPECT_EQ(source().kept(Tier::kDevice), chunk() * 3);
  source().set_lease(chunk());
  EXPECT_EQ(source().kept(Tier::kDevice), 0_B);
  EXPECT_EQ(machine().used(), before);
}

TEST_F(CudaSimulationTest, WhatTheDriverDoesNotTakeIsReportedAndTriedAgain) {
  COMMENSAL_NEEDS_SIMULATION();
  const Bytes before = machine().used();
  source().set_lease(chunk() * 2);
  source().release(source().create(Tier::kDevice, chunk()));
  machine().fail("cuMemRelease", 1);
  source().set_lease({});
  EXPECT_EQ(source().over_lease(), chunk());
  EXPECT_EQ(source().kept(Tier::kDevice), 0_B);
  EXPECT_EQ(machine().used(), before + chunk());
  source().set_lease({});
  EXPECT_EQ(source().over_lease(), 0_B);
  EXPECT_EQ(machine().used(), before);
}

TEST_F(CudaSimulationTest, KeptMemoryOfAnotherSizeMakesRoomOnAFullDevice) {
  COMMENSAL_NEEDS_SIMULATION();
  source().set_lease(source().capacity(Tier::kDevice));
  const Bytes most = source().capacity(Tier::kDevice);
  const Bytes large{most.count() / 10 * 6 / chunk().count() * chunk().count()};
  source().release(source().create(Tier::kDevice, large));
  EXPECT_EQ(source().kept(Tier::kDevice), large);
  const MemoryHandle other = source().create(Tier::kDevice, large + chunk());
  EXPECT_EQ(source().kept(Tier::kDevice), 0_B);
  EXPECT_THROW((void)source().create(Tier::kDevice, large), OutOfMemory);
  source().set_lease({});
  source().release(other);
}

TEST_F(CudaMemorySourceTest, P11_UnusedHostMemoryStaysPinnedUpToItsCap) {
  if (source().capacity(Tier::kHost).is_zero()) GTEST_SKIP() << source().host_tier_reason();
  CudaMemorySource::Options options;
  options.host_keep = chunk() * 2;
  make(options);
  std::vector<MemoryHandle> handles;
  for (int i = 0; i < 4; ++i) handles.push_back(source().create(Tier::kHost, chunk()));
  for (const MemoryHandle& handle : handles) source().release(handle);
  EXPECT_EQ(source().kept(Tier::kHost), chunk() * 2);
  source().release(source().create(Tier::kHost, chunk()));
  EXPECT_EQ(source().kept(Tier::kHost), chunk() * 2);
  options.host_keep = Bytes{UINT64_MAX};  // the twin: without a cap all of it stays
  make(options);
  for (MemoryHandle& handle : handles) handle = source().create(Tier::kHost, chunk());
  for (const MemoryHandle& handle : handles) source().release(handle);
  EXPECT_EQ(source().kept(Tier::kHost), chunk() * 4);
}

TEST_F(CudaSimulationTest, P30_WhereTheNodesMemoryIsRefusedAnyHostMemoryWillDo) {
  COMMENSAL_NEEDS_SIMULATION();
  machine().fail("cuMemCreate", 1, CUDA_ERROR_NOT_PERMITTED);
  make();
  EXPECT_EQ(source().host_tier_reason(), "");
  std::byte* address = reserve();
  (void)mapped(Tier::kHost, address);
  EXPECT_EQ(properties_at(address).location.type, CU_MEM_LOCATION_TYPE_HOST);
}

TEST_F(CudaSimulationTest, WhereNoHostMemoryCanBeMappedThereIsAReasonAndNoSlowerTier) {
  COMMENSAL_NEEDS_SIMULATION();
  machine().fail("cuMemCreate", 1, CUDA_ERROR_NOT_PERMITTED, 2);
  make();
  EXPECT_THAT(source().host_tier_reason(), HasSubstr("CUDA_ERROR_NOT_PERMITTED"));
  EXPECT_EQ(source().capacity(Tier::kHost), 0_B);
  EXPECT_THROW((void)source().create(Tier::kHost, chunk()), OutOfMemory);
  std::byte* address = reserve();
  (void)mapped(Tier::kDevice, address);
  fill(address, 1);
  EXPECT_TRUE(filled(address, 1));
}

// --- mappings ------------------------------------------------------------------------------

TEST_F(CudaSimulationTest, P20_ARunGetsAccessInOneCall) {
  COMMENSAL_NEEDS_SIMULATION();
  std::byte* address = reserve();
  std::vector<MemoryHandle> run;
  for (int i = 0; i < 5; ++i) run.push_back(source().create(Tier::kDevice, chunk()));
  machine().clear();
  EXPECT_EQ(source().map_run(address, run).mapped, run.size());
  EXPECT_EQ(machine().calls("cuMemMap"), run.size());
  EXPECT_EQ(machine().calls("cuMemSetAccess"), 1U);
  EXPECT_EQ(source().unmap_run(address, run).unmapped, run.size());
  EXPECT_EQ(machine().calls("cuMemUnmap"), 1U);
  machine().clear();  // the twin: one by one
  std::byte* at = address;
  for (const MemoryHandle& handle : run) {
    source().map(at, handle);
    at += chunk().count();
  }
  EXPECT_EQ(machine().calls("cuMemSetAccess"), run.size());
}

TEST_F(CudaSimulationTest, ChunksThatLieTogetherAreExchangedInOneCallEach) {
  COMMENSAL_NEEDS_SIMULATION();
  std::byte* begin = reserve();
  std::vector<MemoryHandle> from;
  std::vector<Exchange> exchanges;
  for (const std::uint64_t i : {4U, 0U, 1U, 2U, 6U, 5U}) {  // two runs: 0 to 2 and 4 to 6
    std::byte* address = begin + i * chunk().count();
    from.push_back(mapped(Tier::kDevice, address));
    fill(address, static_cast<unsigned char>(i));
    exchanges.push_back(
        Exchange{copied(address, from.back(), source().create(Tier::kHost, chunk()))});
  }
  ASSERT_TRUE(source().fence(std::chrono::seconds{10}).stopped);
  machine().clear();
  source().swap_all(exchanges, OnChange::kLeave);
  EXPECT_EQ(machine().calls("cuMemUnmap"), 2U);
  EXPECT_EQ(machine().calls("cuMemMap"), exchanges.size());
  EXPECT_EQ(machine().calls("cuMemSetAccess"), 2U);
  EXPECT_EQ(machine().calls("cuStreamSynchronize"), 4U) << "once to compare, once to renew";
  source().unfence();
  for (const Exchange& one : exchanges) {
    EXPECT_EQ(one.result, SwapResult::kSwapped);
    source().end_copy(one.ticket);
  }
  for (const unsigned i : {4U, 0U, 1U, 2U, 6U, 5U}) {
    EXPECT_TRUE(filled(begin + i * chunk().count(), static_cast<unsigned char>(i))) << i;
  }
}

TEST_F(CudaSimulationTest, OneWindowServesCopiesOneAfterTheOther) {
  COMMENSAL_NEEDS_SIMULATION();
  std::byte* address = reserve();
  MemoryHandle handle = mapped(Tier::kDevice, address);
  machine().clear();
  for (int i = 0; i < 6; ++i) {
    const MemoryHandle to = source().create(i % 2 == 0 ? Tier::kHost : Tier::kDevice, chunk());
    const CopyTicket ticket = copied(address, handle, to);
    EXPECT_EQ(swap(ticket), SwapResult::kSwapped);
    source().end_copy(ticket);
    source().release(handle);
    handle = to;
  }
  EXPECT_EQ(machine().calls("cuMemAddressReserve"), 1U);
  EXPECT_EQ(machine().calls("cuEventCreate"), 1U);
}

// The driver refuses to exchange a mapping and to put the old one back.
TEST_F(CudaSimulationTest, WhatCannotBeUndoneIsMendedLaterAndNothingElseIsDoneBefore) {
  COMMENSAL_NEEDS_SIMULATION();
  for (const char* function : {"cuMemMap", "cuMemSetAccess"}) {
    std::byte* address = reserve();
    const MemoryHandle from = mapped(Tier::kDevice, address);
    const MemoryHandle to = source().create(Tier::kHost, chunk());
    fill(address, 9);
    const CopyTicket ticket = copied(address, from, to);
    machine().fail(function, 1, CUDA_ERROR_UNKNOWN, 0);
    EXPECT_EQ(swap(ticket), SwapResult::kFailed);
    EXPECT_FALSE(source().move_risk().safe);
    EXPECT_FALSE(source().fence(milliseconds{10}).stopped);
    EXPECT_THROW((void)source().create(Tier::kDevice, chunk()), SourceError);
    try {
      (void)source().reserve(chunk());
      ADD_FAILURE() << "nothing may go on";
    } catch (const SourceError& error) {
      EXPECT_THAT(error.what(), HasSubstr("1 chunks have lost their mapping"));
    }
    machine().clear();
    EXPECT_TRUE(source().move_risk().safe);
    EXPECT_TRUE(filled(address, 9));
    EXPECT_EQ(swap(ticket), SwapResult::kSwapped);
    EXPECT_TRUE(filled(address, 9));
    source().end_copy(ticket);
    source().release(from);
  }
}

// --- copies and fences ---------------------------------------------------------------------

TEST_F(CudaMemorySourceTest, ACopyIsUnderWayUntilItsEvent) {
  COMMENSAL_NEEDS_SIMULATION();
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  machine().hold();
  const CopyTicket ticket = source().begin_copy(address, from, to);
  EXPECT_EQ(source().copy_state(ticket), CopyState::kRunning);
  machine().let_go();
  EXPECT_EQ(source().wait_copy(ticket), CopyState::kDone);
  EXPECT_EQ(source().copy_state(ticket), CopyState::kDone);
  source().end_copy(ticket);
}

TEST_F(CudaMemorySourceTest, AnyThreadMayAskForTheStateOfACopy) {
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kDevice, chunk());
  std::atomic<std::uint64_t> ticket{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!stop) (void)source().copy_state(CopyTicket{ticket});
    });
  }
  for (int round = 0; round < 50; ++round) {
    const CopyTicket made = source().begin_copy(address, from, to);
    ticket = made.id;
    EXPECT_EQ(source().wait_copy(made), CopyState::kDone);
    source().end_copy(made);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CudaMemorySourceTest, AFenceWaitsForStreamsThatNobodyKnows) {
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kDevice, chunk());
  fill(address, 1);
  const CopyTicket ticket = copied(address, from, to);
  {
    HeldStream stream;
    machine().fill(to_cuda(address), 0x02020202, chunk().count() / 4, stream.stream());
    const FenceResult refused = source().fence(milliseconds{20});
    EXPECT_FALSE(refused.stopped);
    EXPECT_STREQ(refused.reason, "the device is still working");
    EXPECT_GE(refused.took, milliseconds{20});
    EXPECT_EQ(source().swap(ticket, OnChange::kLeave), SwapResult::kFailed) << "no fence is on";
    stream.pull();
    EXPECT_EQ(swap(ticket), SwapResult::kChanged);
    EXPECT_EQ(swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
  }
  source().end_copy(ticket);
  EXPECT_TRUE(filled(address, 2));
}

// While and after a copy the chunk changes, and is then as it was before: a look at the chunk
// alone, however often, might miss that the copy is another.
TEST_F(CudaSimulationTest, WhatWasCopiedIsComparedNotWhatWasThereBefore) {
  COMMENSAL_NEEDS_SIMULATION();
  const auto poke =
      machine().symbol<int(std::uint64_t, const void*, std::size_t)>("simulated_cuda_poke");
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 1);
  machine().hold();
  const CopyTicket ticket = source().begin_copy(address, from, to);
  const unsigned char other = 2;
  EXPECT_EQ(poke(to_cuda(address), &other, 1), 0);
  machine().let_go();
  EXPECT_EQ(source().wait_copy(ticket), CopyState::kDone);
  const unsigned char again = 1;
  EXPECT_EQ(poke(to_cuda(address), &again, 1), 0);
  EXPECT_EQ(swap(ticket), SwapResult::kChanged);
  source().end_copy(ticket);
}

TEST_F(CudaSimulationTest, WithoutTheKernelEveryChunkIsCopiedInsideTheFence) {
  COMMENSAL_NEEDS_SIMULATION();
  machine().fail("cuModuleLoadData", 1, CUDA_ERROR_NOT_SUPPORTED);
  make();
  EXPECT_THAT(source().fingerprint_reason(), HasSubstr("CUDA_ERROR_NOT_SUPPORTED"));
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 1);
  const CopyTicket ticket = copied(address, from, to);
  EXPECT_EQ(swap(ticket), SwapResult::kChanged) << "nobody can tell that it is not";
  fill(address, 2);
  EXPECT_EQ(swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
  source().end_copy(ticket);
  EXPECT_TRUE(filled(address, 2));
}

TEST_F(CudaSimulationTest, AKernelThatDoesNothingIsNotBelieved) {
  COMMENSAL_NEEDS_SIMULATION();
  machine().fail("cuLaunchKernel", 1, CUDA_ERROR_NOT_SUPPORTED);
  make();
  EXPECT_THAT(source().fingerprint_reason(), HasSubstr("CUDA_ERROR_NOT_SUPPORTED"));
  const ForgetfulKernel forgetful;
  make();
  EXPECT_THAT(source().fingerprint_reason(), HasSubstr("answers wrongly"));
}

// The twin of the contract's ChangedBytesStay...: what the comparison is for.
TEST_F(CudaSimulationTest, Law2_AWriteIsLostWhereChangesAreNotSeen) {
  COMMENSAL_NEEDS_SIMULATION();
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 1);
  const ForgetfulKernel forgetful;
  const CopyTicket ticket = copied(address, from, to);
  fill(address, 2);
  EXPECT_EQ(swap(ticket), SwapResult::kSwapped);
  source().end_copy(ticket);
  EXPECT_FALSE(filled(address, 2));
}

class CountingGate final : public WorkGate {
 public:
  [[nodiscard]] bool close(Duration /*deadline*/) noexcept override {
    ++closed;
    return obeys;
  }
  void open() noexcept override { ++opened; }
  bool obeys = true;
  int closed = 0;
  int opened = 0;
};

TEST_F(CudaMemorySourceTest, TheGateIsClosedForTheFenceAndOpensAgainWhateverHappens) {
  CountingGate gate;
  CudaMemorySource::Options options;
  options.gate = &gate;
  make(options);
  ASSERT_TRUE(source().fence(std::chrono::seconds{10}).stopped);
  EXPECT_EQ(gate.closed, 1);
  EXPECT_EQ(gate.opened, 0);
  source().unfence();
  EXPECT_EQ(gate.opened, 1);
  {
    const HeldStream stream;
    EXPECT_FALSE(source().fence(milliseconds{10}).stopped);
  }
  EXPECT_EQ(gate.closed, 2);
  EXPECT_EQ(gate.opened, 2);
  gate.obeys = false;
  const FenceResult refused = source().fence(milliseconds{10});
  EXPECT_STREQ(refused.reason, "work is still being submitted to the device");
  EXPECT_EQ(gate.opened, 2) << "a gate that did not close need not be opened";
  make();  // before the gate goes
}

std::atomic<bool> capture_runs{false};

TEST_F(CudaMemorySourceTest, WhileAGraphIsCapturedNothingMoves) {
  CudaMemorySource::Options options;
  options.capturing = [] { return capture_runs.load(); };
  make(options);
  std::byte* address = reserve();
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kDevice, chunk());
  CUstream stream = nullptr;
  ASSERT_EQ(CudaDriver::get().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(machine().symbol<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2")(
                stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_SUCCESS);
  capture_runs = true;
  EXPECT_EQ(source().move_risk().reason, "a CUDA graph is being captured");
  EXPECT_THROW((void)source().begin_copy(address, from, to), SourceError);
  EXPECT_STREQ(source().fence(milliseconds{10}).reason, "a CUDA graph is being captured");
  // Memory can be had meanwhile; nobody can tell whether work still uses what is given back.
  source().map(address + chunk().count(), to);
  EXPECT_THROW(source().unmap(address + chunk().count(), to), SourceError);
  capture_runs = false;
  CUgraph graph = nullptr;
  EXPECT_EQ(machine().symbol<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream, &graph),
            CUDA_SUCCESS)
      << "the capture was harmed";
  EXPECT_EQ(machine().symbol<CUresult(CUgraph)>("cuGraphDestroy")(graph), CUDA_SUCCESS);
  EXPECT_EQ(CudaDriver::get().cuStreamDestroy(stream), CUDA_SUCCESS);
  source().unmap(address + chunk().count(), to);
  const CopyTicket ticket = copied(address, from, to);
  EXPECT_EQ(swap(ticket), SwapResult::kSwapped);
  source().end_copy(ticket);
}

// F6: nobody tells of it but the driver.
TEST_F(CudaMemorySourceTest, ACaptureOfAnotherLibraryIsNotBroken) {
  make();
  std::byte* address = reserve();
  const MemoryHandle handle = mapped(Tier::kDevice, address);
  CUstream stream = nullptr;
  ASSERT_EQ(CudaDriver::get().cuStreamCreateWithPriority(&stream, CU_STREAM_DEFAULT, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(machine().symbol<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2")(
                stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_SUCCESS);
  std::thread([&] {
    EXPECT_STREQ(source().fence(milliseconds{10}).reason, "a CUDA graph is being captured");
    EXPECT_THROW(source().unmap(address, handle), SourceError);
  }).join();
  CUgraph graph = nullptr;
  EXPECT_EQ(machine().symbol<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream, &graph),
            CUDA_SUCCESS)
      << "the capture was harmed";
  EXPECT_EQ(machine().symbol<CUresult(CUgraph)>("cuGraphDestroy")(graph), CUDA_SUCCESS);
  EXPECT_EQ(CudaDriver::get().cuStreamDestroy(stream), CUDA_SUCCESS);
  source().unmap(address, handle);
  source().release(handle);
}

TEST_F(CudaMemorySourceTest, NothingMovesWhileALibraryIsLoadedThatCapturesUnseen) {
  make();
  std::byte* address = reserve();
  const MemoryHandle handle = mapped(Tier::kDevice, address);
  EXPECT_TRUE(source().move_risk().safe);
  auto library = std::make_unique<const LibraryNamed>("xla_cuda_plugin.so");
  EXPECT_EQ(source().move_risk().reason,
            "a library is loaded that captures CUDA graphs unseen: xla_cuda_plugin.so");
  EXPECT_STREQ(source().fence(milliseconds{10}).reason,
               "a library is loaded that captures CUDA graphs unseen");
  EXPECT_THROW(source().unmap(address, handle), SourceError);
  library.reset();
  EXPECT_TRUE(source().move_risk().safe);
  source().unmap(address, handle);
  source().release(handle);
}

TEST_F(CudaMemorySourceTest, AThreadWithoutAContextCanCallAndHasNoneAfterwards) {
  std::byte* address = reserve();
  CUcontext after = reinterpret_cast<CUcontext>(1);
  std::thread([&] {
    const MemoryHandle handle = mapped(Tier::kDevice, address);
    source().unmap(address, handle);
    source().release(handle);
    EXPECT_EQ(CudaDriver::get().cuCtxGetCurrent(&after), CUDA_SUCCESS);
  }).join();
  EXPECT_EQ(after, nullptr);
}

// --- fingerprints --------------------------------------------------------------------------

TEST(DeviceFingerprintTest, EveryBitAndEveryPlaceCounts) {
  std::vector<std::uint64_t> words(64);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = i * i;
  const DeviceFingerprint whole = fingerprint_of(words.data(), 512);
  EXPECT_EQ(fingerprint_of(words.data(), 512), whole);
  for (std::uint64_t& word : words) {
    for (unsigned bit = 0; bit < 64; ++bit) {
      word ^= std::uint64_t{1} << bit;
      const DeviceFingerprint other = fingerprint_of(words.data(), 512);
      EXPECT_NE(other.low, whole.low);
      EXPECT_NE(other.high, whole.high);
      word ^= std::uint64_t{1} << bit;
    }
  }
  std::swap(words[5], words[9]);
  EXPECT_NE(fingerprint_of(words.data(), 512), whole);
  std::swap(words[5], words[9]);
  std::swap(words[6], words[7]);  // within one word of the kernel
  EXPECT_NE(fingerprint_of(words.data(), 512), whole);
}

TEST(DeviceFingerprintTest, ZerosAreToldFromFewerZeros) {
  const std::vector<std::byte> zeros(256);
  EXPECT_NE(fingerprint_of(zeros.data(), 256), fingerprint_of(zeros.data(), 128));
  EXPECT_NE(fingerprint_of(zeros.data(), 16), DeviceFingerprint{});
}

}  // namespace
}  // namespace commensal::cuda_memory_source_test

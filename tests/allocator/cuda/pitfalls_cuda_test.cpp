// SPDX-License-Identifier: Apache-2.0
// Pitfalls of a GPU's memory that others fell into (docs/results/pitfalls.md), on the simulated
// driver. What keeps us out is switched off in a second test or part, and the fault then shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "allocator/cuda/cuda_memory_source.h"
#include "allocator/elastic_allocator.h"
#include "tests/allocator/cuda/cuda_machine.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::pitfalls_cuda_test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class CudaPitfalls : public ::testing::Test {
 protected:
  void SetUp() override {
    COMMENSAL_NEEDS_SIMULATION();
    machine().enter();
    machine().clear();
    used_before_ = machine().used();
    make({});
  }
  void TearDown() override {
    if (source_ == nullptr) return;
    machine().clear();
    source_.reset();
    EXPECT_EQ(machine().used(), used_before_) << "what is left of the device";
  }

  static CudaMachine& machine() { return CudaMachine::get(); }
  void make(const CudaMemorySource::Options& options) {
    source_.reset();
    source_ = std::make_unique<CudaMemorySource>(options);
    chunk_ = source_->granularity();
  }
  CudaMemorySource& source() { return *source_; }
  [[nodiscard]] Bytes chunk() const { return chunk_; }
  [[nodiscard]] ElasticAllocatorOptions limits() const {
    ElasticAllocatorOptions options;
    options.chunk_size = chunk_;
    options.fence_deadline = std::chrono::seconds{10};
    options.move_deadline = std::chrono::seconds{60};
    return options;
  }
  static std::uint64_t unmapped_under_work() { return machine().calls("cuMemUnmap while busy"); }

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

 private:
  std::unique_ptr<CudaMemorySource> source_;
  Bytes chunk_;
  Bytes used_before_;
};

// --- P1: unmapped while a kernel runs ---------------------------------------------------------

TEST_F(CudaPitfalls, P1_MemoryOfFreedBlocksStaysUntilTheWorkThatUsesItIsDone) {
  CudaMemorySource::Options options;
  options.unmap_deadline = milliseconds{10};
  make(options);
  ElasticAllocator allocator(source(), limits());
  void* const block = allocator.allocate(chunk() * 2);
  {
    HeldStream stream;
    machine().fill(to_cuda(block), 1, chunk().count() / 2, stream.stream());
    EXPECT_TRUE(allocator.deallocate(block));  // as a framework does: the work is only queued
    EXPECT_EQ(allocator.release_cached(), 0_B);
    EXPECT_EQ(unmapped_under_work(), 0U);
    stream.pull();
    EXPECT_EQ(CudaDriver::get().cuStreamSynchronize(stream.stream()), CUDA_SUCCESS);
  }
  (void)allocator.safe_point();
  (void)allocator.release_cached();
  EXPECT_EQ(allocator.stats().device, 0_B) << "the retry";
  EXPECT_EQ(unmapped_under_work(), 0U);
}

TEST_F(CudaPitfalls, P1_WithoutWaitingItGoesUnderTheWork) {
  CudaMemorySource::Options options;
  options.testing.drain_before_unmap = false;
  make(options);
  ElasticAllocator allocator(source(), limits());
  void* const block = allocator.allocate(chunk());
  const HeldStream stream;  // its work does not touch the block: that would end the process
  EXPECT_TRUE(allocator.deallocate(block));
  EXPECT_EQ(allocator.release_cached(), chunk());
  EXPECT_GT(unmapped_under_work(), 0U);
}

// Streams that nobody knows write to blocks while these are freed and limits fall.
TEST_F(CudaPitfalls, P1_StreamsAndShrinksAtRandom) {
  ElasticAllocator allocator(source(), limits());
  std::mt19937 random{7};
  std::vector<std::unique_ptr<HeldStream>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(std::make_unique<HeldStream>());
    streams.back()->pull();
  }
  std::vector<void*> blocks;
  for (int i = 0; i < 250; ++i) {
    const unsigned what = random() % 8;
    if (what < 4 && blocks.size() < 12) {
      const Bytes size = chunk() * (1 + random() % 2);
      blocks.push_back(allocator.allocate(size));
      machine().fill(to_cuda(blocks.back()), static_cast<std::uint32_t>(i), size.count() / 4,
                     streams[random() % 3]->stream());
    } else if (what < 7 && !blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      EXPECT_TRUE(allocator.deallocate(blocks.back()));
      blocks.pop_back();
    } else {
      (void)allocator.set_limit(chunk() * (random() % 12));
    }
  }
  for (void* block : blocks) EXPECT_TRUE(allocator.deallocate(block));
  for (const auto& stream : streams) {
    EXPECT_EQ(CudaDriver::get().cuStreamSynchronize(stream->stream()), CUDA_SUCCESS)
        << "no work met memory that was gone";
  }
  EXPECT_GT(allocator.stats().moved_out, 0_B);
}

// --- P3: a registration that is stale after a move --------------------------------------------

TEST_F(CudaPitfalls, P3_RegisteredRangesStayWhereTheyAre) {
  ElasticAllocator allocator(source(), limits());
  PatternedBlocks blocks(allocator, CudaMachine::access());
  std::byte* const registered = blocks.add(chunk() * 2);
  std::byte* const other = blocks.add(chunk() * 2);
  ASSERT_TRUE(registered != nullptr && other != nullptr);
  const AddressRange range{registered, chunk() * 2};
  source().keep_in_place(range);
  const LimitTicket ticket = allocator.set_limit(0_B);
  EXPECT_EQ(ticket.deferred, chunk() * 2);
  EXPECT_THAT(ticket.reason, HasSubstr("registered"));
  const auto device_bytes_at = [&](const std::byte* block) {
    Bytes sum;
    for (const ChunkResidency& each : allocator.residency()) {
      const bool inside = each.address >= block && each.address < block + chunk().count() * 2;
      if (inside && each.tier == Tier::kDevice) sum += each.size;
    }
    return sum;
  };
  EXPECT_EQ(device_bytes_at(registered), chunk() * 2);
  EXPECT_EQ(device_bytes_at(other), 0_B);
  source().may_move(range);  // the twin: the same chunks, not registered
  EXPECT_TRUE(allocator.set_limit(0_B).complete()) << allocator.stats().deferred_reason;
  EXPECT_EQ(device_bytes_at(registered), 0_B);
  EXPECT_THROW(source().may_move(range), std::logic_error);
  blocks.remove_all();
}

TEST_F(CudaPitfalls, P3_ARegistrationAfterTheCopyIsRespectedToo) {
  std::byte* const address = source().reserve(chunk()).begin;
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 3);
  const CopyTicket ticket = source().begin_copy(address, from, to);
  ASSERT_EQ(source().wait_copy(ticket), CopyState::kDone);
  const AddressRange middle{address + chunk().count() / 2, Bytes{512}};
  source().keep_in_place(middle);
  ASSERT_TRUE(source().fence(std::chrono::seconds{10}).stopped);
  EXPECT_EQ(source().swap(ticket, OnChange::kCopyInside), SwapResult::kFailed);
  source().may_move(middle);
  EXPECT_EQ(source().swap(ticket, OnChange::kLeave), SwapResult::kSwapped);
  source().unfence();
  source().end_copy(ticket);
  EXPECT_TRUE(filled(address, 3));
}

TEST_F(CudaPitfalls, P3_RegistrationsOfOtherThreadsNeverMeetAMove) {
  ElasticAllocator allocator(source(), limits());
  PatternedBlocks blocks(allocator, CudaMachine::access());
  std::byte* const block = blocks.add(chunk());
  ASSERT_NE(block, nullptr);
  const AddressRange range{block, chunk()};
  std::atomic<bool> stop{false};
  std::atomic<int> moved{0};
  std::thread mover([&] {
    machine().enter();
    for (int i = 0; !stop; ++i) {
      (void)allocator.set_limit(i % 2 == 0 ? 0_B : chunk() * 4);
    }
  });
  const auto handle_of = [&] {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(machine().symbol<CUresult(CUmemGenericAllocationHandle*, void*)>(
                  "cuMemRetainAllocationHandle")(&handle, block),
              CUDA_SUCCESS);
    EXPECT_EQ(CudaDriver::get().cuMemRelease(handle), CUDA_SUCCESS);
    return handle;
  };
  CUmemGenericAllocationHandle last = 0;
  for (int i = 0; i < 200; ++i) {
    source().keep_in_place(range);
    const CUmemGenericAllocationHandle now = handle_of();
    std::this_thread::yield();
    EXPECT_EQ(handle_of(), now) << "what was registered is what is mapped";
    if (std::exchange(last, now) != now) ++moved;
    source().may_move(range);
    std::this_thread::yield();
  }
  stop = true;
  mover.join();
  blocks.remove_all();
}

// --- P5: properties that cannot be added later ------------------------------------------------

TEST_F(CudaPitfalls, P5_WhatWasNotMadeShareableCannotBeExported) {
  const auto can_be_exported = [&](CUmemGenericAllocationHandle handle) {
    int file = -1;
    const CUresult result =
        machine()
            .symbol<CUresult(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                             unsigned long long)>("cuMemExportToShareableHandle")(
                &file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (file >= 0) ::close(file);
    return result == CUDA_SUCCESS;
  };
  std::byte* const address = source().reserve(chunk()).begin;
  const MemoryHandle handle = mapped(Tier::kDevice, address);
  CUmemGenericAllocationHandle ours = 0;
  ASSERT_EQ(machine().symbol<CUresult(CUmemGenericAllocationHandle*, void*)>(
                "cuMemRetainAllocationHandle")(&ours, address),
            CUDA_SUCCESS);
  EXPECT_TRUE(can_be_exported(ours));
  EXPECT_EQ(CudaDriver::get().cuMemRelease(ours), CUDA_SUCCESS);
  CUmemAllocationProp plain{};
  plain.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  plain.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle other = 0;
  ASSERT_EQ(CudaDriver::get().cuMemCreate(&other, chunk().count(), &plain, 0), CUDA_SUCCESS);
  EXPECT_FALSE(can_be_exported(other)) << "the twin: made without the property";
  EXPECT_EQ(CudaDriver::get().cuMemRelease(other), CUDA_SUCCESS);
  source().unmap(address, handle);
}

// --- P7: an error is reported by a later call --------------------------------------------------

TEST_F(CudaPitfalls, P7_AnErrorBelongsToTheCallThatFailed) {
  std::byte* const address = source().reserve(chunk() * 2).begin;
  const MemoryHandle handle = source().create(Tier::kDevice, chunk());
  machine().fail("cuMemMap", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_ANY_THROW(source().map(address, handle));
  EXPECT_NO_THROW((void)source().create(Tier::kHost, chunk()));
  EXPECT_NO_THROW(source().map(address, handle)) << "the retry";
  EXPECT_TRUE(source().move_risk().safe);
  fill(address, 4);
  EXPECT_TRUE(filled(address, 4));
  machine().fail("cuMemMap", 1, CUDA_ERROR_OUT_OF_MEMORY);  // the twin: an error that waits
  EXPECT_NO_THROW((void)source().create(Tier::kDevice, chunk())) << "for the call that it is of";
  const MemoryHandle next = source().create(Tier::kDevice, chunk());
  EXPECT_ANY_THROW(source().map(address + chunk().count(), next));
}

// --- P42: a write that the move does not see --------------------------------------------------

class GateOfTheTest final : public WorkGate {
 public:
  [[nodiscard]] bool close(Duration /*deadline*/) noexcept override {
    mutex.lock();
    return true;
  }
  void open() noexcept override { mutex.unlock(); }
  std::mutex mutex;
};

enum class Window { kBefore, kDuring, kBetween, kInside, kAfter };

std::string name_of(Window window) {
  constexpr std::array<const char*, 5> names{"BeforeTheCopy", "DuringTheCopy", "BetweenCopyAndStop",
                                             "WhileStopped", "AfterTheMove"};
  return names[static_cast<std::size_t>(window)];
}

class P42 : public CudaPitfalls, public ::testing::WithParamInterface<Window> {
 protected:
  void poke(std::byte* address, unsigned char value) {
    const std::vector<unsigned char> bytes(chunk().count(), value);
    EXPECT_EQ(machine().symbol<int(std::uint64_t, const void*, std::size_t)>("simulated_cuda_poke")(
                  to_cuda(address), bytes.data(), bytes.size()),
              0);
  }
  SwapResult swap(CopyTicket ticket, OnChange on_change) {
    const FenceResult fence = source().fence(std::chrono::seconds{10});
    EXPECT_TRUE(fence.stopped) << fence.reason;
    const SwapResult result = source().swap(ticket, on_change);
    source().unfence();
    return result;
  }
};

TEST_P(P42, P42_AWriteInThisWindowIsKept) {
  GateOfTheTest gate;
  CudaMemorySource::Options options;
  options.gate = &gate;
  make(options);
  std::byte* const address = source().reserve(chunk()).begin;
  MemoryHandle from = mapped(Tier::kDevice, address);
  MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 1);
  HeldStream stream;  // non-blocking, known to nobody
  std::thread writer;
  const auto queue_write = [&] {
    machine().fill(to_cuda(address), 0x02020202, chunk().count() / 4, stream.stream());
  };
  // Work that was submitted before the copy, and runs after it.
  if (GetParam() == Window::kBefore) queue_write();
  if (GetParam() == Window::kDuring) machine().hold();
  const CopyTicket ticket = source().begin_copy(address, from, to);
  if (GetParam() == Window::kDuring) {
    poke(address, 9);
    machine().let_go();
  }
  ASSERT_EQ(source().wait_copy(ticket), CopyState::kDone);
  if (GetParam() == Window::kDuring) poke(address, 2);
  stream.pull();
  if (GetParam() == Window::kBetween) queue_write();
  const bool seen_by_the_copy = GetParam() == Window::kInside || GetParam() == Window::kAfter;
  {
    const FenceResult fence = source().fence(std::chrono::seconds{10});
    ASSERT_TRUE(fence.stopped) << fence.reason;
    if (GetParam() == Window::kInside) {
      writer = std::thread([&] {
        machine().enter();
        const std::lock_guard<std::mutex> lock(gate.mutex);
        queue_write();
      });
    }
    EXPECT_EQ(source().swap(ticket, OnChange::kLeave),
              seen_by_the_copy ? SwapResult::kSwapped : SwapResult::kChanged);
    source().unfence();
  }
  if (writer.joinable()) writer.join();
  if (!seen_by_the_copy) {
    EXPECT_EQ(swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
  }
  if (GetParam() == Window::kAfter) queue_write();
  source().end_copy(ticket);
  EXPECT_EQ(CudaDriver::get().cuStreamSynchronize(stream.stream()), CUDA_SUCCESS);
  EXPECT_TRUE(filled(address, 2));
  std::swap(from, to);  // and back
  const CopyTicket back = source().begin_copy(address, from, to);
  ASSERT_EQ(source().wait_copy(back), CopyState::kDone);
  EXPECT_EQ(swap(back, OnChange::kLeave), SwapResult::kSwapped);
  source().end_copy(back);
  EXPECT_TRUE(filled(address, 2));
  make({});  // before the gate goes
}

INSTANTIATE_TEST_SUITE_P(Windows, P42,
                         ::testing::Values(Window::kBefore, Window::kDuring, Window::kBetween,
                                           Window::kInside, Window::kAfter),
                         [](const auto& test) { return name_of(test.param); });

// The twin of three of the windows: no comparison.
TEST_F(CudaPitfalls, P42_WithoutTheComparisonTheWriteIsLost) {
  std::byte* const address = source().reserve(chunk()).begin;
  const MemoryHandle from = mapped(Tier::kDevice, address);
  const MemoryHandle to = source().create(Tier::kHost, chunk());
  fill(address, 1);
  const ForgetfulKernel forgetful;
  const CopyTicket ticket = source().begin_copy(address, from, to);
  ASSERT_EQ(source().wait_copy(ticket), CopyState::kDone);
  fill(address, 2);
  ASSERT_TRUE(source().fence(std::chrono::seconds{10}).stopped);
  EXPECT_EQ(source().swap(ticket, OnChange::kLeave), SwapResult::kSwapped);
  source().unfence();
  source().end_copy(ticket);
  EXPECT_TRUE(filled(address, 1)) << "the write is gone";
}

}  // namespace
}  // namespace commensal::pitfalls_cuda_test

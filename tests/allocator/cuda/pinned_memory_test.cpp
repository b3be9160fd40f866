// SPDX-License-Identifier: Apache-2.0
// Where no host memory can be mapped: what nobody touches is kept in pinned memory, and is as it
// was when it is back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/cuda/cuda_memory_source.h"
#include "allocator/elastic_allocator.h"
#include "tests/allocator/cuda/cuda_machine.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::pinned_memory_test {
namespace {

using ::testing::HasSubstr;

// Small chunks: the calls are the same, the bytes fewer. Before the driver is opened.
const int kSmallChunks = ::setenv("SIMULATED_CUDA_GRANULARITY", "65536", 0);

std::atomic<bool> g_capturing{false};

bool soon(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return true;
}

class PinnedMemoryTest : public ::testing::Test {
 protected:
  static CudaMachine& machine() { return CudaMachine::get(); }
  static CudaMemorySource::Options options() {
    CudaMemorySource::Options options;
    options.map_host = false;
    options.testing.pin_in_background = false;
    return options;
  }

  void SetUp() override {
    COMMENSAL_NEEDS_CUDA();
    machine().enter();
    if (machine().simulated()) {
      machine().clear();
      used_at_first_ = machine().used();
    }
    make(options());
  }
  void TearDown() override {
    if (!machine().reason().empty()) return;
    g_capturing = false;
    if (machine().simulated()) machine().clear();
    source_.reset();
    if (machine().simulated()) {
      EXPECT_EQ(machine().used(), used_at_first_);
    }
  }

  void make(const CudaMemorySource::Options& options) {
    source_.reset();
    source_ = std::make_unique<CudaMemorySource>(options);
    chunk_ = source_->granularity();
    if (machine().simulated()) used_before_ = machine().used();
  }
  CudaMemorySource& source() { return *source_; }
  Bytes chunk() const { return chunk_; }
  Bytes used_before() const { return used_before_; }
  void expect_used(Bytes bytes) const {
    if (machine().simulated()) {
      EXPECT_EQ(machine().used() - used_before_, bytes);
    }
  }

  std::byte* reserve(std::uint64_t chunks = 8) { return source().reserve(chunk_ * chunks).begin; }
  MemoryHandle filled_chunk(std::byte* address, unsigned char value) {
    const MemoryHandle handle = source().create(Tier::kDevice, chunk_);
    source().map(address, handle);
    fill(address, value);
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
  MemoryHandle move(std::byte* address, MemoryHandle from, Tier tier) {
    const MemoryHandle to = source().create(tier, chunk_);
    const CopyTicket ticket = copied(address, from, to);
    EXPECT_EQ(swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
    source().end_copy(ticket);
    source().release(from);
    return to;
  }

 private:
  std::unique_ptr<CudaMemorySource> source_;
  Bytes chunk_;
  Bytes used_at_first_;
  Bytes used_before_;  // chunks were made
};

// --- the source ----------------------------------------------------------------------------

TEST_F(PinnedMemoryTest, TheReasonSaysWhatIsLeft) {
  EXPECT_EQ(source().capacity(Tier::kHost), 0_B);
  EXPECT_GT(source().capacity(Tier::kParked), 0_B);
  EXPECT_THAT(source().host_tier_reason(), HasSubstr("what is parked is kept in pinned memory"));
  EXPECT_THROW((void)source().create(Tier::kHost, chunk()), OutOfMemory);
}

TEST_F(PinnedMemoryTest, WhereTheDriverRefusesHostHandlesParkedOnesServe) {
  COMMENSAL_NEEDS_SIMULATION();
  CudaMemorySource::Options refused = options();
  refused.map_host = true;
  machine().fail("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED, 2);
  make(refused);
  EXPECT_THAT(source().host_tier_reason(), HasSubstr("CUDA_ERROR_NOT_SUPPORTED"));
  EXPECT_GT(source().capacity(Tier::kParked), 0_B);
  make(refused);  // the twin: it gives some
  EXPECT_EQ(source().host_tier_reason(), "");
  EXPECT_EQ(source().capacity(Tier::kParked), 0_B);
  EXPECT_THROW((void)source().create(Tier::kParked, chunk()), std::logic_error);
  refused.host_cap = 0_B;
  make(refused);
  EXPECT_EQ(source().capacity(Tier::kParked), 0_B) << "switched off means off";
}

TEST_F(PinnedMemoryTest, AParkedChunkHoldsNothingOfTheDeviceAndIsAsItWasWhenItIsBack) {
  std::byte* address = reserve();
  MemoryHandle handle = filled_chunk(address, 7);
  const MemoryHandle beside = filled_chunk(address + chunk().count(), 9);
  expect_used(chunk() * 2);
  handle = move(address, handle, Tier::kParked);
  expect_used(chunk());
  unsigned char byte = 0;
  static auto* const copy =
      machine().symbol<CUresult(void*, CUdeviceptr, std::size_t)>("cuMemcpyDtoH_v2");
  if (machine().simulated()) {
    EXPECT_NE(copy(&byte, to_cuda(address), 1), CUDA_SUCCESS) << "nothing is mapped there";
  }
  EXPECT_TRUE(filled(address + chunk().count(), 9)) << "what lies beside it is not touched";
  handle = move(address, handle, Tier::kDevice);
  expect_used(chunk() * 2);
  EXPECT_TRUE(filled(address, 7));
  source().unmap(address, handle);
  source().unmap(address + chunk().count(), beside);
}

TEST_F(PinnedMemoryTest, WhatIsWrittenWhileItIsCopiedStaysOrIsCopiedAgain) {
  std::byte* address = reserve();
  MemoryHandle handle = filled_chunk(address, 1);
  MemoryHandle parked = source().create(Tier::kParked, chunk());
  CopyTicket ticket = copied(address, handle, parked);
  fill(address, 2);
  EXPECT_EQ(swap(ticket), SwapResult::kChanged);
  EXPECT_TRUE(filled(address, 2));
  EXPECT_EQ(swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
  source().end_copy(ticket);
  source().release(handle);
  handle = source().create(Tier::kDevice, chunk());
  ticket = copied(address, parked, handle);
  EXPECT_EQ(swap(ticket), SwapResult::kSwapped);
  source().end_copy(ticket);
  source().release(parked);
  EXPECT_TRUE(filled(address, 2));
}

TEST_F(PinnedMemoryTest, WhatIsParkedNeedsNoFingerprintToComeBack) {
  COMMENSAL_NEEDS_SIMULATION();
  const ForgetfulKernel kernel;
  make(options());
  ASSERT_NE(source().fingerprint_reason(), "");
  std::byte* address = reserve();
  MemoryHandle handle = filled_chunk(address, 3);
  const MemoryHandle parked = source().create(Tier::kParked, chunk());
  const CopyTicket out = copied(address, handle, parked);
  EXPECT_EQ(swap(out), SwapResult::kChanged) << "nobody can tell";
  EXPECT_EQ(swap(out, OnChange::kCopyInside), SwapResult::kSwapped);
  source().end_copy(out);
  source().release(handle);
  handle = source().create(Tier::kDevice, chunk());
  const CopyTicket in = copied(address, parked, handle);
  EXPECT_EQ(swap(in), SwapResult::kSwapped) << "nobody can have written to it";
  source().end_copy(in);
  source().release(parked);
  EXPECT_TRUE(filled(address, 3));
}

TEST_F(PinnedMemoryTest, MisuseIsToldAndChangesNothing) {
  std::byte* address = reserve();
  const MemoryHandle handle = filled_chunk(address, 4);
  const MemoryHandle loose = source().create(Tier::kParked, chunk());
  EXPECT_THROW(source().map(address + chunk().count(), loose), std::logic_error);
  EXPECT_THROW((void)source().begin_copy(address + chunk().count(), loose, handle),
               std::logic_error)
      << "it is nowhere";
  const MemoryHandle parked = move(address, handle, Tier::kParked);
  EXPECT_THROW((void)source().begin_copy(address, parked, loose), std::logic_error)
      << "both are parked";
  EXPECT_THROW(source().release(parked), std::logic_error) << "it stands for the chunk";
  const MemoryHandle other = source().create(Tier::kDevice, chunk());
  EXPECT_THROW(source().map(address, other), std::logic_error) << "the address is taken";
  EXPECT_THROW(source().unreserve({address, chunk() * 8}), std::logic_error);
  source().unmap(address, parked);
  EXPECT_THROW(source().unmap(address, parked), std::logic_error);
  source().map(address, other);
  fill(address, 5);
  EXPECT_TRUE(filled(address, 5));
  source().release(parked);
  source().release(loose);
}

TEST_F(PinnedMemoryTest, MappedAndParkedChunksGoInOneRun) {
  std::byte* address = reserve();
  std::vector<MemoryHandle> run;
  for (unsigned char i = 0; i < 5; ++i) {
    std::byte* at = address + i * chunk().count();
    run.push_back(filled_chunk(at, i));
    if (i == 1 || i == 2) run.back() = move(at, run.back(), Tier::kParked);
  }
  const auto gone = source().unmap_run(address, run);
  EXPECT_EQ(gone.unmapped, run.size()) << gone.error;
  for (const MemoryHandle& handle : run) source().release(handle);
  expect_used(0_B);
}

TEST_F(PinnedMemoryTest, ItIsBoundedAndUnusedMemoryIsUnpinned) {
  CudaMemorySource::Options bounded = options();
  bounded.host_cap = chunk() * 4;
  bounded.host_keep = chunk();
  make(bounded);
  EXPECT_EQ(source().capacity(Tier::kParked), chunk() * 4);
  std::vector<MemoryHandle> handles;
  for (int i = 0; i < 4; ++i) handles.push_back(source().create(Tier::kParked, chunk()));
  EXPECT_THROW((void)source().create(Tier::kParked, chunk()), OutOfMemory);
  for (const MemoryHandle& handle : handles) source().release(handle);
  EXPECT_LE(source().kept(Tier::kParked), chunk());
  // What is kept of one size makes room for another.
  const MemoryHandle wide = source().create(Tier::kParked, chunk() * 4);
  EXPECT_EQ(source().kept(Tier::kParked), 0_B);
  source().release(wide);
  EXPECT_EQ(source().kept(Tier::kParked), 0_B);
}

TEST_F(PinnedMemoryTest, WhatTheDriverDoesNotUnpinIsTriedAgain) {
  COMMENSAL_NEEDS_SIMULATION();
  CudaMemorySource::Options strict = options();
  strict.host_keep = 0_B;
  make(strict);
  const MemoryHandle first = source().create(Tier::kParked, chunk());
  machine().fail("cuMemFreeHost", 1);
  source().release(first);
  EXPECT_EQ(source().kept(Tier::kParked), chunk());
  const MemoryHandle second = source().create(Tier::kParked, chunk());
  EXPECT_EQ(source().kept(Tier::kParked), 0_B) << "it serves meanwhile";
  source().release(second);
  EXPECT_EQ(source().kept(Tier::kParked), 0_B);
}

TEST_F(PinnedMemoryTest, P13_TheNextMemoryIsPinnedAndUnpinnedInTheBackground) {
  COMMENSAL_NEEDS_SIMULATION();
  const std::uint64_t before = machine().calls("cuMemHostAlloc");
  (void)source().create(Tier::kParked, chunk());
  EXPECT_EQ(machine().calls("cuMemHostAlloc"), before + 1) << "the twin: nothing ahead";
  CudaMemorySource::Options ahead = options();
  ahead.testing.pin_in_background = true;
  ahead.host_keep = 0_B;
  ahead.capturing = [] { return g_capturing.load(); };
  make(ahead);
  machine().clear();
  std::vector<MemoryHandle> handles{source().create(Tier::kParked, chunk())};
  EXPECT_TRUE(soon([&] { return machine().calls("cuMemHostAlloc") >= 2; }));
  for (int i = 0; i < 20; ++i) handles.push_back(source().create(Tier::kParked, chunk()));
  for (const MemoryHandle& handle : handles) source().release(handle);
  // What is being unpinned counts as kept no more, and the driver has not been asked yet.
  EXPECT_TRUE(soon([&] {
    return source().kept(Tier::kParked).is_zero() &&
           machine().calls("cuMemFreeHost") == machine().calls("cuMemHostAlloc");
  }));
}

TEST_F(PinnedMemoryTest, WhileAGraphIsCapturedNothingIsPinned) {
  COMMENSAL_NEEDS_SIMULATION();
  CudaMemorySource::Options ahead = options();
  ahead.testing.pin_in_background = true;
  ahead.host_keep = 0_B;
  ahead.capturing = [] { return g_capturing.load(); };
  make(ahead);
  const MemoryHandle handle = source().create(Tier::kParked, chunk());
  g_capturing = true;
  EXPECT_THROW((void)source().create(Tier::kParked, chunk()), SourceError);
  source().release(handle);
  g_capturing = false;
  EXPECT_TRUE(soon([&] { return source().kept(Tier::kParked).is_zero(); })) << "afterwards it goes";
  source().release(source().create(Tier::kParked, chunk()));
}

// --- the allocator above it ----------------------------------------------------------------

class ParkedAwayTest : public PinnedMemoryTest {
 protected:
  void SetUp() override {
    PinnedMemoryTest::SetUp();
    if (machine().reason().empty()) start();
  }
  void start(Bytes chunk_size = 2_MiB) {
    ElasticAllocatorOptions limits;
    limits.chunk_size = round_up(chunk_size, source().granularity());
    limits.fence_deadline = std::chrono::seconds{5};  // a slow machine must not look like a fault
    limits.move_deadline = std::chrono::seconds{60};
    allocator_ = std::make_unique<ElasticAllocator>(source(), limits);
    tag_ = allocator_->open_tag("weights");
  }
  void TearDown() override {
    if (allocator_ != nullptr && machine().simulated()) machine().clear();
    allocator_.reset();
    PinnedMemoryTest::TearDown();
  }

  void start_over(const CudaMemorySource::Options& options, Bytes chunk_size = 2_MiB) {
    allocator_.reset();
    make(options);
    start(chunk_size);
  }
  ElasticAllocator& allocator() { return *allocator_; }
  TagId tag() const { return tag_; }
  std::byte* tagged(Bytes size, unsigned char value) {
    auto* block = static_cast<std::byte*>(allocator().allocate(size, 0, {Phase::kUnknown, tag_}));
    const std::vector<unsigned char> image(size.count(), value);
    CudaMachine::access().store(block, image.data(), image.size());
    return block;
  }
  static bool holds(const std::byte* block, Bytes size, unsigned char value) {
    std::vector<unsigned char> image(size.count());
    CudaMachine::access().load(image.data(), block, image.size());
    return std::all_of(image.begin(), image.end(), [&](unsigned char b) { return b == value; });
  }
  std::vector<ChunkResidency> chunks_under(const std::byte* block, Bytes size) {
    std::vector<ChunkResidency> found;
    for (const ChunkResidency& chunk : allocator().residency()) {
      if (chunk.address < block + size.count() && block < chunk.address + chunk.size.count()) {
        found.push_back(chunk);
      }
    }
    return found;
  }

 private:
  std::unique_ptr<ElasticAllocator> allocator_;
  TagId tag_ = 0;
};

TEST_F(ParkedAwayTest, P6_ATagIsSavedAndBroughtBackUnderItsAddresses) {
  std::byte* const block = tagged(8_MiB, 5);
  for (int round = 0; round < 2; ++round) {
    const TagTicket parked = allocator().park_tag(tag());
    ASSERT_TRUE(parked.complete()) << parked.reason;
    EXPECT_EQ(parked.done, 8_MiB);
    EXPECT_TRUE(allocator().park_tag(tag()).complete()) << "twice is no harm";
    EXPECT_EQ(allocator().stats().parked, 8_MiB);
    EXPECT_EQ(allocator().stats().away, 0_B) << "parked by name";
    expect_used(0_B);
    for (const ChunkResidency& chunk : chunks_under(block, 8_MiB)) {
      EXPECT_EQ(chunk.tier, Tier::kParked);
      EXPECT_TRUE(chunk.away);
    }
    const TagTicket woken = allocator().wake_tag(tag());
    ASSERT_TRUE(woken.complete()) << woken.reason;
    EXPECT_EQ(woken.done, 8_MiB);
    EXPECT_TRUE(holds(block, 8_MiB, 5));
    EXPECT_EQ(allocator().stats().parked, 0_B);
  }
  EXPECT_TRUE(allocator().deallocate(block));
}

TEST_F(ParkedAwayTest, LiveMemoryStaysWhileTheJobRuns) {
  std::byte* const block = static_cast<std::byte*>(allocator().allocate(8_MiB));
  const LimitTicket shrunk = allocator().set_limit(2_MiB);
  EXPECT_EQ(shrunk.deferred, 6_MiB);
  EXPECT_THAT(shrunk.reason, HasSubstr("what is parked is kept in pinned memory"));
  EXPECT_THAT(allocator().park().reason, HasSubstr("no slower tier")) << "it may go on running";
  EXPECT_THAT(allocator().park(Parking::kUntilGrow).reason, HasSubstr("no slower tier"));
  EXPECT_EQ(allocator().stats().device, 8_MiB);
  try {
    (void)allocator().allocate(2_MiB);
    FAIL() << "there is no slower tier to serve it";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("pinned memory"));
  }
  EXPECT_TRUE(allocator().deallocate(block));
}

TEST_F(ParkedAwayTest, Law2_AJobThatNobodyTouchesIsParkedWholeAndComesBack) {
  PatternedBlocks blocks(allocator(), CudaMachine::access());
  for (int i = 0; i < 5; ++i) ASSERT_NE(blocks.add(3_MiB), nullptr);
  for (int i = 0; i < 20; ++i) ASSERT_NE(blocks.add(Bytes{1000}), nullptr);
  (void)allocator().set_limit(64_MiB);
  const Bytes held = allocator().stats().device;
  const LimitTicket parked = allocator().park(Parking::kUntouched);
  EXPECT_TRUE(parked.complete()) << parked.reason;
  EXPECT_EQ(allocator().stats().device, 0_B);
  EXPECT_EQ(allocator().stats().away, allocator().stats().parked);
  EXPECT_LE(allocator().stats().away, held);
  expect_used(0_B);
  (void)allocator().set_limit(65_MiB);
  (void)allocator().safe_point();
  EXPECT_EQ(allocator().stats().device, 0_B) << "more room is no reason to come back";
  EXPECT_TRUE(allocator().grow(64_MiB).complete());
  EXPECT_EQ(allocator().stats().away, 0_B);
  blocks.expect_all();
  blocks.remove_all();
}

TEST_F(ParkedAwayTest, WhereTheLimitLeavesNoRoomItStaysAwayUntilThereIsSome) {
  std::byte* const block = tagged(8_MiB, 6);
  ASSERT_TRUE(allocator().park_tag(tag()).complete());
  (void)allocator().set_limit(4_MiB);
  const TagTicket woken = allocator().wake_tag(tag());
  EXPECT_EQ(woken.done, 4_MiB);
  EXPECT_EQ(woken.missing, 4_MiB);
  EXPECT_EQ(woken.deferred, 0_B) << "it cannot be used";
  EXPECT_THAT(woken.reason, HasSubstr("leaves no room"));
  EXPECT_EQ(allocator().stats().away, 4_MiB);
  (void)allocator().set_limit(16_MiB);
  EXPECT_EQ(allocator().stats().away, 0_B);
  EXPECT_TRUE(allocator().wake_tag(tag()).complete());
  EXPECT_TRUE(holds(block, 8_MiB, 6));
  EXPECT_TRUE(allocator().deallocate(block));
}

TEST_F(ParkedAwayTest, FreeMemoryThatIsAwayServesNobody) {
  std::byte* const first = tagged(1_MiB, 1);
  std::byte* const second = tagged(512_KiB, 2);  // half a MiB beside them is free
  ASSERT_EQ(chunks_under(first, 1_MiB).front().address,
            chunks_under(second, 512_KiB).front().address);
  ASSERT_TRUE(allocator().park_tag(tag()).complete());
  std::byte* const fresh = tagged(256_KiB, 3);
  EXPECT_EQ(chunks_under(fresh, 256_KiB).front().tier, Tier::kDevice);
  EXPECT_TRUE(allocator().deallocate(second));  // becomes free where it is
  std::byte* const more = tagged(512_KiB, 4);
  EXPECT_EQ(chunks_under(more, 512_KiB).front().tier, Tier::kDevice);
  ASSERT_TRUE(allocator().wake_tag(tag()).complete());
  EXPECT_TRUE(holds(first, 1_MiB, 1));
  EXPECT_TRUE(holds(fresh, 256_KiB, 3));
  EXPECT_TRUE(holds(more, 512_KiB, 4));
  // The twin: once it is back, its free memory serves.
  std::byte* const next = tagged(640_KiB, 5);
  EXPECT_EQ(chunks_under(next, 640_KiB).front().address,
            chunks_under(first, 1_MiB).front().address);
  for (std::byte* block : {first, fresh, more, next}) EXPECT_TRUE(allocator().deallocate(block));
}

TEST_F(ParkedAwayTest, WhatIsFreedWhileItIsAwayGivesItsPinnedMemoryBack) {
  std::byte* const block = tagged(8_MiB, 1);
  ASSERT_TRUE(allocator().park_tag(tag()).complete());
  EXPECT_TRUE(allocator().deallocate(block));
  (void)allocator().safe_point();
  EXPECT_EQ(allocator().stats().parked, 0_B);
  EXPECT_LE(source().kept(Tier::kParked), 64_MiB);
  EXPECT_TRUE(allocator().wake_tag(tag()).complete());
  expect_used(0_B);
}

TEST_F(ParkedAwayTest, WhatIsAwayCanBeDroppedAndKeptInPlace) {
  std::byte* const block = tagged(4_MiB, 1);
  ASSERT_TRUE(allocator().park_tag(tag()).complete());
  ASSERT_TRUE(allocator().drop_tag(tag()).complete());
  EXPECT_EQ(allocator().stats().dropped, 4_MiB);
  EXPECT_EQ(allocator().stats().parked, 0_B);
  ASSERT_TRUE(allocator().wake_tag(tag()).complete());
  const std::vector<unsigned char> image((4_MiB).count(), 9);
  CudaMachine::access().store(block, image.data(), image.size());
  ASSERT_TRUE(allocator().park_tag(tag()).complete());
  const AddressRange range{block, 4_MiB};
  EXPECT_EQ(allocator().keep_in_place(range, "registered", KeepWhere::kWhereItIs), 4_MiB);
  EXPECT_EQ(allocator().stats().parked, 0_B) << "nobody can rely on what is mapped nowhere";
  EXPECT_TRUE(holds(block, 4_MiB, 9));
  EXPECT_FALSE(allocator().park_tag(tag()).complete()) << "it stays";
  allocator().may_move(range, "registered");
  EXPECT_TRUE(allocator().deallocate(block));
}

TEST_F(ParkedAwayTest, AFullArenaLeavesTheRestOnTheDeviceAndSaysSo) {
  CudaMemorySource::Options small = options();
  small.host_cap = 4_MiB;
  start_over(small);
  std::byte* const block = tagged(8_MiB, 3);
  const TagTicket parked = allocator().park_tag(tag());
  EXPECT_EQ(parked.done, 4_MiB);
  EXPECT_EQ(parked.deferred, 4_MiB);
  EXPECT_THAT(parked.reason, HasSubstr("slower tier full: 4 MiB of 4 MiB"));
  EXPECT_TRUE(allocator().wake_tag(tag()).complete());
  EXPECT_TRUE(holds(block, 8_MiB, 3));
  EXPECT_TRUE(allocator().deallocate(block));
}

TEST_F(ParkedAwayTest, RandomOperationsLoseNothing) {
  struct Held {
    std::byte* block;
    Bytes size;
    unsigned char value;
  };
  std::mt19937 random(4711);
  const auto below = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  std::vector<Held> held;
  const auto reachable = [&](const Held& one) {
    const auto chunks = chunks_under(one.block, one.size);
    return std::none_of(chunks.begin(), chunks.end(), [](const auto& chunk) { return chunk.away; });
  };
  std::size_t unreachable = 0;
  for (int round = 0; round < 150; ++round) {
    switch (below(8)) {
      case 0: (void)allocator().park_tag(tag()); break;
      case 1: (void)allocator().wake_tag(tag()); break;
      case 2: (void)allocator().set_limit(Bytes{(8 + below(56)) << 20U}); break;
      case 3:
      case 4:
        if (!held.empty()) {
          const std::size_t at = below(static_cast<std::uint32_t>(held.size()));
          const Held one = std::exchange(held[at], held.back());
          held.pop_back();
          if (reachable(one)) {
            EXPECT_TRUE(holds(one.block, one.size, one.value)) << round;
          } else {
            ++unreachable;
          }
          EXPECT_TRUE(allocator().deallocate(one.block));
        }
        break;
      default:
        try {
          const Bytes size{(1 + below(700)) << 12U};
          const auto value = static_cast<unsigned char>(round);
          held.push_back({tagged(size, value), size, value});
          EXPECT_TRUE(reachable(held.back())) << round;
        } catch (const OutOfMemory&) {
          (void)allocator().set_limit(64_MiB);
        }
    }
  }
  EXPECT_GT(unreachable, 0U);
  (void)allocator().set_limit(1_GiB);
  const TagTicket woken = allocator().wake_tag(tag());
  EXPECT_TRUE(woken.complete()) << woken.reason;
  for (const Held& one : held) {
    EXPECT_TRUE(holds(one.block, one.size, one.value));
    EXPECT_TRUE(allocator().deallocate(one.block));
  }
  (void)allocator().release_cached();
  EXPECT_EQ(allocator().stats().device + allocator().stats().parked, 0_B);
}

// --- failures ------------------------------------------------------------------------------

/// Something that parks memory away and brings it back; done twice it leaves nothing away.
struct RoundTrip {
  const char* name;
  std::function<void(ElasticAllocator&, TagId)> go;
  std::function<void(ElasticAllocator&, TagId)> come;

  friend std::ostream& operator<<(std::ostream& out, const RoundTrip& trip) {
    return out << trip.name;
  }
};

class ParkedAwayFaults : public ParkedAwayTest, public ::testing::WithParamInterface<RoundTrip> {};

TEST_P(ParkedAwayFaults, P9_Law2_EveryDriverCallThatFailsLosesNothingAndARetrySucceeds) {
  COMMENSAL_NEEDS_SIMULATION();
  ASSERT_EQ(kSmallChunks, 0);
  start_over(options(), chunk());
  const Bytes size = chunk() * 3;
  std::byte* const block = tagged(size, 1);
  (void)allocator().set_limit(chunk() * 8);
  std::size_t failures = 0;
  unsigned char value = 1;
  const auto ledger_fits = [&] {
    return machine().used() ==
           used_before() + allocator().stats().device + source().kept(Tier::kDevice);
  };
  const auto once = [&](const std::string& function, std::uint64_t position) {
    machine().clear();
    machine().fail(function, position);
    GetParam().go(allocator(), tag());
    GetParam().come(allocator(), tag());
    const bool failed = machine().calls(function) >= position;
    machine().clear();
    GetParam().come(allocator(), tag());
    EXPECT_TRUE(holds(block, size, value));
    GetParam().go(allocator(), tag());
    EXPECT_EQ(allocator().stats().device, 0_B);
    EXPECT_TRUE(ledger_fits());
    GetParam().come(allocator(), tag());
    EXPECT_EQ(allocator().stats().parked, 0_B);
    EXPECT_TRUE(holds(block, size, value));
    (void)allocator().safe_point();  // takes back what the driver had refused
    EXPECT_TRUE(ledger_fits());
    const std::vector<unsigned char> image(size.count(), ++value);
    CudaMachine::access().store(block, image.data(), image.size());
    return failed;
  };
  for (const std::string& function : CudaMachine::functions()) {
    for (std::uint64_t position = 1; once(function, position); ++position) {
      ++failures;
      ASSERT_FALSE(HasFailure()) << function << " " << position;
    }
  }
  EXPECT_GT(failures, 50U);
  EXPECT_TRUE(allocator().deallocate(block));
}

INSTANTIATE_TEST_SUITE_P(
    Everything, ParkedAwayFaults,
    ::testing::Values(
        RoundTrip{"Tag",
                  [](ElasticAllocator& allocator, TagId tag) { (void)allocator.park_tag(tag); },
                  [](ElasticAllocator& allocator, TagId tag) { (void)allocator.wake_tag(tag); }},
        RoundTrip{
            "Job",
            [](ElasticAllocator& allocator, TagId) { (void)allocator.park(Parking::kUntouched); },
            [](ElasticAllocator& allocator, TagId) { (void)allocator.grow(1_GiB); }}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace commensal::pinned_memory_test

// SPDX-License-Identifier: Apache-2.0
// The elastic allocator on a GPU's memory: live memory shrinks, grows and parks under streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "allocator/cuda/cuda_memory_source.h"
#include "allocator/elastic_allocator.h"
#include "tests/allocator/cuda/cuda_machine.h"
#include "tests/allocator/fuzz.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::elastic_on_cuda_test {
namespace {

using ::testing::HasSubstr;

class ElasticOnCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    COMMENSAL_NEEDS_CUDA();
    machine().enter();
    if (machine().simulated()) machine().clear();
    make({});
  }
  void TearDown() override {
    if (!machine().reason().empty()) return;
    if (machine().simulated()) machine().clear();
    allocator_.reset();
    expect_used(0_B);
  }

  static CudaMachine& machine() { return CudaMachine::get(); }
  void make(const CudaMemorySource::Options& options) {
    allocator_.reset();
    source_.reset();
    source_ = std::make_unique<CudaMemorySource>(options);
    if (machine().simulated()) used_before_ = machine().used();
    ElasticAllocatorOptions limits;
    limits.chunk_size = round_up(2_MiB, source_->granularity());
    limits.fence_deadline = std::chrono::seconds{5};  // a slow machine must not look like a fault
    limits.move_deadline = std::chrono::seconds{60};
    allocator_ = std::make_unique<ElasticAllocator>(*source_, limits);
  }
  CudaMemorySource& source() { return *source_; }
  ElasticAllocator& allocator() { return *allocator_; }
  bool has_host_tier() const { return !source_->capacity(Tier::kHost).is_zero(); }

  // What another process would see of the device.
  void expect_used(Bytes bytes) const {
    if (machine().simulated()) {
      EXPECT_EQ(machine().used() - used_before_, bytes);
    }
  }
  // The device holds what the allocator says, and what the source keeps for it.
  void expect_ledger() { expect_used(allocator().stats().device + source().kept(Tier::kDevice)); }

 private:
  std::unique_ptr<CudaMemorySource> source_;
  std::unique_ptr<ElasticAllocator> allocator_;
  Bytes used_before_;
};

TEST_F(ElasticOnCudaTest, P6_TagsAreSavedDroppedAndBroughtBackUnderTheirAddresses) {
  if (!has_host_tier()) GTEST_SKIP() << source().host_tier_reason();
  const auto add = [&](const char* name, unsigned char value) {
    const TagId tag = allocator().open_tag(name);
    void* block = allocator().allocate(8_MiB, 0, {Phase::kUnknown, tag});
    const std::vector<unsigned char> image((8_MiB).count(), value);
    CudaMachine::access().store(static_cast<std::byte*>(block), image.data(), image.size());
    return block;
  };
  const auto last = [&](void* block) {
    unsigned char value = 0;
    CudaMachine::access().load(&value, static_cast<std::byte*>(block) + (8_MiB).count() - 1, 1);
    return value;
  };
  void* weights = add("weights", 5);
  void* cache = add("cache", 6);
  const TagId tag = allocator().find_tag("weights");
  const TagId other = allocator().find_tag("cache");
  for (int round = 0; round < 2; ++round) {
    const TagTicket parked = allocator().park_tag(tag);
    ASSERT_TRUE(parked.complete()) << parked.reason;
    EXPECT_EQ(allocator().stats().parked, 8_MiB);
    expect_ledger();
    EXPECT_EQ(last(weights), 5);
    const TagTicket dropped = allocator().drop_tag(other);
    ASSERT_TRUE(dropped.complete()) << dropped.reason;
    EXPECT_EQ(allocator().stats().device, 0_B);
    expect_used(0_B);
    EXPECT_TRUE(allocator().wake_tag(other).complete());
    EXPECT_TRUE(allocator().wake_tag(tag).complete());
    EXPECT_EQ(allocator().stats().device, 16_MiB);
    expect_ledger();
    EXPECT_EQ(last(weights), 5);
    const unsigned char fresh = 9;
    CudaMachine::access().store(static_cast<std::byte*>(cache) + (8_MiB).count() - 1, &fresh, 1);
    EXPECT_EQ(last(cache), 9);
  }
  EXPECT_TRUE(allocator().deallocate(weights));
  EXPECT_TRUE(allocator().deallocate(cache));
}

TEST_F(ElasticOnCudaTest, Law2_LiveChunksGoToTheHostAndComeBackUnderTheirAddresses) {
  if (!has_host_tier()) GTEST_SKIP() << source().host_tier_reason();
  PatternedBlocks blocks(allocator(), CudaMachine::access());
  for (int i = 0; i < 8; ++i) ASSERT_NE(blocks.add(4_MiB), nullptr);
  const auto before = blocks.entries();
  for (int round = 0; round < 3; ++round) {
    const LimitTicket shrunk = allocator().set_limit(8_MiB);
    EXPECT_TRUE(shrunk.complete()) << shrunk.reason;
    EXPECT_LE(allocator().stats().device, 8_MiB);
    EXPECT_GE(allocator().stats().host, 24_MiB);
    expect_ledger();
    blocks.expect_all();
    blocks.rewrite(blocks.entries().begin()->first);  // by the device, wherever it lies
    const LimitTicket grown = allocator().set_limit(64_MiB);
    EXPECT_TRUE(grown.complete()) << grown.reason;
    EXPECT_EQ(allocator().stats().host, 0_B);
    expect_ledger();
    blocks.expect_all();
  }
  EXPECT_EQ(blocks.entries().size(), before.size());
  EXPECT_GE(allocator().stats().moved_out, 72_MiB);
  EXPECT_GE(allocator().stats().moved_in, 72_MiB);
  blocks.remove_all();
}

TEST_F(ElasticOnCudaTest, Law2_AParkedJobHoldsNothingOfTheDeviceAndComesBackWhole) {
  if (!has_host_tier()) GTEST_SKIP() << source().host_tier_reason();
  PatternedBlocks blocks(allocator(), CudaMachine::access());
  for (int i = 0; i < 5; ++i) ASSERT_NE(blocks.add(3_MiB), nullptr);
  (void)allocator().set_limit(64_MiB);  // a lease: released memory may be kept
  EXPECT_TRUE(allocator().park().complete());
  EXPECT_EQ(allocator().stats().device, 0_B);
  expect_used(0_B);
  (void)allocator().park();                        // parking twice is no harm (P6)
  blocks.remove(blocks.entries().begin()->first);  // freed while parked
  const LimitTicket back = allocator().grow(1_GiB);
  EXPECT_TRUE(back.complete()) << back.reason;
  EXPECT_EQ(allocator().stats().host + allocator().stats().parked, 0_B);
  blocks.expect_all();
  expect_ledger();
  blocks.remove_all();
}

TEST_F(ElasticOnCudaTest, Law2_ALimitThatFallsTakesKeptMemoryToo) {
  (void)allocator().set_limit(64_MiB);
  PatternedBlocks blocks(allocator(), CudaMachine::access());
  ASSERT_NE(blocks.add(16_MiB), nullptr);
  blocks.remove_all();
  EXPECT_EQ(allocator().release_cached(), 16_MiB);
  expect_used(0_B);
  ASSERT_NE(blocks.add(16_MiB), nullptr);
  EXPECT_TRUE(allocator().set_limit(16_MiB).complete());
  ASSERT_EQ(allocator().stats().device, 16_MiB);
  blocks.remove_all();
  allocator().post_limit(4_MiB);
  EXPECT_TRUE(allocator().work_pending());
  EXPECT_TRUE(allocator().safe_point().complete());
  EXPECT_LE(allocator().stats().device, 4_MiB);
  EXPECT_EQ(source().kept(Tier::kDevice), 0_B);
  expect_ledger();
}

TEST_F(ElasticOnCudaTest, Law2_LiveDataSurvivesRandomOperations) {
  (void)allocator().set_limit(16_MiB);
  FuzzOptions options;
  options.seed = fuzz_seed();
  options.operations = fuzz_operations(1'500, 300);
  options.largest_block = 2_MiB;
  options.largest_limit = 24_MiB;
  options.access = CudaMachine::access();
  options.before = [this](std::mt19937_64&) { expect_ledger(); };
  ElasticFuzz(allocator(), options).run();
  if (has_host_tier() && options.operations >= 1'500) {  // fewer may never need to
    EXPECT_GT(allocator().stats().moved_out, 0_B);
  }
}

TEST_F(ElasticOnCudaTest, Law2_LiveDataSurvivesADriverThatFailsAtRandom) {
  COMMENSAL_NEEDS_SIMULATION();
  (void)allocator().set_limit(16_MiB);
  FuzzOptions options;
  options.seed = fuzz_seed();
  options.operations = fuzz_operations(1'500, 300);
  options.largest_block = 2_MiB;
  options.largest_limit = 24_MiB;
  options.access = CudaMachine::access();
  options.before = [this](std::mt19937_64& random) {
    machine().clear();
    expect_ledger();
    if (random() % 4 != 0) return;
    const auto& functions = CudaMachine::functions();
    machine().fail(functions[random() % functions.size()], 1 + random() % 8,
                   random() % 2 == 0 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_OUT_OF_MEMORY,
                   1 + random() % 2);
  };
  ElasticFuzz(allocator(), options).run();
}

// Work that was submitted to a stream nobody told us about.
TEST_F(ElasticOnCudaTest, Law2_AChunkDoesNotMoveUnderTheWorkOfAStream) {
  if (!has_host_tier()) GTEST_SKIP() << source().host_tier_reason();
  ElasticAllocatorOptions limits;
  limits.fence_deadline = std::chrono::milliseconds{10};
  ElasticAllocator own(source(), limits);
  void* block = own.allocate(4_MiB);
  HeldStream stream;
  machine().fill(to_cuda(block), 0x5eed, (4_MiB).count() / 4, stream.stream());
  const LimitTicket refused = own.set_limit(0_B);
  EXPECT_EQ(refused.deferred, 4_MiB);
  EXPECT_THAT(refused.reason, HasSubstr("the device is still working"));
  stream.pull();
  EXPECT_EQ(CudaDriver::get().cuStreamSynchronize(stream.stream()), CUDA_SUCCESS);
  LimitTicket ticket = own.safe_point();
  for (int i = 0; i < 1000 && !ticket.complete(); ++i) ticket = own.safe_point();
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_EQ(own.stats().device, 0_B);
  std::vector<std::uint32_t> words((4_MiB).count() / 4);
  CudaMachine::access().load(words.data(), static_cast<std::byte*>(block), (4_MiB).count());
  for (const std::uint32_t word : words) ASSERT_EQ(word, 0x5eedU);
  EXPECT_TRUE(own.deallocate(block));
}

// What lets work through to the device, as the gate of a process does.
class TestGate final : public WorkGate {
 public:
  [[nodiscard]] bool close(Duration /*deadline*/) noexcept override {
    mutex.lock();
    return true;
  }
  void open() noexcept override { mutex.unlock(); }
  std::mutex mutex;
};

TEST_F(ElasticOnCudaTest, Law2_WhatStreamsWriteIsKeptWhileChunksMove) {
  if (!has_host_tier()) GTEST_SKIP() << source().host_tier_reason();
  TestGate gate;
  CudaMemorySource::Options options;
  options.gate = &gate;
  make(options);
  auto* const block = static_cast<std::byte*>(allocator().allocate(6_MiB));
  constexpr std::size_t kWords = (std::size_t{6} << 20U) / 4;
  std::atomic<bool> stop{false};
  std::atomic<std::uint32_t> rounds{0};
  std::thread writer([&] {
    machine().enter();
    HeldStream stream;
    stream.pull();
    const CudaDriver& driver = CudaDriver::get();
    for (std::uint32_t round = 1; !stop || round < 3; ++round) {
      {
        const std::lock_guard<std::mutex> lock(gate.mutex);
        machine().fill(to_cuda(block), round, kWords, stream.stream());
      }
      if (round % 4 == 0) (void)driver.cuStreamSynchronize(stream.stream());
      rounds = round;
    }
    EXPECT_EQ(driver.cuStreamSynchronize(stream.stream()), CUDA_SUCCESS);
  });
  while (rounds == 0) std::this_thread::yield();
  for (int i = 0; i < 10; ++i) {
    (void)allocator().set_limit(0_B);
    (void)allocator().set_limit(64_MiB);
  }
  stop = true;
  writer.join();
  std::vector<std::uint32_t> words(kWords);
  CudaMachine::access().load(words.data(), block, kWords * 4);
  for (const std::uint32_t word : words) ASSERT_EQ(word, rounds.load());
  EXPECT_GT(allocator().stats().moved_out, 0_B);
  EXPECT_GT(allocator().stats().moved_in, 0_B);
  EXPECT_TRUE(allocator().deallocate(block));
  make({});  // before the gate goes
}

}  // namespace
}  // namespace commensal::elastic_on_cuda_test

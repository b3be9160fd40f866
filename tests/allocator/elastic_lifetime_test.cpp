// SPDX-License-Identifier: Apache-2.0
// Arenas by lifetime: after a few steps live bytes lie in few chunks, and no more is reserved.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/moving_source.h"

namespace commensal::elastic_lifetime_test {
namespace {

/// A training job of many layers: weights, then steps of activations, gradients and temporaries.
class Training {
 public:
  explicit Training(ElasticAllocator& allocator) : allocator_(allocator) {
    std::mt19937 random{1};
    for (int i = 0; i < 24; ++i) {
      sizes_.push_back(Bytes{(random() % 2000 + 100) * 1024});
      weights_.push_back(allocate(sizes_.back(), Phase::kUnknown));
    }
    gradients_.resize(sizes_.size());
  }
  ~Training() {
    for (void* block : weights_) (void)allocator_.deallocate(block);
    for (void* block : state_) (void)allocator_.deallocate(block);
    zero_grad();
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  void step() {
    zero_grad();
    std::vector<void*> activations;
    for (const Bytes size : sizes_) {
      activations.push_back(allocate(Bytes{size.count() * 3 / 2}, Phase::kForward));
      (void)allocator_.deallocate(allocate(size, Phase::kForward));
    }
    for (std::size_t i = sizes_.size(); i-- > 0;) {
      void* const workspace = allocate(sizes_[i], Phase::kBackward);
      gradients_[i] = allocate(sizes_[i], Phase::kBackward);
      (void)allocator_.deallocate(workspace);
      (void)allocator_.deallocate(activations[i]);
    }
    for (const Bytes size : sizes_) {
      if (state_.size() < sizes_.size()) state_.push_back(allocate(size, Phase::kOptimizer));
      (void)allocator_.deallocate(allocate(size, Phase::kOptimizer));
    }
    allocator_.step_ended();
    (void)allocator_.safe_point();
  }

  /// Bytes of chunks that hold live blocks, over live bytes.
  [[nodiscard]] double chunks_over_live() const {
    Bytes chunks;
    for (const ChunkResidency& chunk : allocator_.residency()) {
      if (!chunk.live.is_zero()) chunks += chunk.size;
    }
    return static_cast<double>(chunks.count()) /
           static_cast<double>(allocator_.stats().live.count());
  }
  [[nodiscard]] double reserved_over_live_peak() const {
    const AllocatorStats stats = allocator_.stats();
    return static_cast<double>(stats.peak_device.count()) /
           static_cast<double>(stats.peak_live.count());
  }

 private:
  void* allocate(Bytes size, Phase phase) {
    AllocationContext context;
    context.phase = phase;
    return allocator_.allocate(size, 0, context);
  }
  void zero_grad() {
    for (void*& gradient : gradients_) {
      if (gradient != nullptr) (void)allocator_.deallocate(gradient);
      gradient = nullptr;
    }
  }

  ElasticAllocator& allocator_;
  std::vector<Bytes> sizes_;
  std::vector<void*> weights_;
  std::vector<void*> state_;
  std::vector<void*> gradients_;
};

struct Density {
  double chunks_over_live = 0.0;
  double reserved_over_live_peak = 0.0;
};

Density after_steps(bool by_lifetime) {
  FakeMemorySource source;
  ElasticAllocatorOptions options;
  options.by_lifetime = by_lifetime;
  ElasticAllocator allocator(source, options);
  Training training(allocator);
  for (int i = 0; i < 6; ++i) training.step();
  return {training.chunks_over_live(), training.reserved_over_live_peak()};
}

TEST(ElasticLifetime, LiveBytesLieInFewChunksAtASafePoint) {
  const Density apart = after_steps(true);
  EXPECT_LE(apart.chunks_over_live, 1.10);
  EXPECT_LE(apart.reserved_over_live_peak, 1.10);
}

TEST(ElasticLifetime, InOneArenaTheyDoNot) {
  const Density together = after_steps(false);
  EXPECT_GT(together.chunks_over_live, 1.10) << "the mechanism is not what keeps the bar";
  EXPECT_GT(together.chunks_over_live, after_steps(true).chunks_over_live);
}

TEST(ElasticLifetime, NothingIsRefusedThatTheOtherKindsFreeMemoryCouldServe) {
  FakeMemorySource source;
  ElasticAllocatorOptions options;
  options.limit = 16_MiB;
  options.host_cap = Bytes{};
  ElasticAllocator allocator(source, options);
  AllocationContext forward;
  forward.phase = Phase::kForward;
  // Short-lived blocks take all memory; one stays in each chunk, so that none can be traded.
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(allocator.allocate(1_MiB, 0, forward));
  for (std::size_t i = 0; i < blocks.size(); i += 2) (void)allocator.deallocate(blocks[i]);
  std::vector<void*> weights;
  for (int i = 0; i < 8; ++i) weights.push_back(allocator.allocate(1_MiB));
  EXPECT_EQ(allocator.stats().live, 16_MiB);
  EXPECT_THROW((void)allocator.allocate(1_MiB), OutOfMemory);
  for (std::size_t i = 1; i < blocks.size(); i += 2) (void)allocator.deallocate(blocks[i]);
  for (void* block : weights) (void)allocator.deallocate(block);
}

TEST(ElasticLifetime, ABlockOfEitherKindMovesAndComesBack) {
  FakeMemorySource source;
  ElasticAllocator allocator(source, {});
  AllocationContext forward;
  forward.phase = Phase::kForward;
  void* const weight = allocator.allocate(4_MiB);
  void* const activation = allocator.allocate(4_MiB, 0, forward);
  EXPECT_GE(allocator.shrink(16_MiB).done, 8_MiB);
  EXPECT_EQ(allocator.stats().device, 0_B);
  EXPECT_GE(allocator.grow(16_MiB).done, 8_MiB);
  EXPECT_EQ(allocator.stats().host, 0_B);
  EXPECT_TRUE(allocator.deallocate(weight));
  EXPECT_TRUE(allocator.deallocate(activation));
}

}  // namespace
}  // namespace commensal::elastic_lifetime_test

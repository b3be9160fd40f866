// SPDX-License-Identifier: Apache-2.0
// Threads allocate, write and free while another one moves the limit.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/fuzz.h"
#include "tests/allocator/moving_source.h"

namespace commensal {
namespace {

struct Written {
  unsigned char* address = nullptr;
  std::size_t size = 0;
  unsigned char value = 0;
};

/// One thread's blocks. It holds the world shared while it reads or writes: the fake's fence
/// waits for that, as a real one stops the thread.
class Worker {
 public:
  Worker(ElasticAllocator& allocator, std::shared_mutex& world, std::uint64_t seed)
      : allocator_(allocator), world_(world), random_(seed) {}

  /// Goes on until `operations` are done and the limit has moved often enough.
  void run(std::uint64_t operations, const std::atomic<bool>& moved) {
    for (std::uint64_t i = 0; i < operations || !moved; ++i) {
      if (blocks_.size() < 12 && random_() % 2 == 0) {
        add();
      } else if (!blocks_.empty()) {
        std::swap(blocks_[random_() % blocks_.size()], blocks_.back());
        check(blocks_.back());
        EXPECT_TRUE(allocator_.deallocate(blocks_.back().address));
        blocks_.pop_back();
      }
    }
    for (const Written& block : blocks_) {
      check(block);
      EXPECT_TRUE(allocator_.deallocate(block.address));
    }
  }

 private:
  void add() {
    const std::size_t size = 1 + random_() % (std::size_t{1} << (4 + random_() % 16));
    Written block{static_cast<unsigned char*>(allocator_.allocate(Bytes{size})), size,
                  static_cast<unsigned char>(random_())};
    const std::shared_lock<std::shared_mutex> running(world_);
    std::memset(block.address, block.value, size);
    blocks_.push_back(block);
  }
  void check(const Written& block) {
    const std::shared_lock<std::shared_mutex> running(world_);
    for (std::size_t i = 0; i < block.size; i += 509) {
      EXPECT_EQ(block.address[i], block.value);
    }
  }

  ElasticAllocator& allocator_;
  std::shared_mutex& world_;
  std::mt19937_64 random_;
  std::vector<Written> blocks_;
};

TEST(ElasticStressTest, Law2_ThreadsKeepTheirDataWhileTheLimitMoves) {
  FakeMemorySource::Options small;
  small.granularity = 16_KiB;
  small.address_space = 8_MiB;
  MovingSource source(small);
  ElasticAllocatorOptions options;
  options.chunk_size = 128_KiB;
  ElasticAllocator allocator(source, options);
  allocator.on_pressure([&](Bytes) { return !allocator.post_limit(8_MiB).stale; });
  const std::uint64_t seed = fuzz_seed();
  const std::uint64_t operations = fuzz_operations(20'000, 3'000);
  std::atomic<bool> stop{false};
  std::atomic<bool> moved{false};
  std::vector<std::thread> workers;
  for (std::uint64_t t = 0; t < 3; ++t) {
    workers.emplace_back(
        [&, t] { Worker(allocator, source.world(), seed + t).run(operations, moved); });
  }
  std::thread mover([&] {
    std::mt19937_64 random(seed + 99);
    for (int changes = 0; !stop; ++changes) {
      moved = changes >= 100;
      switch (random() % 6) {
        case 0: (void)allocator.park(); break;
        case 1: (void)allocator.grow(2_MiB); break;
        case 2: (void)allocator.shrink(1_MiB); break;
        default: (void)allocator.set_limit(Bytes{random() % (4_MiB).count()}); break;
      }
    }
  });
  std::thread reader([&] {
    while (!stop) {
      const AllocatorStats stats = allocator.stats();
      EXPECT_GE(stats.allocations, stats.frees);
      (void)allocator.residency();
      if (allocator.work_pending()) (void)allocator.safe_point();
    }
  });
  for (std::thread& worker : workers) worker.join();
  stop = true;
  mover.join();
  reader.join();
  EXPECT_EQ(allocator.stats().live, 0_B);
  EXPECT_GT(allocator.stats().moved_out, 0_B);
  EXPECT_TRUE(source.fake().violations().empty());
}

}  // namespace
}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Threads allocate, write and free while another one moves the limit.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "allocator/background_mover.h"
#include "allocator/elastic_allocator.h"
#include "allocator/host/host_memory_source.h"
#include "tests/allocator/fuzz.h"
#include "tests/allocator/moving_source.h"
#include "tests/sanitizers.h"

namespace commensal::elastic_stress_test {
namespace {

struct Written {
  unsigned char* address = nullptr;
  std::size_t size = 0;
  unsigned char value = 0;
};

/// Which blocks a thread asks for.
struct Sizes {
  std::size_t smallest_power = 4;
  std::size_t powers = 16;
  std::size_t most_blocks = 12;
};

/// Lets the fake's fence wait while a thread reads or writes, as a real one stops the thread.
using World = std::shared_mutex;

/// One thread's blocks, whole contents written and checked.
class Worker {
 public:
  /// @param world  held shared while blocks are read or written; null: threads really stop.
  Worker(ElasticAllocator& allocator, World* world, Sizes sizes, std::uint64_t seed)
      : allocator_(allocator), world_(world), sizes_(sizes), random_(seed) {}

  /// Goes on until `operations` are done and the limit has moved often enough.
  void run(std::uint64_t operations, const std::atomic<bool>& moved) {
    for (std::uint64_t i = 0; i < operations || !moved; ++i) {
      if (blocks_.size() < sizes_.most_blocks && random_() % 2 == 0) {
        add();
      } else if (!blocks_.empty()) {
        std::swap(blocks_[random_() % blocks_.size()], blocks_.back());
        check(blocks_.back());
        if (random_() % 4 == 0) {
          write(blocks_.back());
        } else {
          remove();
        }
      }
    }
    while (!blocks_.empty()) {
      check(blocks_.back());
      remove();
    }
  }

 private:
  static constexpr std::size_t kStep = 509;  // a prime: meets every page, and every last byte below

  void add() {
    const std::size_t power = sizes_.smallest_power + random_() % sizes_.powers;
    const std::size_t size = 1 + random_() % (std::size_t{1} << power);
    blocks_.push_back(
        Written{static_cast<unsigned char*>(allocator_.allocate(Bytes{size})), size, 0});
    write(blocks_.back());
  }
  void remove() {
    EXPECT_TRUE(allocator_.deallocate(blocks_.back().address));
    blocks_.pop_back();
  }
  std::shared_lock<World> running() {
    return world_ == nullptr ? std::shared_lock<World>() : std::shared_lock<World>(*world_);
  }
  void write(Written& block) {
    block.value = static_cast<unsigned char>(random_());
    const auto lock = running();
    for (std::size_t i = 0; i < block.size; i += kStep) block.address[i] = block.value;
    block.address[block.size - 1] = block.value;
  }
  void check(const Written& block) {
    const auto lock = running();
    bool intact = block.address[block.size - 1] == block.value;
    for (std::size_t i = 0; i < block.size; i += kStep) {
      intact = intact && block.address[i] == block.value;
    }
    EXPECT_TRUE(intact) << block.size << " B at " << static_cast<void*>(block.address);
  }

  ElasticAllocator& allocator_;
  World* world_;
  const Sizes sizes_;
  std::mt19937_64 random_;
  std::vector<Written> blocks_;
};

/// Three threads work, one moves the limit up to `most`, one looks and enforces, one moves between.
void stress(ElasticAllocator& allocator, World* world, Sizes sizes, Bytes most, int changes_wanted,
            std::uint64_t operations, std::uint64_t seed) {
  allocator.on_pressure([&, most](Bytes) { return allocator.post_limit(most * 2).reason; });
  BackgroundMover background(allocator, {.rate = 0_B, .batch = Bytes{most.count() / 8}}, {});
  ASSERT_EQ(background.start(), "");
  std::atomic<bool> stop{false};
  std::atomic<bool> moved{false};
  std::vector<std::thread> workers;
  for (std::uint64_t t = 0; t < 3; ++t) {
    workers.emplace_back(
        [&, t] { Worker(allocator, world, sizes, seed + t).run(operations, moved); });
  }
  std::thread mover([&] {
    std::mt19937_64 random(seed + 99);
    for (int changes = 0; !stop; ++changes) {
      moved = changes >= changes_wanted && !allocator.stats().moved_out.is_zero();
      switch (random() % 8) {
        case 0: (void)allocator.park(); break;
        case 1: (void)allocator.grow(Bytes{most.count() / 2}); break;
        case 2: (void)allocator.shrink(Bytes{most.count() / 4}); break;
        case 3: (void)allocator.release_cached(); break;
        case 4:
          (void)allocator.post_limit(Bytes{random() % most.count()});
          background.wake();
          std::this_thread::yield();
          break;
        default: (void)allocator.set_limit(Bytes{random() % most.count()}); break;
      }
    }
  });
  std::thread reader([&] {
    while (!stop) {
      const AllocatorStats stats = allocator.stats();
      EXPECT_GE(stats.allocations, stats.frees);
      for (const ChunkResidency& chunk : allocator.residency()) EXPECT_LE(chunk.live, chunk.size);
      if (allocator.work_pending()) (void)allocator.safe_point();
    }
  });
  for (std::thread& worker : workers) worker.join();
  stop = true;
  mover.join();
  reader.join();
  background.stop();
  EXPECT_EQ(allocator.stats().live, 0_B);
  EXPECT_GT(allocator.stats().moved_out, 0_B);
  // Nobody disturbs it now: the limit is kept to the byte.
  const LimitTicket last = allocator.set_limit(0_B);
  EXPECT_TRUE(last.complete()) << last.reason;
  EXPECT_EQ(allocator.stats().device + allocator.stats().host_touched, 0_B);
}

class ElasticStressTest : public ::testing::TestWithParam<int> {
 protected:
  void run(Sizes sizes, Bytes chunk, Bytes most) {
    FakeMemorySource::Options small;
    small.granularity = 16_KiB;
    small.address_space = 8_MiB;
    MovingSource source(small);
    ElasticAllocatorOptions options;
    options.chunk_size = chunk;
    ElasticAllocator allocator(source, options);
    const std::uint64_t seed = fuzz_seed();
    stress(allocator, &source.world(), sizes, most, 30, fuzz_operations(3'000, 200), seed);
    EXPECT_TRUE(source.fake().violations().empty()) << source.fake().violations().front();
  }
};

TEST_P(ElasticStressTest, Law2_ThreadsKeepTheirDataWhileTheLimitMoves) {
  run(Sizes{}, 128_KiB, 4_MiB);
}
TEST_P(ElasticStressTest, Law2_SmallBlocks) { run(Sizes{3, 12, 200}, 32_KiB, 1_MiB); }
TEST_P(ElasticStressTest, Law2_BlocksOverSeveralChunks) { run(Sizes{15, 4, 6}, 16_KiB, 2_MiB); }

INSTANTIATE_TEST_SUITE_P(Seeds, ElasticStressTest,
                         ::testing::Range(0, testing::kSanitized ? 1 : 3));

// Blocks above 2 GiB have segments of their own, which come and go while the limit moves.
TEST(ElasticStressSegmentsTest, Law2_VeryLargeBlocksComeAndGo) {
  FakeMemorySource::Options options;
  MovingSource source(options);
  ElasticAllocator allocator(source, {});
  allocator.on_pressure([&](Bytes) { return allocator.post_limit(4_GiB).reason; });
  const std::uint64_t seed = fuzz_seed();
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;
  for (std::uint64_t t = 0; t < 2; ++t) {
    workers.emplace_back([&, t] {
      std::mt19937_64 random(seed + t);
      for (int i = 0; i < 40; ++i) {
        auto* block = static_cast<unsigned char*>(allocator.allocate(2_GiB));
        const std::size_t at = random() % (2_GiB).count();
        {
          const std::shared_lock<World> running(source.world());
          block[at] = static_cast<unsigned char>(i);
        }
        std::this_thread::yield();
        {
          const std::shared_lock<World> running(source.world());
          EXPECT_EQ(block[at], static_cast<unsigned char>(i));
        }
        EXPECT_TRUE(allocator.deallocate(block));
      }
    });
  }
  std::thread mover([&] {
    std::mt19937_64 random(seed + 99);
    while (!stop) {
      // Some chunks of 32 MiB at a time: to move a whole block would only take long.
      const Bytes device = allocator.stats().device;
      switch (random() % 4) {
        case 0: (void)allocator.shrink(32_MiB); break;
        case 1: (void)allocator.release_cached(); break;
        case 2: (void)allocator.set_limit(saturating_sub(device, 64_MiB)); break;
        default: (void)allocator.set_limit(device + 96_MiB); break;
      }
    }
  });
  for (std::thread& worker : workers) worker.join();
  stop = true;
  mover.join();
  (void)allocator.release_cached();
  EXPECT_EQ(allocator.stats().live, 0_B);
  EXPECT_EQ(source.fake().reserved(), 0_B) << "all of their addresses are given back";
  EXPECT_TRUE(source.fake().violations().empty()) << source.fake().violations().front();
}

// The real thing: no lock around reads and writes, the threads are stopped wherever they are.
TEST(ElasticStressOnHostTest, Law2_ThreadsKeepTheirDataWhileTheLimitMoves) {
  HostMemorySource source;
  if (source.capacity(Tier::kHost).is_zero()) {
    GTEST_SKIP() << "no slower tier: " << source.host_tier_reason();
  }
  ElasticAllocator allocator(source, {});
  const std::uint64_t seed = fuzz_seed();
  stress(allocator, nullptr, Sizes{6, 16, 8}, 24_MiB, 25, fuzz_operations(300, 60), seed);
}

}  // namespace
}  // namespace commensal::elastic_stress_test

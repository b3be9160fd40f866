// SPDX-License-Identifier: Apache-2.0
// Bytes as operations on an elastic allocator over a source that fails now and then: contents,
// sums and the source's own rules hold after each.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/allocator/moving_source.h"
#include "tests/allocator/patterned_blocks.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace commensal;
using fuzz::Input;
using fuzz::require;

constexpr std::size_t kMostBlocks = 24;

Bytes size(Input& in) {
  const Bytes wanted{in.byte() < 32 ? in.number() : in.number() * 1024};
  return std::clamp(wanted, 1_B, 300_KiB);  // of nothing there is no block
}
Bytes limit(Input& in) {
  return in.byte() < 16 ? Bytes{UINT64_MAX} : Bytes{in.below(64) * (32_KiB).count()};
}
std::byte* any_block(Input& in, const PatternedBlocks& blocks) {
  if (blocks.entries().empty()) return nullptr;
  auto at = blocks.entries().begin();
  std::advance(at, static_cast<std::ptrdiff_t>(in.below(blocks.entries().size())));
  return at->first;
}

void check(const ElasticAllocator& allocator, const PatternedBlocks& blocks,
           const FakeMemorySource& source) {
  const AllocatorStats stats = allocator.stats();
  require(blocks.damaged() == 0, "law 2: live data survives");
  require(stats.live == blocks.live(), "live bytes are those of the blocks");
  require(stats.allocations - stats.frees == blocks.entries().size(), "every block is counted");
  require(stats.device == source.created(Tier::kDevice), "device bytes are those of the source");
  require(stats.host + stats.parked == source.created(Tier::kHost),
          "slow bytes are those of the source");
  require(source.violations().empty(), "the source's rules are kept");
}

/// @param late_write  the block to write to between the next copy and its fence, once.
void step(Input& in, ElasticAllocator& allocator, PatternedBlocks& blocks, MovingSource& source,
          std::byte*& late_write) {
  switch (in.below(14)) {
    case 0:
    case 1:
    case 2:
      if (blocks.entries().size() < kMostBlocks) (void)blocks.add(size(in));
      break;
    case 3:
    case 4:
      if (std::byte* block = any_block(in, blocks)) blocks.remove(block);
      break;
    case 5:
      if (std::byte* block = any_block(in, blocks)) blocks.rewrite(block);
      break;
    case 6: (void)allocator.set_limit(limit(in), in.byte() < 16 ? in.number() : 0); break;
    case 7: (void)allocator.post_limit(limit(in)); break;
    case 8: (void)allocator.safe_point(); break;
    case 9: (void)allocator.shrink(size(in)); break;
    case 10: (void)allocator.grow(size(in)); break;
    case 11: (void)allocator.park(); break;
    case 12: (void)allocator.release_cached(); break;
    default: {
      const auto call = static_cast<FakeCall>(in.below(kFakeCalls));
      source.fake().fail_at(call, 1 + in.below(4));
      source.fake().set_move_risk(in.byte() < 16 ? "a thread blocks the signal" : "");
      if (in.byte() < 64) late_write = any_block(in, blocks);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  ::testing::InitGoogleTest(argc, *argv);
  ::testing::FLAGS_gtest_break_on_failure = true;  // EXPECT in PatternedBlocks is a finding
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size_of_data) {
  Input in{data, size_of_data};
  FakeMemorySource::Options options;
  options.granularity = 12_KiB;
  options.address_space = 1_MiB;
  if (in.byte() < 64) options.device_capacity = 512_KiB;
  if (in.byte() < 64) options.host_capacity = in.byte() < 128 ? 0_B : 512_KiB;
  MovingSource source(options);
  {
    ElasticAllocatorOptions limits;
    limits.limit = 768_KiB;
    limits.chunk_size = 48_KiB;
    ElasticAllocator allocator(source, limits);
    PatternedBlocks blocks(allocator);
    std::byte* late_write = nullptr;
    source.fake().hooks().copied = [&](std::byte*, Bytes) {
      std::byte* const block = std::exchange(late_write, nullptr);
      if (block != nullptr && blocks.entries().contains(block)) blocks.rewrite(block);
    };
    for (int steps = 0; !in.empty() && steps < 400; ++steps) {
      step(in, allocator, blocks, source, late_write);
      check(allocator, blocks, source.fake());
    }
    source.fake().hooks().copied = {};
    for (std::size_t i = 0; i < kFakeCalls; ++i) source.fake().fail_never(static_cast<FakeCall>(i));
    source.fake().set_move_risk("");
    blocks.remove_all();
    (void)allocator.release_cached();
    require(source.fake().created(Tier::kDevice) + source.fake().created(Tier::kHost) == 0_B,
            "without blocks nothing is kept");
  }
  require(source.fake().reserved() == 0_B, "all addresses are given back");
  return 0;
}

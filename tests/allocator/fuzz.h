// SPDX-License-Identifier: Apache-2.0
// Random operations on an elastic allocator over any source, with every invariant checked.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <random>
#include <string>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/patterned_blocks.h"
#include "tests/random_operations.h"

namespace commensal {

struct FuzzOptions {
  std::uint64_t seed = 1;
  std::uint64_t operations = 10'000;
  std::size_t most_blocks = 64;
  Bytes largest_block = 512_KiB;
  Bytes largest_limit = 6_MiB;
  MemoryAccess access{};
  /// Called before each operation; may make the source misbehave.
  std::function<void(std::mt19937_64&)> before = [](std::mt19937_64&) {};
};

class ElasticFuzz {
 public:
  ElasticFuzz(ElasticAllocator& allocator, FuzzOptions options)
      : allocator_(allocator),
        blocks_(allocator, options.access),
        options_(std::move(options)),
        random_(options_.seed) {}

  void run() {
    for (std::uint64_t i = 0; i < options_.operations; ++i) {
      options_.before(random_);
      const std::string what = step();
      check(what);
      if (::testing::Test::HasFailure()) {
        FAIL() << "after operation " << i << " (" << what << ") of seed " << options_.seed;
      }
    }
    blocks_.remove_all();
    check("removing all");
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  Bytes random_size() {
    const auto power = 3 + below(17);  // 8 B to 512 KiB, evenly by magnitude
    const Bytes size{(std::uint64_t{1} << power) + below(std::uint64_t{1} << power)};
    return std::min(size, options_.largest_block);
  }
  std::byte* random_block() {
    auto at = blocks_.entries().begin();
    std::advance(at, static_cast<std::ptrdiff_t>(below(blocks_.entries().size())));
    return at->first;
  }
  Bytes random_limit() {
    return below(8) == 0 ? Bytes{UINT64_MAX} : Bytes{below(options_.largest_limit.count())};
  }

  std::string step() {
    const std::uint64_t choice = below(1000);
    if (choice < 450) {
      if (blocks_.entries().size() < options_.most_blocks) (void)blocks_.add(random_size());
      return "allocate";
    }
    if (choice < 850) {
      if (!blocks_.entries().empty()) blocks_.remove(random_block());
      return "deallocate";
    }
    if (choice < 950) {
      if (!blocks_.entries().empty()) blocks_.rewrite(random_block());
      return "write";
    }
    return change(choice);
  }

  std::string change(std::uint64_t choice) {
    if (choice < 954) {
      (void)allocator_.post_limit(random_limit());
      const AheadReport report = allocator_.work_ahead(random_size());
      EXPECT_TRUE(report.moved_out.is_zero() || report.moved_in.is_zero());
      return "post_limit and work_ahead";
    }
    if (choice < 962) {
      const LimitTicket ticket = allocator_.set_limit(random_limit());
      expect_within(ticket);
      return "set_limit";
    }
    if (choice < 974) {
      (void)allocator_.post_limit(random_limit());
      expect_within(allocator_.safe_point());
      return "post_limit and safe_point";
    }
    if (choice < 984) {
      expect_within(allocator_.safe_point());
      return "safe_point";
    }
    if (choice < 990) {
      const LimitTicket ticket = allocator_.shrink(random_size());
      EXPECT_EQ(ticket.reason.empty(), ticket.deferred.is_zero()) << ticket.reason;
      return "shrink";
    }
    if (choice < 995) {
      const LimitTicket ticket = allocator_.grow(random_size());
      EXPECT_EQ(ticket.reason.empty(), ticket.deferred.is_zero()) << ticket.reason;
      return "grow";
    }
    if (choice < 997) {
      (void)allocator_.park();
      return "park";
    }
    (void)allocator_.release_cached();
    return "release_cached";
  }

  // The promise of a safe point.
  void expect_within(const LimitTicket& ticket) {
    const AllocatorStats stats = allocator_.stats();
    EXPECT_EQ(ticket.limit, stats.limit);
    EXPECT_EQ(ticket.reason.empty(), ticket.deferred.is_zero()) << ticket.reason;
    EXPECT_EQ(stats.deferred_reason.empty(), stats.deferred.is_zero());
    if (stats.limit == Bytes{UINT64_MAX}) return;
    EXPECT_LE(stats.device + stats.host_touched, stats.limit + stats.deferred);
  }

  void check(const std::string& what) {
    const AllocatorStats stats = allocator_.stats();
    EXPECT_EQ(stats.live, blocks_.live()) << what;
    EXPECT_LE(stats.cached, stats.device) << what;
    EXPECT_EQ(stats.allocations - stats.frees, blocks_.entries().size()) << what;
    blocks_.expect_all();
    if (below(8) != 0) return;  // `residency` merges recently freed blocks: leave some of them
    Bytes device;
    Bytes host;
    Bytes used;
    for (const ChunkResidency& chunk : allocator_.residency()) {
      EXPECT_LE(chunk.live, chunk.size);
      used += chunk.live;
      (chunk.tier == Tier::kDevice ? device : host) += chunk.size;
    }
    EXPECT_GE(used, stats.live) << what;
    EXPECT_LE(device, stats.device) << what;
    EXPECT_LE(host, stats.host + stats.parked) << what;
  }

  ElasticAllocator& allocator_;
  PatternedBlocks blocks_;
  FuzzOptions options_;
  std::mt19937_64 random_;
};

}  // namespace commensal

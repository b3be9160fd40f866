// SPDX-License-Identifier: Apache-2.0
// Pitfalls that others fell into, one or more tests each (docs/results/pitfalls.md). What keeps us
// out is switched off in a second test, or by a parameter, and the fault then shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "allocator/host/host_memory_source.h"
#include "tests/allocator/moving_source.h"
#include "tests/allocator/passing_source.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::pitfalls_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::PassingSource;

ElasticAllocatorOptions chunks_of(Bytes size) {
  ElasticAllocatorOptions options;
  options.chunk_size = size;
  return options;
}

// --- P6: the state of what is paused is not kept for each allocation -------------------------

TEST(Pitfalls, P6_ParkedTwiceFreedWhileParkedAndWokenTwiceDoesNoHarm) {
  MovingSource source;
  ElasticAllocator allocator(source, chunks_of(128_KiB));
  PatternedBlocks blocks(allocator);
  std::byte* const freed = blocks.add(1_MiB);
  for (int i = 0; i < 3; ++i) ASSERT_NE(blocks.add(1_MiB), nullptr);
  EXPECT_TRUE(allocator.park().complete());
  EXPECT_EQ(allocator.stats().parked, 4_MiB);
  EXPECT_TRUE(allocator.park().complete()) << "twice";
  EXPECT_EQ(allocator.stats().parked, 4_MiB);
  blocks.remove(freed);
  EXPECT_FALSE(allocator.deallocate(freed)) << "freed twice";
  EXPECT_EQ(allocator.grow(1_MiB).done, 1_MiB) << "a part";
  EXPECT_EQ(allocator.grow(1_GiB).done, 2_MiB) << "the rest, once";
  EXPECT_EQ(allocator.grow(1_GiB).done, 0_B) << "twice";
  (void)allocator.safe_point();
  EXPECT_EQ(allocator.stats().device, 3_MiB);
  EXPECT_EQ(source.fake().created(Tier::kDevice), 3_MiB);
  EXPECT_EQ(source.fake().created(Tier::kHost), 0_B);
  blocks.remove_all();
  EXPECT_THAT(source.fake().violations(), IsEmpty());
}

// Who only knows that he is to pause gives the same memory back twice.
TEST(Pitfalls, P6_WithoutAStateForEachAllocationMemoryIsGivenBackTwice) {
  FakeMemorySource source;
  struct Allocation {
    std::byte* address;
    MemoryHandle handle;
  };
  const auto pause = [&](const Allocation& allocation) {
    source.unmap(allocation.address, allocation.handle);
    source.release(allocation.handle);
  };
  const AddressRange range = source.reserve(128_KiB);
  const Allocation allocation{range.begin, source.create(Tier::kDevice, 128_KiB)};
  source.map(allocation.address, allocation.handle);
  pause(allocation);
  EXPECT_THROW(pause(allocation), std::logic_error);
  EXPECT_FALSE(source.violations().empty());
  source.unreserve(range);
}

// --- P7: an error is reported by a later call ------------------------------------------------

/// Refuses one host handle, or (sticky) makes it and reports the error with the next one.
class RefusingSource final : public PassingSource {
 public:
  RefusingSource(MemorySource& source, bool sticky) : PassingSource(source), sticky_(sticky) {}
  void refuse_next() { armed_ = true; }
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override {
    if (tier == Tier::kHost && std::exchange(late_, false)) throw SourceError("injected");
    if (tier == Tier::kHost && std::exchange(armed_, false)) {
      if (!sticky_) throw SourceError("injected");
      late_ = true;
    }
    return PassingSource::create(tier, size);
  }

 private:
  bool sticky_;
  bool armed_ = false;
  bool late_ = false;
};

class P7 : public ::testing::TestWithParam<bool> {};

TEST_P(P7, P7_AnErrorBelongsToTheCallThatFailed) {
  const bool sticky = GetParam();
  MovingSource moving;
  RefusingSource source(moving, sticky);
  ElasticAllocator allocator(source, chunks_of(1_MiB));
  PatternedBlocks blocks(allocator);
  ASSERT_NE(blocks.add(1_MiB), nullptr);
  source.refuse_next();
  const LimitTicket failed = allocator.shrink(1_MiB);
  ASSERT_NE(blocks.add(1_MiB), nullptr);
  const LimitTicket later = allocator.shrink(1_MiB);
  EXPECT_EQ(failed.complete(), sticky);
  EXPECT_EQ(later.complete(), !sticky) << "the twin: the wrong call is blamed";
  EXPECT_THAT((sticky ? later : failed).reason, HasSubstr("injected"));
  EXPECT_TRUE(allocator.set_limit(0_B).complete());
  blocks.remove_all();
  EXPECT_THAT(moving.fake().violations(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, P7, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "SwitchedOff" : "Holds");
});

// --- P9: a call fails half done --------------------------------------------------------------

/// Throws once after a call was done: the contract's "a call that throws has changed nothing" is
/// broken, as by a source that does not roll back.
class HalfDoneSource final : public PassingSource {
 public:
  HalfDoneSource(MemorySource& source, bool rolls_back)
      : PassingSource(source), rolls_back_(rolls_back) {}
  void fail_next_create() { armed_ = true; }
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override {
    const MemoryHandle handle = PassingSource::create(tier, size);
    if (!std::exchange(armed_, false)) return handle;
    if (rolls_back_) PassingSource::release(handle);
    throw SourceError("injected");
  }

 private:
  bool rolls_back_;
  bool armed_ = false;
};

class P9 : public ::testing::TestWithParam<bool> {};

TEST_P(P9, P9_AfterAFailureTheBooksAreAsBeforeAndARetrySucceeds) {
  const bool switched_off = GetParam();
  MovingSource moving;
  HalfDoneSource source(moving, !switched_off);
  ElasticAllocator allocator(source, chunks_of(1_MiB));
  PatternedBlocks blocks(allocator);
  ASSERT_NE(blocks.add(1_MiB), nullptr);
  source.fail_next_create();
  EXPECT_FALSE(allocator.set_limit(0_B).complete());
  const AllocatorStats after = allocator.stats();
  EXPECT_EQ(after.device, 1_MiB);
  EXPECT_EQ(after.host, 0_B);
  EXPECT_EQ(moving.fake().created(Tier::kHost), switched_off ? 1_MiB : 0_B)
      << "what a source does not roll back shows in the books";
  EXPECT_TRUE(allocator.safe_point().complete()) << "the retry";
  EXPECT_EQ(allocator.stats().host, 1_MiB);
  blocks.remove_all();
}

INSTANTIATE_TEST_SUITE_P(All, P9, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "SwitchedOff" : "Holds");
});

// --- P11: host memory is kept, or doubled ----------------------------------------------------

/// Keeps what is released on the slower tier, as a pool without a cap does.
class KeepingSource final : public PassingSource {
 public:
  KeepingSource(MemorySource& source, bool keeps) : PassingSource(source), keeps_(keeps) {}
  ~KeepingSource() override {
    for (const MemoryHandle& handle : kept_) PassingSource::release(handle);
  }
  void release(MemoryHandle handle) override {
    if (keeps_ && handle.tier == Tier::kHost) {
      kept_.push_back(handle);
    } else {
      PassingSource::release(handle);
    }
  }

 private:
  bool keeps_;
  std::vector<MemoryHandle> kept_;
};

class P11 : public ::testing::TestWithParam<bool> {};

TEST_P(P11, P11_TheSlowerTierIsEmptyAfterEachGrow) {
  const bool switched_off = GetParam();
  MovingSource moving;
  KeepingSource source(moving, switched_off);
  ElasticAllocator allocator(source, chunks_of(1_MiB));
  PatternedBlocks blocks(allocator);
  ASSERT_NE(blocks.add(4_MiB), nullptr);
  for (int cycle = 0; cycle < 5; ++cycle) {
    ASSERT_TRUE(allocator.set_limit(1_MiB).complete());
    if (!switched_off) {
      EXPECT_EQ(moving.fake().created(Tier::kHost), 3_MiB) << "not doubled";
    }
    ASSERT_TRUE(allocator.set_limit(64_MiB).complete());
  }
  EXPECT_EQ(moving.fake().created(Tier::kHost), switched_off ? 15_MiB : 0_B);
  blocks.remove_all();
}

INSTANTIATE_TEST_SUITE_P(All, P11, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "SwitchedOff" : "Holds");
});

Bytes resident() {
  std::ifstream file{"/proc/self/statm"};
  std::uint64_t size = 0;
  std::uint64_t pages = 0;
  file >> size >> pages;
  return Bytes{pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))};
}

TEST(Pitfalls, P11_ResidentMemoryOfTheProcessIsThatOfTheFirstCycle) {
  HostMemorySource source;
  if (source.capacity(Tier::kHost).is_zero()) GTEST_SKIP() << source.host_tier_reason();
  ElasticAllocatorOptions options = chunks_of(2_MiB);
  options.move_deadline = 60s;
  options.fence_deadline = 10s;
  ElasticAllocator allocator(source, options);
  PatternedBlocks blocks(allocator);
  auto* const block = blocks.add(48_MiB);
  ASSERT_NE(block, nullptr);
  std::memset(block + 64, 1, (48_MiB).count() - 128);  // every page
  blocks.rewrite(block);
  std::vector<Bytes> after;
  for (int cycle = 0; cycle < 6; ++cycle) {
    const Bytes full = resident();
    ASSERT_TRUE(allocator.set_limit(8_MiB).complete()) << allocator.stats().deferred_reason;
    EXPECT_LE(resident() + 32_MiB, full) << "40 MiB went";
    ASSERT_TRUE(allocator.set_limit(1_GiB).complete()) << allocator.stats().deferred_reason;
    blocks.expect_all();
    after.push_back(resident());
  }
  EXPECT_LE(after.back(), after.front() + 4_MiB);
  blocks.remove_all();
}

// --- P12: sizes on the slower tier are rounded to powers of two -------------------------------

/// Counts what the slower tier would hold if sizes were rounded up.
class RoundingSource final : public PassingSource {
 public:
  using PassingSource::PassingSource;
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override {
    if (tier == Tier::kHost) {
      as_asked += size;
      rounded += Bytes{std::bit_ceil(size.count())};
    }
    return PassingSource::create(tier, size);
  }
  Bytes as_asked;
  Bytes rounded;
};

TEST(Pitfalls, P12_TheSlowerTierHoldsWhatMovedAndNoMore) {
  FakeMemorySource::Options options;
  options.granularity = 12_KiB;
  MovingSource moving(options);
  RoundingSource source(moving);
  ElasticAllocator allocator(source, chunks_of(132_KiB));
  PatternedBlocks blocks(allocator);
  for (int i = 0; i < 10; ++i) ASSERT_NE(blocks.add(Bytes{300'001}), nullptr);
  const Bytes device = allocator.stats().device;
  ASSERT_TRUE(allocator.park().complete());
  EXPECT_EQ(source.as_asked, device);
  EXPECT_EQ(moving.fake().created(Tier::kHost), device) << "nothing beside it";
  EXPECT_GT(source.rounded.count(), device.count() * 18 / 10) << "the twin: rounded to 256 KiB";
  blocks.remove_all();
}

// --- P15: pools of several devices, and of other settings, are mixed up ------------------------

/// Makes the memory of one device on another one, as a pool with a wrong key does.
class MisroutedSource final : public PassingSource {
 public:
  MisroutedSource(MemorySource& own, MemorySource& other, bool wrong)
      : PassingSource(own), other_(other), wrong_(wrong) {}
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size) override {
    return wrong_ ? other_.create(tier, size) : PassingSource::create(tier, size);
  }

 private:
  MemorySource& other_;
  bool wrong_;
};

TEST(Pitfalls, P15_TwoDevicesWithOtherSettingsStayApart) {
  FakeMemorySource::Options coarse;
  coarse.granularity = 256_KiB;
  MovingSource first;
  MovingSource second(coarse);
  ElasticAllocator small(first, chunks_of(64_KiB));
  ElasticAllocator large(second, chunks_of(1_MiB));
  PatternedBlocks on_first(small);
  PatternedBlocks on_second(large);
  // The same sizes in turn by one thread, freed and asked for again: its lanes hold both.
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 24; ++i) {
      const Bytes size{static_cast<std::uint64_t>(700 * (i + 1) * (i + 1))};
      std::byte* const a = on_first.add(size);
      std::byte* const b = on_second.add(size);
      EXPECT_TRUE(small.owns(a) && !large.owns(a));
      EXPECT_TRUE(large.owns(b) && !small.owns(b));
      EXPECT_FALSE(large.deallocate(a)) << "not one of its blocks";
      if (i % 3 != round % 3) continue;
      on_first.remove(a);
      on_second.remove(b);
    }
    EXPECT_TRUE(small.park().complete());
    EXPECT_EQ(first.fake().created(Tier::kDevice), 0_B);
    EXPECT_EQ(second.fake().created(Tier::kDevice), large.stats().device);
    EXPECT_EQ(second.fake().created(Tier::kHost), 0_B) << "the other one did not move";
    (void)small.grow(1_GiB);
    on_first.expect_all();
    on_second.expect_all();
  }
  on_first.remove_all();
  on_second.remove_all();
  EXPECT_THAT(first.fake().violations(), IsEmpty());
  EXPECT_THAT(second.fake().violations(), IsEmpty());
}

TEST(Pitfalls, P15_AWrongKeyShowsInTheLedgerOfTheDevice) {
  for (const bool wrong : {false, true}) {
    FakeMemorySource first;
    FakeMemorySource second;
    MisroutedSource source(first, second, wrong);
    ElasticAllocator allocator(source, chunks_of(128_KiB));
    void* block = nullptr;
    try {
      block = allocator.allocate(128_KiB);
    } catch (const std::exception&) {
      EXPECT_TRUE(wrong);
    }
    EXPECT_EQ(second.created(Tier::kDevice) == 0_B, !wrong);
    EXPECT_EQ(first.created(Tier::kDevice) == allocator.stats().device, !wrong);
    EXPECT_EQ(block != nullptr, !wrong);
    if (block != nullptr) {
      EXPECT_TRUE(allocator.deallocate(block));
    }
  }
}

// --- P16: sizes that are no multiple of the granularity ---------------------------------------

/// Says another granularity than the memory has, as an assumed 2 MiB would be.
class AssumedGranularity final : public PassingSource {
 public:
  AssumedGranularity(MemorySource& source, Bytes assumed)
      : PassingSource(source), assumed_(assumed) {}
  [[nodiscard]] Bytes granularity() const noexcept override { return assumed_; }

 private:
  Bytes assumed_;
};

class P16 : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(P16, P16_OddSizesOnAnyGranularityMoveAndComeBack) {
  FakeMemorySource::Options options;
  options.granularity = Bytes{GetParam()};
  MovingSource source(options);
  ElasticAllocator allocator(source, {});  // chunk sizes of its own choice
  PatternedBlocks blocks(allocator);
  for (const std::uint64_t size : {1U, 4095U, 65'537U, 1'000'003U, 3'333'333U, 7'654'321U}) {
    ASSERT_NE(blocks.add(Bytes{size}), nullptr);
  }
  for (const std::uint64_t limit : {1'234'567U, 0U, 4'321'000U}) {
    EXPECT_TRUE(allocator.set_limit(Bytes{limit}).complete());
    EXPECT_LE(allocator.stats().device.count(), limit);
    blocks.expect_all();
  }
  EXPECT_TRUE(allocator.set_limit(1_GiB).complete());
  EXPECT_EQ(allocator.stats().host, 0_B);
  blocks.remove_all();
  for (const FakeMemorySource::Entry& entry : source.fake().log()) {
    if (entry.call == FakeCall::kCreate || entry.call == FakeCall::kReserve) {
      EXPECT_EQ(entry.size.count() % GetParam(), 0U);
    }
  }
  EXPECT_THAT(source.fake().violations(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Granularities, P16,
                         ::testing::Values(4096, 12'288, 65'536, 1'048'576, 2'097'152, 6'291'456),
                         [](const auto& test) { return std::to_string(test.param); });

TEST(Pitfalls, P16_AnAssumedGranularityIsRefusedByTheMemory) {
  FakeMemorySource::Options options;
  options.granularity = 6_MiB;
  FakeMemorySource memory(options);
  AssumedGranularity source(memory, 2_MiB);
  ElasticAllocator allocator(source, {});
  EXPECT_ANY_THROW((void)allocator.allocate(1_MiB));
  EXPECT_FALSE(memory.violations().empty());
}

// --- P17: one live block pins a large page ----------------------------------------------------

class P17 : public ::testing::TestWithParam<bool> {};

TEST_P(P17, P17_AFewLiveBlocksPinOnlyTheirOwnChunks) {
  const bool switched_off = GetParam();
  FakeMemorySource source;
  ElasticAllocator allocator(source, chunks_of(switched_off ? 32_MiB : 512_KiB));
  std::vector<void*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(allocator.allocate(512_KiB));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 16 == 7) continue;
    EXPECT_TRUE(allocator.deallocate(blocks[i]));
  }
  (void)allocator.release_cached();
  const AllocatorStats stats = allocator.stats();
  EXPECT_EQ(stats.live, 2_MiB);
  EXPECT_EQ(stats.cached, stats.device - stats.live) << "what is pinned is told";
  if (switched_off) {
    EXPECT_GE(stats.device, 32_MiB) << "one large page holds everything";
  } else {
    EXPECT_LE(stats.device, stats.live + Bytes{4 * (512_KiB).count()}) << "a chunk each beside it";
  }
  for (std::size_t i = 7; i < blocks.size(); i += 16) {
    EXPECT_TRUE(allocator.deallocate(blocks[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, P17, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "SwitchedOff" : "Holds");
});

// --- P22: address space is used up ------------------------------------------------------------

TEST(Pitfalls, P22_AnArenaIsOneReservationHoweverManyBlocks) {
  for (const bool switched_off : {false, true}) {
    FakeMemorySource::Options options;
    if (switched_off) options.address_space = 2_MiB;  // no large reservation can be had
    FakeMemorySource source(options);
    ElasticAllocator allocator(source, {});
    std::vector<void*> blocks;
    for (int i = 0; i < 200; ++i) blocks.push_back(allocator.allocate(1_MiB));
    const std::uint64_t reservations = source.calls(FakeCall::kReserve);
    if (switched_off) {
      EXPECT_GE(source.reserved() / 2_MiB, 100U) << "many small ones";
      EXPECT_GE(reservations, 100U);
    } else {
      EXPECT_LE(reservations, 2U);
    }
    for (void* block : blocks) EXPECT_TRUE(allocator.deallocate(block));
    for (int i = 0; i < 200; ++i) EXPECT_TRUE(allocator.deallocate(allocator.allocate(1_MiB)));
    EXPECT_LE(source.calls(FakeCall::kReserve), reservations + (switched_off ? 200U : 0U))
        << "addresses are used again";
  }
}

// --- P29: offload was meant, and content was discarded ----------------------------------------

/// Loses the content of what it exchanges.
class DiscardingSource final : public PassingSource {
 public:
  DiscardingSource(MemorySource& source, bool discards)
      : PassingSource(source), discards_(discards) {}
  [[nodiscard]] CopyTicket begin_copy(std::byte* address, MemoryHandle from,
                                      MemoryHandle to) override {
    const CopyTicket ticket = PassingSource::begin_copy(address, from, to);
    copied_[ticket.id] = AddressRange{address, from.size};
    return ticket;
  }
  [[nodiscard]] SwapResult swap(CopyTicket ticket, OnChange on_change) noexcept override {
    const SwapResult result = PassingSource::swap(ticket, on_change);
    const AddressRange& range = copied_.at(ticket.id);
    if (discards_ && result == SwapResult::kSwapped) {
      std::memset(range.begin, 0, range.size.count());
    }
    return result;
  }

 private:
  bool discards_;
  std::map<std::uint64_t, AddressRange> copied_;
};

TEST(Pitfalls, P29_EveryWayOfGivingMemoryBackKeepsItsContent) {
  for (const bool switched_off : {false, true}) {
    MovingSource moving;
    DiscardingSource source(moving, switched_off);
    ElasticAllocator allocator(source, chunks_of(256_KiB));
    PatternedBlocks blocks(allocator);
    for (int i = 0; i < 4; ++i) ASSERT_NE(blocks.add(512_KiB), nullptr);
    const std::vector<std::function<void()>> ways{
        [&] { (void)allocator.shrink(1_MiB); }, [&] { (void)allocator.set_limit(256_KiB); },
        [&] { (void)allocator.park(); }, [&] { (void)allocator.release_cached(); }};
    std::size_t damaged = 0;
    for (const auto& way : ways) {
      way();
      (void)allocator.set_limit(1_GiB);
      (void)allocator.grow(1_GiB);
      damaged = std::max(damaged, blocks.damaged());
    }
    EXPECT_EQ(damaged > 0, switched_off);
    EXPECT_GT(allocator.stats().moved_out, 0_B);
    const auto entries = blocks.entries();
    for (const auto& [block, entry] : entries) blocks.rewrite(block);
    blocks.remove_all();
  }
}

// --- P39: a copy or a callback runs under a lock ----------------------------------------------

/// Runs something on another thread; false if it is not done within 20 s. It is then left alone.
bool done_by_another_thread(std::function<void()> what) {
  auto done = std::make_shared<std::promise<void>>();
  std::thread([done, what = std::move(what)] {
    what();
    done->set_value();
  }).detach();
  return done->get_future().wait_for(20s) == std::future_status::ready;
}

TEST(Pitfalls, P39_OthersUseBlocksWhileCopiesFencesAndCallbacksRun) {
  MovingSource source;
  ElasticAllocatorOptions options = chunks_of(1_MiB);
  options.limit = 8_MiB;
  options.host_cap = 4_MiB;
  ElasticAllocator allocator(source, options);
  auto* const kept = static_cast<std::byte*>(allocator.allocate(6_MiB));
  void* const small = allocator.allocate(1000_B);
  int cut_in = 0;
  const auto use_blocks = [&] {
    ++cut_in;
    EXPECT_TRUE(done_by_another_thread([&] {
      void* const block = allocator.allocate(1000_B);
      EXPECT_EQ(allocator.size_of(block), 1000_B);
      EXPECT_TRUE(allocator.owns(kept));
      EXPECT_TRUE(allocator.deallocate(block));
      EXPECT_GT(allocator.stats().live, 0_B);
      (void)allocator.post_limit(allocator.stats().limit);
    })) << "cut in number "
        << cut_in;
  };
  source.fake().hooks().copied = [&](std::byte*, Bytes) {
    if (cut_in == 0) use_blocks();
  };
  EXPECT_TRUE(allocator.shrink(3_MiB).complete());
  EXPECT_EQ(cut_in, 1) << "during a copy";
  source.fake().hooks().copied = nullptr;
  source.fake().hooks().before_fence = [&] {
    if (cut_in == 1) use_blocks();
  };
  (void)allocator.grow(16_MiB);
  EXPECT_EQ(cut_in, 2) << "at a fence";
  source.fake().hooks().before_fence = nullptr;
  allocator.on_pressure([&](Bytes) {
    use_blocks();
    return std::string("nobody to ask");
  });
  void* const large = allocator.allocate(3_MiB);  // does not fit under the limit
  EXPECT_EQ(cut_in, 3) << "during the question for memory";
  for (void* block : {static_cast<void*>(kept), small, large}) {
    EXPECT_TRUE(allocator.deallocate(block));
  }
}

// Un-spilling needs memory, and spills for it: what one thread brings back another one sends away.
TEST(Pitfalls, P39_BringingBackWhileOthersSendAwayEndsAlways) {
  MovingSource source;
  ElasticAllocatorOptions options = chunks_of(64_KiB);
  options.limit = 1_MiB;
  ElasticAllocator allocator(source, options);
  std::atomic<int> failed{0};
  const auto work = [&](unsigned seed) {
    for (unsigned i = 0; i < 150; ++i) {
      void* const block = allocator.allocate(Bytes{(seed + i) % 7 * 50'000 + 8});
      const std::shared_lock<std::shared_mutex> writes(source.world());
      std::memset(block, static_cast<int>(i), 8);
      if (*static_cast<unsigned char*>(block) != static_cast<unsigned char>(i)) ++failed;
      if (!allocator.deallocate(block)) ++failed;
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (int i = 0; i < 60; ++i) (void)allocator.set_limit(i % 2 == 0 ? 64_KiB : 2_MiB);
  });
  threads.emplace_back([&] {
    for (int i = 0; i < 60; ++i) (void)(i % 2 == 0 ? allocator.grow(1_GiB) : allocator.park());
  });
  for (unsigned seed = 0; seed < 3; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(allocator.stats().live, 0_B);
}

// --- P42: a write that the move does not see --------------------------------------------------

enum class Window { kBefore, kDuring, kFirstByte, kLastByte, kEachPage, kAfter };

std::string name_of(Window window) {
  constexpr std::array<const char*, 6> names{"BeforeTheCopy",          "DuringTheCopy",
                                             "FirstByteBeforeTheStop", "LastByteBeforeTheStop",
                                             "EachPageBeforeTheStop",  "AfterTheMove"};
  return names[static_cast<std::size_t>(window)];
}

/// A chunk of the machine's own memory; the write inside of a stop is in host_moves_test.cpp.
class P42 : public ::testing::TestWithParam<Window> {
 protected:
  static constexpr std::size_t kSize = std::size_t{4} << 20U;

  void SetUp() override {
    if (!source_.host_tier_reason().empty()) GTEST_SKIP() << source_.host_tier_reason();
    chunk_ = source_.reserve(Bytes{kSize}).begin;
    handle_ = source_.create(Tier::kDevice, Bytes{kSize});
    source_.map(chunk_, handle_);
    std::memset(chunk_, 1, kSize);
  }
  // Another value than before.
  void write(std::size_t at) { chunk_[at] ^= std::byte{0x80}; }
  SwapResult swap(CopyTicket ticket, OnChange on_change) {
    EXPECT_TRUE(source_.fence(10s).stopped);
    const SwapResult result = source_.swap(ticket, on_change);
    source_.unfence();
    return result;
  }
  CopyTicket begin() {
    to_ = source_.create(handle_.tier == Tier::kDevice ? Tier::kHost : Tier::kDevice, Bytes{kSize});
    return source_.begin_copy(chunk_, handle_, to_);
  }
  void finish(CopyTicket ticket) {
    source_.end_copy(ticket);
    source_.release(handle_);
    handle_ = to_;
  }

  HostMemorySource source_;
  std::byte* chunk_ = nullptr;
  MemoryHandle handle_;
  MemoryHandle to_;
};

TEST_P(P42, P42_AWriteInThisWindowIsKept) {
  for (int round = 0; round < 4; ++round) {  // to the slower tier and back, twice
    SCOPED_TRACE(round);
    std::vector<std::byte> wanted(chunk_, chunk_ + kSize);
    const auto write_at = [&](std::size_t at) {
      write(at);
      wanted[at] = chunk_[at];
    };
    if (GetParam() == Window::kBefore) write_at(4097);
    const CopyTicket ticket = begin();
    if (GetParam() == Window::kDuring) {
      std::atomic<bool> end{false};
      std::thread writer([&] {
        for (unsigned i = 0; !end; ++i) chunk_[kSize / 2] = static_cast<std::byte>(i % 64);
      });
      EXPECT_EQ(source_.wait_copy(ticket), CopyState::kDone) << source_.copy_error(ticket);
      end = true;
      writer.join();
      write_at(kSize / 2);  // a value that was not there meanwhile
    } else {
      EXPECT_EQ(source_.wait_copy(ticket), CopyState::kDone) << source_.copy_error(ticket);
    }
    if (GetParam() == Window::kFirstByte) write_at(0);
    if (GetParam() == Window::kLastByte) write_at(kSize - 1);
    if (GetParam() == Window::kEachPage) {
      for (std::size_t at = 0; at < kSize; at += 4096) write_at(at + at / 4096 % 4096);
    }
    const bool copied = GetParam() == Window::kBefore || GetParam() == Window::kAfter;
    EXPECT_EQ(swap(ticket, OnChange::kLeave), copied ? SwapResult::kSwapped : SwapResult::kChanged);
    if (!copied) {
      EXPECT_EQ(swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
    }
    finish(ticket);
    if (GetParam() == Window::kAfter) write_at(kSize / 3);
    EXPECT_EQ(std::memcmp(chunk_, wanted.data(), kSize), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Windows, P42,
                         ::testing::Values(Window::kBefore, Window::kDuring, Window::kFirstByte,
                                           Window::kLastByte, Window::kEachPage, Window::kAfter),
                         [](const auto& test) { return name_of(test.param); });

TEST(Pitfalls, P42_WithoutTheComparisonTheWriteIsLost) {
  for (const bool switched_off : {false, true}) {
    MovingSource source;
    source.compare(!switched_off);
    ElasticAllocator allocator(source, chunks_of(1_MiB));
    PatternedBlocks blocks(allocator);
    std::byte* const block = blocks.add(1_MiB);
    ASSERT_NE(block, nullptr);
    bool written = false;
    source.fake().hooks().before_fence = [&] {
      if (!std::exchange(written, true)) blocks.rewrite(block);
    };
    (void)allocator.set_limit(0_B);
    EXPECT_TRUE(written);
    EXPECT_EQ(blocks.damaged(), switched_off ? 1U : 0U);
    blocks.rewrite(block);
    blocks.remove_all();
  }
}

}  // namespace
}  // namespace commensal::pitfalls_test

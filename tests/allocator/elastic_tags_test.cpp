// SPDX-License-Identifier: Apache-2.0
// Tags: whole groups of blocks are saved, given up and brought back; states are kept (P6, P29).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/fuzz.h"
#include "tests/allocator/moving_source.h"
#include "tests/allocator/passing_source.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::elastic_tags_test {
namespace {

using ::testing::HasSubstr;

AllocationContext tagged(TagId tag) { return AllocationContext{Phase::kUnknown, tag}; }

class ElasticTagsTest : public ::testing::Test {
 protected:
  ~ElasticTagsTest() override {
    for (const auto& [block, content] : blocks_) {
      expect_content(block, content);
      EXPECT_TRUE(allocator_.deallocate(block));
    }
    EXPECT_THAT(fake().violations(), ::testing::IsEmpty());
  }
  FakeMemorySource& fake() { return source_.fake(); }

  std::byte* add(TagId tag, Bytes size) {
    auto* block = static_cast<std::byte*>(allocator_.allocate(size, 0, tagged(tag)));
    blocks_.emplace_back(block, Content{size, ++seed_});
    std::memset(block, seed_, size.count());
    return block;
  }
  // Its content is not ours any more.
  void forget(std::byte* block) {
    std::erase_if(blocks_, [block](const auto& entry) { return entry.first == block; });
  }
  void remove(std::byte* block) {
    forget(block);
    EXPECT_TRUE(allocator_.deallocate(block));
  }
  void expect_all() {
    for (const auto& [block, content] : blocks_) expect_content(block, content);
  }
  TagResidency residency(TagId tag) { return allocator_.tags().at(tag - 1); }

  MovingSource source_;
  ElasticAllocator allocator_{source_, {}};
  TagId weights_ = allocator_.open_tag("weights");
  TagId cache_ = allocator_.open_tag("cache");

 private:
  struct Content {
    Bytes size;
    unsigned char value;
  };
  static void expect_content(const std::byte* block, const Content& content) {
    for (const std::size_t at :
         {std::size_t{0}, content.size.count() / 2, content.size.count() - 1}) {
      ASSERT_EQ(std::to_integer<unsigned>(block[at]), content.value) << "at " << at;
    }
  }
  std::vector<std::pair<std::byte*, Content>> blocks_;
  unsigned char seed_ = 0;
};

TEST_F(ElasticTagsTest, ATagLiesInSegmentsOfItsOwn) {
  std::byte* weight = add(weights_, 1_KiB);
  std::byte* entry = add(cache_, 1_KiB);
  std::byte* plain = add(0, 1_KiB);
  const std::vector<SegmentMap> map = allocator_.memory_map(true);
  ASSERT_EQ(map.size(), 3U);
  for (const SegmentMap& segment : map) {
    const std::string expected = segment.range.contains(weight)  ? "weights"
                                 : segment.range.contains(entry) ? "cache"
                                                                 : "";
    EXPECT_EQ(segment.tag, expected);
    EXPECT_EQ(segment.range.contains(plain), expected.empty());
    EXPECT_EQ(std::count_if(segment.blocks.begin(), segment.blocks.end(),
                            [](const BlockPlace& block) { return block.asked == 1_KiB; }),
              1);
  }
  EXPECT_EQ(residency(weights_).live, 1_KiB);
  EXPECT_EQ(residency(weights_).device, 2_MiB);
}

TEST_F(ElasticTagsTest, ParkingSavesAWholeTagAndNothingElse) {
  std::byte* weight = add(weights_, 8_MiB);
  std::byte* small = add(weights_, 64_B);
  std::byte* other = add(cache_, 4_MiB);
  const TagTicket ticket = allocator_.park_tag(weights_);
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_EQ(ticket.done, 10_MiB);
  EXPECT_EQ(fake().tier_at(weight), Tier::kHost);
  EXPECT_EQ(fake().tier_at(small), Tier::kHost);
  EXPECT_EQ(fake().tier_at(other), Tier::kDevice);
  EXPECT_EQ(allocator_.stats().device, 4_MiB);
  EXPECT_EQ(allocator_.stats().parked, 10_MiB);
  EXPECT_EQ(residency(weights_).saved, 10_MiB);
  EXPECT_TRUE(residency(weights_).parked);
  expect_all();  // addresses and content stay

  const TagTicket woken = allocator_.wake_tag(weights_);
  EXPECT_TRUE(woken.complete()) << woken.reason;
  EXPECT_EQ(woken.done, 10_MiB);
  EXPECT_EQ(fake().tier_at(weight), Tier::kDevice);
  EXPECT_EQ(allocator_.stats().parked, 0_B);
  EXPECT_FALSE(residency(weights_).parked);
  expect_all();
}

TEST_F(ElasticTagsTest, P6_StatesAreKeptSoThatTwiceDoesNoHarm) {
  std::byte* weight = add(weights_, 8_MiB);
  EXPECT_EQ(allocator_.park_tag(weights_).done, 8_MiB);
  EXPECT_EQ(allocator_.park_tag(weights_).done, 0_B);
  EXPECT_TRUE(allocator_.park_tag(weights_).complete());
  EXPECT_EQ(allocator_.stats().moves, 1U);
  EXPECT_EQ(allocator_.wake_tag(weights_).done, 8_MiB);
  EXPECT_EQ(allocator_.wake_tag(weights_).done, 0_B);
  expect_all();
  forget(weight);
  EXPECT_EQ(allocator_.drop_tag(weights_).done, 8_MiB);
  EXPECT_EQ(allocator_.drop_tag(weights_).done, 0_B);
  EXPECT_TRUE(allocator_.park_tag(weights_).complete()) << "nothing is left to save";
  EXPECT_EQ(residency(weights_).dropped, 8_MiB);
  EXPECT_EQ(allocator_.wake_tag(weights_).done, 8_MiB);
  EXPECT_EQ(allocator_.wake_tag(weights_).done, 0_B);
  EXPECT_TRUE(allocator_.deallocate(weight));
}

TEST_F(ElasticTagsTest, P6_BlocksMayBeFreedWhileTheirTagIsAway) {
  std::byte* parked = add(weights_, 4_MiB);
  std::byte* stays = add(weights_, 4_MiB);
  std::byte* dropped = add(cache_, 4_MiB);
  std::byte* lost = add(cache_, 4_MiB);
  (void)allocator_.park_tag(weights_);
  (void)allocator_.drop_tag(cache_);
  remove(parked);
  remove(dropped);
  forget(lost);
  (void)allocator_.safe_point();
  EXPECT_EQ(fake().created(Tier::kHost), 4_MiB) << "what nobody needs is not saved any more";
  EXPECT_EQ(residency(cache_).dropped, 4_MiB);
  EXPECT_EQ(allocator_.wake_tag(weights_).done, 4_MiB);
  EXPECT_EQ(allocator_.wake_tag(cache_).done, 4_MiB);
  EXPECT_EQ(fake().tier_at(lost), Tier::kDevice);
  std::memset(lost, 7, (4_MiB).count());
  EXPECT_TRUE(allocator_.deallocate(lost));
  EXPECT_EQ(fake().tier_at(stays), Tier::kDevice);
}

TEST_F(ElasticTagsTest, P6_TagsAreWokenOneByOne) {
  (void)add(weights_, 4_MiB);
  (void)add(cache_, 4_MiB);
  (void)allocator_.park_tag(weights_);
  (void)allocator_.park_tag(cache_);
  EXPECT_EQ(allocator_.wake_tag(weights_).done, 4_MiB);
  EXPECT_EQ(residency(weights_).device, 4_MiB);
  EXPECT_EQ(residency(cache_).saved, 4_MiB);
  expect_all();
}

TEST_F(ElasticTagsTest, P6_UnknownTagsAreAnErrorThatNamesThem) {
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(message([&] { (void)allocator_.find_tag("waits"); }),
            "unknown tag: 'waits' (there are 'weights', 'cache')");
  EXPECT_EQ(allocator_.find_tag("cache"), cache_);
  for (const TagId wrong : {0U, 3U, UINT32_MAX}) {
    EXPECT_THAT(message([&] { (void)allocator_.park_tag(wrong); }), HasSubstr("unknown tag"));
    EXPECT_THAT(message([&] { (void)allocator_.drop_tag(wrong); }), HasSubstr("unknown tag"));
    EXPECT_THAT(message([&] { (void)allocator_.wake_tag(wrong); }), HasSubstr("unknown tag"));
  }
  EXPECT_THAT(message([&] { (void)allocator_.allocate(64_B, 0, tagged(3)); }),
              HasSubstr("unknown tag number: 3 (there are 2)"));
  EXPECT_THAT(message([&] { (void)allocator_.open_tag(""); }), HasSubstr("1 to 128 bytes"));
  EXPECT_THAT(message([&] { (void)allocator_.open_tag(std::string(200, 'x')); }),
              HasSubstr("1 to 128 bytes"));
  ElasticAllocator fresh(source_, {});
  EXPECT_EQ(message([&] { (void)fresh.find_tag("x"); }), "unknown tag: 'x' (there are none)");
  for (std::size_t i = 0; i < kMostTags; ++i) (void)fresh.open_tag("tag " + std::to_string(i));
  EXPECT_EQ(fresh.open_tag("tag 7"), 8U) << "the same name is the same tag";
  EXPECT_THAT(message([&] { (void)fresh.open_tag("one more"); }), HasSubstr("more than 256 tags"));
}

TEST_F(ElasticTagsTest, P29_ContentIsKeptUnlessItIsDroppedExplicitly) {
  (void)add(weights_, 4_MiB);
  (void)add(cache_, 4_MiB);
  (void)allocator_.park_tag(weights_);
  (void)allocator_.shrink(64_MiB);
  (void)allocator_.set_limit(0_B);
  (void)allocator_.park();
  (void)allocator_.set_limit(64_MiB);
  EXPECT_EQ(allocator_.stats().dropped, 0_B);
  expect_all();
}

TEST_F(ElasticTagsTest, ADroppedTagHoldsNothingAndComesBackFresh) {
  std::byte* entry = add(cache_, 8_MiB);
  forget(entry);
  const TagTicket ticket = allocator_.drop_tag(cache_);
  EXPECT_EQ(ticket.done, 8_MiB);
  EXPECT_EQ(fake().created(Tier::kDevice), 0_B);
  EXPECT_EQ(fake().created(Tier::kHost), 0_B);
  const AllocatorStats stats = allocator_.stats();
  EXPECT_EQ(stats.device, 0_B);
  EXPECT_EQ(stats.dropped, 8_MiB);
  EXPECT_EQ(stats.live, 8_MiB);
  EXPECT_TRUE(allocator_.owns(entry));
  EXPECT_EQ(allocator_.size_of(entry), 8_MiB);
  EXPECT_EQ(allocator_.wake_tag(cache_).done, 8_MiB);
  std::memset(entry, 1, (8_MiB).count());
  EXPECT_TRUE(allocator_.deallocate(entry));
}

TEST_F(ElasticTagsTest, DroppingAParkedTagGivesItsSavedBytesUp) {
  std::byte* entry = add(cache_, 8_MiB);
  forget(entry);
  (void)allocator_.park_tag(cache_);
  EXPECT_EQ(fake().created(Tier::kHost), 8_MiB);
  EXPECT_EQ(allocator_.drop_tag(cache_).done, 0_B) << "none of it was on the device";
  EXPECT_EQ(fake().created(Tier::kHost), 0_B);
  EXPECT_TRUE(allocator_.deallocate(entry));
}

TEST_F(ElasticTagsTest, ABlockFreedInADroppedChunkServesNobodyUntilItIsWoken) {
  std::byte* first = add(cache_, 1_MiB);
  std::byte* second = add(cache_, 512_KiB);
  forget(first);
  (void)allocator_.drop_tag(cache_);
  remove(second);
  (void)allocator_.set_limit(4_MiB);
  std::byte* fresh = add(cache_, 512_KiB);
  EXPECT_EQ(fake().tier_at(fresh), Tier::kDevice) << "not in the dropped chunk";
  EXPECT_TRUE(allocator_.wake_tag(cache_).complete());
  EXPECT_EQ(add(cache_, 512_KiB), second) << "free memory is sorted in again";
  EXPECT_TRUE(allocator_.deallocate(first));
}

TEST_F(ElasticTagsTest, NewBlocksOfAParkedTagGetMemory) {
  (void)add(weights_, 4_MiB);
  (void)allocator_.park_tag(weights_);
  std::byte* fresh = add(weights_, 4_MiB);
  EXPECT_EQ(fake().tier_at(fresh), Tier::kDevice);
  EXPECT_EQ(residency(weights_).saved, 4_MiB);
  EXPECT_EQ(allocator_.park_tag(weights_).done, 4_MiB);
}

TEST_F(ElasticTagsTest, AParkedTagDoesNotComeBackBecauseThereIsRoom) {
  (void)add(weights_, 4_MiB);
  (void)allocator_.park_tag(weights_);
  (void)allocator_.set_limit(32_MiB);
  (void)allocator_.set_limit(64_MiB);
  (void)allocator_.grow(64_MiB);
  (void)allocator_.safe_point();
  EXPECT_EQ(residency(weights_).saved, 4_MiB);
}

TEST_F(ElasticTagsTest, AParkedTagComesBackAsAWholeWhenItIsTouched) {
  std::byte* weight = add(weights_, 8_MiB);
  (void)add(cache_, 4_MiB);
  (void)allocator_.park_tag(weights_);
  (void)allocator_.park_tag(cache_);
  fake().set_touched(weight, {4_KiB, 0_B});
  ASSERT_TRUE(allocator_.work_pending());
  (void)allocator_.safe_point();
  EXPECT_EQ(residency(weights_).device, 8_MiB);
  EXPECT_FALSE(residency(weights_).parked);
  EXPECT_EQ(residency(cache_).saved, 4_MiB);
}

TEST_F(ElasticTagsTest, WakingKeepsToTheLimitAndLeavesTheRestUsable) {
  std::byte* weight = add(weights_, 8_MiB);
  (void)allocator_.park_tag(weights_);
  (void)allocator_.set_limit(4_MiB);
  const TagTicket ticket = allocator_.wake_tag(weights_);
  EXPECT_EQ(ticket.done, 4_MiB);
  EXPECT_EQ(ticket.deferred, 4_MiB);
  EXPECT_EQ(ticket.missing, 0_B);
  EXPECT_EQ(ticket.reason, "the limit of 4 MiB leaves no room");
  EXPECT_EQ(allocator_.stats().device, 4_MiB);
  expect_all();
  (void)allocator_.set_limit(64_MiB);
  EXPECT_EQ(residency(weights_).device, 8_MiB) << "comes by itself as soon as there is room";
  EXPECT_EQ(fake().tier_at(weight), Tier::kDevice);
}

TEST_F(ElasticTagsTest, ADroppedTagIsWokenOnTheSlowerTierWhereTheLimitLeavesNoRoom) {
  std::byte* entry = add(cache_, 8_MiB);
  forget(entry);
  (void)allocator_.drop_tag(cache_);
  (void)allocator_.set_limit(4_MiB);
  const TagTicket ticket = allocator_.wake_tag(cache_);
  EXPECT_EQ(ticket.done, 4_MiB);
  EXPECT_EQ(ticket.deferred, 4_MiB);
  std::memset(entry, 3, (8_MiB).count());
  EXPECT_TRUE(allocator_.deallocate(entry));
}

TEST_F(ElasticTagsTest, WakingAsksForMoreMemoryFirst) {
  (void)add(weights_, 8_MiB);
  (void)allocator_.park_tag(weights_);
  (void)allocator_.set_limit(2_MiB);
  Bytes asked;
  allocator_.on_pressure([&](Bytes needed) {
    asked = needed;
    (void)allocator_.post_limit(16_MiB);
    return std::string("granted");
  });
  EXPECT_TRUE(allocator_.wake_tag(weights_).complete());
  EXPECT_EQ(asked, 6_MiB);
}

TEST_F(ElasticTagsTest, WhatCannotBeBackedIsNamedAndTriedAgain) {
  std::byte* entry = add(cache_, 4_MiB);
  forget(entry);
  (void)allocator_.drop_tag(cache_);
  fake().fail_always(FakeCall::kCreate);
  const TagTicket ticket = allocator_.wake_tag(cache_);
  EXPECT_EQ(ticket.missing, 4_MiB);
  EXPECT_FALSE(ticket.reason.empty());
  EXPECT_EQ(residency(cache_).dropped, 4_MiB);
  fake().fail_never(FakeCall::kCreate);
  fake().fail_next(FakeCall::kMap);
  EXPECT_EQ(allocator_.wake_tag(cache_).missing, 2_MiB);
  EXPECT_EQ(fake().created(Tier::kDevice), 2_MiB) << "nothing is lost where mapping failed";
  EXPECT_TRUE(allocator_.wake_tag(cache_).complete());
  EXPECT_TRUE(allocator_.deallocate(entry));
}

TEST_F(ElasticTagsTest, WhatCannotBeSavedStaysWithItsReason) {
  (void)add(weights_, 8_MiB);
  fake().set_move_risk("thread 17 blocks the signal");
  TagTicket ticket = allocator_.park_tag(weights_);
  EXPECT_EQ(ticket.deferred, 8_MiB);
  EXPECT_EQ(ticket.reason, "thread 17 blocks the signal");
  fake().set_move_risk("");
  fake().set_capacity(Tier::kHost, 2_MiB);
  ticket = allocator_.park_tag(weights_);
  EXPECT_EQ(ticket.done, 2_MiB);
  EXPECT_EQ(ticket.deferred, 6_MiB);
  EXPECT_EQ(ticket.reason, "slower tier full: 2 MiB of 2 MiB");
  fake().set_capacity(Tier::kHost, Bytes{UINT64_MAX});
  EXPECT_TRUE(allocator_.park_tag(weights_).complete());
  expect_all();
}

TEST_F(ElasticTagsTest, WhatCannotBeDroppedStaysWithItsReason) {
  std::byte* entry = add(cache_, 8_MiB);
  fake().fail_always(FakeCall::kFence);
  TagTicket ticket = allocator_.drop_tag(cache_);
  EXPECT_EQ(ticket.deferred, 8_MiB);
  EXPECT_FALSE(ticket.reason.empty());
  expect_all();
  fake().fail_never(FakeCall::kFence);
  fake().fail_at(FakeCall::kUnmap, 2);
  ticket = allocator_.drop_tag(cache_);
  forget(entry);
  EXPECT_EQ(ticket.done, 2_MiB);
  EXPECT_EQ(ticket.deferred, 6_MiB);
  EXPECT_EQ(allocator_.stats().device, 6_MiB);
  EXPECT_EQ(fake().tier_at(entry + (2_MiB).count()), Tier::kDevice);
  EXPECT_TRUE(allocator_.drop_tag(cache_).complete());
  EXPECT_EQ(fake().created(Tier::kDevice), 0_B);
  EXPECT_TRUE(allocator_.deallocate(entry));
}

TEST_F(ElasticTagsTest, ALimitTakesTagsAfterColdChunksAndKeptOnesLast) {
  const TagId kept = allocator_.open_tag("kept", TagOptions{.keep = true});
  std::byte* first = add(kept, 2_MiB);
  std::byte* second = add(weights_, 2_MiB);
  std::byte* third = add(0, 2_MiB);
  (void)allocator_.set_limit(4_MiB);
  EXPECT_EQ(fake().tier_at(third), Tier::kHost) << "though it was used last";
  (void)allocator_.set_limit(2_MiB);
  EXPECT_EQ(fake().tier_at(second), Tier::kHost);
  EXPECT_EQ(fake().tier_at(first), Tier::kDevice);
  (void)allocator_.set_limit(0_B);
  EXPECT_EQ(fake().tier_at(first), Tier::kHost);
  (void)allocator_.set_limit(2_MiB);
  EXPECT_EQ(fake().tier_at(first), Tier::kDevice) << "and it is the first that comes back";
}

TEST_F(ElasticTagsTest, ThreadsAllocateAndFreeWhileTheirTagsMove) {
  std::atomic<bool> stop{false};
  std::atomic<int> allocated{0};
  std::vector<std::thread> threads;
  for (const TagId tag : {weights_, cache_}) {
    threads.emplace_back([&, tag] {
      std::vector<std::byte*> mine;
      std::mt19937 random(tag);
      while (!stop) {
        const std::size_t size = 64 + random() % (300U << 10U);
        mine.push_back(static_cast<std::byte*>(allocator_.allocate(Bytes{size}, 0, tagged(tag))));
        ++allocated;
        if (mine.size() < 32) continue;
        std::swap(mine[random() % mine.size()], mine.back());
        EXPECT_TRUE(allocator_.deallocate(mine.back()));
        mine.pop_back();
      }
      for (std::byte* block : mine) EXPECT_TRUE(allocator_.deallocate(block));
    });
  }
  for (int i = 0; i < 12 || allocated < 2'000; ++i) {
    (void)allocator_.park_tag(weights_);
    (void)allocator_.drop_tag(cache_);
    (void)allocator_.wake_tag(weights_);
    (void)allocator_.wake_tag(cache_);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator_.stats().live, 0_B);
}

// Random blocks of three tags and none; whole tags come and go, the limit moves. What was not
// dropped keeps its content, and the fake notices every misuse.
/// Lets only the thread that made it move memory, and calls `at_fence` when that thread stops all.
class OneThreadsSource final : public testing::PassingSource {
 public:
  using PassingSource::PassingSource;
  [[nodiscard]] MoveRisk move_risk() override {
    if (std::this_thread::get_id() != mover_) return MoveRisk{false, "not its thread"};
    return PassingSource::move_risk();
  }
  [[nodiscard]] FenceResult fence(Duration deadline) noexcept override {
    if (at_fence) at_fence();
    return PassingSource::fence(deadline);
  }
  std::function<void()> at_fence;

 private:
  const std::thread::id mover_ = std::this_thread::get_id();
};

TEST(ElasticTags, WhatAnotherThreadMayNotMoveIsMovedByTheOneThatMay) {
  MovingSource memory;
  OneThreadsSource source{memory};
  ElasticAllocator allocator{source, {}};
  const TagId tag = allocator.open_tag("weights");
  void* const block = allocator.allocate(80_MiB, 0, tagged(tag));  // more than one batch
  ASSERT_TRUE(allocator.park_tag(tag).complete());
  std::thread other;
  source.at_fence = [&] {
    if (other.joinable()) return;
    std::atomic<bool> goes{false};
    other = std::thread([&] {
      goes = true;
      (void)allocator.set_limit(1_GiB);  // waits for the lock, and has it between two batches
    });
    while (!goes) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  };
  const TagTicket ticket = allocator.wake_tag(tag);
  other.join();
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  EXPECT_EQ(ticket.done, 80_MiB);
  EXPECT_TRUE(allocator.deallocate(block));
}

TEST_F(ElasticTagsTest, P29_ContentSurvivesRandomOperations) {
  struct Live {
    std::byte* block;
    std::size_t size;
    TagId tag;
    unsigned char value;
    bool known;
  };
  const TagId kept = allocator_.open_tag("kept", TagOptions{.keep = true});
  const std::uint64_t seed = fuzz_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::vector<Live> live;
  std::vector<bool> gone(4, false);  // dropped and not woken yet
  const auto check = [](const Live& entry) {
    if (!entry.known) return;
    EXPECT_EQ(std::to_integer<unsigned>(entry.block[0]), entry.value);
    EXPECT_EQ(std::to_integer<unsigned>(entry.block[entry.size - 1]), entry.value);
  };
  const std::uint64_t operations = fuzz_operations(2'000, 300);
  for (std::uint64_t i = 0; i < operations; ++i) {
    const auto tag = static_cast<TagId>(random() % 4);
    switch (random() % 16) {
      case 0: EXPECT_TRUE(tag == 0 || allocator_.park_tag(tag).complete()); break;
      case 1:
        if (tag == 0 || tag == kept) break;
        EXPECT_TRUE(allocator_.drop_tag(tag).complete());
        gone[tag] = true;
        for (Live& entry : live) entry.known = entry.known && entry.tag != tag;
        break;
      case 2:
      case 3:
        if (tag == 0) break;
        EXPECT_EQ(allocator_.wake_tag(tag).missing, 0_B);
        gone[tag] = false;
        break;
      case 4: (void)allocator_.set_limit(Bytes{random() % (48U << 20U)}); break;
      case 5: (void)allocator_.safe_point(); break;
      case 6:
      case 7:
      case 8:
      case 9:
      case 10:
        if (live.empty()) break;
        std::swap(live[random() % live.size()], live.back());
        check(live.back());
        EXPECT_TRUE(allocator_.deallocate(live.back().block));
        live.pop_back();
        break;
      default: {
        const std::size_t size = 1 + random() % (std::size_t{1} << (6 + random() % 16));
        const auto value = static_cast<unsigned char>(random());
        auto* block = static_cast<std::byte*>(allocator_.allocate(Bytes{size}, 0, tagged(tag)));
        std::memset(block, value, size);
        live.push_back(Live{block, size, tag, value, true});
      }
    }
    const AllocatorStats stats = allocator_.stats();
    EXPECT_EQ(stats.device, fake().created(Tier::kDevice));
    EXPECT_EQ(stats.host + stats.parked, fake().created(Tier::kHost));
    if (::testing::Test::HasFailure()) break;
  }
  for (const TagId tag : {weights_, cache_, kept}) EXPECT_EQ(allocator_.wake_tag(tag).missing, 0_B);
  for (const Live& entry : live) {
    check(entry);
    EXPECT_TRUE(allocator_.deallocate(entry.block));
  }
  EXPECT_EQ(allocator_.stats().live, 0_B);
  (void)allocator_.release_cached();
  EXPECT_EQ(fake().created(Tier::kDevice), 0_B);
}

}  // namespace
}  // namespace commensal::elastic_tags_test

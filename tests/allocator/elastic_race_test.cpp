// SPDX-License-Identifier: Apache-2.0
// What other threads may do between two steps of the allocator, forced by hooks: none of it may be
// overlooked, and nothing remembered may be used after it is gone.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/moving_source.h"
#include "tests/allocator/patterned_blocks.h"

namespace commensal::elastic_race_test {
namespace {

/// Asked for the time, lets somebody else go first.
class InterruptingClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override {
    if (interrupt) interrupt();
    return TimePoint{};
  }
  std::function<void()> interrupt;
};

class ElasticRaceTest : public ::testing::Test {
 protected:
  ~ElasticRaceTest() override {
    clock_.interrupt = nullptr;
    fake().hooks() = {};
    blocks_.expect_all();
    blocks_.remove_all();
    EXPECT_TRUE(fake().violations().empty()) << fake().violations().front();
  }
  FakeMemorySource& fake() { return source_.fake(); }
  void on_first(FakeCall wanted, std::function<void()> act) {
    fake().hooks().before_call = [this, wanted, act = std::move(act)](FakeCall call) {
      if (call != wanted) return;
      const auto once = act;
      fake().hooks().before_call = nullptr;
      once();
    };
  }

  MovingSource source_;
  InterruptingClock clock_;
  ElasticAllocator allocator_{source_, {}, clock_};
  PatternedBlocks blocks_{allocator_};
};

TEST_F(ElasticRaceTest, ALimitThatFallsWhileChunksAreMappedHoldsAtTheNextSafePoint) {
  on_first(FakeCall::kMap, [&] { (void)allocator_.post_limit(2_MiB); });
  (void)blocks_.add(8_MiB);
  ASSERT_EQ(allocator_.stats().device, 8_MiB) << "there was room when it was asked for";
  EXPECT_TRUE(allocator_.work_pending());
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().device, 2_MiB);
}

TEST_F(ElasticRaceTest, MemoryThatTheSystemKeptIsAskedForAgainAtTheNextSafePoint) {
  fake().set_capacity(Tier::kHost, 0_B);
  blocks_.remove(blocks_.add(4_MiB));
  (void)allocator_.set_limit(4_MiB);
  ASSERT_FALSE(allocator_.work_pending());
  fake().fail_next(FakeCall::kRelease);
  EXPECT_EQ(blocks_.add(100_B), nullptr) << "its chunk needs the room of a free one";
  EXPECT_TRUE(allocator_.work_pending());
  (void)allocator_.safe_point();
  EXPECT_EQ(fake().created(Tier::kDevice), fake().mapped(Tier::kDevice));
  EXPECT_NE(blocks_.add(100_B), nullptr);
}

// Frees the only block of a very large segment after its chunk was chosen to come back.
TEST_F(ElasticRaceTest, AChunkChosenToComeBackMayBeFreedMeanwhile) {
  (void)allocator_.set_limit(2_MiB);
  void* large = allocator_.allocate(2_GiB);
  ASSERT_EQ(fake().tier_at(large), Tier::kHost);
  blocks_.remove(blocks_.add(2_MiB));   // a free chunk that will make room
  (void)allocator_.post_limit(33_MiB);  // one chunk of 32 MiB, and not the free one
  int asked = 0;
  clock_.interrupt = [&] {
    // The first question is when the call began, the second one comes right after the choice.
    if (++asked == 2) (void)allocator_.deallocate(large);
  };
  fake().clear_log();
  (void)allocator_.safe_point();
  EXPECT_GE(asked, 2);
  clock_.interrupt = nullptr;
  EXPECT_EQ(fake().calls(FakeCall::kBeginCopy), 0U) << "there was nothing left to bring back";
  (void)allocator_.safe_point();
  EXPECT_EQ(allocator_.stats().host, 0_B);
  EXPECT_FALSE(allocator_.owns(large));
}

TEST_F(ElasticRaceTest, AFreeChunkThatWasToMakeRoomMayBeTakenMeanwhile) {
  (void)allocator_.set_limit(2_MiB);
  std::byte* device = blocks_.add(2_MiB);
  std::byte* slow = blocks_.add(2_MiB);
  ASSERT_EQ(fake().tier_at(slow), Tier::kHost);
  blocks_.remove(device);
  int asked = 0;
  clock_.interrupt = [&] {
    if (++asked == 2) (void)blocks_.add(2_MiB);
  };
  (void)allocator_.safe_point();
  EXPECT_GE(asked, 2);
  EXPECT_EQ(blocks_.entries().size(), 2U);
  EXPECT_EQ(allocator_.stats().device, 2_MiB) << "there is no room for both";
}

TEST_F(ElasticRaceTest, AddressesAreNotOursFromTheMomentThatTheyAreGivenBack) {
  void* large = allocator_.allocate(2_GiB);
  EXPECT_TRUE(allocator_.deallocate(large));
  bool owned = true;
  on_first(FakeCall::kUnreserve, [&] { owned = allocator_.owns(large); });
  (void)allocator_.release_cached();
  EXPECT_FALSE(owned);
  EXPECT_EQ(fake().reserved(), 0_B);
}

TEST_F(ElasticRaceTest, AddressesThatTheSystemKeepsServeTheNextLargeBlock) {
  void* large = allocator_.allocate(2_GiB);
  EXPECT_TRUE(allocator_.deallocate(large));
  fake().fail_next(FakeCall::kUnreserve);
  (void)allocator_.release_cached();
  EXPECT_EQ(fake().reserved(), 2_GiB);
  void* next = allocator_.allocate(2_GiB);
  EXPECT_EQ(next, large);
  EXPECT_EQ(fake().reserved(), 2_GiB);
  EXPECT_TRUE(allocator_.deallocate(next));
}

}  // namespace
}  // namespace commensal::elastic_race_test

// SPDX-License-Identifier: Apache-2.0
// Memory that does not move: what somebody outside relies on, and what others hold of the device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/moving_source.h"

namespace commensal::elastic_kept_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ElasticKeptTest : public ::testing::Test {
 protected:
  ~ElasticKeptTest() override {
    for (const auto& [block, size] : blocks_) {
      EXPECT_EQ(block[size.count() - 1], std::byte{7});
      EXPECT_TRUE(allocator_.deallocate(block));
    }
    EXPECT_THAT(fake().violations(), IsEmpty());
  }
  FakeMemorySource& fake() { return source_.fake(); }
  AddressRange add(Bytes size, TagId tag = 0) {
    auto* const block =
        static_cast<std::byte*>(allocator_.allocate(size, 0, {Phase::kUnknown, tag}));
    std::memset(block, 7, size.count());
    blocks_.emplace_back(block, size);
    return {block, size};
  }
  void remove(AddressRange block) {
    std::erase_if(blocks_, [&](const auto& entry) { return entry.first == block.begin; });
    EXPECT_TRUE(allocator_.deallocate(block.begin));
  }
  Bytes kept() { return allocator_.stats().kept; }

  MovingSource source_;
  ElasticAllocator allocator_{source_, {}};
  std::vector<std::pair<std::byte*, Bytes>> blocks_;
};

TEST_F(ElasticKeptTest, ALimitPassesKeptMemoryOverAndSaysSo) {
  const AddressRange buffer = add(8_MiB);
  const AddressRange other = add(8_MiB);
  EXPECT_EQ(allocator_.keep_in_place(buffer, "a network card"), 8_MiB);
  const LimitTicket ticket = allocator_.set_limit(2_MiB);
  EXPECT_EQ(ticket.deferred, 6_MiB);
  EXPECT_EQ(ticket.reason, "stays where it is: 8 MiB (a network card)");
  EXPECT_EQ(fake().tier_at(buffer.begin), Tier::kDevice);
  EXPECT_EQ(fake().tier_at(other.begin), Tier::kHost);
  EXPECT_EQ(allocator_.stats().deferred_reason, ticket.reason);
  EXPECT_EQ(kept(), 8_MiB);
  // The twin: the same memory, when nobody relies on it.
  allocator_.may_move(buffer, "a network card");
  EXPECT_TRUE(allocator_.set_limit(2_MiB).complete());
  EXPECT_EQ(fake().tier_at(buffer.begin), Tier::kHost);
  EXPECT_EQ(kept(), 0_B);
}

TEST_F(ElasticKeptTest, IsKeptByWholeChunksUntilTheLastReasonHasGone) {
  const AddressRange block = add(8_MiB);
  const AddressRange part{block.begin + (3_MiB).count(), 2_MiB};  // lies in two chunks
  EXPECT_EQ(allocator_.keep_in_place(part, "first"), 4_MiB);
  EXPECT_EQ(allocator_.keep_in_place(part, "second"), 4_MiB);
  EXPECT_EQ(kept(), 4_MiB);
  std::vector<KeptMemory> reasons = allocator_.kept_in_place();
  ASSERT_EQ(reasons.size(), 2U);
  EXPECT_EQ(reasons[0].why, "first");
  EXPECT_EQ(reasons[0].bytes, 4_MiB);
  EXPECT_EQ(reasons[1].bytes, 0_B) << "a chunk counts once";
  allocator_.may_move(part, "first");
  EXPECT_EQ(allocator_.kept_in_place().at(0).bytes, 4_MiB);
  EXPECT_EQ(allocator_.set_limit(2_MiB).deferred, 2_MiB);
  EXPECT_THROW(allocator_.may_move(part, "first"), std::logic_error);
  allocator_.may_move(part, "second");
  EXPECT_TRUE(allocator_.set_limit(2_MiB).complete());
}

TEST_F(ElasticKeptTest, FreeMemoryThatIsKeptIsNotGivenBack) {
  const AddressRange block = add(8_MiB);
  (void)allocator_.keep_in_place(block, "RDMA");
  remove(block);
  EXPECT_EQ(allocator_.release_cached(), 0_B);
  EXPECT_EQ(fake().tier_at(block.begin), Tier::kDevice);
  allocator_.may_move(block, "RDMA");
  EXPECT_EQ(allocator_.release_cached(), 8_MiB);
}

TEST_F(ElasticKeptTest, ParkingAndTagsPassItOver) {
  const TagId tag = allocator_.open_tag("weights");
  const AddressRange buffer = add(4_MiB, tag);
  const AddressRange other = add(4_MiB, tag);
  (void)allocator_.keep_in_place(buffer, "RDMA");
  TagTicket ticket = allocator_.park_tag(tag);
  EXPECT_EQ(ticket.done, 4_MiB);
  EXPECT_EQ(ticket.deferred, 4_MiB);
  EXPECT_EQ(ticket.reason, "stays where it is: 4 MiB (RDMA)");
  EXPECT_EQ(fake().tier_at(other.begin), Tier::kHost);
  (void)allocator_.wake_tag(tag);
  const LimitTicket parked = allocator_.park();
  EXPECT_EQ(parked.deferred, 4_MiB);
  EXPECT_EQ(parked.reason, "stays where it is: 4 MiB (RDMA)");
  EXPECT_EQ(fake().tier_at(buffer.begin), Tier::kDevice);
  (void)allocator_.grow(Bytes{UINT64_MAX});
  remove(other);
  ticket = allocator_.drop_tag(tag);
  EXPECT_EQ(ticket.deferred, 4_MiB);
  EXPECT_EQ(fake().tier_at(buffer.begin), Tier::kDevice);
  allocator_.may_move(buffer, "RDMA");
}

TEST_F(ElasticKeptTest, WhatIsOnTheSlowerTierComesBackFirstOrNothingIsKept) {
  const AddressRange buffer = add(8_MiB);
  (void)allocator_.set_limit(2_MiB);
  ASSERT_EQ(fake().tier_at(buffer.begin), Tier::kHost);
  try {
    (void)allocator_.keep_in_place(buffer, "RDMA");
    FAIL();
  } catch (const SourceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("memory cannot be kept on the device: the limit of 2 MiB"));
  }
  EXPECT_EQ(kept(), 0_B);
  (void)allocator_.post_limit(64_MiB);
  EXPECT_EQ(allocator_.keep_in_place(buffer, "RDMA"), 8_MiB);
  EXPECT_EQ(fake().tier_at(buffer.begin), Tier::kDevice);
  allocator_.may_move(buffer, "RDMA");
}

TEST_F(ElasticKeptTest, WhereItDoesNotMatterWhereItStaysOnTheSlowerTier) {
  const TagId tag = allocator_.open_tag("weights");
  const AddressRange block = add(8_MiB, tag);
  (void)allocator_.set_limit(2_MiB);
  EXPECT_EQ(allocator_.keep_in_place(block, "NCCL", KeepWhere::kWhereItIs), 8_MiB);
  (void)allocator_.set_limit(64_MiB);
  (void)allocator_.grow(Bytes{UINT64_MAX});
  (void)allocator_.wake_tag(tag);
  EXPECT_EQ(fake().tier_at(block.begin), Tier::kHost);
  allocator_.may_move(block, "NCCL");
  (void)allocator_.safe_point();
  EXPECT_EQ(fake().tier_at(block.begin), Tier::kDevice);
}

TEST_F(ElasticKeptTest, WhatWasGivenUpOrCannotMoveIsNotKept) {
  const TagId tag = allocator_.open_tag("cache");
  const AddressRange block = add(4_MiB, tag);
  (void)allocator_.drop_tag(tag);
  EXPECT_THROW((void)allocator_.keep_in_place(block, "RDMA"), SourceError);
  (void)allocator_.wake_tag(tag);
  std::memset(block.begin, 7, block.size.count());
  (void)allocator_.park_tag(tag);
  fake().set_move_risk("a thread does not stop");
  try {
    (void)allocator_.keep_in_place(block, "RDMA");
    FAIL();
  } catch (const SourceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a thread does not stop"));
  }
  fake().set_move_risk({});
  EXPECT_EQ(kept(), 0_B);
}

TEST_F(ElasticKeptTest, MemoryOfOthersIsNoneOfOurs) {
  std::byte elsewhere[16]{};
  EXPECT_EQ(allocator_.keep_in_place({elsewhere, 16_B}, "RDMA"), 0_B);
  EXPECT_EQ(allocator_.keep_in_place({add(4_MiB).begin, 0_B}, "RDMA"), 0_B);
  EXPECT_THAT(allocator_.kept_in_place(), IsEmpty());
}

TEST_F(ElasticKeptTest, WhatOthersHoldCountsAgainstTheLimit) {
  (void)add(8_MiB);
  (void)allocator_.set_limit(12_MiB);
  allocator_.count_outside(4_MiB);
  EXPECT_FALSE(allocator_.work_pending());
  allocator_.count_outside(8_MiB);
  EXPECT_TRUE(allocator_.work_pending());
  EXPECT_TRUE(allocator_.safe_point().complete());
  EXPECT_EQ(allocator_.stats().device, 4_MiB);
  EXPECT_EQ(allocator_.stats().outside, 8_MiB);
  allocator_.count_outside(20_MiB);
  const LimitTicket ticket = allocator_.safe_point();
  EXPECT_EQ(allocator_.stats().device, 0_B);
  EXPECT_EQ(ticket.deferred, 8_MiB);
  EXPECT_EQ(ticket.reason, "others in the process hold 20 MiB");
  EXPECT_TRUE(allocator_.park().complete()) << "what is ours is parked";
  allocator_.count_outside({});  // the twin: with them gone, it all comes back
  (void)allocator_.grow(Bytes{UINT64_MAX});
  EXPECT_EQ(allocator_.stats().device, 8_MiB);
}

TEST_F(ElasticKeptTest, OutOfMemoryNamesWhatOthersHold) {
  MovingSource source;
  source.fake().set_capacity(Tier::kHost, 0_B);
  ElasticAllocatorOptions options;
  options.limit = 8_MiB;
  ElasticAllocator small(source, options);
  small.count_outside(6_MiB);
  try {
    (void)small.allocate(4_MiB);
    FAIL();
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("of it by others in the process 6 MiB"));
  }
  small.count_outside({});
  EXPECT_TRUE(small.deallocate(small.allocate(4_MiB)));
}

}  // namespace
}  // namespace commensal::elastic_kept_test

// SPDX-License-Identifier: Apache-2.0
// A source that is made when memory is asked for first, and an allocator over it.
#include "allocator/deferred_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/moving_source.h"

namespace commensal::deferred_source_test {
namespace {

using ::testing::HasSubstr;

class DeferredSourceTest : public ::testing::Test {
 protected:
  int made_ = 0;
  std::string refusal_;
  DeferredSource source_{[this]() -> std::unique_ptr<MemorySource> {
                           if (!refusal_.empty()) throw SourceError(refusal_);
                           ++made_;
                           return std::make_unique<MovingSource>();
                         },
                         2_MiB};
};

TEST_F(DeferredSourceTest, QuestionsDoNotMakeIt) {
  ElasticAllocator allocator(source_, {});
  (void)allocator.stats();
  (void)allocator.set_limit(1_GiB);
  (void)allocator.safe_point();
  (void)allocator.park();
  (void)allocator.release_cached();
  (void)allocator.memory_map(true);
  EXPECT_FALSE(allocator.owns(&allocator));
  EXPECT_TRUE(allocator.deallocate(nullptr));
  EXPECT_EQ(made_, 0);
  EXPECT_EQ(source_.made(), nullptr);
}

TEST_F(DeferredSourceTest, TheFirstBlockMakesItOnce) {
  ElasticAllocator allocator(source_, {});
  auto* const block = static_cast<unsigned char*>(allocator.allocate(4_MiB));
  void* const other = allocator.allocate(8_MiB);
  EXPECT_EQ(made_, 1);
  std::memset(block, 7, (4_MiB).count());
  // The disk may take longer than one move may.
  LimitTicket ticket = allocator.set_limit(2_MiB);
  for (int i = 0; i < 20 && !ticket.complete(); ++i) ticket = allocator.safe_point();
  EXPECT_TRUE(ticket.complete()) << ticket.reason;
  (void)allocator.set_limit(1_GiB);
  EXPECT_EQ(block[(4_MiB).count() - 1], 7);
  EXPECT_TRUE(allocator.deallocate(block));
  EXPECT_TRUE(allocator.deallocate(other));
}

TEST_F(DeferredSourceTest, WhatCannotBeMadeIsTriedAgain) {
  ElasticAllocator allocator(source_, {});
  refusal_ = "no device yet";
  try {
    (void)allocator.allocate(1_MiB);
    FAIL() << "a block of nothing";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("no device yet"));
  }
  refusal_.clear();
  void* const block = allocator.allocate(1_MiB);
  EXPECT_NE(block, nullptr);
  EXPECT_TRUE(allocator.deallocate(block));
}

TEST_F(DeferredSourceTest, TheLeaseIsKeptForIt) {
  source_.set_lease(8_MiB);
  const MemoryHandle handle = source_.create(Tier::kDevice, 2_MiB);
  source_.release(handle);
  EXPECT_EQ(source_.over_lease(), Bytes{});
  EXPECT_NE(source_.made(), nullptr);
}

TEST(DeferredSourceUnit, OneThatDoesNotFitIsRefused) {
  FakeMemorySource::Options options;
  options.granularity = 4_MiB;
  DeferredSource source([options] { return std::make_unique<FakeMemorySource>(options); }, 2_MiB);
  try {
    (void)source.reserve(2_MiB);
    FAIL() << "units of 4 MiB as units of 2";
  } catch (const SourceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("units of 4 MiB, not of 2 MiB"));
  }
  EXPECT_EQ(source.made(), nullptr);
}

}  // namespace
}  // namespace commensal::deferred_source_test

// SPDX-License-Identifier: Apache-2.0
// The spill file's disk fails: full, read-only, broken, gone. Nothing is lost, the ledger tells the
// truth, the reason names the error, and once the disk works again the same request succeeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "allocator/host/host_memory_source.h"
#include "tests/allocator/patterned_blocks.h"
#include "tests/faults/failing_disk.h"

namespace commensal::testing::disk_faults_test {
namespace {

using ::testing::HasSubstr;

/// An allocator on the machine's own memory with live blocks of 12 MiB in chunks of 2 MiB.
class DiskFaults : public ::testing::Test {
 protected:
  static constexpr Bytes kLive = 12_MiB;
  static constexpr Bytes kSmall = 2_MiB;

  void SetUp() override {
    if (source_.capacity(Tier::kHost).is_zero()) {
      GTEST_SKIP() << "no slower tier: " << source_.host_tier_reason();
    }
    for (int i = 0; i < 3; ++i) ASSERT_NE(blocks_.add(4_MiB), nullptr);
  }
  void TearDown() override { heal_disk(); }

  static ElasticAllocatorOptions options() {
    ElasticAllocatorOptions options;
    options.chunk_size = 2_MiB;
    options.move_deadline = std::chrono::seconds{60};  // a slow machine is no fault
    options.fence_deadline = std::chrono::seconds{10};
    return options;
  }
  void expect_books() {
    const AllocatorStats stats = allocator_.stats();
    EXPECT_EQ(stats.live, kLive);
    EXPECT_GE(stats.device + stats.host + stats.parked, kLive) << "every live byte is somewhere";
    EXPECT_EQ(stats.deferred_reason.empty(), stats.deferred.is_zero());
    blocks_.expect_all();
  }
  LimitTicket shrink() { return allocator_.set_limit(kSmall); }
  /// Brings everything back and moves it out once more: the disk works.
  void expect_all_works() {
    EXPECT_TRUE(allocator_.set_limit(1_GiB).complete()) << allocator_.stats().deferred_reason;
    EXPECT_EQ(allocator_.stats().host + allocator_.stats().parked, 0_B);
    blocks_.expect_all();
    EXPECT_TRUE(shrink().complete()) << allocator_.stats().deferred_reason;
    EXPECT_LE(allocator_.stats().device, kSmall);
    expect_books();
  }

  HostMemorySource source_;
  ElasticAllocator allocator_{source_, options()};
  PatternedBlocks blocks_{allocator_};
};

struct Fault {
  const char* name;
  DiskCall call;
  int error;
};

class DiskFaultsOnce : public DiskFaults, public ::testing::WithParamInterface<Fault> {
 protected:
  [[nodiscard]] bool on_the_way_back() const { return GetParam().call == DiskCall::kRead; }
  LimitTicket act() { return on_the_way_back() ? allocator_.set_limit(1_GiB) : shrink(); }
  void undo() {
    const LimitTicket ticket = on_the_way_back() ? shrink() : allocator_.set_limit(1_GiB);
    ASSERT_TRUE(ticket.complete()) << ticket.reason;
  }
  [[nodiscard]] bool done() const {
    const AllocatorStats stats = allocator_.stats();
    return on_the_way_back() ? (stats.host + stats.parked).is_zero() : stats.device <= kSmall;
  }
};

// A chunk is copied in many pieces: the first ones, some in between, and the last are tried.
std::vector<std::uint64_t> positions(std::uint64_t calls) {
  std::vector<std::uint64_t> chosen;
  for (std::uint64_t at = 1; at <= calls;
       at += at < 4 ? 1 : std::max<std::uint64_t>(1, calls / 9)) {
    chosen.push_back(at);
  }
  if (!chosen.empty() && chosen.back() != calls) chosen.push_back(calls);
  return chosen;
}

TEST_P(DiskFaultsOnce, Law2_OneErrorAnywhereLosesNothingAndARetrySucceeds) {
  if (on_the_way_back()) {
    ASSERT_TRUE(shrink().complete());
  }
  const std::uint64_t before = disk_calls(GetParam().call);
  ASSERT_TRUE(act().complete());
  const std::uint64_t calls = disk_calls(GetParam().call) - before;
  ASSERT_GT(calls, 0U);
  for (const std::uint64_t position : positions(calls)) {
    SCOPED_TRACE("call " + std::to_string(position) + " of " + std::to_string(calls));
    undo();
    const AllocatorStats stats_before = allocator_.stats();
    const std::uint64_t failures = disk_failures();
    break_disk(GetParam().call, GetParam().error, position);
    const LimitTicket ticket = act();
    EXPECT_EQ(disk_failures(), failures + 1) << "the fault was met";
    if (GetParam().error == kShortTransfer || GetParam().error == EINTR) {
      EXPECT_TRUE(ticket.complete()) << "no fault at all: " << ticket.reason;
    }
    expect_books();
    EXPECT_EQ(allocator_.stats().live, stats_before.live);
    heal_disk();
    (void)act();
    EXPECT_TRUE(done()) << allocator_.stats().deferred_reason;
    expect_books();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DiskFaultsOnce,
                         ::testing::Values(Fault{"FullWhileReserving", DiskCall::kReserve, ENOSPC},
                                           Fault{"FullWhileWriting", DiskCall::kWrite, ENOSPC},
                                           Fault{"TakesNoByte", DiskCall::kWrite, 0},
                                           Fault{"OverQuota", DiskCall::kWrite, EDQUOT},
                                           Fault{"ReadOnly", DiskCall::kWrite, EROFS},
                                           Fault{"ErrorOnWrite", DiskCall::kWrite, EIO},
                                           Fault{"ErrorOnRead", DiskCall::kRead, EIO},
                                           Fault{"EndsEarlyOnRead", DiskCall::kRead, 0},
                                           Fault{"TakesHalf", DiskCall::kWrite, kShortTransfer},
                                           Fault{"GivesHalf", DiskCall::kRead, kShortTransfer},
                                           Fault{"InterruptedWrite", DiskCall::kWrite, EINTR},
                                           Fault{"InterruptedRead", DiskCall::kRead, EINTR}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_F(DiskFaults, Law2_ADeadDiskDefersEveryShrinkWithItsErrorUntilItIsHealed) {
  for (const int error : {EIO, EROFS, ENOSPC}) {
    break_disk(DiskCall::kWrite, error, 1, true);
    for (int round = 0; round < 3; ++round) {
      const LimitTicket ticket = shrink();
      EXPECT_FALSE(ticket.complete());
      EXPECT_EQ(ticket.done + ticket.deferred, kLive - kSmall);
      EXPECT_THAT(ticket.reason, HasSubstr(std::strerror(error)));
      EXPECT_GE(allocator_.stats().device, kLive) << "all of it is still in memory";
      expect_books();
    }
    EXPECT_THAT(allocator_.park().reason, HasSubstr(std::strerror(error)));
    expect_books();
    heal_disk();
    EXPECT_TRUE(shrink().complete()) << allocator_.stats().deferred_reason;
    expect_all_works();
    ASSERT_TRUE(allocator_.set_limit(1_GiB).complete());
  }
}

TEST_F(DiskFaults, Law2_WhatCannotBeReadStaysWhereItIsUntilItCanBe) {
  ASSERT_TRUE(shrink().complete());
  const Bytes slow = allocator_.stats().host + allocator_.stats().parked;
  break_disk(DiskCall::kRead, EIO, 1, true);
  for (int round = 0; round < 3; ++round) {
    (void)allocator_.set_limit(1_GiB);
    EXPECT_EQ(allocator_.stats().host + allocator_.stats().parked, slow);
    EXPECT_EQ(allocator_.stats().live, kLive);
  }
  heal_disk();
  expect_all_works();
}

TEST_F(DiskFaults, AFullDiskIsNoReasonToRefuseWhatFitsOnTheDevice) {
  break_disk(DiskCall::kReserve, ENOSPC, 1, true);
  (void)shrink();
  EXPECT_EQ(blocks_.add(4_MiB), nullptr) << "above the limit, and there is no slower memory";
  expect_books();
  (void)allocator_.post_limit(1_GiB);
  std::byte* const block = blocks_.add(4_MiB);
  ASSERT_NE(block, nullptr);
  blocks_.remove(block);
  heal_disk();
  expect_all_works();
}

// The kernel's own answer, without anything injected: a file that may not grow.
TEST_F(DiskFaults, AFileSizeLimitThatFallsWhileTheJobRuns) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct sigaction ignore {};
  struct sigaction old {};
  ignore.sa_handler = SIG_IGN;
  ASSERT_EQ(::sigaction(SIGXFSZ, &ignore, &old), 0);
  const rlimit low{(4_MiB).count(), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const LimitTicket ticket = shrink();
  EXPECT_FALSE(ticket.complete());
  EXPECT_THAT(ticket.reason, HasSubstr(std::strerror(EFBIG)));
  expect_books();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_EQ(::sigaction(SIGXFSZ, &old, nullptr), 0);
  EXPECT_TRUE(shrink().complete()) << allocator_.stats().deferred_reason;
  expect_all_works();
}

TEST(SpillFolder, Law2_AFolderThatVanishesWhileItIsUsedTakesNothingWithIt) {
  std::string folder = "/var/tmp/commensal-fault-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  HostMemorySource::Options options;
  options.spill_folder = folder;
  HostMemorySource source{options};
  if (source.capacity(Tier::kHost).is_zero()) {
    std::filesystem::remove_all(folder);
    GTEST_SKIP() << "no slower tier: " << source.host_tier_reason();
  }
  ElasticAllocator allocator{source, {}};
  PatternedBlocks blocks{allocator};
  for (int i = 0; i < 3; ++i) ASSERT_NE(blocks.add(4_MiB), nullptr);
  ASSERT_TRUE(allocator.set_limit(2_MiB).complete()) << allocator.stats().deferred_reason;
  ASSERT_GT(std::filesystem::remove_all(folder), 0U);
  blocks.expect_all();
  EXPECT_TRUE(allocator.set_limit(1_GiB).complete());
  blocks.expect_all();
  EXPECT_TRUE(allocator.set_limit(0_B).complete()) << allocator.stats().deferred_reason;
  blocks.expect_all();
  blocks.remove_all();
  // The next job says so, and works without.
  HostMemorySource next{options};
  EXPECT_TRUE(next.capacity(Tier::kHost).is_zero());
  EXPECT_THAT(next.host_tier_reason(), HasSubstr(std::strerror(ENOENT)));
}

}  // namespace
}  // namespace commensal::testing::disk_faults_test

// SPDX-License-Identifier: Apache-2.0
// The slower tier on a host: which folders serve, what memory really comes back, what is touched.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "allocator/host/host_memory_source.h"
#include "allocator/host/own_descriptors.h"
#include "allocator/host/page_map.h"
#include "allocator/host/spill_file.h"
#include "tests/allocator/host_process.h"
#include "tests/allocator/restless_program.h"

namespace commensal::host_tier_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

HostMemorySource::Options with_cap(Bytes cap) {
  HostMemorySource::Options options;
  options.host_cap = cap;
  return options;
}

MemoryHandle move(HostMemorySource& source, std::byte* address, MemoryHandle from, Tier tier) {
  const MemoryHandle to = source.create(tier, from.size);
  const CopyTicket ticket = source.begin_copy(address, from, to);
  EXPECT_EQ(source.wait_copy(ticket), CopyState::kDone) << source.copy_error(ticket);
  const FenceResult fence = source.fence(2s);
  EXPECT_TRUE(fence.stopped) << fence.reason;
  EXPECT_EQ(source.swap(ticket, OnChange::kCopyInside), SwapResult::kSwapped);
  source.unfence();
  source.end_copy(ticket);
  source.release(from);
  return to;
}

TEST(HostTier, MemoryIsNotADisk) {
  struct statfs folder {};
  constexpr long kTmpfs = 0x01021994;
  if (::statfs("/dev/shm", &folder) != 0 || folder.f_type != kTmpfs) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  HostMemorySource::Options options;
  options.spill_folder = "/dev/shm";
  HostMemorySource source(options);
  EXPECT_EQ(source.capacity(Tier::kHost), Bytes{});
  EXPECT_EQ(source.host_tier_reason(), "/dev/shm is memory, not a disk: it is a tmpfs");
  const AddressRange range = source.reserve(2_MiB);
  source.map(range.begin, source.create(Tier::kDevice, 2_MiB));
  std::memset(range.begin, 1, range.size.count());
}

TEST(HostTier, UnusableFoldersAreReasonsNotFailures) {
  for (const std::string folder : {"/nonexistent/folder", "/proc", "/etc/passwd", ""}) {
    HostMemorySource::Options options;
    options.spill_folder = folder;
    const HostMemorySource source(options);
    EXPECT_EQ(source.capacity(Tier::kHost), Bytes{}) << folder;
    EXPECT_THAT(source.host_tier_reason(), HasSubstr(folder)) << folder;
    EXPECT_FALSE(source.host_tier_reason().empty());
  }
}

TEST(HostTier, ACapIsAFullDisk) {
  HostMemorySource source(with_cap(5_MiB));
  EXPECT_EQ(source.capacity(Tier::kHost), 4_MiB) << "whole chunks";
  const MemoryHandle first = source.create(Tier::kHost, 2_MiB);
  (void)source.create(Tier::kHost, 2_MiB);
  try {
    (void)source.create(Tier::kHost, 2_MiB);
    ADD_FAILURE() << "above the cap";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("4 MiB + 2 MiB > 4 MiB"));
  }
  source.release(first);
  EXPECT_NO_THROW((void)source.create(Tier::kHost, 2_MiB));
  const HostMemorySource none(with_cap(1_MiB));
  EXPECT_THAT(none.host_tier_reason(), HasSubstr("below one chunk: 1 MiB"));
}

TEST(HostTier, AtMostHalfOfTheFreeDisk) {
  const HostMemorySource source;
  struct statvfs disk {};
  ASSERT_EQ(::statvfs("/var/tmp", &disk), 0);
  const Bytes free{static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize};
  EXPECT_GT(source.capacity(Tier::kHost), Bytes{});
  EXPECT_LT(source.capacity(Tier::kHost), Bytes{free.count() / 4 * 3}) << "others write, too";
}

TEST(HostTier, WhatWasNeverSavedOnlyNeedsAnotherName) {
  HostMemorySource source(with_cap(8_MiB));
  const AddressRange range = source.reserve(2_MiB);
  MemoryHandle handle = source.create(Tier::kHost, 2_MiB);
  source.map(range.begin, handle);
  std::memset(range.begin, 7, range.size.count());
  const MemoryHandle device = source.create(Tier::kDevice, 2_MiB);
  ASSERT_TRUE(source.rename(range.begin, handle, device));
  EXPECT_EQ(range.begin[12345], std::byte{7});
  EXPECT_NO_THROW(source.release(handle)) << "nothing is mapped by the old name";
  EXPECT_THROW(source.release(device), std::logic_error) << "this is";
  // What is saved has to be read.
  handle = move(source, range.begin, device, Tier::kHost);
  const MemoryHandle back = source.create(Tier::kDevice, 2_MiB);
  EXPECT_FALSE(source.rename(range.begin, handle, back));
  EXPECT_EQ(range.begin[12345], std::byte{7});
  EXPECT_NO_THROW(source.release(back)) << "it is as before";
  EXPECT_EQ(source.touched(range.begin, handle).written, 0_B);
}

TEST(HostTier, NobodyIsRenamedByMistake) {
  HostMemorySource source(with_cap(8_MiB));
  const AddressRange range = source.reserve(4_MiB);
  const MemoryHandle handle = source.create(Tier::kHost, 2_MiB);
  const MemoryHandle large = source.create(Tier::kDevice, 4_MiB);
  const MemoryHandle other = source.create(Tier::kHost, 2_MiB);
  EXPECT_THROW((void)source.rename(range.begin, handle, other), std::logic_error) << "not mapped";
  source.map(range.begin, handle);
  EXPECT_THROW((void)source.rename(range.begin + 4096, handle, other), std::logic_error);
  EXPECT_THROW((void)source.rename(range.begin, handle, large), std::logic_error) << "of 4 MiB";
  EXPECT_THROW((void)source.rename(range.begin, handle, handle), std::logic_error) << "is mapped";
  EXPECT_FALSE(source.rename(range.begin, handle, other)) << "of the slower tier";
  const CopyTicket ticket = source.begin_copy(range.begin, handle, other);
  const MemoryHandle device = source.create(Tier::kDevice, 2_MiB);
  EXPECT_THROW((void)source.rename(range.begin, handle, device), std::logic_error) << "copied";
  source.end_copy(ticket);
  EXPECT_TRUE(source.rename(range.begin, handle, device));
}

TEST(HostTier, MemoryReallyComesBack) {
  constexpr Bytes kSize = 32_MiB;
  HostMemorySource source(with_cap(128_MiB));
  const AddressRange range = source.reserve(kSize);
  MemoryHandle handle = source.create(Tier::kDevice, kSize);
  source.map(range.begin, handle);
  std::memset(range.begin, 7, kSize.count());
  // The first move makes buffers and a thread, once.
  handle = move(source, range.begin, handle, Tier::kHost);
  handle = move(source, range.begin, handle, Tier::kDevice);
  const Bytes before = status_field("RssAnon");
  ASSERT_GT(before, kSize);
  handle = move(source, range.begin, handle, Tier::kHost);
  EXPECT_GE(saturating_sub(before, status_field("RssAnon")), 28_MiB);
  EXPECT_EQ(source.touched(range.begin, handle).written, Bytes{});

  handle = move(source, range.begin, handle, Tier::kDevice);
  EXPECT_GT(status_field("RssAnon") + 4_MiB, before);
  EXPECT_EQ(range.begin[kSize.count() - 1], std::byte{7});
  source.unmap(range.begin, handle);
  EXPECT_GE(saturating_sub(before, status_field("RssAnon")), 28_MiB);
}

TEST(HostTier, TouchedPagesAreSeenAndTrimmed) {
  constexpr Bytes kSize = 8_MiB;
  HostMemorySource source(with_cap(128_MiB));
  const AddressRange range = source.reserve(kSize);
  MemoryHandle handle = source.create(Tier::kDevice, kSize);
  source.map(range.begin, handle);
  std::memset(range.begin, 7, kSize.count());
  handle = move(source, range.begin, handle, Tier::kHost);
  EXPECT_LT(source.touched(range.begin, handle).resident, 1_MiB) << "nothing touched it yet";

  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < kSize.count(); i += 4096) {
    sum += static_cast<std::uint64_t>(range.begin[i]);
  }
  EXPECT_EQ(sum, 7 * kSize.count() / 4096);
  for (int i = 0; i < 16; ++i) range.begin[i * 65536] = std::byte{9};
  const MemorySource::Touched touched = source.touched(range.begin, handle);
  EXPECT_EQ(touched.resident, kSize);
  EXPECT_GE(touched.written, 64_KiB);
  EXPECT_LT(touched.written, kSize);

  const Bytes dropped = source.trim(range.begin, handle);
  EXPECT_GT(dropped, kSize - 1_MiB);
  EXPECT_LT(source.touched(range.begin, handle).resident, 1_MiB);
  EXPECT_EQ(source.touched(range.begin, handle).written, touched.written) << "they stay";
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(range.begin[i * 65536], std::byte{9});
    EXPECT_EQ(range.begin[i * 65536 + 4096], std::byte{7});
  }

  // Written pages go with the next version of the slot.
  handle = move(source, range.begin, handle, Tier::kHost);
  EXPECT_EQ(source.touched(range.begin, handle).written, Bytes{});
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(range.begin[i * 65536], std::byte{9});
    EXPECT_EQ(range.begin[i * 65536 + 4096], std::byte{7});
  }
}

TEST(HostTier, WhatComesBackIsOneMappingAgain) {
  constexpr std::uint64_t kChunks = 8;
  HostMemorySource source(with_cap(64_MiB));
  const AddressRange range = source.reserve(2_MiB * kChunks);
  std::vector<MemoryHandle> handles;
  for (std::uint64_t i = 0; i < kChunks; ++i) {
    handles.push_back(source.create(Tier::kDevice, 2_MiB));
    source.map(range.begin + i * (2U << 20U), handles[i]);
    std::memset(range.begin + i * (2U << 20U), static_cast<int>(i + 1), 2U << 20U);
  }
  EXPECT_EQ(mappings_in(range.begin, range.size.count()), 1);
  const std::array<std::uint64_t, kChunks> order = {3, 0, 7, 5, 1, 6, 2, 4};
  for (const std::uint64_t i : order) {
    handles[i] = move(source, range.begin + i * (2U << 20U), handles[i], Tier::kHost);
  }
  for (const std::uint64_t i : order) {
    handles[i] = move(source, range.begin + i * (2U << 20U), handles[i], Tier::kDevice);
  }
  EXPECT_EQ(source.remaps(), kChunks);
  EXPECT_EQ(mappings_in(range.begin, range.size.count()), 1);
  for (std::uint64_t i = 0; i < kChunks; ++i) {
    EXPECT_EQ(range.begin[(i + 1) * (2U << 20U) - 1], static_cast<std::byte>(i + 1));
  }
}

TEST(HostTier, ReservingUnderAnAddressSpaceLimitIsOutOfMemory) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto under_limit = [] {
    HostMemorySource source(with_cap(64_MiB));
    const Bytes limit = status_field("VmSize") + 96_MiB;
    const rlimit wanted{limit.count(), limit.count()};
    if (::setrlimit(RLIMIT_AS, &wanted) != 0) ::_exit(1);
    try {
      (void)source.reserve(1_GiB);
      ::_exit(2);
    } catch (const OutOfMemory&) {
    }
    const AddressRange range = source.reserve(64_MiB);  // there is no room for staging as well
    std::memset(range.begin, 1, 4096);
    ::_exit(0);
  };
  EXPECT_EXIT(under_limit(), ::testing::ExitedWithCode(0), "");
}

class PageMaps : public ::testing::TestWithParam<bool> {};

TEST_P(PageMaps, TellWrittenPagesFromResidentOnes) {
  const PageMap pages(GetParam());
  if (GetParam() && !pages.uses_scan()) GTEST_SKIP() << "this kernel has no PAGEMAP_SCAN";
  EXPECT_EQ(pages.uses_scan(), GetParam());
  HostMemorySource source(with_cap(64_MiB));
  const AddressRange range = source.reserve(4_MiB);
  MemoryHandle handle = source.create(Tier::kDevice, 4_MiB);
  source.map(range.begin, handle);
  std::memset(range.begin, 3, 4U << 20U);
  handle = move(source, range.begin, handle, Tier::kHost);
  range.begin[2 * 65536] = std::byte{4};
  range.begin[64 * 65536 - 1] = std::byte{4};
  std::array<std::uint8_t, 64> flags{};
  ASSERT_TRUE(pages.mark_written(range.begin, 4U << 20U, 65536, flags.data()));
  for (std::size_t i = 0; i < flags.size(); ++i) {
    EXPECT_EQ(flags[i], i == 2 || i == 63 ? 1 : 0) << i;
  }
  PageMap::Counts counts;
  ASSERT_TRUE(pages.count(range.begin, 4U << 20U, counts));
  EXPECT_GE(counts.resident, counts.written);
  EXPECT_GE(counts.written, 8_KiB);
  EXPECT_LE(counts.written, 128_KiB);
}
INSTANTIATE_TEST_SUITE_P(Scan, PageMaps, ::testing::Bool());

class SpillFiles : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<SpillFile> open(Bytes cap) {
    SpillFile::Options options;
    options.cap = cap;
    options.direct_io = GetParam();
    std::string reason;
    auto file = SpillFile::open(options, watch_, reason);
    EXPECT_EQ(reason, "");
    return file;
  }
  ChildWatch watch_;
};

TEST_P(SpillFiles, SlotsKeepTheirBytes) {
  const auto file = open(64_MiB);
  ASSERT_NE(file, nullptr);
  EXPECT_LE(file->direct(), GetParam());
  const SpillSlot a = file->allocate(2_MiB);
  const SpillSlot b = file->allocate(4_MiB);
  EXPECT_NE(a.offset, b.offset);
  struct alignas(4096) Block {
    std::array<std::byte, 65536> bytes;
  };
  const auto out = std::make_unique<Block>();
  const auto in = std::make_unique<Block>();
  for (const auto& [slot, at, value] :
       {std::tuple{a, 0, 1}, {a, (2 << 20) - 65536, 2}, {b, 1 << 20, 3}}) {
    out->bytes.fill(static_cast<std::byte>(value));
    ASSERT_EQ(file->write(slot, static_cast<std::uint64_t>(at), out->bytes.data(), 65536), 0);
    ASSERT_EQ(file->settle(slot), 0);
    ASSERT_EQ(file->read(slot, static_cast<std::uint64_t>(at), in->bytes.data(), 65536), 0);
    EXPECT_EQ(in->bytes, out->bytes);
  }
}

// The program closes all descriptors, as daemon code does, and opens a file in place of each.
TEST_P(SpillFiles, NothingIsWrittenToAFileThatTookItsNumber) {
  const auto file = open(4_MiB);
  ASSERT_NE(file, nullptr);
  const SpillSlot slot = file->allocate(2_MiB);
  close_all_descriptors();
  const int users = ::memfd_create("users", MFD_CLOEXEC);
  ASSERT_EQ(::write(users, "user data\n", 10), 10);
  for (int number = users + 1; number < 1024; ++number) ::dup3(users, number, O_CLOEXEC);
  struct alignas(4096) Block {
    std::array<std::byte, 65536> bytes;
  };
  const auto out = std::make_unique<Block>();
  const auto in = std::make_unique<Block>();
  out->bytes.fill(std::byte{7});
  EXPECT_EQ(file->write(slot, 65536, out->bytes.data(), 65536), 0);
  EXPECT_EQ(file->settle(slot), 0);
  EXPECT_EQ(file->read(slot, 65536, in->bytes.data(), 65536), 0);
  EXPECT_EQ(in->bytes, out->bytes);
  struct stat status {};
  EXPECT_EQ(::fstat(users, &status), 0);
  EXPECT_EQ(status.st_size, 10) << "the user's file";
  close_all_descriptors();
}

TEST_P(SpillFiles, FreedSlotsAreUsedAgainAndTheFileKeepsItsCap) {
  const auto file = open(16_MiB);
  ASSERT_NE(file, nullptr);
  // Sizes that leave holes: in the end the file is longer than its cap, but not the disk it uses.
  for (int round = 0; round < 20; ++round) {
    std::vector<SpillSlot> small;
    for (int i = 0; i < 8; ++i) small.push_back(file->allocate(2_MiB));
    EXPECT_EQ(file->used(), 16_MiB);
    EXPECT_THROW((void)file->allocate(2_MiB), OutOfMemory);
    for (std::size_t i = 0; i < small.size(); i += 2) file->free(small[i]);
    const SpillSlot large = file->allocate(8_MiB);
    for (std::size_t i = 1; i < small.size(); i += 2) file->free(small[i]);
    file->free(large);
    EXPECT_EQ(file->used(), Bytes{});
  }
  struct stat status {};
  ASSERT_EQ(own_descriptors::call(SYS_fstat, file->descriptor(), &status), 0);
  EXPECT_LE(Bytes{static_cast<std::uint64_t>(status.st_blocks) * 512}, 17_MiB);
}
INSTANTIATE_TEST_SUITE_P(Direct, SpillFiles, ::testing::Bool());

}  // namespace
}  // namespace commensal::host_tier_test

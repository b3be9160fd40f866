// SPDX-License-Identifier: Apache-2.0
// The kernel's notes of what was written: what they see, and what a move does with them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>

#include "allocator/host/host_memory_source.h"
#include "allocator/host/write_watch.h"

namespace commensal::host_write_watch_test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 16;

class WriteWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (watch_ == nullptr) GTEST_SKIP() << "this kernel or sandbox does not note writes";
    void* got =
        ::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(got, MAP_FAILED);
    memory_ = static_cast<std::byte*>(got);
    std::memset(memory_, 1, kPages * kPage / 2);  // the other half was never touched
    ASSERT_TRUE(watch_->prepare(memory_, kPages * kPage));
    ASSERT_TRUE(watch_->arm(memory_, kPages * kPage));
  }
  void TearDown() override {
    if (memory_ != nullptr) ::munmap(memory_, kPages * kPage);
  }
  // Returns the numbers of the pages that were written, as bits.
  std::uint32_t written() {
    std::array<std::uint8_t, kPages> flags{};
    EXPECT_TRUE(watch_->changed(memory_, kPages * kPage, kPage, flags.data()));
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < kPages; ++i) bits |= std::uint32_t{flags[i]} << i;
    return bits;
  }

  PageMap pages_;
  std::unique_ptr<WriteWatch> watch_ = WriteWatch::open(pages_);
  std::byte* memory_ = nullptr;
};

TEST_F(WriteWatchTest, NothingIsWrittenAtFirst) {
  EXPECT_EQ(written(), 0U);
  volatile std::byte read = memory_[0];
  read = memory_[kPages * kPage - 1];
  (void)read;
  EXPECT_EQ(written() & 1U, 0U) << "to read is not to write";
}

TEST_F(WriteWatchTest, P42_StoresAndSystemCallsAreSeen) {
  memory_[3 * kPage] = std::byte{2};
  memory_[12 * kPage + 17] = std::byte{2};  // a page that was not there
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "abc", 3), 3);
  ASSERT_EQ(::read(ends[0], memory_ + 5 * kPage, 3), 3);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(written(), 1U << 3U | 1U << 5U | 1U << 12U);
}

TEST_F(WriteWatchTest, P42_DirectReadsAreSeen) {
  const std::string name = ::testing::TempDir() + "/watch-XXXXXX";
  std::string path = name;
  const int fd = ::mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ::unlink(path.c_str());
  std::array<char, kPage> data{};
  ASSERT_EQ(::write(fd, data.data(), kPage), static_cast<ssize_t>(kPage));
  ::fcntl(fd, F_SETFL, O_DIRECT);  // where the folder does not have it, the read is a plain one
  ASSERT_EQ(::pread(fd, memory_ + 7 * kPage, kPage, 0), static_cast<ssize_t>(kPage));
  ::close(fd);
  EXPECT_EQ(written(), 1U << 7U);
}

TEST_F(WriteWatchTest, AWriteOfTheSameValueCounts) {
  memory_[2 * kPage] = std::byte{1};
  EXPECT_EQ(written(), 1U << 2U) << "no blind spot for a value that comes back";
}

TEST_F(WriteWatchTest, ArmedAgainItBeginsAnew) {
  memory_[0] = std::byte{9};
  ASSERT_TRUE(watch_->arm(memory_, kPages * kPage));
  EXPECT_EQ(written(), 0U);
  memory_[kPage] = std::byte{9};
  EXPECT_EQ(written(), 2U);
}

TEST_F(WriteWatchTest, WhatIsForgottenCountsAsWritten) {
  watch_->forget(memory_, kPages * kPage);
  EXPECT_FALSE(watch_->arm(memory_, kPages * kPage)) << "not prepared";
  std::array<std::uint8_t, kPages> flags{};
  const bool told = watch_->changed(memory_, kPages * kPage, kPage, flags.data());
  const auto bits = std::accumulate(flags.begin(), flags.begin() + kPages / 2, 0U);
  EXPECT_EQ(bits, kPages / 2) << told;
  watch_->forget(memory_, kPages * kPage);  // twice does no harm
}

TEST_F(WriteWatchTest, WithoutTheScanThereIsNone) {
  const PageMap plain(false);
  EXPECT_EQ(WriteWatch::open(plain), nullptr);
  std::array<std::uint8_t, kPages> flags{};
  EXPECT_FALSE(plain.mark_unprotected(memory_, kPages * kPage, kPage, flags.data()));
  for (const std::uint8_t flag : flags) EXPECT_EQ(flag, 1) << "what is not known counts";
}

/// Moves a chunk out while a write comes between copy and stop; returns what is read afterwards.
std::uint64_t value_after_a_late_write(HostMemorySource::Testing testing, SwapResult& result) {
  HostMemorySource::Options options;
  options.host_cap = 64_MiB;
  options.testing = testing;
  HostMemorySource source(options);
  if (source.capacity(Tier::kHost).is_zero()) return UINT64_MAX;
  const Bytes size = 2_MiB;
  std::byte* const chunk = source.reserve(size).begin;
  const MemoryHandle from = source.create(Tier::kDevice, size);
  source.map(chunk, from);
  auto* const value = reinterpret_cast<volatile std::uint64_t*>(chunk);
  *value = 1;
  const MemoryHandle to = source.create(Tier::kHost, size);
  const CopyTicket ticket = source.begin_copy(chunk, from, to);
  if (source.watches(Tier::kHost) && source.fence(2s).stopped) {
    source.watch(std::span(&ticket, 1));
    source.unfence();
  }
  EXPECT_EQ(source.wait_copy(ticket), CopyState::kDone);
  *value = 2;
  EXPECT_TRUE(source.fence(2s).stopped);
  result = source.swap(ticket, OnChange::kLeave);
  if (result == SwapResult::kChanged) result = source.swap(ticket, OnChange::kCopyInside);
  source.unfence();
  source.end_copy(ticket);
  return *value;
}

TEST(WatchedMove, P42_ALateWriteIsFoundByTheKernelsNotes) {
  SwapResult result = SwapResult::kFailed;
  const std::uint64_t value = value_after_a_late_write({}, result);
  if (value == UINT64_MAX) GTEST_SKIP() << "no slower tier here";
  EXPECT_EQ(result, SwapResult::kSwapped);
  EXPECT_EQ(value, 2U);
}

TEST(WatchedMove, P42_ALateWriteIsLostWhenTheNotesAreIgnored) {
  const PageMap pages;
  if (WriteWatch::open(pages) == nullptr) GTEST_SKIP() << "this kernel does not note writes";
  HostMemorySource::Testing deaf;
  deaf.heed_watch = false;
  SwapResult result = SwapResult::kFailed;
  const std::uint64_t value = value_after_a_late_write(deaf, result);
  if (value == UINT64_MAX) GTEST_SKIP() << "no slower tier here";
  EXPECT_EQ(value, 1U) << "the notes are not what found the write";
}

}  // namespace
}  // namespace commensal::host_write_watch_test

// SPDX-License-Identifier: Apache-2.0
// Chunks that move together: one is copied while another is being written, or read.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "allocator/host/child_watch.h"
#include "allocator/host/host_memory_source.h"
#include "allocator/host/slot_io.h"
#include "allocator/host/spill_file.h"

namespace commensal::host_pipeline_test {
namespace {

using namespace std::chrono_literals;

class HostPipeline : public ::testing::Test {
 protected:
  // Several buffers a chunk, so that a chunk is written in parts.
  static constexpr Bytes kSize = 6_MiB;
  static constexpr std::size_t kChunks = 4;

  struct Chunk {
    std::byte* address = nullptr;
    MemoryHandle handle;
    MemoryHandle to;
    CopyTicket ticket;
  };

  void SetUp() override {
    HostMemorySource::Options options;
    options.host_cap = 64_MiB;
    source_ = std::make_unique<HostMemorySource>(options);
    ASSERT_EQ(source_->host_tier_reason(), "");
    std::byte* const begin = source_->reserve(Bytes{kSize.count() * kChunks}).begin;
    for (std::size_t i = 0; i < kChunks; ++i) {
      Chunk& chunk = chunks_[i];
      chunk.address = begin + i * kSize.count();
      chunk.handle = source_->create(Tier::kDevice, kSize);
      source_->map(chunk.address, chunk.handle);
      const std::vector<std::byte> bytes = content(i);
      std::copy(bytes.begin(), bytes.end(), chunk.address);
      chunk.to = source_->create(Tier::kHost, kSize);
    }
  }

  // Every 8 bytes differ from all others of all chunks.
  static std::vector<std::byte> content(std::size_t number) {
    std::vector<std::byte> bytes(kSize.count());
    for (std::uint64_t i = 0; i < bytes.size(); i += sizeof i) {
      const std::uint64_t word = (number + 1) * 0x9E3779B97F4A7C15U + i;
      std::memcpy(bytes.data() + i, &word, sizeof word);
    }
    return bytes;
  }

  void begin(Chunk& chunk) {
    chunk.ticket = source_->begin_copy(chunk.address, chunk.handle, chunk.to);
  }
  void wait(Chunk& chunk) {
    EXPECT_EQ(source_->wait_copy(chunk.ticket), CopyState::kDone)
        << source_->copy_error(chunk.ticket);
  }
  void give_up(Chunk& chunk) { source_->end_copy(chunk.ticket); }

  void swap(const std::vector<Chunk*>& together) {
    ASSERT_TRUE(source_->fence(2s).stopped);
    std::vector<SwapResult> results;
    results.reserve(together.size());
    for (const Chunk* chunk : together) {
      results.push_back(source_->swap(chunk->ticket, OnChange::kLeave));
    }
    source_->unfence();
    EXPECT_EQ(results, std::vector<SwapResult>(together.size(), SwapResult::kSwapped));
    for (Chunk* chunk : together) {
      source_->end_copy(chunk->ticket);
      source_->release(chunk->handle);
      chunk->handle = chunk->to;
    }
  }

  void expect_whole() {
    for (std::size_t i = 0; i < kChunks; ++i) {
      const std::vector<std::byte> wanted = content(i);
      EXPECT_EQ(std::memcmp(chunks_[i].address, wanted.data(), wanted.size()), 0) << "chunk " << i;
    }
  }

  std::unique_ptr<HostMemorySource> source_;
  std::array<Chunk, kChunks> chunks_;
};

TEST_F(HostPipeline, ChunksThatMoveTogetherKeepTheirBytes) {
  for (Chunk& chunk : chunks_) begin(chunk);
  for (Chunk& chunk : chunks_) wait(chunk);
  swap({&chunks_[0], &chunks_[1], &chunks_[2], &chunks_[3]});
  expect_whole();
}

TEST_F(HostPipeline, TheyMayBeWaitedForInAnyOrder) {
  for (Chunk& chunk : chunks_) begin(chunk);
  for (const std::size_t i : {2U, 0U, 3U, 1U}) wait(chunks_[i]);
  swap({&chunks_[1], &chunks_[3], &chunks_[0], &chunks_[2]});
  expect_whole();
}

TEST_F(HostPipeline, AChunkThatIsGivenUpHalfwayHarmsNoOther) {
  for (Chunk& chunk : chunks_) begin(chunk);
  wait(chunks_[0]);
  give_up(chunks_[1]);  // perhaps in the middle of being written
  wait(chunks_[2]);
  swap({&chunks_[0], &chunks_[2]});
  expect_whole();
  wait(chunks_[3]);
  begin(chunks_[1]);  // a retry
  wait(chunks_[1]);
  swap({&chunks_[1], &chunks_[3]});
  expect_whole();
}

TEST_F(HostPipeline, AWriteAfterAChunkWasCopiedAheadIsSeen) {
  for (Chunk& chunk : chunks_) begin(chunk);
  wait(chunks_[0]);
  chunks_[1].address[0] ^= std::byte{1};
  for (std::size_t i = 1; i < kChunks; ++i) wait(chunks_[i]);
  chunks_[1].address[0] ^= std::byte{1};  // as at first: whichever was copied, one change shows
  chunks_[2].address[kSize.count() - 1] ^= std::byte{1};
  ASSERT_TRUE(source_->fence(2s).stopped);
  const SwapResult changed = source_->swap(chunks_[2].ticket, OnChange::kLeave);
  const SwapResult copied = source_->swap(chunks_[2].ticket, OnChange::kCopyInside);
  const SwapResult second = source_->swap(chunks_[1].ticket, OnChange::kCopyInside);
  source_->unfence();
  EXPECT_EQ(changed, SwapResult::kChanged);
  EXPECT_EQ(copied, SwapResult::kSwapped);
  EXPECT_EQ(second, SwapResult::kSwapped);
  chunks_[2].address[kSize.count() - 1] ^= std::byte{1};
  expect_whole();
}

TEST_F(HostPipeline, ChunksMoveOutWhileOthersComeBack) {
  for (const std::size_t i : {0U, 1U}) {
    begin(chunks_[i]);
    wait(chunks_[i]);
  }
  swap({&chunks_[0], &chunks_[1]});
  for (const std::size_t i : {0U, 1U}) chunks_[i].to = source_->create(Tier::kDevice, kSize);
  for (Chunk& chunk : chunks_) begin(chunk);
  for (const std::size_t i : {2U, 0U, 1U, 3U}) wait(chunks_[i]);
  swap({&chunks_[0], &chunks_[2], &chunks_[1], &chunks_[3]});
  expect_whole();
  EXPECT_EQ(chunks_[0].handle.tier, Tier::kDevice);
  EXPECT_EQ(chunks_[3].handle.tier, Tier::kHost);
}

// The threads that write to a spill file and read from it.
class SlotIos : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = SlotIo::kBuffer;

  void SetUp() override {
    std::string reason;
    file_ = SpillFile::open(SpillFile::Options{}, watch_, reason);
    ASSERT_NE(file_, nullptr) << reason;
    io_ = std::make_unique<SlotIo>(*file_);
  }
  void fill(std::byte* bytes, std::uint8_t with) { std::memset(bytes, with, kSize); }
  static bool holds(const std::byte* bytes, std::uint8_t what) {
    return std::all_of(bytes, bytes + kSize, [&](std::byte b) { return b == std::byte{what}; });
  }

  ChildWatch watch_;
  std::unique_ptr<SpillFile> file_;
  std::unique_ptr<SlotIo> io_;
};

TEST_F(SlotIos, AWriteAndAReadAreUnderWayAtOnce) {
  const SpillSlot first = file_->allocate(2_MiB);
  const SpillSlot second = file_->allocate(2_MiB);
  int owners[2] = {};
  fill(io_->buffer(), 1);
  io_->write(first, 0, io_->buffer(), kSize, &owners[0]);
  EXPECT_EQ(io_->collect().owner, &owners[0]);

  std::byte* const out = io_->buffer();
  fill(out, 2);
  io_->write(second, 0, out, kSize, &owners[0]);
  ASSERT_TRUE(io_->room()) << "the write need not be over";
  std::byte* const in = io_->buffer();
  EXPECT_NE(in, out);
  io_->read(first, 0, in, kSize, &owners[1]);
  EXPECT_FALSE(io_->room());
  EXPECT_EQ(io_->buffer(), nullptr);
  const SlotIo::Done written = io_->collect();
  const SlotIo::Done read = io_->collect();
  EXPECT_EQ(written.owner, &owners[0]);
  EXPECT_EQ(written.error, 0);
  EXPECT_EQ(read.owner, &owners[1]);
  EXPECT_EQ(read.error, 0);
  EXPECT_TRUE(holds(in, 1));
  EXPECT_TRUE(io_->idle());
  std::byte* const again = io_->buffer();
  io_->read(second, 0, again, kSize, nullptr);
  EXPECT_EQ(io_->collect().error, 0);
  EXPECT_TRUE(holds(again, 2));
}

TEST_F(SlotIos, AnErrorBelongsToItsRequest) {
  const SpillSlot slot = file_->allocate(2_MiB);
  const SpillSlot beyond{slot.offset + (std::uint64_t{1} << 40U), 2_MiB, slot.made};
  int owner = 0;
  io_->read(beyond, 0, io_->buffer(), kSize, &owner);  // nothing is there
  fill(io_->buffer(), 3);
  io_->write(slot, 0, io_->buffer(), kSize, nullptr);
  const SlotIo::Done failed = io_->collect();
  EXPECT_EQ(failed.owner, &owner);
  EXPECT_EQ(failed.error, EIO);
  EXPECT_EQ(io_->collect().error, 0);
}

TEST_F(SlotIos, WhatIsUnderWayEndsBeforeTheThreadsDo) {
  const SpillSlot slot = file_->allocate(2_MiB);
  fill(io_->buffer(), 4);
  io_->write(slot, 0, io_->buffer(), kSize, nullptr);
  io_.reset();
  io_ = std::make_unique<SlotIo>(*file_);
  io_->read(slot, 0, io_->buffer(), kSize, nullptr);
  std::byte* const bytes = io_->buffer() - kSize;
  EXPECT_EQ(io_->collect().error, 0);
  EXPECT_TRUE(holds(bytes, 4));
}

}  // namespace
}  // namespace commensal::host_pipeline_test

// SPDX-License-Identifier: Apache-2.0
// Chunks that move out together: one is copied while another is being written.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "allocator/host/host_memory_source.h"

namespace commensal {
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

}  // namespace
}  // namespace commensal

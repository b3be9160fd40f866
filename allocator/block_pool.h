// SPDX-License-Identifier: Apache-2.0
// Blocks of one pool: best fit with split and merge over the mapped chunks of its segments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "allocator/segment.h"
#include "allocator/size_bins.h"

namespace commensal {

/// Chunks to map so that a request fits, beside the free memory that already lies there.
struct GrowthPlace {
  Segment* segment = nullptr;  ///< null: no segment has room
  std::size_t first_chunk = 0;
  std::size_t chunks = 0;
};

/// Hands out blocks of mapped chunks. Blocks are multiples of `unit`. Free memory on the device
/// ("fast") and on the slower tier is kept apart; neighbours merge unless a hole (a chunk without
/// memory), a tier border or a busy block lies between them.
///
/// In front stand the recent blocks: freed blocks up to `kRecentMax` bytes that keep their size
/// and serve the next request of it, last in, first out.
///
/// Calls no memory source. Thread safety: none (the allocator's block lock).
class BlockPool {
 public:
  static constexpr std::size_t kRecentMax = std::size_t{256} << 10U;

  /// @param unit  power of two; @param number  stored in each of its segments.
  BlockPool(std::size_t unit, std::uint32_t number);

  [[nodiscard]] std::size_t rounded(std::size_t size) const noexcept {
    return (size + unit_ - 1) & ~(unit_ - 1);
  }
  [[nodiscard]] std::size_t unit() const noexcept { return unit_; }
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }

  // --- the hot path ------------------------------------------------------------------------
  /// Returns a recently freed block of exactly `size` (rounded) bytes, live again; or none.
  [[nodiscard]] BlockId take_recent(std::size_t size) noexcept {
    const std::size_t slot = size >> unit_shift_;
    if (slot >= recent_.size() || recent_[slot] == 0) return 0;
    const BlockId id = recent_[slot];
    Block& block = table_[id];
    recent_[slot] = block.list_next;
    block.state = BlockState::kLive;
    recent_bytes_ -= block.size;
    return id;
  }
  /// Puts a live block among the recent ones; false if it is too large for that.
  bool keep_recent(BlockId id) noexcept {
    Block& block = table_[id];
    const std::size_t slot = block.size >> unit_shift_;
    if (slot >= recent_.size()) return false;
    block.state = BlockState::kRecent;
    block.list_next = recent_[slot];
    recent_[slot] = id;
    recent_bytes_ += block.size;
    return true;
  }
  [[nodiscard]] Block& operator[](BlockId id) const noexcept { return table_[id]; }
  /// Returns the live block that starts at `address` in `segment`, or none.
  [[nodiscard]] BlockId live_at(const Segment& segment, const std::byte* address) const noexcept {
    const BlockId id = segment.entry(address);
    if (id == 0) return 0;
    const Block& block = table_[id];
    return block.address == address && block.state == BlockState::kLive ? id : 0;
  }
  /// Notes that `operation` used a block's chunks.
  void touch(const Block& block, std::uint64_t operation) noexcept {
    Segment& segment = *block.segment;
    const std::size_t last = segment.chunk_of(block.end() - 1);
    for (std::size_t c = block.first_chunk; c <= last; ++c) segment.chunks[c].last_use = operation;
  }
  [[nodiscard]] std::size_t recent_bytes() const noexcept { return recent_bytes_; }
  /// Returns bytes of live and recent blocks, rounded.
  [[nodiscard]] std::size_t used_bytes() const noexcept { return used_bytes_; }

  // --- blocks ------------------------------------------------------------------------------
  /// Merges all recent blocks back. Returns their bytes.
  std::size_t flush_recent(std::uint64_t safe_point) noexcept;
  /// Returns a live block of `size` (rounded) bytes from free memory, or none.
  /// @throws std::bad_alloc when there is no memory for a node; nothing has changed then.
  [[nodiscard]] BlockId take(std::size_t size, bool fast);
  /// Takes a live block back and merges it. Calls no allocation function that can throw.
  void give_back(BlockId id, std::uint64_t safe_point) noexcept;

  // --- chunks ------------------------------------------------------------------------------
  void add_segment(Segment& segment);
  /// Adding it again right after cannot fail.
  void remove_segment(const Segment& segment) noexcept;
  [[nodiscard]] const std::vector<Segment*>& segments() const noexcept { return segments_; }

  /// Returns where `size` bytes fit with the fewest new chunks; `fast`: only beside free memory
  /// of the device.
  [[nodiscard]] GrowthPlace find_place(std::size_t size, bool fast) const noexcept;
  /// Free memory beside a place, taken out of the bins while chunks are mapped between.
  struct Held {
    GrowthPlace place;
    BlockId node = 0;  // for the new range, so that nothing can fail later
    BlockId before = 0;
    BlockId after = 0;
  };
  /// Returns none when the place no longer serves `size` bytes: since it was found, somebody took
  /// free memory beside it. @throws std::bad_alloc; nothing has changed then.
  [[nodiscard]] std::optional<Held> hold(const GrowthPlace& place, std::size_t size, bool fast);
  /// Gives up: the free memory goes back to the bins; chunks of the place that stayed mapped
  /// (their tier is set) become free memory.
  void drop(const Held& held) noexcept;
  /// All chunks of the place are mapped: returns a live block of `size` bytes from them and the
  /// held memory; the rest becomes free memory.
  [[nodiscard]] BlockId take_held(const Held& held, std::size_t size) noexcept;

  /// Takes a wholly free chunk out of the free memory, before it is unmapped. @throws
  /// std::bad_alloc; nothing has changed then.
  [[nodiscard]] BlockId carve(Segment& segment, std::size_t chunk);
  /// The carved chunk is unmapped: its addresses become a hole.
  void make_hole(BlockId carved) noexcept;
  /// The carved chunk stays: its addresses become free memory again.
  void uncarve(BlockId carved) noexcept { make_free(carved); }

  /// Before the tier of a chunk changes: takes its free memory out of the bins.
  void begin_retier(Segment& segment, std::size_t chunk) noexcept;
  /// After it has changed: sorts it in anew.
  void end_retier(Segment& segment, std::size_t chunk) noexcept;

 private:
  [[nodiscard]] SizeBins& bins(bool fast) noexcept { return fast ? fast_bins_ : slow_bins_; }
  void note_borders(BlockId id, const std::byte* begin, const std::byte* end) noexcept;
  [[nodiscard]] BlockId split(BlockId id, std::size_t size) noexcept;
  [[nodiscard]] BlockId join(BlockId left, BlockId right) noexcept;
  void add_range(BlockId id, Segment& segment, std::size_t chunk, std::size_t chunks) noexcept;
  void make_free(BlockId id) noexcept;
  void make_free_piece(BlockId id) noexcept;
  void make_live(BlockId id) noexcept;
  void uncount(const Block& block, std::uint64_t safe_point) noexcept;
  void take_out(BlockId id) noexcept;
  [[nodiscard]] std::size_t run_of_one_kind(const Block& block) const noexcept;
  template <typename Change>
  void each_chunk(const Block& block, Change change) noexcept;

  std::size_t unit_;
  unsigned unit_shift_;
  std::uint32_t number_;
  BlockTable table_;
  SizeBins fast_bins_;
  SizeBins slow_bins_;
  std::vector<BlockId> recent_;  // by size / unit
  std::size_t recent_bytes_ = 0;
  std::size_t used_bytes_ = 0;
  std::vector<Segment*> segments_;  // in the order they were reserved
};

}  // namespace commensal

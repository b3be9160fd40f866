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
/// memory), a tier border or a busy block lies between them. Free memory of dropped chunks, and of
/// those that are away, serves nobody: it stays busy until they have memory again.
///
/// Calls no memory source. Thread safety: none (the allocator's block lock), but for nodes of live
/// blocks (front_lane.h), which is why a pool begins on a line of its own.
class alignas(64) BlockPool {
 public:
  /// @param unit  power of two; @param number  stored in each of its segments.
  BlockPool(std::size_t unit, std::uint32_t number);

  [[nodiscard]] std::size_t rounded(std::size_t size) const noexcept {
    return (size + unit_ - 1) & ~(unit_ - 1);
  }
  [[nodiscard]] std::size_t unit() const noexcept { return unit_; }
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }

  [[nodiscard]] Block& operator[](BlockId id) const noexcept { return table_[id]; }
  [[nodiscard]] const BlockTable& nodes() const noexcept { return table_; }
  /// Returns the live block that starts at `address` in `segment`, or none.
  [[nodiscard]] BlockId live_at(const Segment& segment, const std::byte* address) const noexcept {
    const BlockId id = segment.entry(address);
    if (id == 0) return 0;
    const Block& block = table_[id];
    return block.address == address && block.state == BlockState::kLive ? id : 0;
  }
  /// Tells whether all chunks of a block are on the device, to stay.
  [[nodiscard]] bool on_device(const Block& block) const noexcept;
  /// Returns bytes of live and recent blocks, rounded.
  [[nodiscard]] std::size_t used_bytes() const noexcept { return used_bytes_; }
  /// Returns bytes of chunks, of any tier, on which such blocks lie.
  [[nodiscard]] std::size_t busy_bytes() const noexcept { return busy_bytes_; }

  // --- blocks ------------------------------------------------------------------------------
  /// Returns a live block of `size` (rounded) bytes from free memory, or none.
  /// @throws std::bad_alloc when there is no memory for a node; nothing has changed then.
  [[nodiscard]] BlockId take(std::size_t size, bool fast);
  /// Takes a live or recent block back and merges it. Calls no allocation function that can throw.
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

  /// Tells whether a chunk has memory, all of it free; what is held beside a place is not.
  [[nodiscard]] bool is_free(const Segment& segment, std::size_t chunk) const noexcept;
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
  std::size_t used_bytes_ = 0;
  std::size_t busy_bytes_ = 0;
  std::vector<Segment*> segments_;  // in the order they were reserved
};

}  // namespace commensal

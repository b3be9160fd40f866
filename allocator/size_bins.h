// SPDX-License-Identifier: Apache-2.0
// Free blocks sorted by size: constant-time insert and remove, near-best fit by bitmaps.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "allocator/base/relaxed.h"
#include "allocator/lifetime.h"
#include "allocator/segment.h"

namespace commensal {

enum class BlockState : std::uint8_t {
  kUnused,  ///< the node stands for nothing
  kFree,    ///< in the bins
  kBusy,    ///< free, but taken out of the bins while its chunks change
  kLive,    ///< handed out
  kRecent   ///< freed and kept whole for the next request of its size
};

/// What is known of one block; kept out of band, so that a free block is never touched. Guarded by
/// the block lock; of a live or recent block, `state`, `asked`, `list_next`, `lane` and `mark` by
/// its lane. On a line of its own, because lanes use neighbours at the same time.
struct alignas(64) Block {
  std::byte* address = nullptr;
  std::size_t size = 0;   ///< rounded
  std::size_t asked = 0;  ///< live: as the caller asked
  Segment* segment = nullptr;
  BlockId prev = 0;  ///< neighbours by address; none at a hole
  BlockId next = 0;
  BlockId list_prev = 0;  ///< neighbours in a bin or in the list of recent blocks
  BlockId list_next = 0;
  std::uint32_t first_chunk = 0;
  Relaxed<BlockState> state = BlockState::kUnused;
  bool fast = true;       ///< every chunk of it is on the device
  std::uint8_t lane = 0;  ///< live: in which lane it was born
  BirthMark mark;         ///< live: where the guess of its lifetime came from

  [[nodiscard]] std::byte* end() const noexcept { return address + size; }
};

/// Block nodes by id, in slabs that never move: 1024, then as many again as there are. Thread
/// safety: changes need the block lock; whoever knows a node's id may find it.
class BlockTable {
 public:
  [[nodiscard]] Block& operator[](BlockId id) const noexcept {
    const std::size_t at = id + kFirst;
    const auto slab = static_cast<std::size_t>(std::bit_width(at >> (kFirstShift + 1)));
    return slabs_[slab][at - (kFirst << slab)];
  }
  /// Returns an unused node, or none when memory is exhausted.
  [[nodiscard]] BlockId try_acquire() noexcept;
  void release(BlockId id) noexcept;
  /// Makes the next `count` calls of `try_acquire` succeed. @throws std::bad_alloc.
  void reserve(std::size_t count);

 private:
  static constexpr unsigned kFirstShift = 10;
  static constexpr std::size_t kFirst = std::size_t{1} << kFirstShift;
  static constexpr std::size_t kSlabs = 32 - kFirstShift;

  [[nodiscard]] bool add_slab() noexcept;

  std::array<std::unique_ptr<Block[]>, kSlabs> slabs_;
  std::size_t count_ = 0;  // of slabs
  BlockId unused_ = 0;     // linked by list_next
  std::size_t unused_count_ = 0;
};

/// Free blocks of one pool and one kind in lists of similar size: 32 lists a power of two.
/// Thread safety: none (block lock).
class SizeBins {
 public:
  /// @param unit_shift  sizes are multiples of `1 << unit_shift`.
  explicit SizeBins(unsigned unit_shift) noexcept : unit_shift_(unit_shift) {}

  void insert(BlockTable& table, BlockId id) noexcept;
  void remove(BlockTable& table, BlockId id) noexcept;
  /// Returns a block of at least `size` bytes, the smallest (then lowest) of those looked at;
  /// never misses a block that fits.
  [[nodiscard]] BlockId find(const BlockTable& table, std::size_t size) const noexcept;

 private:
  static constexpr unsigned kSubShift = 5;
  static constexpr std::size_t kSub = std::size_t{1} << kSubShift;
  static constexpr std::size_t kPowers = 48;
  static constexpr std::size_t kLooksAt = 32;

  [[nodiscard]] std::size_t bin_of(std::size_t size) const noexcept {
    const std::size_t units = size >> unit_shift_;
    if (units < kSub) return units;
    const auto power = static_cast<std::size_t>(std::bit_width(units)) - 1;  // >= kSubShift
    const std::size_t sub = (units >> (power - kSubShift)) & (kSub - 1);
    return ((power - kSubShift + 1) << kSubShift) + sub;
  }
  [[nodiscard]] std::size_t next_bin(std::size_t bin) const noexcept;
  [[nodiscard]] BlockId best_in(const BlockTable& table, std::size_t bin, std::size_t size,
                                std::size_t looks) const noexcept;

  unsigned unit_shift_;
  std::uint64_t powers_ = 0;
  std::array<std::uint32_t, kPowers> subs_{};
  std::array<BlockId, kPowers * kSub> heads_{};
};

}  // namespace commensal

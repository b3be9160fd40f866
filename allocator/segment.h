// SPDX-License-Identifier: Apache-2.0
// A reserved stretch of addresses, cut into chunks, with an index from address to block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/relaxed.h"
#include "allocator/lifetime.h"
#include "allocator/memory_source.h"

namespace commensal {

/// Names a block of one pool; zero is none.
using BlockId = std::uint32_t;

/// Lanes of an allocator (front_lane.h): parts that threads use without waiting for each other.
inline constexpr std::size_t kLanes = 8;

/// One unit of physical memory at its place. `head` and `tail` are the blocks that hold its first
/// and its last byte (none while nothing is mapped).
struct Chunk {
  MemoryHandle handle;
  Tier tier = Tier::kFree;
  bool lazy = false;    ///< moved out by request: comes back when touched or asked for
  bool fresh = false;   ///< made on the slower tier and never saved: to bring it back reads no disk
  bool moving = false;  ///< being copied between two turns of the move lock: must stay mapped
  bool away = false;    ///< nothing is mapped, or soon no more: its free memory serves nobody
  std::uint32_t kept = 0;        ///< reasons for which it must stay where it is
  Phase born = Phase::kUnknown;  ///< in which its last long-lived block was made
  BlockId head = 0;
  BlockId tail = 0;
  std::uint64_t used = 0;         ///< bytes of blocks that are handed out (or recently freed)
  std::uint64_t idle_since = 0;   ///< safe point at which it became wholly free
  std::uint64_t skip_round = 0;   ///< failed to move in this round
  std::uint64_t hot_until = 0;    ///< safe point up to which it is not worth moving out again
  std::uint8_t trips = 0;         ///< how often it was moved out and in use there
  std::uint8_t changed = 0;       ///< how often in a row it was written while it was copied ahead
  std::uint64_t ahead_from = 0;   ///< safe point from which it may be copied ahead again
  Bytes touched;                  ///< slower tier: resident bytes when last measured
  Bytes touched_before;           ///< at the safe point before that
  std::uint64_t measured_at = 0;  ///< safe point of `touched`
  Bytes written;                  ///< of `touched`: changed
};

/// When lanes used the chunks of a segment last. Each lane writes lines of its own, so that threads
/// whose blocks share a chunk do not take it from each other. Thread safety: all.
class UseClock {
 public:
  explicit UseClock(std::size_t chunks) : lines_((chunks + kPerLine - 1) / kPerLine) {
    times_.resize(kLanes * lines_);
  }
  /// Notes that operation number `now` of a lane used a chunk.
  void note(std::size_t lane, std::size_t chunk, std::uint64_t now) noexcept {
    times_[lane * lines_ + chunk / kPerLine].at[chunk % kPerLine] = now;
  }
  /// Returns the latest number that was noted for a chunk.
  [[nodiscard]] std::uint64_t latest(std::size_t chunk) const noexcept;

 private:
  static constexpr std::size_t kPerLine = 8;
  struct alignas(64) Line {
    std::array<Relaxed<std::uint64_t>, kPerLine> at{};
  };
  std::size_t lines_;  // of a lane
  std::vector<Line> times_;
};

/// Addresses `[range.begin, range.begin + range.size)` in chunks of `chunk_size` bytes.
/// Thread safety: the allocator's block lock guards it; lanes read where it lies and the entries of
/// live blocks, which do not change. What they read comes first, on lines that are not written.
struct alignas(64) Segment {
  /// @param unit  smallest distance of two block starts; the index has one lazily touched entry
  ///              a unit. @throws std::bad_alloc.
  Segment(AddressRange reserved, std::size_t chunk_bytes, std::size_t unit_bytes);

  [[nodiscard]] std::size_t chunk_of(const std::byte* address) const noexcept {
    const auto offset = static_cast<std::size_t>(address - range.begin);
    return chunk_shift != 0 ? offset >> chunk_shift : offset / chunk_size;
  }
  [[nodiscard]] std::byte* chunk_begin(std::size_t chunk) const noexcept {
    return range.begin + chunk * chunk_size;
  }
  [[nodiscard]] BlockId& entry(const std::byte* address) const noexcept {
    return index.get()[static_cast<std::size_t>(address - range.begin) >> unit_shift];
  }

  AddressRange range;
  std::size_t chunk_size;
  unsigned chunk_shift = 0;  // 0: not a power of two
  unsigned unit_shift;
  std::uint32_t pool = 0;  // which pool of the allocator

 private:
  struct FreeArray {
    void operator()(BlockId* p) const noexcept { std::free(p); }
  };

 public:
  std::unique_ptr<BlockId, FreeArray> index;
  UseClock uses;

  alignas(64) std::size_t mapped = 0;  // chunks that are not kFree
  bool dedicated = false;              // made for one very large block
  std::vector<Chunk> chunks;
};

/// Finds the segment of an address. Thread safety: changes need the block lock and all lanes; a
/// look-up needs one of them.
class SegmentTable {
 public:
  /// Takes a segment over. @throws std::bad_alloc; nothing has changed then.
  Segment& add(std::unique_ptr<Segment> segment);
  /// Gives a segment up; adding it again right after cannot fail.
  std::unique_ptr<Segment> remove(const Segment& segment) noexcept;

  [[nodiscard]] Segment* find(const std::byte* address) const noexcept;
  /// In the order of their addresses.
  [[nodiscard]] const std::vector<std::unique_ptr<Segment>>& all() const noexcept {
    return segments_;
  }

 private:
  std::vector<std::unique_ptr<Segment>> segments_;
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Serves blocks that were freed a moment ago to the threads that freed them, without the block
// lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/relaxed.h"
#include "allocator/base/short_mutex.h"
#include "allocator/lifetime.h"
#include "allocator/segment.h"
#include "allocator/size_bins.h"

namespace commensal {

/// What lanes share; each line of it is written rarely.
struct LaneTotals {
  alignas(64) std::atomic<std::int64_t> live{0};  ///< bytes, less what lanes have not told yet
  alignas(64) std::atomic<std::uint64_t> peak_live{0};
  alignas(64) std::atomic<std::uint64_t> now{0};  ///< the latest operation that was told
  std::atomic<unsigned> lanes_in_use{0};
};

/// Recently freed blocks of up to `kLargest` bytes that keep their size and serve the next request
/// of it, last in, first out; the guesses of lifetimes and the counts of the threads that use it.
///
/// A live block belongs to the lane in which it was born (`Block::lane`): whoever frees it takes
/// that lane's lock. For the pools such a block is busy; its node, its segment and their index do
/// not change meanwhile, so that a lane needs no other lock to read them.
///
/// Thread safety: everything under `mutex`, which is the innermost lock; counts may be read by all.
class alignas(128) FrontLane {
 public:
  static constexpr std::size_t kMostPools = 4;
  /// The largest block that is kept; of a pool, also at most `kMostUnits` units.
  static constexpr std::size_t kLargest = std::size_t{1} << 20U;
  static constexpr std::size_t kMostUnits = 1024;

  /// @param units  smallest distance of two block starts, for each pool (at most `kMostPools`).
  FrontLane(LaneTotals& totals, std::uint8_t number, const std::vector<std::size_t>& units);

  ShortMutex mutex;

  [[nodiscard]] std::uint8_t number() const noexcept { return number_; }
  [[nodiscard]] LifetimePredictor& lifetimes() COMMENSAL_REQUIRES(mutex) { return lifetimes_; }

  /// Returns the segment of an address: one of those found lately, or as the table says.
  [[nodiscard]] Segment* find_segment(const std::byte* address, const SegmentTable& table) noexcept
      COMMENSAL_REQUIRES(mutex) {
    Segment*& hint = hints_[reinterpret_cast<std::uintptr_t>(address) >> kHintShift & (kHints - 1)];
    if (hint != nullptr && hint->range.contains(address)) return hint;
    Segment* const found = table.find(address);
    if (found != nullptr) hint = found;
    return found;
  }
  /// Forgets what it found: segments go.
  void forget_segments() noexcept COMMENSAL_REQUIRES(mutex) { hints_.fill(nullptr); }

  /// Returns a recently freed block of exactly `size` (rounded) bytes, live again; or none.
  [[nodiscard]] BlockId take(const BlockTable& nodes, std::size_t pool, std::size_t size) noexcept
      COMMENSAL_REQUIRES(mutex) {
    Recent& recent = recent_[pool];
    const std::size_t slot = size >> recent.shift;
    if (slot >= recent.slots || recent.heads[slot] == 0) return 0;
    const BlockId id = recent.heads[slot];
    Block& block = nodes[id];
    recent.heads[slot] = block.list_next;
    block.state = BlockState::kLive;
    recent_bytes_ = recent_bytes_ - size;
    return id;
  }
  /// Puts a freed block among the recent ones; false if it is too large for that.
  [[nodiscard]] bool keep(const BlockTable& nodes, std::size_t pool, BlockId id) noexcept
      COMMENSAL_REQUIRES(mutex) {
    Recent& recent = recent_[pool];
    Block& block = nodes[id];
    const std::size_t slot = block.size >> recent.shift;
    if (slot >= recent.slots) return false;
    block.list_next = recent.heads[slot];
    recent.heads[slot] = id;
    recent_bytes_ = recent_bytes_ + block.size;
    return true;
  }
  /// Takes all recent blocks of a pool out: calls `give(id)` with each.
  template <typename Give>
  void flush(const BlockTable& nodes, std::size_t pool, Give give) COMMENSAL_REQUIRES(mutex) {
    if (recent_bytes_ == 0) return;
    Recent& recent = recent_[pool];
    for (std::size_t slot = 0; slot < recent.slots; ++slot) {
      while (recent.heads[slot] != 0) {
        const BlockId id = recent.heads[slot];
        recent.heads[slot] = nodes[id].list_next;
        recent_bytes_ = recent_bytes_ - nodes[id].size;
        give(id);
      }
    }
  }

  /// Counts a block that is handed out, or one that is freed, and notes that its chunks are used
  /// now. Numbers of operations are exact within a lane; a lane hears of another's every 256, so
  /// that they do not contend for one line.
  void count_birth(const Block& block) noexcept COMMENSAL_REQUIRES(mutex) {
    births_ = births_ + 1;
    change_live(static_cast<std::int64_t>(block.asked));
    const std::int64_t all = totals_.live.load(std::memory_order_relaxed) + untold_;
    if (all > static_cast<std::int64_t>(totals_.peak_live.load(std::memory_order_relaxed))) {
      raise(totals_.peak_live, static_cast<std::uint64_t>(all));
    }
    note_use(block);
  }
  void count_death(const Block& block) noexcept COMMENSAL_REQUIRES(mutex) {
    deaths_ = deaths_ + 1;
    change_live(-static_cast<std::int64_t>(block.asked));
    note_use(block);
  }

  [[nodiscard]] std::uint64_t live() const noexcept { return live_; }
  [[nodiscard]] std::uint64_t births() const noexcept { return births_; }
  [[nodiscard]] std::uint64_t deaths() const noexcept { return deaths_; }
  [[nodiscard]] std::uint64_t recent_bytes() const noexcept { return recent_bytes_; }
  [[nodiscard]] std::uint64_t now() const noexcept { return now_; }

 private:
  static constexpr std::int64_t kUntold = std::int64_t{1} << 20U;
  static constexpr std::uint64_t kCoarse = 256;  // operations
  static constexpr unsigned kHintShift = 26;     // the smallest usual segment
  static constexpr std::size_t kHints = 16;

  // Recent blocks of a pool, a list for each size.
  struct Recent {
    BlockId* heads = nullptr;
    std::uint32_t slots = 0;
    std::uint32_t shift = 0;  // of the pool's unit
  };

  void change_live(std::int64_t bytes) noexcept COMMENSAL_REQUIRES(mutex) {
    live_ = live_ + static_cast<std::uint64_t>(bytes);
    untold_ += bytes;
    if (untold_ < kUntold && untold_ > -kUntold) return;
    totals_.live.fetch_add(untold_, std::memory_order_relaxed);
    untold_ = 0;
  }
  // Numbers as in Lamport's clocks: each operation is later than all that this lane has heard of.
  void note_use(const Block& block) noexcept COMMENSAL_REQUIRES(mutex) {
    std::uint64_t now = now_ + 1;
    if (!in_use_ || totals_.lanes_in_use.load(std::memory_order_relaxed) != 1) now = hear(now);
    now_ = now;
    Segment& segment = *block.segment;
    const std::size_t last = segment.chunk_of(block.end() - 1);
    for (std::size_t c = block.first_chunk; c <= last; ++c) segment.uses.note(number_, c, now);
  }
  [[nodiscard]] std::uint64_t hear(std::uint64_t now) noexcept COMMENSAL_REQUIRES(mutex);
  static void raise(std::atomic<std::uint64_t>& most, std::uint64_t value) noexcept;

  const std::uint8_t number_;
  bool in_use_ COMMENSAL_GUARDED_BY(mutex) = false;
  LaneTotals& totals_;
  Relaxed<std::uint64_t> live_;  // of blocks born here
  std::int64_t untold_ COMMENSAL_GUARDED_BY(mutex) = 0;
  Relaxed<std::uint64_t> now_;
  Relaxed<std::uint64_t> births_;
  Relaxed<std::uint64_t> deaths_;
  Relaxed<std::uint64_t> recent_bytes_;
  std::array<Recent, kMostPools> recent_ COMMENSAL_GUARDED_BY(mutex);
  std::array<Segment*, kHints> hints_ COMMENSAL_GUARDED_BY(mutex){};
  std::vector<BlockId> heads_;  // of all pools
  LifetimePredictor lifetimes_ COMMENSAL_GUARDED_BY(mutex);
};

/// The lanes of an allocator. Thread safety: all.
class FrontLanes {
 public:
  static constexpr std::size_t kLanes = commensal::kLanes;

  explicit FrontLanes(const std::vector<std::size_t>& units);

  /// Returns the calling thread's lane: always the same; more than `kLanes` threads share.
  [[nodiscard]] FrontLane& mine() noexcept {
    if (mine_ == kLanes) choose_mine();
    return *lanes_[mine_];
  }
  [[nodiscard]] FrontLane& operator[](std::size_t number) noexcept { return *lanes_[number]; }

  [[nodiscard]] Bytes live() const noexcept;
  /// Exact while one thread allocates; else up to 1 MiB a thread off.
  [[nodiscard]] Bytes peak_live() const noexcept {
    return Bytes{totals_.peak_live.load(std::memory_order_relaxed)};
  }
  [[nodiscard]] std::uint64_t births() const noexcept;
  [[nodiscard]] std::uint64_t deaths() const noexcept;
  [[nodiscard]] Bytes recent_bytes() const noexcept;
  /// Returns the number of the latest operation.
  [[nodiscard]] std::uint64_t now() const noexcept;

  /// Holds every lane: for what lanes read without another lock.
  void lock_all() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS;
  void unlock_all() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS;
  class AllLock {
   public:
    explicit AllLock(FrontLanes& lanes) noexcept : lanes_(lanes) { lanes_.lock_all(); }
    ~AllLock() { lanes_.unlock_all(); }
    AllLock(const AllLock&) = delete;
    AllLock& operator=(const AllLock&) = delete;

   private:
    FrontLanes& lanes_;
  };
  /// Makes lanes forget the segments that they found. All lanes are held.
  void forget_segments() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  static void choose_mine() noexcept;
  // A constant at first, so that reading it needs no guard.
  static inline constinit thread_local std::size_t mine_ = kLanes;

  template <typename Count>
  [[nodiscard]] std::uint64_t sum(Count count) const noexcept;

  LaneTotals totals_;
  std::array<std::unique_ptr<FrontLane>, kLanes> lanes_;
};

}  // namespace commensal

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
#include "allocator/base/mutex.h"
#include "allocator/base/relaxed.h"
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
  static constexpr std::size_t kLargest = std::size_t{256} << 10U;

  /// @param units  smallest distance of two block starts, for each pool.
  FrontLane(LaneTotals& totals, std::uint8_t number, const std::vector<std::size_t>& units);

  Mutex mutex{LockRank::kLane};

  [[nodiscard]] std::uint8_t number() const noexcept { return number_; }
  [[nodiscard]] LifetimePredictor& lifetimes() COMMENSAL_REQUIRES(mutex) { return lifetimes_; }
  /// The segment that was found last; empty when segments went.
  [[nodiscard]] Segment*& hint() COMMENSAL_REQUIRES(mutex) { return hint_; }

  /// Returns a recently freed block of exactly `size` (rounded) bytes, live again; or none.
  [[nodiscard]] BlockId take(const BlockTable& nodes, std::size_t pool, std::size_t size) noexcept
      COMMENSAL_REQUIRES(mutex) {
    std::vector<BlockId>& heads = recent_[pool];
    const std::size_t slot = size >> shifts_[pool];
    if (slot >= heads.size() || heads[slot] == 0) return 0;
    const BlockId id = heads[slot];
    Block& block = nodes[id];
    heads[slot] = block.list_next;
    block.state = BlockState::kLive;
    recent_bytes_ = recent_bytes_ - block.size;
    return id;
  }
  /// Puts a freed block among the recent ones; false if it is too large for that.
  [[nodiscard]] bool keep(const BlockTable& nodes, std::size_t pool, BlockId id) noexcept
      COMMENSAL_REQUIRES(mutex) {
    std::vector<BlockId>& heads = recent_[pool];
    Block& block = nodes[id];
    const std::size_t slot = block.size >> shifts_[pool];
    if (slot >= heads.size()) return false;
    block.list_next = heads[slot];
    heads[slot] = id;
    recent_bytes_ = recent_bytes_ + block.size;
    return true;
  }
  /// Takes all recent blocks of a pool out: calls `give(id)` with each.
  template <typename Give>
  void flush(const BlockTable& nodes, std::size_t pool, Give give) COMMENSAL_REQUIRES(mutex) {
    if (recent_bytes_ == 0) return;
    for (BlockId& head : recent_[pool]) {
      while (head != 0) {
        const BlockId id = head;
        head = nodes[id].list_next;
        recent_bytes_ = recent_bytes_ - nodes[id].size;
        give(id);
      }
    }
  }

  /// Counts a block that is handed out, or one that is freed.
  void count_birth(std::size_t asked) noexcept COMMENSAL_REQUIRES(mutex) {
    births_ = births_ + 1;
    change_live(static_cast<std::int64_t>(asked));
  }
  void count_death(std::size_t asked) noexcept COMMENSAL_REQUIRES(mutex) {
    deaths_ = deaths_ + 1;
    change_live(-static_cast<std::int64_t>(asked));
  }
  /// Notes that a block's chunks are used now. While one lane is in use, the order of operations is
  /// exact; with more, it is to 64 operations, so that lanes do not contend for a chunk's line.
  void touch(const Block& block) noexcept COMMENSAL_REQUIRES(mutex);

  [[nodiscard]] std::uint64_t live() const noexcept { return live_; }
  [[nodiscard]] std::uint64_t births() const noexcept { return births_; }
  [[nodiscard]] std::uint64_t deaths() const noexcept { return deaths_; }
  [[nodiscard]] std::uint64_t recent_bytes() const noexcept { return recent_bytes_; }
  [[nodiscard]] std::uint64_t now() const noexcept { return now_; }

 private:
  void change_live(std::int64_t bytes) noexcept COMMENSAL_REQUIRES(mutex);

  LaneTotals& totals_;
  std::uint8_t number_;
  bool in_use_ COMMENSAL_GUARDED_BY(mutex) = false;
  Relaxed<std::uint64_t> live_;  // of blocks born here
  Relaxed<std::uint64_t> births_;
  Relaxed<std::uint64_t> deaths_;
  Relaxed<std::uint64_t> recent_bytes_;
  Relaxed<std::uint64_t> now_;
  std::int64_t untold_ COMMENSAL_GUARDED_BY(mutex) = 0;
  Segment* hint_ COMMENSAL_GUARDED_BY(mutex) = nullptr;
  std::vector<unsigned> shifts_;                                          // of each pool's unit
  std::vector<std::vector<BlockId>> recent_ COMMENSAL_GUARDED_BY(mutex);  // by pool, size / unit
  LifetimePredictor lifetimes_ COMMENSAL_GUARDED_BY(mutex);
};

/// The lanes of an allocator. Thread safety: all.
class FrontLanes {
 public:
  static constexpr std::size_t kLanes = 8;

  explicit FrontLanes(const std::vector<std::size_t>& units);

  /// Returns the calling thread's lane: always the same; more than `kLanes` threads share.
  [[nodiscard]] FrontLane& mine() noexcept;
  [[nodiscard]] FrontLane& operator[](std::size_t number) noexcept { return *lanes_[number]; }

  [[nodiscard]] Bytes live() const noexcept;
  /// Exact while one thread allocates; else up to 64 KiB a thread off.
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
  /// Forgets which segments lanes found last. All lanes are held.
  void forget_hints() noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS;

 private:
  template <typename Count>
  [[nodiscard]] std::uint64_t sum(Count count) const noexcept;

  LaneTotals totals_;
  std::array<std::unique_ptr<FrontLane>, kLanes> lanes_;
};

}  // namespace commensal

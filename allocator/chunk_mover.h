// SPDX-License-Identifier: Apache-2.0
// Moves batches of live chunks between tiers: copy ahead, fence, swap, go on.
#pragma once

#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/memory_claims.h"
#include "allocator/memory_source.h"

namespace commensal {

/// One chunk of a batch.
struct ChunkMove {
  std::byte* address = nullptr;
  MemoryHandle from;
  MemoryHandle to;  ///< what is mapped there now if `moved`
  bool moved = false;
  std::string reason;  ///< why not, if not
  bool fresh = false;  ///< never saved on the slower tier: another name may do

  // Used while the batch runs.
  CopyTicket ticket{};
  SwapResult swapped = SwapResult::kFailed;
};

/// How a batch went.
struct MoveReport {
  bool refused = false;  ///< nothing can move now (risk, fence); trying other chunks is no use
  std::string reason;    ///< of the refusal, or of the last chunk that did not move
  std::size_t moved = 0;
  std::uint64_t fences = 0;  ///< fences in which at least one chunk was swapped
  Duration longest_pause{};
  Duration total_pause{};
};

/// Runs moves against a source. A chunk that cannot move is as before. Handles whose release
/// failed are kept as orphans, counted and tried again.
///
/// `run` does a whole batch. `begin`, `advance` until it is done, and `finish` (or `abandon`) do
/// the same in pieces, between which another batch may run. Thread safety: none; the allocator's
/// move lock serialises it.
class ChunkMover {
 public:
  ChunkMover(MemorySource& source, const Clock& clock, Duration fence_deadline)
      : source_(source), clock_(clock), fence_deadline_(fence_deadline) {}

  /// Moves every chunk of the batch that can move to `tier`. What takes only another name moves
  /// without a fence, and whatever the risk. First round: chunks whose bytes
  /// changed since the copy stay; second round: they are copied inside the fence.
  /// @throws std::bad_alloc before anything was done.
  MoveReport run(std::vector<ChunkMove>& batch, Tier tier, TimePoint deadline);

  /// Starts to copy. The report says `refused` when nothing can move now; nothing is open then.
  /// @throws std::bad_alloc before anything was done.
  [[nodiscard]] MoveReport begin(std::vector<ChunkMove>& batch, Tier tier);
  /// Copies about `most` more bytes. @return true when all is copied, or has failed.
  bool advance(std::vector<ChunkMove>& batch, Bytes most, MoveReport& report);
  /// Swaps what did not change since it was copied; the rest stays.
  void finish(std::vector<ChunkMove>& batch, TimePoint deadline, MoveReport& report);
  /// Gives all of the batch up.
  void abandon(std::vector<ChunkMove>& batch, const std::string& why, MoveReport& report) noexcept;

  /// Makes memory; of the device, once it is claimed. @throws as the source does, and OutOfMemory
  /// with the reason if it may not be taken now.
  [[nodiscard]] MemoryHandle create(Tier tier, Bytes size);
  /// From now on memory of the device is claimed before it is taken; null: no more. To be set
  /// before any is; not owned.
  void claim_with(MemoryClaims* claims) noexcept { claims_ = claims; }
  /// Releases an unmapped handle; keeps it as an orphan if the source refuses.
  void release(MemoryHandle handle) noexcept;
  /// Tries the orphans again.
  void retry_orphans() noexcept;
  [[nodiscard]] Bytes orphaned(Tier tier) const noexcept;
  /// Makes room for `count` more orphans, so that `release` cannot lose one.
  void expect_releases(std::size_t count) { orphans_.reserve(orphans_.size() + count); }

 private:
  void rename(ChunkMove& move, Tier tier, MoveReport& report) noexcept;
  void start(ChunkMove& move, Tier tier, MoveReport& report) noexcept;
  void watch(const std::vector<ChunkMove>& batch, Tier tier, MoveReport& report);
  CopyState copy(ChunkMove& move, Bytes most, MoveReport& report) noexcept;
  bool swap_all(std::vector<ChunkMove>& batch, OnChange on_change, TimePoint deadline,
                MoveReport& report);
  void settle(ChunkMove& move, MoveReport& report) noexcept;
  void give_up(ChunkMove& move, std::string reason, MoveReport& report) noexcept;
  void release_claimed(MemoryHandle handle);

  MemorySource& source_;
  MemoryClaims* claims_ = nullptr;
  const Clock& clock_;
  const Duration fence_deadline_;
  std::vector<Exchange> exchanges_;  // of the fence that is on
  std::vector<CopyTicket> tickets_;  // the same
  std::vector<MemoryHandle> orphans_;
};

}  // namespace commensal

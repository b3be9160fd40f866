// SPDX-License-Identifier: Apache-2.0
// Decisions of the elastic allocator as pure functions: sizes, and which chunks move.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/lifetime.h"
#include "allocator/memory_source.h"

namespace commensal {

/// Returns the chunk size of a segment: 2 MiB, 8 MiB above 256 MiB, 32 MiB above 1 GiB, rounded up
/// to the source's granularity. Small chunks follow a limit closely, large ones keep the number
/// of mappings and of handles down.
[[nodiscard]] Bytes chunk_size_for(Bytes segment, Bytes granularity) noexcept;

/// How large the next segment of a pool is.
struct SegmentPlan {
  Bytes size;
  bool dedicated = false;  ///< for this one block only
};
/// @param next     what the pool would reserve next; grows fourfold with each segment.
/// @param request  the block it must hold (rounded to the pool's unit).
[[nodiscard]] SegmentPlan plan_segment(Bytes next, Bytes request) noexcept;

/// Returns the most memory that chunks should hold together for a job whose blocks needed `peak` at
/// most: a tenth more, at least 8 MiB (issue 5 bounds what is held by just that). Up to there
/// blocks of one lifetime get chunks of their own; above it they use each other's, and wholly free
/// chunks of the others are given back before new ones are made.
[[nodiscard]] constexpr Bytes reserve_allowance(Bytes peak) noexcept {
  return peak + std::max(Bytes{peak.count() / 10}, 8_MiB);
}

/// Returns whether free memory is worth giving back although no limit asks for it.
[[nodiscard]] constexpr bool cache_is_large(Bytes cached, Bytes live) noexcept {
  return cached.count() > live.count() / 4 + Bytes{64_MiB}.count();
}
/// Chunks that no block used for so many safe points are given back while the cache is large.
inline constexpr std::uint64_t kIdleSafePoints = 8;

/// A chunk as the planner sees it.
struct ChunkView {
  Tier tier = Tier::kFree;
  Bytes size;
  Bytes used;                    ///< by blocks
  std::uint64_t last_use = 0;    ///< larger is later
  Bytes touched;                 ///< slower tier: resident bytes
  Bytes written;                 ///< of these, changed
  bool hot = false;              ///< was in use on the slower tier lately
  bool lazy = false;             ///< comes back only when touched or asked for
  bool skip = false;             ///< failed to move, is on its way, or is to stay where it is
  Phase born = Phase::kUnknown;  ///< in which its last long-lived block was made
  std::uint32_t tag = 0;         ///< 0: none
  bool keep = false;             ///< its tag asks to be the last that moves
  bool fresh = false;            ///< was made on the slower tier and never saved there
};

/// Returns whether what was made in `born` is used in the part of a step that comes next, as far as
/// phases tell: the optimizer's state from the backward pass on, and only then.
[[nodiscard]] constexpr bool needed_next(Phase born, Phase now) noexcept {
  const bool before_optimizer = now == Phase::kBackward || now == Phase::kOptimizer;
  return (born == Phase::kOptimizer) == before_optimizer;
}

/// Returns whether so much of a chunk on the slower tier was touched since the last safe point that
/// it is in use. What is read here and there (a data set, of which a step takes some rows) rests
/// all the same: these few pages come from the file.
[[nodiscard]] constexpr bool in_use(Bytes newly_touched, Bytes size) noexcept {
  return !newly_touched.is_zero() && newly_touched.count() >= size.count() / 4;
}

/// A chunk that is in use on the slower tier counts as hot for so many safe points. To move it
/// out again meanwhile would only trade it for another; afterwards it is worth a try.
inline constexpr std::uint64_t kHotSafePoints = 64;

/// Returns for how many safe points a chunk counts as hot that was in use on the slower tier after
/// each of `trips` moves there: 64, then twice as many each time, up to 4096. Nobody knows whether
/// memory on the device is read; so it is tried, and the less it rests the less often.
[[nodiscard]] constexpr std::uint64_t hot_for(unsigned trips) noexcept {
  return kHotSafePoints << std::min(trips == 0 ? 0U : trips - 1, 6U);
}
/// Returns for how many safe points a chunk is not copied ahead that was written meanwhile, so many
/// times in a row: 4, then twice as many each time, up to 256.
[[nodiscard]] constexpr std::uint64_t ahead_rest(unsigned changed) noexcept {
  return std::uint64_t{4} << std::min(changed == 0 ? 0U : changed - 1, 6U);
}
/// Whether to move out what might rest because a step needs more than the limit. Each time that
/// some of it is in use after all, the next trial waits twice as long, up to 16 safe points; after
/// one that was not, half as long.
class TrialPace {
 public:
  static constexpr std::uint64_t kLongest = 16;
  /// Returns whether it is time at this safe point; then the next is later.
  [[nodiscard]] constexpr bool due(std::uint64_t safe_point) noexcept {
    if (safe_point < next_) return false;
    if (!touched_) gap_ = std::max<std::uint64_t>(1, gap_ / 2);
    touched_ = false;
    next_ = safe_point + gap_;
    return true;
  }
  constexpr void note_touched(std::uint64_t safe_point) noexcept {
    touched_ = true;
    gap_ = std::min(kLongest, gap_ * 2);
    next_ = safe_point + gap_;
  }
  /// Returns the most bytes of a trial.
  [[nodiscard]] static constexpr Bytes most(Bytes limit) noexcept {
    return Bytes{limit.count() / 16};
  }

 private:
  std::uint64_t gap_ = 1;
  std::uint64_t next_ = 0;
  bool touched_ = false;
};

/// Returns chunks to move to the slower tier, until `need` bytes or `batch` bytes are reached; at
/// least one if there is one. In this order:
/// 1. live device chunks that are not hot, coldest first (the optimizer's state unless its step is
///    near; then least recently allocated from or freed to; of equals the one with more live
///    bytes);
/// 2. the same of tags, one tag after the other, the tag that was used last at the end;
/// 3. touched chunks of the slower tier, whose changed pages are written out again, those with most
///    to win first;
/// 4. hot device chunks, coldest first;
/// 5. device chunks of tags that ask to be kept.
/// So a job whose steps use more than the limit writes the excess once a step, while memory that it
/// does not use ends up on the slower tier.
[[nodiscard]] std::vector<std::size_t> choose_spills(std::span<const ChunkView> chunks, Bytes need,
                                                     Bytes batch, Phase now = Phase::kUnknown);

/// What `choose_returns` may do.
struct ReturnBudget {
  Bytes room;   ///< device bytes that may be added (touched bytes of a returning chunk count back)
  Bytes bytes;  ///< most bytes to bring back, rounded up to a chunk
  Bytes batch;  ///< most bytes in one go; at least one chunk
  bool lazy = false;  ///< also chunks that were moved out by request and not touched since
  Phase now = Phase::kUnknown;  ///< what is needed next comes before the rest
  bool fresh_only = false;      ///< only what was made there: that costs no reading
  /// Room for chunks that are not in use, where a step needs most memory. Without it they
  /// would come back between two steps, and the next one would lack what they take.
  Bytes rest_room{UINT64_MAX};
};
/// Returns chunks of the slower tier to bring back: those to keep, then most touched first, then
/// what the next phase needs, then latest used.
[[nodiscard]] std::vector<std::size_t> choose_returns(std::span<const ChunkView> chunks,
                                                      const ReturnBudget& budget);

/// What an allocator holds between two safe points.
struct AheadView {
  Bytes resident;   ///< on the device, and touched of the slower tier
  Bytes limit;      ///< most resident bytes
  Bytes soon_free;  ///< of these, expected to be free at the next safe point
  Bytes idle;       ///< of these, free for so long that nobody needs them
  Bytes at_peak;    ///< resident where a step needs most memory if nothing moves until then
};
/// What to do while the job runs.
struct AheadPlan {
  Bytes out;        ///< live bytes to move out
  Bytes in;         ///< room for what comes back
  Bytes rest_out;   ///< bytes to move out of what nobody touched lately: the next step lacks them
  Bytes rest_room;  ///< room for what comes back of that
};
/// Moves out early only what the next safe point would have to move anyway: blocks that die within
/// the step make room by themselves. Brings back what the limit leaves room for, `idle` included.
[[nodiscard]] constexpr AheadPlan plan_ahead(const AheadView& view) noexcept {
  AheadPlan plan;
  plan.out = saturating_sub(saturating_sub(view.resident, view.limit), view.soon_free);
  plan.in = saturating_sub(view.limit, saturating_sub(view.resident, view.idle));
  plan.rest_out = saturating_sub(view.at_peak, view.limit);
  plan.rest_room = saturating_sub(view.limit, view.at_peak);
  return plan;
}

}  // namespace commensal

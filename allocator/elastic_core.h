// SPDX-License-Identifier: Apache-2.0
// What ElasticAllocator is made of: pools, ledger, limit and moves behind its two locks.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "allocator/base/mutex.h"
#include "allocator/block_pool.h"
#include "allocator/chunk_mover.h"
#include "allocator/elastic_allocator.h"
#include "allocator/front_lane.h"
#include "allocator/lifetime.h"
#include "allocator/move_planner.h"
#include "allocator/pool_key.h"
#include "allocator/pool_table.h"
#include "allocator/segment.h"
#include "allocator/tags.h"

namespace commensal {

/// One fence covers at most so much, so that it stays short.
inline constexpr Bytes kMostAtOnce = 64_MiB;

/// Whether memory that lies there is live, and not at full speed.
[[nodiscard]] constexpr bool is_slow(Tier tier) noexcept {
  return tier == Tier::kHost || tier == Tier::kParked;
}

/// The allocator itself; `ElasticAllocator` only forwards to it.
///
/// `moves_` serialises every call of the source and every change of a chunk; `blocks_` guards the
/// pools and the ledger and is never held while the source runs; a lane's lock guards what was
/// freed a moment ago, and lanes see live blocks without `blocks_`. Order: moves_, blocks_, a lane.
class ElasticCore {
 public:
  ElasticCore(MemorySource& source, ElasticAllocatorOptions options, const Clock& clock);
  ~ElasticCore();
  ElasticCore(const ElasticCore&) = delete;
  ElasticCore& operator=(const ElasticCore&) = delete;

  // elastic_core.cpp: blocks
  [[nodiscard]] void* allocate(Bytes size, Phase phase, const char* device_only)
      COMMENSAL_EXCLUDES(moves_, blocks_);
  [[nodiscard]] Bytes rounded(Bytes size, PoolKey key) const noexcept {
    return round_up(size, Bytes{unit_of(key.none() ? size_class(size) : kPools)});
  }
  FreedBlock take_back(void* block) noexcept COMMENSAL_EXCLUDES(moves_, blocks_);
  void step_ended() noexcept {
    step_.fetch_add(1, std::memory_order_relaxed);
    phase_.store(Phase::kForward, std::memory_order_relaxed);
  }
  [[nodiscard]] bool owns(const void* address) COMMENSAL_EXCLUDES(blocks_);
  [[nodiscard]] BlockPlace find(const void* block) COMMENSAL_EXCLUDES(blocks_);
  void on_pressure(PressureHandler handler) COMMENSAL_EXCLUDES(blocks_);
  void reset_peak_reserved() noexcept COMMENSAL_EXCLUDES(blocks_);
  [[nodiscard]] AllocatorStats stats() COMMENSAL_EXCLUDES(moves_, blocks_);
  [[nodiscard]] Bytes capacity(Tier tier) const { return source_.capacity(tier); }
  [[nodiscard]] std::vector<ChunkResidency> residency() COMMENSAL_EXCLUDES(blocks_);
  [[nodiscard]] std::string reservation_notes() COMMENSAL_EXCLUDES(blocks_);

  // limit_enforcement.cpp: limits and moves
  LimitTicket post_limit(Bytes limit, Revision revision) COMMENSAL_EXCLUDES(moves_, blocks_);
  LimitTicket set_limit(Bytes limit, Revision revision) COMMENSAL_EXCLUDES(moves_, blocks_);
  LimitTicket safe_point() COMMENSAL_EXCLUDES(moves_, blocks_);
  LimitTicket shrink(Bytes bytes) COMMENSAL_EXCLUDES(moves_, blocks_);
  LimitTicket grow(Bytes bytes) COMMENSAL_EXCLUDES(moves_, blocks_);
  LimitTicket park(Parking how) COMMENSAL_EXCLUDES(moves_, blocks_);
  Bytes release_cached() COMMENSAL_EXCLUDES(moves_, blocks_);
  void with_source(const std::function<void()>& work) COMMENSAL_EXCLUDES(moves_, blocks_);

  // background_moves.cpp: moves between safe points
  AheadReport work_ahead(Bytes most) COMMENSAL_EXCLUDES(moves_, blocks_);
  void expect_work_ahead(bool on) noexcept { ahead_expected_.store(on, std::memory_order_relaxed); }
  void pace_returns(ReturnPace* pace) noexcept { return_pace_.store(pace); }
  void claim_with(MemoryClaims* claims) COMMENSAL_EXCLUDES(moves_, blocks_);
  void keep_live(bool keeps) noexcept { keeps_live_.store(keeps); }
  [[nodiscard]] bool work_pending() const noexcept {
    return pending_.load(std::memory_order_acquire) != 0;
  }

  // tagged_memory.cpp: blocks that share a name, and what lies where
  [[nodiscard]] TagId open_tag(std::string_view name, TagOptions options)
      COMMENSAL_EXCLUDES(moves_, blocks_);
  [[nodiscard]] TagId find_tag(std::string_view name) COMMENSAL_EXCLUDES(moves_, blocks_);
  [[nodiscard]] void* allocate_apart(Bytes size, PoolKey key, const char* device_only)
      COMMENSAL_EXCLUDES(moves_, blocks_);
  TagTicket park_tag(TagId tag) COMMENSAL_EXCLUDES(moves_, blocks_);
  TagTicket drop_tag(TagId tag) COMMENSAL_EXCLUDES(moves_, blocks_);
  TagTicket wake_tag(TagId tag) COMMENSAL_EXCLUDES(moves_, blocks_);
  [[nodiscard]] std::vector<TagResidency> tags() COMMENSAL_EXCLUDES(moves_, blocks_);
  [[nodiscard]] std::vector<SegmentMap> memory_map(bool with_blocks) COMMENSAL_EXCLUDES(blocks_);
  [[nodiscard]] std::uint64_t layout() const noexcept {
    return layout_.load(std::memory_order_acquire);
  }

  // kept_memory.cpp: what does not move
  Bytes keep_in_place(AddressRange range, std::string_view why, KeepWhere where)
      COMMENSAL_EXCLUDES(moves_, blocks_);
  void may_move(AddressRange range, std::string_view why) COMMENSAL_EXCLUDES(moves_, blocks_);
  [[nodiscard]] std::vector<KeptMemory> kept_in_place() COMMENSAL_EXCLUDES(blocks_);
  void count_outside(Bytes held) noexcept COMMENSAL_EXCLUDES(blocks_);

  // fork_handlers.cpp
  void install_fork_handlers();
  [[nodiscard]] bool in_child() const noexcept { return child_.load(std::memory_order_relaxed); }
  void forget_fork_handlers() noexcept;
  void prepare_fork() noexcept;
  void after_fork(bool child) noexcept;

 private:
  /// Why `safe_point` has something to do.
  enum Pending : std::uint32_t {
    kOverLimit = 1,   ///< the device holds more than the limit
    kSlowChunks = 2,  ///< chunks on the slower tier: touched pages count, and they may come back
    kOrphans = 4,     ///< memory that the source did not take back yet
    kLargeCache = 8,  ///< free memory that may be worth giving back
    kPeakOver = 16    ///< a step needs more than the limit: what rests may make room
  };
  /// Pools: two sizes of each lifetime; then one of each stream and tag.
  enum : std::size_t { kSmall, kLarge, kSizes, kPools = PoolTable::kByLifetime };
  [[nodiscard]] static constexpr bool short_lived(std::size_t pool) noexcept {
    return pool >= kSizes && pool < kPools;
  }
  [[nodiscard]] static constexpr bool apart(std::size_t pool) noexcept { return pool >= kPools; }
  /// Of a pool that exists: needs no lock.
  [[nodiscard]] TagId tag_of(std::size_t pool) const noexcept COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
    return pools_.key(pool).tag;
  }

  /// A block to be served.
  struct Request {
    Bytes size;
    FrontLane* lane = nullptr;  // of the thread that asks
    std::size_t pool = 0;
    Phase phase = Phase::kUnknown;
    BirthMark mark;
    const char* device_only = nullptr;  // why the slower tier does not serve it
    [[nodiscard]] bool dies_soon() const noexcept { return short_lived(pool); }
    /// The pool of the same sizes and the other lifetime; streams and tags lend each other nothing.
    [[nodiscard]] std::size_t other() const noexcept {
      return apart(pool) ? pool : (pool + kSizes) % kPools;
    }
  };

  class MoveLock;
  class Foreground;

  /// Names a chunk; stays valid while the move lock is held, until `drop_empty_segments`. Its
  /// memory may be released meanwhile (tier kFree) once no block uses it.
  struct ChunkRef {
    Segment* segment = nullptr;
    std::size_t index = 0;
    [[nodiscard]] Chunk& operator*() const noexcept { return segment->chunks[index]; }
    [[nodiscard]] Chunk* operator->() const noexcept { return &segment->chunks[index]; }
    [[nodiscard]] std::byte* address() const noexcept { return segment->chunk_begin(index); }
    [[nodiscard]] Bytes size() const noexcept { return Bytes{segment->chunk_size}; }
    /// Number of the operation that used it last.
    [[nodiscard]] std::uint64_t last_use() const noexcept { return segment->uses.latest(index); }
    void note_use(std::uint64_t now) const noexcept { segment->uses.note(0, index, now); }
  };

  /// The device and the slower tier, as chunks of ours hold them.
  struct Ledger {
    Bytes device;
    Bytes host;
    Bytes parked;
    Bytes touched;         // of host, as last measured
    Bytes orphans_device;  // no longer ours, but the source has not taken them back
    Bytes orphans_host;
    Bytes outside;  // of the device, held by others in the process
    std::size_t slow_chunks = 0;

    [[nodiscard]] Bytes own() const noexcept { return device + orphans_device; }
    [[nodiscard]] Bytes on_device() const noexcept { return own() + outside; }
    [[nodiscard]] Bytes on_host() const noexcept { return host + parked + orphans_host; }
    [[nodiscard]] Bytes reserved() const noexcept { return device + host + parked; }
    [[nodiscard]] Bytes resident() const noexcept { return on_device() + touched; }
  };

  [[nodiscard]] static ElasticAllocatorOptions checked(ElasticAllocatorOptions options);

  // --- blocks (elastic_core.cpp) ------------------------------------------------------------
  [[nodiscard]] std::size_t size_class(Bytes size) const noexcept {
    return size <= options_.small_block ? kSmall : kLarge;
  }
  [[nodiscard]] std::size_t unit_of(std::size_t pool) const noexcept {
    return apart(pool) || pool % kSizes == kSmall ? options_.alignment.count() : kLargeUnit;
  }
  static constexpr std::size_t kSmallestUnit = 64;
  static constexpr std::size_t kLargeUnit = 4096;
  [[nodiscard]] Bytes chunk_size(Bytes segment) const noexcept {
    const Bytes granularity = source_.granularity();
    return options_.chunk_size.is_zero() ? chunk_size_for(segment, granularity)
                                         : round_up(options_.chunk_size, granularity);
  }
  /// Nodes and segments where lanes may look: see FrontLane.
  [[nodiscard]] const BlockPool& pool_in_lane(std::size_t pool) const noexcept
      COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
    return pools_[pool];
  }
  [[nodiscard]] const SegmentTable& table_in_lane() const noexcept
      COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
    return table_;
  }
  /// What became of a block.
  struct Freed {
    Segment* segment = nullptr;      // null: not of this allocator
    BlockId block = 0;               // none: nothing live begins there
    FrontLane* elsewhere = nullptr;  // nothing is done: another lane's block
    bool kept = false;               // among the lane's recent ones; else it is to be given back
    FreedBlock told{};
  };
  [[nodiscard]] Freed free_in_lane(const std::byte* address, FrontLane& lane) noexcept
      COMMENSAL_EXCLUDES(blocks_);
  [[nodiscard]] void* hand_out(FrontLane& lane, Block& block, const Request& request) noexcept
      COMMENSAL_REQUIRES(lane.mutex);
  static void note_birth(const Block& block, const Request& request) noexcept;
  [[nodiscard]] void* take(std::size_t pool, const Request& request, bool fast)
      COMMENSAL_REQUIRES(blocks_);
  [[nodiscard]] void* take_after_flush(const Request& request) COMMENSAL_REQUIRES(blocks_);
  [[nodiscard]] bool may_reserve(Bytes more) const noexcept COMMENSAL_REQUIRES(blocks_);
  /// Returns the peak of live bytes once a request is served.
  [[nodiscard]] Bytes peak_with(Bytes request) const noexcept {
    return std::max(lanes_.peak_live(), lanes_.live() + request);
  }
  [[nodiscard]] Bytes used_bytes() const noexcept COMMENSAL_REQUIRES(blocks_);
  [[nodiscard]] Bytes busy_bytes() const noexcept COMMENSAL_REQUIRES(blocks_);
  void note_need() noexcept COMMENSAL_REQUIRES(blocks_);
  [[nodiscard]] Bytes step_need() const noexcept COMMENSAL_REQUIRES(blocks_);
  [[nodiscard]] Bytes resident_at_peak() noexcept COMMENSAL_REQUIRES(blocks_);
  [[nodiscard]] void* allocate_slowly(const Request& request) COMMENSAL_EXCLUDES(moves_, blocks_);
  struct Attempt {
    void* block = nullptr;
    std::string reason;  // why not
  };
  [[nodiscard]] Attempt try_device(const Request& request, Bytes& released)
      COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] Attempt try_host(const Request& request) COMMENSAL_REQUIRES(moves_);
  struct Growth {
    void* block = nullptr;
    Bytes short_by;      // device bytes that would have to go first
    std::string reason;  // why there is no block
  };
  [[nodiscard]] Growth grow_pool(const Request& request, bool allow_host)
      COMMENSAL_REQUIRES(moves_);
  void trade_chunks(Bytes more, Bytes request) COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] GrowthPlace find_place(const Request& request, bool fast)
      COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] Bytes chunks_wanted(const Request& request, const GrowthPlace& place)
      COMMENSAL_REQUIRES(moves_);
  void add_segment(std::size_t pool, Bytes size) COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] AddressRange reserve_shrinking(SegmentPlan& plan, Bytes least)
      COMMENSAL_REQUIRES(moves_);
  struct Mapped {
    std::size_t chunk = 0;
    MemoryHandle handle;
  };
  [[nodiscard]] std::string map_place(const GrowthPlace& place, bool allow_host,
                                      std::vector<MemoryHandle>& made, std::vector<Mapped>& mapped)
      COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] MemoryHandle create_for(Bytes size, bool allow_host, Bytes& device_room,
                                        Bytes& host_room) COMMENSAL_REQUIRES(moves_);
  void unmap_again(const GrowthPlace& place, std::vector<Mapped>& mapped) noexcept
      COMMENSAL_REQUIRES(moves_);
  /// What was tried for a block, and what came of each; empty: not tried.
  struct Tried {
    std::string nothing{};
    std::string own_cache{};
    std::string others{};  // what the handler of `on_pressure` said
    std::string slower_tier{};
  };
  [[noreturn]] void out_of_memory(Bytes size, const Tried& tried) COMMENSAL_EXCLUDES(blocks_);
  void note_cache() noexcept COMMENSAL_REQUIRES(blocks_);
  void flush_recent() noexcept COMMENSAL_REQUIRES(blocks_);
  void flush_recent(BlockPool& pool) noexcept COMMENSAL_REQUIRES(blocks_);
  void set_chunk(const ChunkRef& chunk, MemoryHandle handle, Tier tier) noexcept
      COMMENSAL_REQUIRES(blocks_);
  [[nodiscard]] void* child_allocate(Bytes size) const;

  // --- chunks and limits (limit_enforcement.cpp) ---------------------------------------------
  /// What a shrink aims at.
  struct ShrinkGoal {
    bool follow_limit = false;  // the newest limit, wherever it moves
    Bytes target{};             // otherwise: most resident bytes
    bool lazy = false;          // what moves out stays out until touched or asked for
    bool park = false;
    bool untouched = false;  // nobody uses what moves out until it is back
  };
  [[nodiscard]] bool stays(const Chunk& chunk) const noexcept {
    return !moves_live() && chunk.tier == Tier::kDevice;
  }
  [[nodiscard]] bool moves_live() const noexcept {
    return options_.move_live && !keeps_live_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] Bytes limit() const noexcept {
    return Bytes{limit_.load(std::memory_order_relaxed)};
  }
  [[nodiscard]] bool record_limit(Bytes limit, Revision& revision) COMMENSAL_REQUIRES(blocks_);
  [[nodiscard]] LimitTicket ticket_now() COMMENSAL_EXCLUDES(blocks_);
  LimitTicket enforce_limit(TimePoint begin, TimePoint deadline) COMMENSAL_REQUIRES(moves_);
  std::string shrink_to(const ShrinkGoal& goal, TimePoint deadline) COMMENSAL_REQUIRES(moves_);
  std::string move_out(const ShrinkGoal& goal, std::uint64_t round, Bytes need, TimePoint deadline,
                       bool& stop) COMMENSAL_REQUIRES(moves_);
  /// Which chunks come back.
  struct Returns {
    Bytes bytes;                 // at most
    bool lazy = false;           // also what was moved out by request
    bool fresh_only = false;     // only what was made on the slower tier
    bool all_that_fits = false;  // now, whether or not the next step lacks it then
    bool by_itself = false;      // nobody asked for it: it needs leave
  };
  std::string grow_back(const Returns& wanted, TimePoint deadline, Bytes& grown)
      COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] MoveReport run_batch(const std::vector<ChunkRef>& chunks, Tier tier, Tier label,
                                     bool lazy, TimePoint deadline) COMMENSAL_REQUIRES(moves_);
  /// Which chunks without blocks are given back.
  enum class Unused : std::uint8_t {
    kDevice,     ///< within a step: what overflowed once is likely to be needed again
    kEverywhere  ///< all of the slower tier, too
  };
  Bytes release_free(Bytes need, Unused which, std::uint64_t idle_for = 0)
      COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] std::size_t release_run(std::span<const ChunkRef> run) COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] Bytes release_chunks(std::vector<ChunkRef>& chunks) COMMENSAL_REQUIRES(moves_);
  void drop_empty_segments() COMMENSAL_REQUIRES(moves_);
  void release_idle() COMMENSAL_REQUIRES(moves_);
  void measure_touched() COMMENSAL_REQUIRES(moves_);
  Bytes trim_clean() COMMENSAL_REQUIRES(moves_);
  void retry_orphans() COMMENSAL_REQUIRES(moves_);
  void count_orphans() COMMENSAL_REQUIRES(moves_);
  void note_report(const MoveReport& report) COMMENSAL_REQUIRES(moves_);
  void finish(const std::string& reason) COMMENSAL_REQUIRES(moves_);
  void yield_moves() COMMENSAL_REQUIRES(moves_);
  void note_moved(const std::vector<ChunkRef>& chunks, const std::vector<ChunkMove>& batch,
                  Tier tier, Tier label, bool lazy) COMMENSAL_REQUIRES(moves_);
  void lease(Bytes bytes) COMMENSAL_REQUIRES(moves_);
  void lease_limit() COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] Ledger ledger() COMMENSAL_EXCLUDES(blocks_);
  [[nodiscard]] Bytes host_most(Tier tier = Tier::kHost) const noexcept;
  [[nodiscard]] std::string host_full_reason(Bytes held, Tier tier = Tier::kHost) const;
  /// Where memory goes that nobody uses until it is back: the slower tier, else away.
  [[nodiscard]] Tier tier_for_untouched() const noexcept;
  void set_away(const std::vector<ChunkRef>& chunks, bool away) COMMENSAL_EXCLUDES(blocks_);
  template <typename Visit>
  void each_chunk(Visit visit) COMMENSAL_REQUIRES(blocks_);
  struct Snapshot {
    std::vector<ChunkRef> refs;
    std::vector<ChunkView> views;
    Bytes free_device;  // chunks of the device that no block uses
    Bytes idle_device;  // of these, for some safe points
    Bytes soon_free;    // resident in chunks that are free, or are when the step's blocks die
    Bytes at_peak;      // resident where a step needs most, as far as steps are known
  };
  [[nodiscard]] Snapshot snapshot(std::uint64_t round) COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] bool may_return(std::vector<std::size_t>& chosen, const Snapshot& shot, Bytes room)
      COMMENSAL_REQUIRES(moves_);
  void note_held_back(Bytes bytes, const char* reason) COMMENSAL_REQUIRES(moves_);
  void note_returned(Bytes before, TimePoint began) COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] std::string deadline_reason() const;

  // --- between safe points (background_moves.cpp) --------------------------------------------
  /// A batch that is copied in several turns of the move lock.
  struct Ahead {
    bool open = false;
    std::vector<ChunkRef> chunks;
    std::vector<ChunkMove> batch;
    MoveReport report;
  };
  [[nodiscard]] AheadPlan plan_now(const Snapshot& shot) COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] std::vector<std::size_t> choose_spills_ahead(Snapshot& shot, const AheadPlan& plan,
                                                             Bytes most) COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] bool open_ahead(std::vector<ChunkRef> chunks, Tier tier) COMMENSAL_REQUIRES(moves_);
  void close_ahead(Tier tier) COMMENSAL_REQUIRES(moves_);
  void abandon_ahead() noexcept COMMENSAL_REQUIRES(moves_);
  void set_moving(bool moving) noexcept COMMENSAL_REQUIRES(moves_);
  // --- what does not move (kept_memory.cpp) --------------------------------------------------
  struct Kept {
    AddressRange range;
    std::string why;
    std::vector<ChunkRef> chunks;  // stay mapped, and so their segments
    AddressRange whole;            // from the first chunk to the end of the last
  };
  [[nodiscard]] std::vector<ChunkRef> chunks_at(AddressRange range) COMMENSAL_EXCLUDES(blocks_);
  void bring_to_device(const std::vector<ChunkRef>& chunks) COMMENSAL_REQUIRES(moves_);
  /// What of the device stays where it is, for people; empty: nothing does.
  [[nodiscard]] std::string kept_reason() COMMENSAL_EXCLUDES(blocks_);
  // --- tags (tagged_memory.cpp) ----------------------------------------------------------------
  struct Tag {
    std::string name;
    TagOptions options;
    bool parked = false;  // comes back when touched or woken, not because there is room
  };
  [[nodiscard]] Tag& checked_tag(TagId tag) COMMENSAL_REQUIRES(blocks_);
  /// Chunks of a tag for which `wanted(chunk)` holds, in the order of their addresses.
  template <typename Wanted>
  [[nodiscard]] std::vector<ChunkRef> tag_chunks(TagId tag, Wanted wanted)
      COMMENSAL_EXCLUDES(blocks_);
  void release_unused(TagId tag) COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] std::string stop_writers() COMMENSAL_REQUIRES(moves_);
  [[nodiscard]] std::string move_tag_out(TagId tag) COMMENSAL_REQUIRES(moves_);
  void unmap_dropped(std::span<const ChunkRef> run, TagTicket& ticket) COMMENSAL_REQUIRES(moves_);
  void ask_for_tag(TagId tag) COMMENSAL_EXCLUDES(moves_, blocks_);
  void refill_dropped(TagId tag, TagTicket& ticket) COMMENSAL_REQUIRES(moves_);
  void bring_tag_back(TagId tag, TagTicket& ticket) COMMENSAL_REQUIRES(moves_);
  void put_back(const ChunkRef& chunk, MemoryHandle handle, Tier tier) noexcept
      COMMENSAL_REQUIRES(blocks_);
  [[nodiscard]] static ChunkResidency residency_of(const ChunkRef& chunk);
  /// For `snapshot` and `measure_touched`: what a chunk's tag means for moves.
  void view_tag(const ChunkRef& chunk, ChunkView& view) const COMMENSAL_REQUIRES(blocks_);
  void wake_touched_tag(const ChunkRef& chunk) noexcept COMMENSAL_REQUIRES(blocks_);
  /// Chunks that fail to move in this round, or in one that begins meanwhile, are left alone in it.
  [[nodiscard]] std::uint64_t begin_round() COMMENSAL_REQUIRES(moves_) { return ++round_; }

  MemorySource& source_;
  const ElasticAllocatorOptions options_;
  const Clock& clock_;

  std::atomic<std::uint64_t> limit_;
  std::atomic<bool> keeps_live_{false};
  std::atomic<Revision> revision_{0};
  std::atomic<std::uint32_t> pending_{0};
  std::atomic<bool> child_{false};
  std::atomic<std::uint32_t> step_{0};
  std::atomic<Phase> phase_{Phase::kUnknown};  // of the newest block that no lane served
  std::atomic<bool> ahead_expected_{false};
  std::atomic<std::uint64_t> layout_{0};  // changes of which chunks there are
  std::atomic<ReturnPace*> return_pace_{nullptr};
  FrontLanes lanes_{{unit_of(0), unit_of(1), unit_of(2), unit_of(3)}};

  std::atomic<int> move_waiters_{0};
  Mutex moves_{LockRank::kMoves};
  ChunkMover mover_ COMMENSAL_GUARDED_BY(moves_);
  std::uint64_t round_ COMMENSAL_GUARDED_BY(moves_) = 1;  // a chunk that never failed has 0
  Ahead ahead_ COMMENSAL_GUARDED_BY(moves_);
  int foreground_ COMMENSAL_GUARDED_BY(moves_) = 0;  // calls that move memory now
  std::array<Bytes, PoolTable::kPools> next_segment_ COMMENSAL_GUARDED_BY(moves_);

  Mutex blocks_{LockRank::kBlocks};
  SegmentTable table_ COMMENSAL_GUARDED_BY(blocks_);
  PoolTable pools_ COMMENSAL_GUARDED_BY(blocks_);
  Ledger ledger_ COMMENSAL_GUARDED_BY(blocks_);
  AllocatorStats totals_ COMMENSAL_GUARDED_BY(blocks_);  // only the sums over time
  // Most bytes of chunks that blocks lay on in a step, and in the one before it.
  struct Need {
    std::uint32_t step = 0;
    Bytes most;
    Bytes before;
  };
  Need need_ COMMENSAL_GUARDED_BY(blocks_);
  std::uint64_t safe_points_ COMMENSAL_GUARDED_BY(blocks_) = 0;
  TrialPace pace_ COMMENSAL_GUARDED_BY(blocks_);
  bool wake_lazy_ COMMENSAL_GUARDED_BY(blocks_) = false;    // the limit rose: bring back all
  bool stay_parked_ COMMENSAL_GUARDED_BY(blocks_) = false;  // until `grow`, whatever the limit
  Bytes lease_ COMMENSAL_GUARDED_BY(blocks_);               // what the source was told last
  std::string notes_ COMMENSAL_GUARDED_BY(blocks_);
  std::vector<Tag> tags_ COMMENSAL_GUARDED_BY(blocks_);  // tag number - 1
  std::vector<Kept> kept_ COMMENSAL_GUARDED_BY(blocks_);
  std::shared_ptr<const PressureHandler> pressure_ COMMENSAL_GUARDED_BY(blocks_);
};

/// Holds the move lock for a scope; a thread that moves many chunks lets waiting ones in between.
class COMMENSAL_SCOPED_CAPABILITY ElasticCore::MoveLock {
 public:
  explicit MoveLock(ElasticCore& core) COMMENSAL_ACQUIRE(core.moves_) : core_(core) {
    core.move_waiters_.fetch_add(1, std::memory_order_relaxed);
    core.moves_.lock();
    core.move_waiters_.fetch_sub(1, std::memory_order_relaxed);
  }
  /// Takes over a lock that is held already.
  MoveLock(ElasticCore& core, std::adopt_lock_t) COMMENSAL_REQUIRES(core.moves_) : core_(core) {}
  ~MoveLock() COMMENSAL_RELEASE() { core_.moves_.unlock(); }
  MoveLock(const MoveLock&) = delete;
  MoveLock& operator=(const MoveLock&) = delete;

 private:
  ElasticCore& core_;
};

/// Stands for a call that moves memory now: what is on its way in the background is given up, and
/// nothing begins there until the call is over, also while it lets others have the lock.
class ElasticCore::Foreground {
 public:
  explicit Foreground(ElasticCore& core) COMMENSAL_REQUIRES(core.moves_) : core_(core) {
    ++core.foreground_;
    core.abandon_ahead();
  }
  ~Foreground() COMMENSAL_NO_THREAD_SAFETY_ANALYSIS { --core_.foreground_; }
  Foreground(const Foreground&) = delete;
  Foreground& operator=(const Foreground&) = delete;

 private:
  ElasticCore& core_;
};

template <typename Visit>
void ElasticCore::each_chunk(Visit visit) {
  for (const auto& segment : table_.all()) {
    if (segment->mapped == 0) continue;
    for (std::size_t i = 0; i < segment->chunks.size(); ++i) {
      if (segment->chunks[i].tier != Tier::kFree) visit(ChunkRef{segment.get(), i});
    }
  }
}

}  // namespace commensal

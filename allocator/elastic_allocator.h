// SPDX-License-Identifier: Apache-2.0
// A caching allocator whose live memory shrinks and grows under stable addresses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "allocator/device_memory.h"
#include "allocator/lifetime.h"
#include "allocator/memory_claims.h"
#include "allocator/memory_source.h"
#include "allocator/pool_key.h"
#include "allocator/return_pace.h"
#include "allocator/tags.h"

namespace commensal {

/// What the caller knows about an allocation: its lifetime is guessed from the phase and the size.
struct AllocationContext {
  Phase phase = Phase::kUnknown;
  TagId tag = 0;  ///< of `open_tag`: the block lies among its tag's, whatever its lifetime
  /// Why the slower tier is not to serve the block; static text, for the message of OutOfMemory.
  /// Null: it may.
  const char* device_only = nullptr;
};

/// What a piece of work between safe points did.
struct AheadReport {
  Bytes moved_out;     ///< chunks that left the device
  Bytes moved_in;      ///< chunks that came back
  bool more = false;   ///< there is more to do, or it was interrupted: call again
  std::string reason;  ///< why something did not move; empty: everything did
};

struct ElasticAllocatorOptions {
  Bytes limit{UINT64_MAX};     ///< most device bytes; max value: no limit
  Bytes host_cap{UINT64_MAX};  ///< most bytes on the slower tier (also bounded by the source)
  Bytes small_block{64_KiB};   ///< requests up to this come from the small pool
  Bytes chunk_size{};          ///< fixed size of all chunks; zero: by the size of the segment
  Bytes alignment = 64_B;      ///< of every block: a power of two, 64 B to 4 KiB
  bool by_lifetime = true;     ///< keep blocks that die within a step apart from the others
  /// False: a live block stays on the tier where it was allocated until it dies, whatever the limit
  /// asks and however much room there is. (Pages of the slower tier that were touched go back to
  /// it.) Only chunks without blocks are given back.
  bool move_live = true;
  Duration fence_deadline = std::chrono::milliseconds{50};
  Duration move_deadline = std::chrono::seconds{2};  ///< a safe point waits no longer than this
};

/// A block that was taken back.
struct FreedBlock {
  bool ours = false;  ///< false: it is not one of ours, and nothing was done
  Bytes asked;
  Bytes size;  ///< rounded
};

/// Memory that stays where it is, and why.
struct KeptMemory {
  std::string why;
  Bytes bytes;
};

/// Where memory that is to stay has to be.
enum class KeepWhere : std::uint8_t {
  kOnDevice,  ///< what is on the slower tier comes back first
  kWhereItIs
};

/// How a parked job's memory comes back.
enum class Parking : std::uint8_t {
  kUntilRoom,  ///< what is touched at the next safe point; all of it when the limit rises, or by
               ///< `grow`
  kUntilGrow,  ///< what is touched; the rest by `grow` only
  /// By `grow` only, and nobody uses the memory before `AllocatorStats::away` is zero again. So it
  /// may go where no address leads: for a device without a slower tier.
  kUntouched
};

/// See `ElasticAllocator::on_pressure`.
using PressureHandler = std::function<std::string(Bytes needed)>;

/// Serves blocks from chunks on the device up to a movable limit, and from the slower tier above
/// it. Live chunks move between the tiers without changing address.
///
/// Safe points: the limit holds at each return of `safe_point` and of `set_limit`: resident bytes
/// (`device + host_touched + outside`) <= limit + deferred, and `deferred_reason` says why not
/// less. Thread safety: any member may be called from any thread. Two locks: one for blocks (never
/// held while the source runs long calls) and one for moves, taken in the order moves -> blocks.
/// Fork: after `install_fork_handlers`, a child sees a snapshot of all blocks; in it `allocate`
/// serves from the C heap, frees of the parent's blocks do nothing, everything else is inert.
class ElasticAllocator final : public DeviceMemory {
 public:
  /// @param source  not owned; must outlive this object.
  /// @throws std::invalid_argument naming an alignment that is none.
  ElasticAllocator(MemorySource& source, ElasticAllocatorOptions options,
                   const Clock& clock = SteadyClock::instance());
  ~ElasticAllocator() override;
  ElasticAllocator(const ElasticAllocator&) = delete;
  ElasticAllocator& operator=(const ElasticAllocator&) = delete;

  /// Returns a block of at least `size` bytes, aligned as `options.alignment` says. Zero bytes:
  /// null. Once freed it serves requests of its own stream only: the work that uses it may still be
  /// in that queue. Blocks without stream and tag lie apart by lifetime, the others by stream and
  /// tag. Over the limit it asks the handler of `on_pressure`, then serves from the slower tier.
  /// @throws OutOfMemory naming limit, in use, asked and what was tried; nothing has changed then.
  [[nodiscard]] void* allocate(Bytes size, StreamId stream = 0, AllocationContext context = {});
  /// Returns the size that a block of `size` bytes gets.
  [[nodiscard]] Bytes rounded(Bytes size, StreamId stream = 0, TagId tag = 0) const noexcept;
  /// Takes a block back, from any thread, also after exit handlers ran.
  /// @return false, and does nothing, if `block` is not one of ours (null included: true).
  bool deallocate(void* block) noexcept { return take_back(block).ours; }
  /// As `deallocate`, and tells how large it was (zero in a forked child).
  FreedBlock take_back(void* block) noexcept;
  /// Tells whether an address lies in one of our reserved ranges.
  [[nodiscard]] bool owns(const void* address) const noexcept;
  /// Returns the size that was asked for, zero if `block` is not the start of a live block.
  [[nodiscard]] Bytes size_of(const void* block) const noexcept { return find(block).asked; }
  /// Returns a live block by its start, or one of no size.
  [[nodiscard]] BlockPlace find(const void* block) const noexcept;

  /// Records a limit without moving anything: one atomic store that the next `allocate` sees and
  /// the next safe point enforces. A revision below the newest one is stale and ignored;
  /// revision 0 takes the next number.
  LimitTicket post_limit(Bytes limit, Revision revision);
  LimitTicket post_limit(Bytes limit) override { return post_limit(limit, 0); }
  /// Records a limit and enforces it here, as a safe point does; returns at the latest after
  /// `options.move_deadline` with the rest deferred.
  LimitTicket set_limit(Bytes limit, Revision revision = 0);
  /// Enforces the newest limit: cached and free chunks first, then live chunks to the slower
  /// tier; below the limit it brings live chunks back. Cheap when there is nothing to do.
  LimitTicket safe_point() override;
  /// Does a piece of work towards the limit while the job runs, from a thread of its own
  /// (background_mover.h): moves out about `most` live bytes that the next safe point would have to
  /// move, or brings back as much. What changes while it is copied stays. Copies without the move
  /// lock being held for long; whatever needs memory moved meanwhile goes first.
  AheadReport work_ahead(Bytes most);
  /// Whether somebody calls `work_ahead` regularly: safe points then leave it to him to bring
  /// memory back.
  void expect_work_ahead(bool on) noexcept;
  /// From now on what comes back by itself, at safe points and by `work_ahead`, needs leave; what
  /// is asked for (`grow`, `wake_tag`) does not. Null: as before. Must live as long as this object;
  /// to be set before the first safe point.
  void pace_returns(ReturnPace* pace) noexcept;
  /// From now on device memory is claimed before it is taken; what is refused is served as if the
  /// limit were reached. To be called before the first allocation; `claims` must outlive this.
  /// Null: no more, at any time; what was claimed is not given back then.
  void claim_with(MemoryClaims* claims);
  void keep_live(bool keeps) noexcept override;
  /// Gives back up to `bytes` of device memory without changing the limit.
  LimitTicket shrink(Bytes bytes);
  /// Brings live chunks back to the device, up to `bytes` and the limit.
  LimitTicket grow(Bytes bytes);
  /// Moves every live chunk to the slower tier and gives back all device memory it can.
  LimitTicket park(Parking how);
  LimitTicket park() override { return park(Parking::kUntilRoom); }
  /// Gives back chunks without live blocks (torch's `empty_cache`). Returns bytes.
  Bytes release_cached();

  /// Keeps what lies at a range of addresses mapped as it is, because somebody outside relies on
  /// that memory: a library that registered it with a network card, say. Until `may_move` of the
  /// same range and reason no limit, tag or release touches its chunks. Call between ops. `why` is
  /// for people.
  /// @return bytes of whole chunks; zero: nothing of ours lies there, and `may_move` is not due.
  /// @throws SourceError if something cannot come back; then nothing is kept.
  Bytes keep_in_place(AddressRange range, std::string_view why,
                      KeepWhere where = KeepWhere::kOnDevice);
  /// Ends the newest `keep_in_place` of that range and reason.
  /// @throws std::logic_error if there is none.
  void may_move(AddressRange range, std::string_view why);
  /// Returns the bytes that are kept, by reason; a chunk counts for the first that keeps it.
  [[nodiscard]] std::vector<KeptMemory> kept_in_place() const;
  /// Notes how much of the device others in this process hold. It counts against the limit, and
  /// nothing here moves it.
  void count_outside(Bytes held) noexcept;

  /// What dies from now on outlived the step it was born in, unless it is born from now on too.
  /// Guesses of lifetimes learn from this.
  void step_ended() noexcept override;

  /// Returns the tag of that name, made on first use; the newest options hold for all of it.
  /// @throws std::invalid_argument for an empty name, or one more than `kMostTags`.
  [[nodiscard]] TagId open_tag(std::string_view name, TagOptions options = {});
  /// Returns the tag of that name, made before.
  /// @throws std::invalid_argument naming it and those that there are.
  [[nodiscard]] TagId find_tag(std::string_view name) const;
  /// Saves a whole tag and gives its device memory back. Its blocks stay where they are and keep
  /// their content: what touches them is served (on a host by the kernel), and from the next safe
  /// point on the tag comes back. Where there is no slower tier and the source has kParked, they
  /// are away: until `wake_tag` nothing may touch them. New blocks of the tag get memory as usual.
  /// A tag that is parked or dropped already stays so. All three: call between ops; takes as long
  /// as it takes; @throws std::invalid_argument for a tag that was never opened.
  TagTicket park_tag(TagId tag);
  /// Gives up the content of a whole tag and all memory that holds it. Addresses stay reserved, and
  /// the blocks can be freed; until `wake_tag` they must not be touched (on a host that reads zeros
  /// or what was written since, and is lost or not).
  TagTicket drop_tag(TagId tag);
  /// Brings a parked tag back, and gives a dropped one fresh memory: on the device as far as the
  /// limit allows (the handler of `on_pressure` is asked), else on the slower tier. What is away
  /// and finds no room is missing: it is tried again by the next wake, and at safe points.
  TagTicket wake_tag(TagId tag);
  [[nodiscard]] std::vector<TagResidency> tags() const;

  /// One atomic load.
  [[nodiscard]] bool work_pending() const noexcept override;

  /// Called, with no lock held, when an allocation of the given size does not fit under the
  /// limit, before the slower tier serves it. May call `post_limit`; the allocation then looks
  /// again. Returns what came of it, in words, for the message of OutOfMemory.
  void on_pressure(PressureHandler handler);

  [[nodiscard]] AllocatorStats stats() const override;
  [[nodiscard]] Bytes capacity() const override;
  [[nodiscard]] Bytes slower_capacity() const override;
  void reset_peak_reserved() noexcept;
  [[nodiscard]] std::vector<ChunkResidency> residency() const;
  /// Returns every segment that holds memory, in the order of addresses; `with_blocks`: also the
  /// blocks, live and free.
  [[nodiscard]] std::vector<SegmentMap> memory_map(bool with_blocks) const;
  /// Returns a number that is another one once a segment of `memory_map` has more chunks, or less:
  /// one atomic load.
  [[nodiscard]] std::uint64_t layout() const noexcept;
  /// Says where address space or overcommit limits made reservations smaller; empty: nowhere.
  [[nodiscard]] std::string reservation_notes() const;

  /// Runs `work` while nobody calls the source: what the source's own class offers beside the
  /// contract is called there. Takes the lock for moves. Does nothing in a forked child.
  void with_source(const std::function<void()>& work);

  /// Registers fork handlers for this object (once a process; the object must then live for
  /// ever). Afterwards `in_child` tells a forked child from the owner.
  void install_fork_handlers();
  [[nodiscard]] bool in_child() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Serves and takes back blocks; maps chunks for them within the limit or on the slower tier.
#include "allocator/elastic_core.h"

#include <algorithm>
#include <bit>
#include <bitset>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

namespace commensal {
namespace {

constexpr Bytes kFirstSmallSegment = 64_MiB;
constexpr Bytes kFirstLargeSegment = 256_MiB;
constexpr Bytes kLargestRequest{std::uint64_t{1} << 46U};

}  // namespace

ElasticAllocatorOptions ElasticCore::checked(ElasticAllocatorOptions options) {
  const std::size_t alignment = options.alignment.count();
  if (alignment < kSmallestUnit || alignment > kLargeUnit || !std::has_single_bit(alignment)) {
    throw std::invalid_argument("alignment is no power of two from " +
                                std::to_string(kSmallestUnit) + " to " +
                                std::to_string(kLargeUnit) + ": " + std::to_string(alignment));
  }
  return options;
}

ElasticCore::ElasticCore(MemorySource& source, ElasticAllocatorOptions options, const Clock& clock)
    : source_(source),
      options_(checked(options)),
      clock_(clock),
      limit_(options.limit.count()),
      mover_(source, clock, options.fence_deadline),
      next_segment_{kFirstSmallSegment, kFirstLargeSegment, kFirstSmallSegment, kFirstLargeSegment},
      pools_{BlockPool{unit_of(0), 0}, BlockPool{unit_of(1), 1}, BlockPool{unit_of(2), 2},
             BlockPool{unit_of(3), 3}} {
  for (std::size_t i = kPools; i < next_segment_.size(); ++i) next_segment_[i] = kFirstSmallSegment;
}

ElasticCore::~ElasticCore() {
  forget_fork_handlers();
  if (in_child()) return;  // the memory is the parent's
  const MoveLock moves(*this);
  mover_.claim_with(nullptr);  // nobody looks any more
  source_.set_lease({});
  mover_.retry_orphans();
  const MutexLock lock(blocks_);  // nobody else can be here: held only for the analysis
  for (const auto& segment : table_.all()) {
    try {
      for (std::size_t i = 0; i < segment->chunks.size(); ++i) {
        if (!segment->chunks[i].handle) continue;
        source_.unmap(segment->chunk_begin(i), segment->chunks[i].handle);
        source_.release(segment->chunks[i].handle);
      }
      source_.unreserve(segment->range);
    } catch (const std::exception&) {
      continue;  // the source keeps what it refused to take back
    }
  }
}

// --- hot path ------------------------------------------------------------------------------

inline void* ElasticCore::hand_out(FrontLane& lane, Block& block, const Request& request) noexcept {
  block.asked = request.size.count();
  block.mark = request.mark;
  block.lane = lane.number();
  lane.count_birth(block);
  return block.address;
}

// Serves a block from what the thread freed and from the free memory of a pool. Null: none fits.
void* ElasticCore::take(std::size_t number, const Request& request, bool fast) {
  BlockPool& pool = pools_[number];
  const std::size_t rounded = pool.rounded(request.size.count());
  FrontLane& lane = *request.lane;
  if (fast && !apart(number)) {
    const ShortLock lock(lane.mutex);
    if (const BlockId id = lane.take(pool.nodes(), number, rounded); id != 0) {
      return hand_out(lane, pool[id], request);
    }
  }
  const BlockId id = pool.take(rounded, fast);
  if (id == 0) return nullptr;
  note_need();
  note_birth(pool[id], request);
  const ShortLock lock(lane.mutex);
  return hand_out(lane, pool[id], request);
}

// Notes on the chunks of a long-lived block what it is for.
void ElasticCore::note_birth(const Block& block, const Request& request) noexcept {
  if (request.dies_soon()) return;
  Segment& segment = *block.segment;
  const std::size_t last = segment.chunk_of(block.end() - 1);
  for (std::size_t i = segment.chunk_of(block.address); i <= last; ++i) {
    segment.chunks[i].born = request.phase;
  }
}

// Tells whether blocks of one lifetime may get `more` chunks of their own beside the free memory
// of the others.
bool ElasticCore::may_reserve(Bytes more) const noexcept {
  const Bytes reserved = ledger_.reserved();
  return reserved + more <= reserve_allowance(peak_with(more)) &&
         ledger_.resident() + more <= limit();
}

void* ElasticCore::allocate(Bytes size, Phase phase, const char* device_only) {
  if (in_child()) return child_allocate(size);
  if (size.is_zero()) return nullptr;
  if (size > kLargestRequest)
    out_of_memory(size, Tried{.nothing = "nothing: larger than any address range"});
  FrontLane& lane = lanes_.mine();
  Request request{size, &lane, size_class(size), phase, {}, device_only};
  {
    const std::size_t unit = unit_of(request.pool);
    const std::size_t rounded = (size.count() + unit - 1) & ~(unit - 1);
    const ShortLock lock(lane.mutex);
    if (options_.by_lifetime) {
      request.mark = lane.lifetimes().born(phase, rounded, step_.load(std::memory_order_relaxed));
      if (request.mark.lifetime() == Lifetime::kStep) request.pool += kSizes;
    }
    const BlockTable& nodes = pool_in_lane(request.pool).nodes();
    if (const BlockId id = lane.take(nodes, request.pool, rounded); id != 0) {
      return hand_out(lane, nodes[id], request);
    }
  }
  {
    const MutexLock lock(blocks_);
    if (phase_.load(std::memory_order_relaxed) != phase) {
      phase_.store(phase, std::memory_order_relaxed);
    }
    if (void* block = take(request.pool, request, true)) return block;
    if (void* block = take_after_flush(request)) return block;
  }
  return allocate_slowly(request);
}

// Serves a block from the pool of a stream or a tag.
void* ElasticCore::allocate_apart(Bytes size, PoolKey key, const char* device_only) {
  if (in_child()) return child_allocate(size);
  if (size.is_zero()) return nullptr;
  if (size > kLargestRequest) {
    out_of_memory(size, Tried{.nothing = "nothing: larger than any address range"});
  }
  Request request{size, &lanes_.mine(), kPools, Phase::kUnknown, {}, device_only};
  {
    const MutexLock lock(blocks_);
    if (key.tag != 0) (void)checked_tag(key.tag);
    request.pool = pools_.number_for(key, unit_of(kPools));
    if (request.pool != 0) {
      if (void* block = take(request.pool, request, true)) return block;
    }
  }
  if (request.pool == 0) {
    out_of_memory(size, Tried{.nothing = "nothing: more streams and tags than " +
                                         std::to_string(PoolTable::kMostApart)});
  }
  return allocate_slowly(request);
}

// Serves a block from the free memory of its pool once lanes have given back theirs; a short-lived
// one also from holes that gradients left, rather than that more is reserved. Null: none fits.
void* ElasticCore::take_after_flush(const Request& request) {
  flush_recent(pools_[request.pool]);
  if (void* block = take(request.pool, request, true)) return block;
  if (!request.dies_soon() || may_reserve(request.size)) return nullptr;
  if (void* block = take(request.other(), request, true)) return block;
  flush_recent(pools_[request.other()]);
  return take(request.other(), request, true);
}

FreedBlock ElasticCore::take_back(void* address) noexcept {
  if (address == nullptr) return {.ours = true, .asked = {}, .size = {}};
  const auto* byte = static_cast<const std::byte*>(address);
  Freed freed;
  freed.elsewhere = &lanes_.mine();
  while (freed.elsewhere != nullptr) freed = free_in_lane(byte, *freed.elsewhere);
  if (in_child()) {
    if (freed.segment == nullptr) std::free(address);  // served by `child_allocate`
    return {.ours = true, .asked = {}, .size = {}};    // else it is the parent's
  }
  if (freed.block == 0 || freed.kept) return freed.told;
  const MutexLock lock(blocks_);
  BlockPool& pool = pools_[freed.segment->pool];
  const Block& block = pool[freed.block];
  // Recent blocks are served before all others, so only those on the device may be.
  if (!apart(pool.number()) && pool.on_device(block)) {
    FrontLane& lane = lanes_[block.lane];
    const ShortLock inner(lane.mutex);
    if (lane.keep(pool.nodes(), pool.number(), freed.block)) return freed.told;
  }
  pool.give_back(freed.block, safe_points_);
  note_cache();
  return freed.told;
}

// Frees a block as far as a lane can. While there are slow chunks, it cannot tell whether the block
// lies on one.
inline ElasticCore::Freed ElasticCore::free_in_lane(const std::byte* address,
                                                    FrontLane& lane) noexcept {
  const ShortLock lock(lane.mutex);
  Freed freed;
  freed.segment = lane.find_segment(address, table_in_lane());
  if (freed.segment == nullptr || in_child()) return freed;
  const BlockPool& pool = pool_in_lane(freed.segment->pool);
  freed.block = pool.live_at(*freed.segment, address);
  if (freed.block == 0) return freed;
  Block& block = pool[freed.block];
  if (block.lane != lane.number()) {
    freed.elsewhere = &lanes_[block.lane];
    return freed;
  }
  const bool learns = !apart(pool.number());
  if (learns) lane.lifetimes().died(block.mark, step_.load(std::memory_order_relaxed));
  lane.count_death(block);
  freed.told = {.ours = true, .asked = Bytes{block.asked}, .size = Bytes{block.size}};
  block.state = BlockState::kRecent;  // from here on nobody can free it again
  freed.kept = learns && (pending_.load(std::memory_order_relaxed) & kSlowChunks) == 0 &&
               lane.keep(pool.nodes(), pool.number(), freed.block);
  return freed;
}

void* ElasticCore::child_allocate(Bytes size) const {
  if (size.is_zero()) return nullptr;
  if (size <= kLargestRequest) {
    const std::size_t alignment = options_.alignment.count();
    void* block = std::aligned_alloc(alignment, round_up(size, options_.alignment).count());
    if (block != nullptr) return block;
  }
  throw OutOfMemory("out of memory in a forked child: asked " + to_string(size));
}

void ElasticCore::note_cache() noexcept {
  if ((pending_.load(std::memory_order_relaxed) & kLargeCache) != 0) return;
  const Bytes mapped = ledger_.reserved();
  if (cache_is_large(saturating_sub(mapped, used_bytes()), lanes_.live())) {
    pending_.fetch_or(kLargeCache, std::memory_order_release);
  }
}

Bytes ElasticCore::used_bytes() const noexcept {
  Bytes used;
  pools_.each([&used](const BlockPool& pool) { used += Bytes{pool.used_bytes()}; });
  return used;
}

Bytes ElasticCore::busy_bytes() const noexcept {
  Bytes busy;
  pools_.each([&busy](const BlockPool& pool) { busy += Bytes{pool.busy_bytes()}; });
  return busy;
}

// Notes what the step needs, after a block was taken from a pool.
void ElasticCore::note_need() noexcept {
  const std::uint32_t step = step_.load(std::memory_order_relaxed);
  if (step != need_.step) need_ = Need{step, {}, step == need_.step + 1 ? need_.most : Bytes{}};
  need_.most = std::max(need_.most, busy_bytes());
}

// Returns the most bytes of chunks, of any tier, that blocks lie on in a step: in this one and the
// last. Zero: nobody told of steps.
Bytes ElasticCore::step_need() const noexcept {
  const std::uint32_t step = step_.load(std::memory_order_relaxed);
  if (step == 0) return {};
  Bytes most = busy_bytes();
  if (step <= need_.step + 1) most = std::max(most, need_.most);
  if (step == need_.step) most = std::max(most, need_.before);
  return most;
}

void ElasticCore::flush_recent() noexcept {
  for (std::size_t number = 0; number < kPools; ++number) flush_recent(pools_[number]);
}

void ElasticCore::flush_recent(BlockPool& pool) noexcept {
  if (apart(pool.number())) return;  // lanes keep none of them
  const std::uint64_t now = safe_points_;
  for (std::size_t i = 0; i < FrontLanes::kLanes; ++i) {
    FrontLane& lane = lanes_[i];
    const ShortLock lock(lane.mutex);
    lane.flush(pool.nodes(), pool.number(), [&](BlockId id) { pool.give_back(id, now); });
  }
}

// --- when no free block fits ---------------------------------------------------------------

void* ElasticCore::allocate_slowly(const Request& request) {
  static thread_local bool asking = false;  // the handler itself may allocate
  Bytes released;
  std::string answer;  // of the handler
  bool asked = asking;
  for (;;) {
    std::shared_ptr<const PressureHandler> handler;
    Tried tried;
    {
      const MoveLock moves(*this);
      Bytes now_released;
      Attempt attempt = try_device(request, now_released);
      if (attempt.block != nullptr) return attempt.block;
      released += now_released;
      tried.own_cache = to_string(released) + " released";
      if (!attempt.reason.empty()) tried.own_cache += ", " + attempt.reason;
      if (!asked) {
        const MutexLock lock(blocks_);
        handler = pressure_;
      }
      if (handler == nullptr && request.device_only != nullptr) {
        tried.slower_tier = request.device_only;
      } else if (handler == nullptr) {
        attempt = try_host(request);
        if (attempt.block != nullptr) return attempt.block;
        tried.slower_tier = attempt.reason;
      }
    }
    if (handler == nullptr) {
      tried.others = answer;
      out_of_memory(request.size, tried);
    }
    asked = true;
    struct Asking {
      Asking() { asking = true; }
      ~Asking() { asking = false; }
    } const scope;
    answer = (*handler)(request.size);
  }
}

ElasticCore::Attempt ElasticCore::try_device(const Request& request, Bytes& released) {
  {
    const MutexLock lock(blocks_);
    if (void* block = take_after_flush(request)) return {block, {}};
  }
  Growth growth = grow_pool(request, false);
  if (growth.block == nullptr) {
    const Bytes before = ledger().on_device();
    released = release_free(growth.short_by, Unused::kDevice);
    const Bytes gone = saturating_sub(before, ledger().on_device());
    {
      const MutexLock lock(blocks_);
      totals_.given_back += gone;
    }
    drop_empty_segments();
    if (!released.is_zero()) growth = grow_pool(request, false);
  }
  if (growth.block == nullptr) {
    const MutexLock lock(blocks_);
    if (void* block = take(request.other(), request, true)) return {block, {}};
  }
  return {growth.block, growth.reason};
}

// Gives back free chunks, of whichever lifetime, for `more` bytes that are to be reserved for a
// request. What is held beside the place of the new ones stays.
void ElasticCore::trade_chunks(Bytes more, Bytes request) {
  if (!options_.by_lifetime) return;
  Bytes over;
  {
    const MutexLock lock(blocks_);
    const Bytes reserved = ledger_.reserved() + more;
    over = saturating_sub(reserved, reserve_allowance(peak_with(request)));
  }
  if (!over.is_zero()) (void)release_free(over, Unused::kDevice);
}

ElasticCore::Attempt ElasticCore::try_host(const Request& request) {
  {
    const MutexLock lock(blocks_);
    for (const std::size_t pool : {request.pool, request.other()}) {
      if (void* block = take(pool, request, false)) return {block, {}};
    }
  }
  Growth growth = grow_pool(request, true);
  if (growth.block == nullptr) {
    const Bytes before = ledger().on_host();
    (void)release_free({}, Unused::kEverywhere);
    if (ledger().on_host() < before) growth = grow_pool(request, true);
  }
  return {growth.block, growth.reason};
}

void ElasticCore::out_of_memory(Bytes size, const Tried& tried) {
  std::string message = "out of memory: asked " + to_string(size);
  const MutexLock lock(blocks_);
  ++totals_.out_of_memory;
  const Bytes most = limit();
  message += most == Bytes{UINT64_MAX} ? ", no limit" : ", limit " + to_string(most);
  message +=
      ", in use " + to_string(ledger_.on_device()) + " (live " + to_string(lanes_.live()) + ")";
  if (!ledger_.outside.is_zero()) {
    message += ", of it by others in the process " + to_string(ledger_.outside);
  }
  const Bytes host = host_most();
  message += ", slower tier " + to_string(ledger_.on_host()) + " of ";
  message += host == Bytes{UINT64_MAX} ? "any size" : to_string(host);
  if (host.is_zero()) {
    const std::string reason = source_.host_tier_reason();
    message += " (" + (reason.empty() ? std::string("its cap is 0 B") : reason) + ")";
  }
  message += "; tried";
  int number = 0;
  const auto add = [&](const char* what, const std::string& result) {
    if (result.empty()) return;
    message += (number == 0 ? ": " : "; ") + std::to_string(number + 1) + ". " + what + result;
    ++number;
  };
  add("", tried.nothing);
  add("own cache: ", tried.own_cache);
  add("others: ", tried.others);
  add("slower tier: ", tried.slower_tier);
  throw OutOfMemory(message);
}

// --- new chunks ----------------------------------------------------------------------------

GrowthPlace ElasticCore::find_place(const Request& request, bool fast) {
  const MutexLock lock(blocks_);
  const BlockPool& pool = pools_[request.pool];
  return pool.find_place(pool.rounded(request.size.count()), fast);
}

// Returns the bytes of chunks that a request needs at a place, or in a segment yet to be made.
Bytes ElasticCore::chunks_wanted(const Request& request, const GrowthPlace& place) {
  if (place.segment != nullptr) return Bytes{place.chunks * place.segment->chunk_size};
  const Bytes rounded = round_up(request.size, Bytes{unit_of(request.pool)});
  const SegmentPlan plan = plan_segment(next_segment_[request.pool], rounded);
  return round_up(rounded, chunk_size(plan.size));
}

// Maps what a request needs. The free memory beside the place is held meanwhile; whatever fails,
// everything is as before.
ElasticCore::Growth ElasticCore::grow_pool(const Request& request, bool allow_host) {
  GrowthPlace place;
  Bytes wanted;
  std::vector<MemoryHandle> made;
  std::vector<Mapped> mapped;
  std::optional<BlockPool::Held> held;
  for (bool added = false; !held;) {
    place = find_place(request, !allow_host);
    wanted = chunks_wanted(request, place);
    const Ledger now = ledger();
    if (!allow_host && wanted > saturating_sub(limit(), now.on_device())) {
      return {nullptr, saturating_sub(now.on_device() + wanted, limit()),
              "needs " + to_string(wanted) + " more on the device"};
    }
    if (allow_host && wanted > saturating_sub(limit(), now.on_device()) &&
        wanted > saturating_sub(limit(), now.on_device()) +
                     std::min(saturating_sub(host_most(), now.on_host()), kLargestRequest)) {
      return {nullptr, {}, host_full_reason(now.on_host())};
    }
    if (place.segment == nullptr) {
      if (std::exchange(added, true)) return {nullptr, {}, "no address range fits"};
      try {
        add_segment(request.pool, request.size);
      } catch (const OutOfMemory& error) {
        return {nullptr, {}, error.what()};
      } catch (const SourceError& error) {
        return {nullptr, {}, error.what()};
      }
      continue;
    }
    mapped.reserve(place.chunks);
    made.reserve(place.chunks);
    // Other threads may have taken what lay beside the place meanwhile: then it is sought anew.
    const MutexLock lock(blocks_);
    BlockPool& pool = pools_[request.pool];
    held = pool.hold(place, pool.rounded(request.size.count()), !allow_host);
  }

  try {
    if (!allow_host) trade_chunks(wanted, request.size);
    mover_.expect_releases(place.chunks + 1);
  } catch (...) {
    const MutexLock lock(blocks_);
    pools_[request.pool].drop(*held);
    throw;
  }
  const std::string failed = map_place(place, allow_host, made, mapped);
  if (!failed.empty()) unmap_again(place, mapped);
  count_orphans();
  const MutexLock lock(blocks_);
  BlockPool& pool = pools_[request.pool];
  for (const Mapped& chunk : mapped) {
    set_chunk(ChunkRef{place.segment, chunk.chunk}, chunk.handle, chunk.handle.tier);
    place.segment->chunks[chunk.chunk].fresh = chunk.handle.tier == Tier::kHost;
  }
  if (!failed.empty()) {
    pool.drop(*held);
    return {nullptr, wanted, failed};
  }
  const BlockId id = pool.take_held(*held, pool.rounded(request.size.count()));
  note_need();
  note_birth(pool[id], request);
  const ShortLock inner(request.lane->mutex);
  return {hand_out(*request.lane, pool[id], request), {}, {}};
}

// Creates the chunks of a place and maps them together. Returns why not; `mapped` then says how far
// it came. Both vectors are empty and have room.
std::string ElasticCore::map_place(const GrowthPlace& place, bool allow_host,
                                   std::vector<MemoryHandle>& made, std::vector<Mapped>& mapped) {
  const Ledger now = ledger();
  Bytes device_room = saturating_sub(limit(), now.on_device());
  Bytes host_room = saturating_sub(host_most(), now.on_host());
  const Bytes size{place.segment->chunk_size};
  MemorySource::MappedRun run;
  try {
    while (made.size() < place.chunks) {
      made.push_back(create_for(size, allow_host, device_room, host_room));
    }
    run = source_.map_run(place.segment->chunk_begin(place.first_chunk), made);
  } catch (const std::exception& error) {
    run.error = error.what();
  }
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (i < run.mapped) {
      mapped.push_back(Mapped{place.first_chunk + i, made[i]});
    } else {
      mover_.release(made[i]);
    }
  }
  return run.error;
}

// Makes memory for one chunk: on the device while there is room, else on the slower tier.
MemoryHandle ElasticCore::create_for(Bytes size, bool allow_host, Bytes& device_room,
                                     Bytes& host_room) {
  if (device_room >= size) {
    try {
      const MemoryHandle handle = mover_.create(Tier::kDevice, size);
      device_room -= size;
      return handle;
    } catch (const std::exception&) {
      if (!allow_host || host_room < size) throw;
      device_room = Bytes{};
    }
  }
  if (!allow_host || host_room < size) throw OutOfMemory("the limit and the slower tier are full");
  const MemoryHandle handle = mover_.create(Tier::kHost, size);
  host_room -= size;
  return handle;
}

// Undoes a growth. What the source refuses to unmap stays in `mapped` and becomes free memory.
void ElasticCore::unmap_again(const GrowthPlace& place, std::vector<Mapped>& mapped) noexcept {
  std::size_t stuck = 0;
  for (const Mapped& chunk : mapped) {
    try {
      source_.unmap(place.segment->chunk_begin(chunk.chunk), chunk.handle);
      mover_.release(chunk.handle);
    } catch (const std::exception&) {
      mapped[stuck++] = chunk;
    }
  }
  mapped.resize(stuck);
}

// Notes what a chunk holds now and keeps the ledger.
void ElasticCore::set_chunk(const ChunkRef& ref, MemoryHandle handle, Tier tier) noexcept {
  const auto account = [this](Tier of) -> Bytes* {
    switch (of) {
      case Tier::kDevice: return &ledger_.device;
      case Tier::kHost: return &ledger_.host;
      case Tier::kParked: return &ledger_.parked;
      case Tier::kFree:
      case Tier::kDropped: return nullptr;
    }
    return nullptr;
  };
  const auto slow = [](Tier of) { return of == Tier::kHost || of == Tier::kParked; };
  Chunk& chunk = *ref;
  if (Bytes* from = account(chunk.tier)) *from -= ref.size();
  if (Bytes* to = account(tier)) *to += ref.size();
  if (slow(chunk.tier)) --ledger_.slow_chunks;
  if (slow(tier)) ++ledger_.slow_chunks;
  if (chunk.tier == Tier::kFree && tier != Tier::kFree) {
    ++ref.segment->mapped;
    chunk.idle_since = safe_points_;
  }
  if (chunk.tier != Tier::kFree && tier == Tier::kFree) --ref.segment->mapped;
  if ((chunk.tier == Tier::kFree) != (tier == Tier::kFree)) {
    layout_.fetch_add(1, std::memory_order_release);
  }
  ledger_.touched = saturating_sub(ledger_.touched, chunk.touched);
  chunk.touched = chunk.touched_before = chunk.written = Bytes{};
  chunk.handle = handle;
  chunk.tier = tier;
  chunk.away = handle.tier == Tier::kParked;
  chunk.lazy = false;
  chunk.fresh = false;
  if (tier == Tier::kFree) chunk.trips = chunk.changed = 0;
  if (ledger_.own() > totals_.peak_device) totals_.peak_device = ledger_.own();
  if (ledger_.reserved() > totals_.peak_reserved) totals_.peak_reserved = ledger_.reserved();
  if (ledger_.slow_chunks > 0) pending_.fetch_or(kSlowChunks, std::memory_order_release);
  // The limit may have fallen after room for this chunk was found.
  if (ledger_.resident() > limit()) pending_.fetch_or(kOverLimit, std::memory_order_release);
}

void ElasticCore::add_segment(std::size_t number, Bytes size) {
  const Bytes rounded = round_up(size, Bytes{unit_of(number)});
  SegmentPlan plan = plan_segment(next_segment_[number], rounded);
  const Bytes wanted = plan.size;
  const AddressRange range = reserve_shrinking(plan, rounded);
  try {
    auto segment = std::make_unique<Segment>(range, chunk_size(plan.size).count(), unit_of(number));
    segment->pool = static_cast<std::uint32_t>(number);
    segment->dedicated = plan.dedicated;
    const MutexLock lock(blocks_);
    const FrontLanes::AllLock lanes(lanes_);
    Segment& added = table_.add(std::move(segment));
    try {
      pools_[number].add_segment(added);
    } catch (...) {
      (void)table_.remove(added);
      throw;
    }
  } catch (...) {
    source_.unreserve(range);
    throw;
  }
  if (!plan.dedicated) next_segment_[number] = plan.size < wanted ? plan.size : plan.size * 4;
}

// Reserves a segment; where the system refuses, a smaller one, down to what `least` needs.
AddressRange ElasticCore::reserve_shrinking(SegmentPlan& plan, Bytes least) {
  const Bytes wanted = plan.size;
  const Bytes smallest = chunk_size(Bytes{});
  std::string refused;
  for (;;) {
    const Bytes chunk = chunk_size(plan.size);
    const Bytes size = round_up(plan.size, chunk);
    try {
      const AddressRange range = source_.reserve(size);
      if (!refused.empty()) {
        const std::string note = "reserved " + to_string(size) + " of addresses instead of " +
                                 to_string(wanted) + ": " + refused;
        const MutexLock lock(blocks_);
        if (notes_.find(note) == std::string::npos) notes_ += (notes_.empty() ? "" : "; ") + note;
      }
      return range;
    } catch (const OutOfMemory& error) {
      if (refused.empty()) refused = error.what();
      if (plan.size <= std::max(least, smallest)) throw;
      plan.size = std::max(Bytes{plan.size.count() / 2}, least);
    }
  }
}

// --- questions -----------------------------------------------------------------------------

bool ElasticCore::owns(const void* address) {
  const MutexLock lock(blocks_);
  return table_.find(static_cast<const std::byte*>(address)) != nullptr;
}

BlockPlace ElasticCore::find(const void* address) {
  const MutexLock lock(blocks_);
  const auto* byte = static_cast<const std::byte*>(address);
  const Segment* segment = table_.find(byte);
  if (segment == nullptr) return {};
  const BlockPool& pool = pools_[segment->pool];
  const BlockId id = pool.live_at(*segment, byte);
  if (id == 0) return {};
  return BlockPlace{byte, Bytes{pool[id].size}, Bytes{pool[id].asked},
                    pools_.key(segment->pool).stream};
}

void ElasticCore::on_pressure(PressureHandler handler) {
  std::shared_ptr<const PressureHandler> next;
  if (handler) next = std::make_shared<const PressureHandler>(std::move(handler));
  const MutexLock lock(blocks_);
  pressure_.swap(next);
}

void ElasticCore::claim_with(MemoryClaims* claims) {
  const MoveLock moves(*this);
  mover_.claim_with(claims);
}

void ElasticCore::reset_peak_reserved() noexcept {
  const MutexLock lock(blocks_);
  totals_.peak_reserved = ledger_.reserved();
}

AllocatorStats ElasticCore::stats() {
  if (!in_child() && moves_.try_lock()) {  // while a move runs, what was measured last must do
    const MoveLock moves(*this, std::adopt_lock);
    measure_touched();
    const Bytes held_by_children = source_.held_by_children();
    const MutexLock lock(blocks_);
    totals_.held_by_children = held_by_children;
  }
  const MutexLock lock(blocks_);
  AllocatorStats stats = totals_;
  stats.limit = limit();
  stats.device = ledger_.own();
  stats.outside = ledger_.outside;
  stats.host = ledger_.host + ledger_.orphans_host;
  stats.host_touched = ledger_.touched;
  stats.parked = ledger_.parked;
  stats.live = lanes_.live();
  stats.peak_live = lanes_.peak_live();
  stats.allocations = lanes_.births();
  stats.frees = lanes_.deaths();
  std::bitset<kMostTags + 1> by_name;
  for (std::size_t i = 0; i < tags_.size(); ++i) by_name[i + 1] = tags_[i].parked;
  Bytes used;
  each_chunk([&](const ChunkRef& chunk) {
    if (chunk->tier == Tier::kDropped) {
      stats.dropped += chunk.size();
      return;
    }
    const bool device = chunk->tier == Tier::kDevice;
    if (device) used += Bytes{chunk->used};
    if (chunk->kept != 0) stats.kept += chunk.size();
    const bool is_away = chunk->away && chunk->tier == Tier::kParked;
    if (is_away && !by_name[tag_of(chunk.segment->pool)]) stats.away += chunk.size();
    ++(device ? stats.chunks_device : stats.chunks_host);
  });
  stats.cached = saturating_sub(ledger_.device, saturating_sub(used, lanes_.recent_bytes()));
  return stats;
}

std::vector<ChunkResidency> ElasticCore::residency() {
  const MutexLock lock(blocks_);
  flush_recent();
  std::vector<ChunkResidency> chunks;
  each_chunk([&](const ChunkRef& chunk) { chunks.push_back(residency_of(chunk)); });
  return chunks;
}

std::string ElasticCore::reservation_notes() {
  const MutexLock lock(blocks_);
  return notes_;
}

}  // namespace commensal

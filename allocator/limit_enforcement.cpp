// SPDX-License-Identifier: Apache-2.0
// Makes the limit hold: gives back free memory, moves live chunks out, brings them back.
#include <sched.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "allocator/elastic_core.h"

namespace commensal {
namespace {

constexpr Bytes kNoLimit{UINT64_MAX};
// Free chunks make room for chunks that come back between safe points once they rested this long.
constexpr std::uint64_t kIdleForReturns = 2;
constexpr const char* kLiveStays = "live memory stays: memory policy antman";

std::string milliseconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count()) +
         " ms";
}

}  // namespace

// --- small parts ---------------------------------------------------------------------------

ElasticCore::Ledger ElasticCore::ledger() {
  const MutexLock lock(blocks_);
  return ledger_;
}

Bytes ElasticCore::host_most(Tier tier) const noexcept {
  return std::min(options_.host_cap, source_.capacity(tier));
}

Tier ElasticCore::tier_for_untouched() const noexcept {
  const bool away = source_.capacity(Tier::kHost).is_zero() && !host_most(Tier::kParked).is_zero();
  return away ? Tier::kParked : Tier::kHost;
}

std::string ElasticCore::host_full_reason(Bytes held, Tier tier) const {
  const Bytes most = host_most(tier);
  if (!most.is_zero()) {
    return "slower tier full: " + to_string(held) + " of " + to_string(most);
  }
  const std::string reason = source_.host_tier_reason();
  return "no slower tier: " + (reason.empty() ? std::string("its cap is 0 B") : reason);
}

std::string ElasticCore::deadline_reason() const {
  return "the deadline of " + milliseconds(options_.move_deadline) + " passed";
}

// Lets threads that wait for the move lock in, between two batches.
void ElasticCore::yield_moves() {
  if (move_waiters_.load(std::memory_order_relaxed) == 0) return;
  moves_.unlock();
  for (int i = 0; i < 100 && move_waiters_.load(std::memory_order_relaxed) > 0; ++i) sched_yield();
  moves_.lock();
}

void ElasticCore::count_orphans() {
  const Bytes device = mover_.orphaned(Tier::kDevice) + source_.over_lease();
  const Bytes host = mover_.orphaned(Tier::kHost) + mover_.orphaned(Tier::kParked);
  const MutexLock lock(blocks_);
  ledger_.orphans_device = device;
  ledger_.orphans_host = host;
  if (!(device + host).is_zero()) pending_.fetch_or(kOrphans, std::memory_order_release);
}

void ElasticCore::retry_orphans() {
  mover_.retry_orphans();
  count_orphans();
}

// Lets the source keep released memory up to so many device bytes in all.
void ElasticCore::lease(Bytes bytes) {
  source_.set_lease(bytes);
  {
    const MutexLock lock(blocks_);
    lease_ = bytes;
  }
  count_orphans();
}

// Without a limit nobody has granted anything: what is released is to go back.
void ElasticCore::lease_limit() {
  const Bytes most = limit();
  lease(most == kNoLimit ? Bytes{} : saturating_sub(most, ledger().outside));
}

// Asks how much of the slower tier is resident. A chunk that was touched comes back by itself.
void ElasticCore::measure_touched() {
  std::vector<ChunkRef> slow_chunks;
  {
    const MutexLock lock(blocks_);
    if (ledger_.slow_chunks == 0) return;
    slow_chunks.reserve(ledger_.slow_chunks);
    each_chunk([&](const ChunkRef& chunk) {
      if (is_slow(chunk->tier)) slow_chunks.push_back(chunk);
    });
  }
  for (const ChunkRef& chunk : slow_chunks) {
    const MemorySource::Touched touched = source_.touched(chunk.address(), chunk->handle);
    const MutexLock lock(blocks_);
    ledger_.touched = saturating_sub(ledger_.touched + touched.resident, chunk->touched);
    if (std::exchange(chunk->measured_at, safe_points_) != safe_points_) {
      chunk->touched_before = chunk->touched;
    }
    chunk->touched = touched.resident;
    chunk->touched_before = std::min(chunk->touched_before, touched.resident);
    chunk->written = touched.written;
    if (touched.resident.is_zero()) continue;
    if (in_use(saturating_sub(touched.resident, chunk->touched_before), chunk.size())) {
      if (chunk->hot_until <= safe_points_ && !chunk->fresh) {  // what overflowed was no trial
        if (chunk->trips < UINT8_MAX) ++chunk->trips;
        pace_.note_touched(safe_points_);
      }
      chunk->hot_until = safe_points_ + hot_for(chunk->trips);
    }
    chunk->lazy = false;
    if (chunk->tier == Tier::kParked) {
      chunk->tier = Tier::kHost;
      ledger_.parked -= chunk.size();
      ledger_.host += chunk.size();
    }
    wake_touched_tag(chunk);
  }
}

// Drops touched pages that did not change: they can be read again.
Bytes ElasticCore::trim_clean() {
  std::vector<ChunkRef> dirty;
  {
    const MutexLock lock(blocks_);
    each_chunk([&](const ChunkRef& chunk) {
      if (is_slow(chunk->tier) && chunk->touched > chunk->written) dirty.push_back(chunk);
    });
  }
  Bytes dropped;
  for (const ChunkRef& chunk : dirty) dropped += source_.trim(chunk.address(), chunk->handle);
  if (!dirty.empty()) measure_touched();
  return dropped;
}

// Returns what is resident where a step needs most, if nothing moves until then: all but what rests
// on the slower tier. Zero: nobody told of steps.
Bytes ElasticCore::resident_at_peak() noexcept {
  Bytes resting;
  const std::uint64_t now = safe_points_;
  each_chunk([&](const ChunkRef& chunk) {
    const bool rests = chunk->used != 0 && !chunk->fresh && chunk->hot_until <= now;
    if (is_slow(chunk->tier) && rests) resting += saturating_sub(chunk.size(), chunk->touched);
  });
  const Bytes need = step_need();
  return need.is_zero() ? need : saturating_sub(need, resting) + ledger_.outside;
}

ElasticCore::Snapshot ElasticCore::snapshot(std::uint64_t round) {
  Snapshot shot;
  const MutexLock lock(blocks_);
  const std::uint64_t now = safe_points_;
  each_chunk([&](const ChunkRef& chunk) {
    shot.refs.push_back(chunk);
    shot.views.push_back(
        ChunkView{chunk->tier, chunk.size(), Bytes{chunk->used}, chunk.last_use(), chunk->touched,
                  chunk->written, chunk->hot_until > now, chunk->lazy,
                  chunk->moving || chunk->kept != 0 || chunk->skip_round >= round || stays(*chunk),
                  chunk->born});
    shot.views.back().fresh = chunk->fresh;
    if (chunk->kept != 0) return;
    const bool device = chunk->tier == Tier::kDevice;
    if (chunk->used == 0 || short_lived(chunk.segment->pool)) {
      shot.soon_free += device ? chunk.size() : chunk->touched;
    }
    if (!device || chunk->used != 0) return;
    shot.free_device += chunk.size();
    if (now - chunk->idle_since >= kIdleForReturns) shot.idle_device += chunk.size();
  });
  shot.at_peak = resident_at_peak();
  for (std::size_t i = 0; i < shot.refs.size(); ++i) view_tag(shot.refs[i], shot.views[i]);
  return shot;
}

void ElasticCore::note_report(const MoveReport& report) {
  const MutexLock lock(blocks_);
  totals_.moves += report.fences;
  totals_.longest_pause = std::max(totals_.longest_pause, report.longest_pause);
  totals_.total_pause += report.total_pause;
}

// --- free chunks ---------------------------------------------------------------------------

// Unmaps and releases chunks without blocks that lie side by side in one segment. Stops where
// somebody uses one, or the source refuses; that one and the rest are as before then. Returns how
// many went.
std::size_t ElasticCore::release_run(std::span<const ChunkRef> run) {
  mover_.expect_releases(run.size());
  std::vector<BlockId> carved;
  std::vector<MemoryHandle> handles;
  carved.reserve(run.size());
  handles.reserve(run.size());
  {
    const MutexLock lock(blocks_);
    BlockPool& pool = pools_[run.front().segment->pool];
    for (const ChunkRef& chunk : run) {
      if (chunk->moving || chunk->kept != 0 || chunk->used != 0 ||
          !pool.is_free(*chunk.segment, chunk.index))
        break;
      try {
        carved.push_back(pool.carve(*chunk.segment, chunk.index));
      } catch (const std::bad_alloc&) {
        break;  // no memory for a node: not now
      }
      handles.push_back(chunk->handle);
    }
  }
  if (handles.empty()) return 0;
  const bool dropped = run.front()->tier == Tier::kDropped;  // is unmapped already
  const std::size_t gone =
      dropped ? handles.size() : source_.unmap_run(run.front().address(), handles).unmapped;
  for (std::size_t i = 0; i < gone; ++i) mover_.release(handles[i]);
  count_orphans();
  const MutexLock lock(blocks_);
  BlockPool& pool = pools_[run.front().segment->pool];
  for (std::size_t i = 0; i < carved.size(); ++i) {
    if (i < gone) {
      pool.make_hole(carved[i]);
      set_chunk(run[i], MemoryHandle{}, Tier::kFree);
    } else {
      pool.uncarve(carved[i]);
    }
  }
  return gone;
}

// Releases chunks without blocks; those that cannot go stay. Returns the device bytes that went.
Bytes ElasticCore::release_chunks(std::vector<ChunkRef>& chunks) {
  std::sort(chunks.begin(), chunks.end(),
            [](const ChunkRef& a, const ChunkRef& b) { return a.address() < b.address(); });
  Bytes released;
  for (std::span<const ChunkRef> rest = chunks; !rest.empty();) {
    const auto follows = [](const ChunkRef& a, const ChunkRef& b) {
      return a.segment == b.segment && a.index + 1 == b.index && a->tier == b->tier;
    };
    std::size_t side_by_side = 1;
    while (side_by_side < rest.size() && follows(rest[side_by_side - 1], rest[side_by_side])) {
      ++side_by_side;
    }
    const bool device = rest.front()->tier == Tier::kDevice;
    const std::size_t gone = release_run(rest.first(side_by_side));
    if (device) released += Bytes{gone * rest.front().size().count()};
    // The one that could not go is passed over.
    rest = rest.subspan(std::min(rest.size(), gone < side_by_side ? gone + 1 : gone));
  }
  return released;
}

// Gives back chunks without blocks: of the device, those unused for longest first, until `need`
// bytes are free; `idle_for`: only those unused for so many safe points. Returns device bytes.
Bytes ElasticCore::release_free(Bytes need, Unused which, std::uint64_t idle_for) {
  std::vector<ChunkRef> candidates;
  {
    const MutexLock lock(blocks_);
    flush_recent();
    const std::uint64_t now = safe_points_;
    each_chunk([&](const ChunkRef& chunk) {
      if (chunk->used != 0 || chunk->moving || chunk->kept != 0) return;
      const bool wanted = chunk->tier == Tier::kDevice ? now - chunk->idle_since >= idle_for
                                                       : which == Unused::kEverywhere;
      if (wanted) candidates.push_back(chunk);
    });
    std::sort(candidates.begin(), candidates.end(), [](const ChunkRef& a, const ChunkRef& b) {
      const std::uint64_t first = a.last_use();
      const std::uint64_t second = b.last_use();
      return first != second ? first < second : a.address() > b.address();
    });
  }
  Bytes released;
  while (!candidates.empty()) {
    std::vector<ChunkRef> chosen;
    Bytes sum = released;
    std::erase_if(candidates, [&](const ChunkRef& chunk) {
      const bool device = chunk->tier == Tier::kDevice;
      if (device && sum >= need) return false;
      if (device) sum += chunk.size();
      chosen.push_back(chunk);
      return true;
    });
    if (chosen.empty()) break;
    released += release_chunks(chosen);
  }
  return released;
}

// Gives addresses back that were reserved for one very large block. Nobody may hold a ChunkRef.
void ElasticCore::drop_empty_segments() {
  std::vector<const Segment*> empty;
  {
    const MutexLock lock(blocks_);
    for (const auto& segment : table_.all()) {
      if (segment->dedicated && segment->mapped == 0) empty.push_back(segment.get());
    }
  }
  for (const Segment* segment : empty) {
    // Out of the table first: given back, the addresses may at once be somebody else's.
    std::unique_ptr<Segment> removed;
    {
      const MutexLock lock(blocks_);
      const FrontLanes::AllLock lanes(lanes_);
      lanes_.forget_segments();
      pools_[segment->pool].remove_segment(*segment);
      removed = table_.remove(*segment);
    }
    try {
      source_.unreserve(removed->range);
    } catch (const std::exception&) {
      // The addresses stay reserved and serve the next large block.
      const MutexLock lock(blocks_);
      const FrontLanes::AllLock lanes(lanes_);
      Segment& kept = table_.add(std::move(removed));
      pools_[kept.pool].add_segment(kept);
    }
  }
}

// Gives back device chunks that stayed free for some safe points while the cache is large.
void ElasticCore::release_idle() {
  Bytes cached;
  Bytes live;
  {
    const MutexLock lock(blocks_);
    if ((pending_.load(std::memory_order_relaxed) & kLargeCache) == 0) return;
    flush_recent();
    cached = saturating_sub(ledger_.device + ledger_.host + ledger_.parked, used_bytes());
    live = lanes_.live();
  }
  if (!cache_is_large(cached, live)) return;
  const Bytes keep{live.count() / 4 + Bytes{64_MiB}.count()};
  release_free(saturating_sub(cached, keep), Unused::kEverywhere, kIdleSafePoints);
}

Bytes ElasticCore::release_cached() {
  if (in_child()) return {};
  const MoveLock moves(*this);
  const Foreground scope(*this);
  lease({});
  retry_orphans();
  const Bytes released = release_free(kNoLimit, Unused::kEverywhere);
  finish({});
  return released;
}

void ElasticCore::with_source(const std::function<void()>& work) {
  if (in_child()) return;
  const MoveLock moves(*this);
  work();
}

// --- batches -------------------------------------------------------------------------------

// Moves chunks and notes where they are now. Chunks that did not move are skipped in this round.
MoveReport ElasticCore::run_batch(const std::vector<ChunkRef>& chunks, Tier tier, Tier label,
                                  bool lazy, TimePoint deadline) {
  std::vector<ChunkMove> batch;
  batch.reserve(chunks.size());
  for (const ChunkRef& chunk : chunks) {
    ChunkMove move;
    move.address = chunk.address();
    move.from = chunk->handle;
    move.fresh = chunk->fresh && tier == Tier::kDevice;
    batch.push_back(std::move(move));
  }
  if (tier == Tier::kParked) set_away(chunks, true);
  MoveReport report;
  try {
    report = mover_.run(batch, tier, deadline);
  } catch (...) {
    if (tier == Tier::kParked) set_away(chunks, false);
    throw;
  }
  note_report(report);
  note_moved(chunks, batch, tier, label, lazy);
  if (tier == Tier::kParked && report.moved < batch.size()) {
    std::vector<ChunkRef> stayed;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (!batch[i].moved) stayed.push_back(chunks[i]);
    }
    set_away(stayed, false);
  }
  return report;
}

// Has the free memory of chunks serve nobody, before nothing is mapped there any more; or has it
// serve again.
void ElasticCore::set_away(const std::vector<ChunkRef>& chunks, bool away) {
  const MutexLock lock(blocks_);
  // From here on lanes keep no block without asking where it lies.
  if (away) pending_.fetch_or(kSlowChunks, std::memory_order_release);
  flush_recent();
  for (const ChunkRef& chunk : chunks) {
    BlockPool& pool = pools_[chunk.segment->pool];
    pool.begin_retier(*chunk.segment, chunk.index);
    chunk->away = away;
    pool.end_retier(*chunk.segment, chunk.index);
  }
}

void ElasticCore::note_moved(const std::vector<ChunkRef>& chunks,
                             const std::vector<ChunkMove>& batch, Tier tier, Tier label,
                             bool lazy) {
  count_orphans();
  const MutexLock lock(blocks_);
  // Recent blocks are served before others; after a move some of them may be slow ones. From here
  // on lanes keep none without asking where it lies.
  if (tier != Tier::kDevice) pending_.fetch_or(kSlowChunks, std::memory_order_release);
  flush_recent();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const ChunkRef& chunk = chunks[i];
    if (!batch[i].moved) {
      // What was not even tried did not fail: another thread may be the one that can move it.
      if (!batch[i].reason.empty()) chunk->skip_round = round_;
      continue;
    }
    const bool was_device = chunk->tier == Tier::kDevice;
    if (was_device && tier != Tier::kDevice) {
      totals_.moved_out += Bytes{chunk->used};
      totals_.given_back += chunk.size();
    }
    if (!was_device && tier == Tier::kDevice) totals_.moved_in += Bytes{chunk->used};
    BlockPool& pool = pools_[chunk.segment->pool];
    pool.begin_retier(*chunk.segment, chunk.index);
    set_chunk(chunk, batch[i].to, label);
    pool.end_retier(*chunk.segment, chunk.index);
    chunk->lazy = lazy;
    if (tier == Tier::kDevice) chunk.note_use(lanes_.now());
  }
}

// Moves one batch of live memory out. Sets `stop` when no further batch can help; returns why.
std::string ElasticCore::move_out(const ShrinkGoal& goal, std::uint64_t round, Bytes need,
                                  TimePoint deadline, bool& stop) {
  const Snapshot shot = snapshot(round);
  const std::vector<std::size_t> chosen =
      choose_spills(shot.views, need, kMostAtOnce, phase_.load(std::memory_order_relaxed));
  if (chosen.empty()) {
    stop = true;
    return {};
  }
  const Ledger now = ledger();
  const Tier tier = goal.untouched ? tier_for_untouched() : Tier::kHost;
  Bytes room = saturating_sub(host_most(tier), now.on_host());
  std::vector<ChunkRef> chunks;
  for (const std::size_t i : chosen) {
    if (shot.refs[i].size() > room) break;
    room -= shot.refs[i].size();
    chunks.push_back(shot.refs[i]);
  }
  if (chunks.empty()) {
    stop = true;
    return host_full_reason(now.on_host(), tier);
  }
  const Tier label = goal.park ? Tier::kParked : Tier::kHost;
  const MoveReport report = run_batch(chunks, tier, label, goal.lazy, deadline);
  stop = report.refused;
  return report.reason;
}

// Lowers what is resident to the goal. Returns why it is not reached; empty: it is.
std::string ElasticCore::shrink_to(const ShrinkGoal& goal, TimePoint deadline) {
  const std::uint64_t round = begin_round();
  std::string reason;
  bool trimmed = false;
  bool stop = false;
  for (;;) {
    const Bytes target = goal.follow_limit ? limit() : goal.target;
    Bytes resident = ledger().resident();
    if (resident <= target) return {};
    const Bytes before = ledger().on_device();
    const Bytes released = release_free(resident - target, Unused::kEverywhere);
    if (!released.is_zero()) {
      const Bytes gone = saturating_sub(before, ledger().on_device());
      const MutexLock lock(blocks_);
      totals_.given_back += gone;
    }
    if (!std::exchange(trimmed, true)) (void)trim_clean();
    resident = ledger().resident();
    if (resident <= target) return {};
    if (stop) break;
    if (clock_.now() >= deadline) return deadline_reason();
    std::string why = move_out(goal, round, resident - target, deadline, stop);
    if (!why.empty()) reason = std::move(why);
    measure_touched();
    yield_moves();
  }
  if (!reason.empty()) return reason;
  const Ledger now = ledger();
  if (!options_.move_live) return kLiveStays;
  if (!moves_live()) return "live memory stays: the job is guaranteed";
  if (!now.orphans_device.is_zero()) {
    return "the system has not taken back " + to_string(now.orphans_device) + " yet";
  }
  if (std::string kept = kept_reason(); !kept.empty()) return kept;
  return "what is left could not be moved";
}

// Cuts what was chosen to come back by itself down to what has leave. False: nothing has.
bool ElasticCore::may_return(std::vector<std::size_t>& chosen, const Snapshot& shot, Bytes room) {
  ReturnPace* const pace = return_pace_.load();
  if (pace == nullptr) return true;
  Bytes wanted;
  for (const std::size_t i : chosen) wanted += shot.views[i].size;
  const Bytes least = shot.views[chosen.front()].size;
  const ReturnLeave leave = pace->leave(least, wanted);
  if (leave.most.is_zero()) {
    note_held_back(std::max(wanted, std::min(ledger().host, room)), leave.reason);
    return false;
  }
  std::size_t count = 1;
  Bytes sum = least;
  while (count < chosen.size() && sum + shot.views[chosen[count]].size <= leave.most) {
    sum += shot.views[chosen[count++]].size;
  }
  chosen.resize(count);
  return true;
}

void ElasticCore::note_held_back(Bytes bytes, const char* reason) {
  const MutexLock lock(blocks_);
  totals_.held_back = bytes;
  totals_.held_back_reason = reason;
  if (!bytes.is_zero()) ++totals_.held_back_times;
}

void ElasticCore::note_returned(Bytes before, TimePoint began) {
  ReturnPace* const pace = return_pace_.load();
  const Bytes returned = saturating_sub(ledger().device, before);
  if (pace != nullptr && !returned.is_zero()) {
    pace->returned(returned, elapsed(began, clock_.now()));
  }
}

// Brings chunks of the slower tier back, at most `bytes` and as far as the limit allows. Returns
// why less than that came back; empty: all that fits did.
std::string ElasticCore::grow_back(const Returns& wanted, TimePoint deadline, Bytes& grown) {
  if (!options_.move_live) return ledger().slow_chunks > 0 ? kLiveStays : std::string();
  const std::uint64_t round = begin_round();
  std::string reason;
  while (grown < wanted.bytes && ledger().slow_chunks > 0) {
    {
      const MutexLock lock(blocks_);
      flush_recent();
    }
    const Snapshot shot = snapshot(round);
    const Ledger now = ledger();
    const Bytes most = std::min(limit(), source_.capacity(Tier::kDevice));
    const Bytes taken = saturating_sub(now.resident(), shot.free_device);
    ReturnBudget budget;
    budget.room = saturating_sub(most, taken);
    budget.bytes = wanted.bytes - grown;
    budget.batch = kMostAtOnce;
    budget.lazy = wanted.lazy;
    budget.fresh_only = wanted.fresh_only;
    budget.now = phase_.load(std::memory_order_relaxed);
    if (!wanted.all_that_fits) budget.rest_room = saturating_sub(most, shot.at_peak);
    std::vector<std::size_t> chosen = choose_returns(shot.views, budget);
    if (chosen.empty()) break;
    if (clock_.now() >= deadline) return deadline_reason();
    if (wanted.by_itself && !may_return(chosen, shot, budget.room)) break;
    std::vector<ChunkRef> chunks;
    Bytes added;
    for (const std::size_t i : chosen) {
      chunks.push_back(shot.refs[i]);
      added += saturating_sub(shot.views[i].size, shot.views[i].touched);
    }
    // Free chunks make room for used ones.
    const Bytes unused = saturating_sub(most, now.resident());
    if (added > unused) {
      (void)release_free(added - unused, Unused::kEverywhere);
      // Meanwhile a block may have taken a free chunk, and a chosen chunk may have become free.
      Bytes room = saturating_sub(most, ledger().resident());
      std::erase_if(chunks, [&room](const ChunkRef& chunk) {
        const Bytes cost = saturating_sub(chunk.size(), chunk->touched);
        if (chunk->tier == Tier::kFree || cost > room) return true;
        room -= cost;
        return false;
      });
      if (chunks.empty()) break;
    }
    const Bytes before = ledger().device;
    const TimePoint began = clock_.now();
    const MoveReport report = run_batch(chunks, Tier::kDevice, Tier::kDevice, false, deadline);
    grown += saturating_sub(ledger().device, before);
    note_returned(before, began);
    if (!report.reason.empty()) reason = report.reason;
    if (report.refused) break;
    yield_moves();
    measure_touched();
  }
  return reason;
}

// --- tickets -------------------------------------------------------------------------------

// Takes a new limit over unless a newer one is there. `revision` becomes the one that holds.
bool ElasticCore::record_limit(Bytes limit, Revision& revision) {
  const Revision newest = revision_.load(std::memory_order_relaxed);
  if (revision == 0) revision = newest + 1;
  if (revision < newest) {
    revision = newest;
    return false;
  }
  if (limit > this->limit() && !stay_parked_) wake_lazy_ = true;
  revision_.store(revision, std::memory_order_relaxed);
  limit_.store(limit.count(), std::memory_order_release);
  if (std::max(ledger_.resident(), lease_) > limit) {
    pending_.fetch_or(kOverLimit, std::memory_order_release);
  }
  return true;
}

LimitTicket ElasticCore::ticket_now() {
  LimitTicket ticket;
  const MutexLock lock(blocks_);  // a revision and its limit belong together
  ticket.revision = revision_.load(std::memory_order_relaxed);
  ticket.limit = limit();
  if (in_child()) ticket.reason = "this is a forked child: the memory is its parent's";
  return ticket;
}

LimitTicket ElasticCore::post_limit(Bytes limit, Revision revision) {
  LimitTicket ticket = ticket_now();
  if (in_child()) return ticket;
  const MutexLock lock(blocks_);
  const Revision asked = revision;
  ticket.stale = !record_limit(limit, revision);
  ticket.revision = revision;
  ticket.limit = this->limit();
  if (ticket.stale) {
    ticket.reason =
        "stale: revision " + std::to_string(asked) + " is older than " + std::to_string(revision);
    return ticket;
  }
  ticket.deferred = saturating_sub(ledger_.resident(), limit);
  if (!ticket.deferred.is_zero()) ticket.reason = "waits for the next safe point";
  return ticket;
}

LimitTicket ElasticCore::set_limit(Bytes limit, Revision revision) {
  const TimePoint begin = clock_.now();
  LimitTicket ticket = post_limit(limit, revision);
  if (ticket.stale || in_child()) return ticket;
  const MoveLock moves(*this);
  return enforce_limit(begin, begin + options_.move_deadline);
}

LimitTicket ElasticCore::safe_point() {
  if (!work_pending() || in_child()) return ticket_now();
  const TimePoint begin = clock_.now();
  const MoveLock moves(*this);
  return enforce_limit(begin, begin + options_.move_deadline);
}

LimitTicket ElasticCore::enforce_limit(TimePoint begin, TimePoint deadline) {
  const Foreground scope(*this);
  const bool grow_here = !ahead_expected_.load(std::memory_order_relaxed);
  retry_orphans();
  measure_touched();
  const Bytes before = ledger().resident();
  Bytes grown;
  std::string over;
  std::string under;
  note_held_back({}, "");
  for (;;) {
    const Revision seen = revision_.load(std::memory_order_relaxed);
    lease_limit();
    bool wake = false;
    {
      const MutexLock lock(blocks_);
      ++safe_points_;
      if (grow_here) wake = std::exchange(wake_lazy_, false);
    }
    release_free({}, Unused::kEverywhere);
    over = shrink_to(ShrinkGoal{.follow_limit = true}, deadline);
    // Where there is a mover, a safe point waits for no disk.
    if (over.empty()) under = grow_back({kNoLimit, wake, !grow_here, false, true}, deadline, grown);
    if (wake) {
      const MutexLock lock(blocks_);
      // What did not come back is tried again.
      wake_lazy_ = wake_lazy_ || !under.empty() || !totals_.held_back.is_zero();
    }
    if (revision_.load(std::memory_order_relaxed) == seen || clock_.now() >= deadline) break;
  }
  release_idle();
  finish(over);
  LimitTicket ticket = ticket_now();
  const Ledger now = ledger();
  ticket.deferred = saturating_sub(now.resident(), ticket.limit);
  const Bytes asked = saturating_sub(before, ticket.limit);
  ticket.done = asked.is_zero() ? grown : saturating_sub(asked, ticket.deferred);
  if (!ticket.deferred.is_zero()) {
    ticket.reason = over.empty() ? "memory was touched, or the limit lowered, meanwhile" : over;
  } else if (!under.empty()) {
    ticket.deferred = std::min(now.host, saturating_sub(ticket.limit, now.resident()));
    if (!ticket.deferred.is_zero()) ticket.reason = under;
  }
  const MutexLock lock(blocks_);
  totals_.safe_point_wait += elapsed(begin, clock_.now());
  return ticket;
}

// Notes at the end of a call what is left to do.
void ElasticCore::finish(const std::string& reason) {
  drop_empty_segments();
  measure_touched();
  const MutexLock lock(blocks_);
  totals_.deferred = saturating_sub(ledger_.resident(), limit());
  totals_.deferred_reason = totals_.deferred.is_zero() ? std::string() : reason;
  if (!totals_.deferred.is_zero() && reason.empty()) {
    totals_.deferred_reason = "waits for the next safe point";
  }
  std::uint32_t pending = 0;
  if (!totals_.deferred.is_zero()) pending |= kOverLimit;
  if (ledger_.slow_chunks > 0) pending |= kSlowChunks;
  if (!(ledger_.orphans_device + ledger_.orphans_host).is_zero()) pending |= kOrphans;
  if (moves_live() && resident_at_peak() > limit()) pending |= kPeakOver;
  pending_.store(pending, std::memory_order_release);
  note_cache();
}

LimitTicket ElasticCore::shrink(Bytes bytes) {
  if (in_child()) return ticket_now();
  const TimePoint deadline = clock_.now() + options_.move_deadline;
  const MoveLock moves(*this);
  const Foreground scope(*this);
  lease({});
  retry_orphans();
  measure_touched();
  const Bytes before = ledger().resident();
  const Bytes asked = std::min(bytes, saturating_sub(before, ledger().outside));
  const std::string reason =
      shrink_to(ShrinkGoal{.target = before - asked, .lazy = true}, deadline);
  finish(reason);
  LimitTicket ticket = ticket_now();
  ticket.done = saturating_sub(before, ledger().resident());
  ticket.deferred = saturating_sub(asked, ticket.done);
  if (!ticket.deferred.is_zero()) ticket.reason = reason;
  return ticket;
}

LimitTicket ElasticCore::park(Parking how) {
  if (in_child()) return ticket_now();
  const TimePoint deadline = clock_.now() + options_.move_deadline;
  const MoveLock moves(*this);
  const Foreground scope(*this);
  lease({});
  retry_orphans();
  measure_touched();
  const Bytes before = ledger().resident();
  const Bytes outside = ledger().outside;
  const ShrinkGoal goal{
      .target = outside, .lazy = true, .park = true, .untouched = how == Parking::kUntouched};
  const std::string reason = shrink_to(goal, deadline);
  {
    // What lay on the slower tier before is parked now too, unless it is being touched.
    const MutexLock lock(blocks_);
    stay_parked_ = how != Parking::kUntilRoom;
    if (stay_parked_) wake_lazy_ = false;
    Bytes parked;
    each_chunk([&](const ChunkRef& chunk) {
      if (chunk->tier != Tier::kHost || !chunk->touched.is_zero()) return;
      parked += chunk.size();
      chunk->tier = Tier::kParked;
      chunk->lazy = true;
    });
    ledger_.host -= parked;
    ledger_.parked += parked;
  }
  finish(reason);
  LimitTicket ticket = ticket_now();
  const Bytes after = ledger().resident();
  ticket.deferred = saturating_sub(after, outside);
  ticket.done = saturating_sub(before, after);
  if (!ticket.deferred.is_zero()) ticket.reason = reason.empty() ? "touched again" : reason;
  return ticket;
}

LimitTicket ElasticCore::grow(Bytes bytes) {
  if (in_child()) return ticket_now();
  const TimePoint deadline = clock_.now() + options_.move_deadline;
  const MoveLock moves(*this);
  const Foreground scope(*this);
  {
    const MutexLock lock(blocks_);
    stay_parked_ = false;
  }
  note_held_back({}, "");
  lease_limit();
  retry_orphans();
  measure_touched();
  release_free({}, Unused::kEverywhere);
  Ledger now = ledger();
  const Bytes most = std::min(limit(), source_.capacity(Tier::kDevice));
  const Snapshot shot = snapshot(begin_round());
  const Bytes room = saturating_sub(most, saturating_sub(now.resident(), shot.free_device));
  const Bytes asked = std::min({bytes, now.host + now.parked, room});
  Bytes grown;
  const std::string reason = grow_back({bytes, true, false, true}, deadline, grown);
  finish({});
  LimitTicket ticket = ticket_now();
  ticket.done = grown;
  if (!reason.empty()) {
    ticket.deferred = saturating_sub(asked, grown);
    if (!ticket.deferred.is_zero()) ticket.reason = reason;
  }
  return ticket;
}

}  // namespace commensal

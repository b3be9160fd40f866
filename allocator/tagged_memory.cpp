// SPDX-License-Identifier: Apache-2.0
// Tags: their blocks, how a whole tag is saved, given up or brought back; and what lies where.
#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "allocator/elastic_core.h"

namespace commensal {
namespace {

constexpr int kTries = 3;
constexpr TimePoint kNoDeadline = TimePoint::max();
constexpr std::size_t kLongestName = 128;

// What a chunk holds of the device.
Bytes resident(const Chunk& chunk, Bytes size) noexcept {
  return chunk.tier == Tier::kDevice ? size : chunk.touched;
}

std::string in_quotes(std::string_view name) { return "'" + std::string(name) + "'"; }

}  // namespace

// --- names ---------------------------------------------------------------------------------

TagId ElasticCore::open_tag(std::string_view name, TagOptions options) {
  if (name.empty() || name.size() > kLongestName) {
    throw std::invalid_argument("a tag's name has 1 to " + std::to_string(kLongestName) +
                                " bytes: " + in_quotes(name.substr(0, kLongestName)));
  }
  const MutexLock lock(blocks_);
  const auto at =
      std::find_if(tags_.begin(), tags_.end(), [name](const Tag& tag) { return tag.name == name; });
  const auto number = static_cast<TagId>(at - tags_.begin() + 1);
  if (at != tags_.end()) {
    at->options = options;
    return number;
  }
  if (number > kMostTags) {
    throw std::invalid_argument("more than " + std::to_string(kMostTags) +
                                " tags: " + in_quotes(name));
  }
  tags_.push_back(Tag{std::string(name), options});
  return number;
}

TagId ElasticCore::find_tag(std::string_view name) {
  const MutexLock lock(blocks_);
  std::string known;
  for (std::size_t i = 0; i < tags_.size(); ++i) {
    if (tags_[i].name == name) return static_cast<TagId>(i + 1);
    known += (known.empty() ? "" : ", ") + in_quotes(tags_[i].name);
  }
  throw std::invalid_argument("unknown tag: " + in_quotes(name) + " (there are " +
                              (known.empty() ? std::string("none") : known) + ")");
}

ElasticCore::Tag& ElasticCore::checked_tag(TagId tag) {
  if (tag == 0 || tag > tags_.size()) {
    throw std::invalid_argument("unknown tag number: " + std::to_string(tag) + " (there are " +
                                std::to_string(tags_.size()) + ")");
  }
  return tags_[tag - 1];
}

// --- parts of moving a tag -----------------------------------------------------------------

template <typename Wanted>
std::vector<ElasticCore::ChunkRef> ElasticCore::tag_chunks(TagId tag, Wanted wanted) {
  std::vector<ChunkRef> chunks;
  const MutexLock lock(blocks_);
  each_chunk([&](const ChunkRef& chunk) {
    if (tag_of(chunk.segment->pool) == tag && wanted(chunk)) chunks.push_back(chunk);
  });
  return chunks;
}

// Gives back chunks of a tag that no block uses.
void ElasticCore::release_unused(TagId tag) {
  std::vector<ChunkRef> unused =
      tag_chunks(tag, [](const ChunkRef& chunk) { return chunk->used == 0; });
  const Bytes gone = release_chunks(unused);
  const MutexLock lock(blocks_);
  totals_.given_back += gone;
}

// Waits until nothing in flight uses what is mapped. Returns why that cannot be; empty: it is so.
std::string ElasticCore::stop_writers() {
  std::string reason;
  for (int i = 0; i < kTries; ++i) {
    const FenceResult fence = source_.fence(options_.fence_deadline);
    if (fence.stopped) {
      source_.unfence();
      return {};
    }
    reason = fence.reason;
  }
  return reason;
}

void ElasticCore::put_back(const ChunkRef& chunk, MemoryHandle handle, Tier tier) noexcept {
  BlockPool& pool = pools_[chunk.segment->pool];
  pool.begin_retier(*chunk.segment, chunk.index);
  set_chunk(chunk, handle, tier);
  pool.end_retier(*chunk.segment, chunk.index);
}

// Moves what a tag holds of the device to the slower tier, or away. Returns why not all of it.
std::string ElasticCore::move_tag_out(TagId tag) {
  std::string reason;
  for (int i = 0; i < kTries; ++i) {
    const std::uint64_t round = begin_round();
    for (;;) {
      const std::vector<ChunkRef> rest = tag_chunks(tag, [round](const ChunkRef& chunk) {
        return chunk->used != 0 && chunk->kept == 0 && chunk->skip_round < round &&
               !resident(*chunk, chunk.size()).is_zero();
      });
      if (rest.empty()) break;
      const Ledger now = ledger();
      const Tier tier = tier_for_untouched();
      Bytes room = saturating_sub(host_most(tier), now.on_host());
      Bytes bytes;
      std::vector<ChunkRef> batch;
      for (const ChunkRef& chunk : rest) {
        if (chunk.size() > room || (!batch.empty() && bytes + chunk.size() > kMostAtOnce)) break;
        room -= chunk.size();
        bytes += chunk.size();
        batch.push_back(chunk);
      }
      if (batch.empty()) return host_full_reason(now.on_host(), tier);
      const MoveReport report = run_batch(batch, tier, Tier::kParked, true, kNoDeadline);
      if (!report.reason.empty()) reason = report.reason;
      {
        // Each once a round: what is touched all the time would be moved for ever.
        const MutexLock lock(blocks_);
        for (const ChunkRef& chunk : batch) chunk->skip_round = round_;
      }
      if (report.refused) break;
      yield_moves();
    }
    measure_touched();
    const std::vector<ChunkRef> left = tag_chunks(tag, [](const ChunkRef& chunk) {
      return chunk->used != 0 && chunk->kept == 0 && chunk->tier == Tier::kDevice;
    });
    if (left.empty()) return {};
  }
  return reason.empty() ? "memory was asked for meanwhile" : reason;
}

// --- park ----------------------------------------------------------------------------------

TagTicket ElasticCore::park_tag(TagId tag) {
  TagTicket ticket;
  ticket.reason = ticket_now().reason;
  if (in_child()) return ticket;
  const MoveLock moves(*this);
  const Foreground scope(*this);
  Bytes before;
  const auto held = [&] {
    Bytes bytes;
    (void)tag_chunks(tag, [&bytes](const ChunkRef& chunk) {
      bytes += resident(*chunk, chunk.size());
      return false;
    });
    return bytes;
  };
  {
    const MutexLock lock(blocks_);
    checked_tag(tag).parked = true;
  }
  lease({});
  retry_orphans();
  measure_touched();
  before = held();
  release_unused(tag);
  const std::string reason = move_tag_out(tag);
  {
    // What lay on the slower tier before is parked now too, unless it is being touched.
    const MutexLock lock(blocks_);
    Bytes parked;
    each_chunk([&](const ChunkRef& chunk) {
      if (tag_of(chunk.segment->pool) != tag) return;
      if (chunk->tier != Tier::kHost || !chunk->touched.is_zero()) return;
      parked += chunk.size();
      chunk->tier = Tier::kParked;
      chunk->lazy = true;
    });
    ledger_.host -= parked;
    ledger_.parked += parked;
    checked_tag(tag).parked = true;  // a touch while it moved does not count
  }
  finish({});
  ticket.deferred = held();
  ticket.done = saturating_sub(before, ticket.deferred);
  if (!ticket.complete()) {
    const std::string kept = kept_reason();
    ticket.reason = !reason.empty() ? reason : kept.empty() ? "touched again" : kept;
  }
  return ticket;
}

// --- drop ----------------------------------------------------------------------------------

// Unmaps chunks that lie side by side and are marked as dropped; their handles are still noted.
// What the source refuses to unmap is as before.
void ElasticCore::unmap_dropped(std::span<const ChunkRef> run, TagTicket& ticket) {
  std::vector<MemoryHandle> handles;
  for (const ChunkRef& chunk : run) handles.push_back(chunk->handle);
  mover_.expect_releases(handles.size());
  std::vector<Tier> tiers(run.size());
  {
    // First of all, so that what is freed in them meanwhile serves nobody.
    const MutexLock lock(blocks_);
    for (std::size_t i = 0; i < run.size(); ++i) {
      tiers[i] = run[i]->tier;
      put_back(run[i], MemoryHandle{}, Tier::kDropped);
    }
  }
  const MemorySource::UnmappedRun gone = source_.unmap_run(run.front().address(), handles);
  for (std::size_t i = 0; i < gone.unmapped; ++i) {
    mover_.release(handles[i]);
    if (tiers[i] == Tier::kDevice) ticket.done += run[i].size();
  }
  count_orphans();
  const MutexLock lock(blocks_);
  for (std::size_t i = gone.unmapped; i < run.size(); ++i) {
    put_back(run[i], handles[i], tiers[i]);
    if (tiers[i] == Tier::kDevice) ticket.deferred += run[i].size();
    ticket.reason = gone.error;
  }
}

TagTicket ElasticCore::drop_tag(TagId tag) {
  TagTicket ticket;
  ticket.reason = ticket_now().reason;
  if (in_child()) return ticket;
  const MoveLock moves(*this);
  const Foreground scope(*this);
  {
    const MutexLock lock(blocks_);
    checked_tag(tag).parked = false;
  }
  lease({});
  retry_orphans();
  release_unused(tag);
  const auto mapped = [](const ChunkRef& chunk) {
    return chunk->tier != Tier::kDropped && chunk->kept == 0;
  };
  if (!tag_chunks(tag, mapped).empty()) ticket.reason = stop_writers();
  const std::vector<ChunkRef> chunks = tag_chunks(tag, mapped);
  if (ticket.reason.empty()) {
    for (std::span<const ChunkRef> rest = chunks; !rest.empty();) {
      std::size_t count = 1;
      while (count < rest.size() && rest[count].segment == rest[0].segment &&
             rest[count].index == rest[count - 1].index + 1 && rest[count]->tier == rest[0]->tier) {
        ++count;
      }
      unmap_dropped(rest.first(count), ticket);
      rest = rest.subspan(count);
    }
  } else {
    for (const ChunkRef& chunk : chunks) ticket.deferred += resident(*chunk, chunk.size());
  }
  const auto kept = [](const ChunkRef& chunk) { return chunk->kept != 0; };
  for (const ChunkRef& chunk : tag_chunks(tag, kept)) {
    ticket.deferred += chunk.size();
    ticket.reason = kept_reason();
  }
  {
    const MutexLock lock(blocks_);
    totals_.given_back += ticket.done;
  }
  release_unused(tag);
  finish({});
  return ticket;
}

// --- wake ----------------------------------------------------------------------------------

// Asks the handler of `on_pressure` for what a tag needs above the limit.
void ElasticCore::ask_for_tag(TagId tag) {
  std::shared_ptr<const PressureHandler> handler;
  Bytes needed;
  Bytes unused;
  {
    const MutexLock lock(blocks_);
    (void)checked_tag(tag);
    each_chunk([&](const ChunkRef& chunk) {
      if (chunk->used == 0 && chunk->tier == Tier::kDevice) unused += chunk.size();
      if (chunk->used == 0 || chunk->tier == Tier::kDevice) return;
      if (tag_of(chunk.segment->pool) == tag)
        needed += saturating_sub(chunk.size(), chunk->touched);
    });
    const Bytes taken = saturating_sub(ledger_.resident(), unused);
    needed = saturating_sub(needed, saturating_sub(limit(), taken));
    if (!needed.is_zero()) handler = pressure_;
  }
  if (handler != nullptr) (void)(*handler)(needed);  // whatever it answers, the limit counts
}

// Gives dropped chunks memory: of the device while the limit allows, else of the slower tier.
void ElasticCore::refill_dropped(TagId tag, TagTicket& ticket) {
  const auto gone = [](const ChunkRef& chunk) { return chunk->tier == Tier::kDropped; };
  Bytes needed;
  (void)tag_chunks(tag, [&](const ChunkRef& chunk) {
    if (gone(chunk)) needed += chunk.size();
    return false;
  });
  const Bytes most = std::min(limit(), source_.capacity(Tier::kDevice));
  const Bytes room = saturating_sub(most, ledger().resident());
  if (needed > room) (void)release_free(needed - room, Unused::kEverywhere);
  const Ledger now = ledger();
  Bytes device_room = saturating_sub(most, now.resident());
  Bytes host_room = saturating_sub(host_most(), now.on_host());
  for (const ChunkRef& chunk : tag_chunks(tag, gone)) {
    mover_.expect_releases(1);
    MemoryHandle handle;
    try {
      handle = create_for(chunk.size(), true, device_room, host_room);
      source_.map(chunk.address(), handle);
    } catch (const std::exception& error) {
      mover_.release(handle);
      ticket.missing += chunk.size();
      ticket.reason = error.what();
      continue;
    }
    const bool device = handle.tier == Tier::kDevice;
    (device ? ticket.done : ticket.deferred) += chunk.size();
    const MutexLock lock(blocks_);
    put_back(chunk, handle, handle.tier);
    chunk.note_use(lanes_.now());
  }
  count_orphans();
}

// Moves what was saved of a tag back to the device, as far as the limit allows.
void ElasticCore::bring_tag_back(TagId tag, TagTicket& ticket) {
  const std::uint64_t round = begin_round();
  const auto saved = [round](const ChunkRef& chunk) {
    return chunk->used != 0 && chunk->kept == 0 && is_slow(chunk->tier) &&
           chunk->skip_round < round;
  };
  for (;;) {
    std::vector<ChunkRef> chunks = tag_chunks(tag, saved);
    const Bytes most = std::min(limit(), source_.capacity(Tier::kDevice));
    Bytes cost;
    Bytes bytes;
    std::size_t count = 0;
    while (count < chunks.size() && (count == 0 || bytes + chunks[count].size() <= kMostAtOnce)) {
      bytes += chunks[count].size();
      cost += saturating_sub(chunks[count].size(), chunks[count]->touched);
      ++count;
    }
    chunks.resize(count);
    const Bytes unused = saturating_sub(most, ledger().resident());
    if (cost > unused) (void)release_free(cost - unused, Unused::kEverywhere);
    Bytes room = saturating_sub(most, ledger().resident());
    std::erase_if(chunks, [&room](const ChunkRef& chunk) {
      const Bytes wants = saturating_sub(chunk.size(), chunk->touched);
      if (!is_slow(chunk->tier) || wants > room) return true;
      room -= wants;
      return false;
    });
    if (chunks.empty()) break;
    const Bytes before = ledger().device;
    const MoveReport report = run_batch(chunks, Tier::kDevice, Tier::kDevice, false, kNoDeadline);
    ticket.done += saturating_sub(ledger().device, before);
    if (!report.reason.empty()) ticket.reason = report.reason;
    if (report.refused) break;
    yield_moves();
  }
}

TagTicket ElasticCore::wake_tag(TagId tag) {
  TagTicket ticket;
  ticket.reason = ticket_now().reason;
  if (in_child()) return ticket;
  ask_for_tag(tag);
  const MoveLock moves(*this);
  const Foreground scope(*this);
  {
    const MutexLock lock(blocks_);
    checked_tag(tag).parked = false;
    each_chunk([&](const ChunkRef& chunk) {
      if (tag_of(chunk.segment->pool) == tag) chunk->lazy = false;
    });
  }
  lease_limit();
  retry_orphans();
  measure_touched();
  release_unused(tag);
  refill_dropped(tag, ticket);
  bring_tag_back(tag, ticket);
  {
    // What found no room is in use on the slower tier, and comes back as soon as there is some.
    // What is away comes back then too, and cannot be used before.
    const MutexLock lock(blocks_);
    ticket.deferred = Bytes{};
    Bytes usable;
    each_chunk([&](const ChunkRef& chunk) {
      if (tag_of(chunk.segment->pool) != tag || !is_slow(chunk->tier)) return;
      if (chunk->away) {
        ticket.missing += chunk.size();
        return;
      }
      ticket.deferred += chunk.size();
      if (chunk->tier != Tier::kParked) return;
      usable += chunk.size();
      chunk->tier = Tier::kHost;
    });
    ledger_.parked -= usable;
    ledger_.host += usable;
  }
  finish({});
  if (ticket.reason.empty() && !ticket.complete()) {
    const Bytes most = std::min(limit(), source_.capacity(Tier::kDevice));
    ticket.reason = saturating_sub(most, ledger().resident()) < ticket.deferred + ticket.missing
                        ? "the limit of " + to_string(limit()) + " leaves no room"
                        : "what is left could not be moved";
  }
  if (ticket.complete()) ticket.reason.clear();
  return ticket;
}

// --- what a tag means for moves ------------------------------------------------------------

void ElasticCore::view_tag(const ChunkRef& chunk, ChunkView& view) const {
  view.tag = tag_of(chunk.segment->pool);
  if (view.tag == 0) return;
  const Tag& tag = tags_[view.tag - 1];
  view.keep = tag.options.keep;
  view.skip = view.skip || (tag.parked && chunk->lazy && is_slow(chunk->tier));
}

// A parked tag comes back as a whole when somebody touches it.
void ElasticCore::wake_touched_tag(const ChunkRef& touched) noexcept {
  const TagId tag = tag_of(touched.segment->pool);
  if (tag == 0 || !tags_[tag - 1].parked) return;
  tags_[tag - 1].parked = false;
  each_chunk([this, tag](const ChunkRef& chunk) {
    if (tag_of(chunk.segment->pool) == tag) chunk->lazy = false;
  });
}

// --- what lies where -----------------------------------------------------------------------

ChunkResidency ElasticCore::residency_of(const ChunkRef& chunk) {
  return ChunkResidency{chunk.address(), chunk.size(), chunk->tier, Bytes{chunk->used},
                        chunk->tier == Tier::kDropped || chunk->away};
}

std::vector<TagResidency> ElasticCore::tags() {
  const MutexLock lock(blocks_);
  std::vector<TagResidency> all;
  for (const Tag& tag : tags_) {
    TagResidency entry;
    entry.name = tag.name;
    entry.options = tag.options;
    entry.parked = tag.parked;
    all.push_back(std::move(entry));
  }
  each_chunk([&](const ChunkRef& chunk) {
    const TagId tag = tag_of(chunk.segment->pool);
    if (tag == 0) return;
    TagResidency& entry = all[tag - 1];
    entry.live += Bytes{chunk->used};
    switch (chunk->tier) {
      case Tier::kDevice: entry.device += chunk.size(); break;
      case Tier::kHost: entry.host += chunk.size(); break;
      case Tier::kParked: entry.saved += chunk.size(); break;
      case Tier::kDropped: entry.dropped += chunk.size(); break;
      case Tier::kFree: break;
    }
  });
  return all;
}

std::vector<SegmentMap> ElasticCore::memory_map(bool with_blocks) {
  const MutexLock lock(blocks_);
  flush_recent();
  std::vector<SegmentMap> segments;
  for (const auto& segment : table_.all()) {
    if (segment->mapped == 0) continue;
    SegmentMap map;
    map.range = segment->range;
    const PoolKey key = pools_.key(segment->pool);
    map.stream = key.stream;
    if (key.tag != 0) map.tag = tags_[key.tag - 1].name;
    if (key.none()) {
      map.small = segment->pool % kSizes == kSmall;
      map.lifetime = segment->pool < kSizes ? Lifetime::kLong : Lifetime::kStep;
    }
    const BlockPool& pool = pools_[segment->pool];
    const std::byte* done = segment->range.begin;
    for (std::size_t i = 0; i < segment->chunks.size(); ++i) {
      if (segment->chunks[i].tier == Tier::kFree) continue;
      const ChunkRef chunk{segment.get(), i};
      map.chunks.push_back(residency_of(chunk));
      if (!with_blocks) continue;
      const std::byte* end = chunk.address() + chunk.size().count();
      for (BlockId id = chunk->head; id != 0 && pool[id].address < end; id = pool[id].next) {
        const Block& block = pool[id];
        if (block.address < done) continue;  // began in the chunk before
        const bool live = block.state == BlockState::kLive;
        map.blocks.push_back(BlockPlace{block.address, Bytes{block.size},
                                        Bytes{live ? block.asked : 0}, key.stream});
        done = block.end();
      }
    }
    segments.push_back(std::move(map));
  }
  return segments;
}

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Split, merge and placement of blocks.
#include "allocator/block_pool.h"

#include <algorithm>
#include <bit>

namespace commensal {
namespace {

bool fast_tier(const Chunk& chunk) noexcept { return chunk.tier == Tier::kDevice && !chunk.away; }
bool unbacked(const Chunk& chunk) noexcept { return chunk.tier == Tier::kDropped || chunk.away; }

std::size_t ceil_div(std::size_t a, std::size_t b) noexcept { return (a + b - 1) / b; }

}  // namespace

BlockPool::BlockPool(std::size_t unit, std::uint32_t number)
    : unit_(unit),
      unit_shift_(static_cast<unsigned>(std::countr_zero(unit))),
      number_(number),
      fast_bins_(unit_shift_),
      slow_bins_(unit_shift_) {}

// --- primitives ----------------------------------------------------------------------------

// Notes `id` as first or last block of the chunks that begin or end in [begin, end).
void BlockPool::note_borders(BlockId id, const std::byte* begin, const std::byte* end) noexcept {
  Segment& segment = *table_[id].segment;
  const std::size_t last = segment.chunk_of(end - 1);
  for (std::size_t c = segment.chunk_of(begin); c <= last; ++c) {
    const std::byte* chunk_begin = segment.chunk_begin(c);
    if (chunk_begin >= begin) segment.chunks[c].head = id;
    if (chunk_begin + segment.chunk_size <= end) segment.chunks[c].tail = id;
  }
}

template <typename Change>
void BlockPool::each_chunk(const Block& block, Change change) noexcept {
  Segment& segment = *block.segment;
  const std::size_t last = segment.chunk_of(block.end() - 1);
  for (std::size_t c = block.first_chunk; c <= last; ++c) {
    const std::byte* begin = std::max<const std::byte*>(block.address, segment.chunk_begin(c));
    const std::byte* end =
        std::min<const std::byte*>(block.end(), segment.chunk_begin(c) + segment.chunk_size);
    change(segment.chunks[c], static_cast<std::size_t>(end - begin));
  }
}

// Cuts a busy block; returns the right part, or none when there is no node for it.
BlockId BlockPool::split(BlockId id, std::size_t size) noexcept {
  const BlockId right = table_.try_acquire();
  if (right == 0) return 0;
  Block& block = table_[id];
  Block& rest = table_[right];
  rest.address = block.address + size;
  rest.size = block.size - size;
  rest.segment = block.segment;
  rest.first_chunk = static_cast<std::uint32_t>(block.segment->chunk_of(rest.address));
  rest.state = BlockState::kBusy;
  rest.fast = block.fast;
  rest.prev = id;
  rest.next = block.next;
  if (rest.next != 0) table_[rest.next].prev = right;
  block.next = right;
  block.size = size;
  note_borders(right, rest.address, rest.end());
  return right;
}

// Merges two neighbours that are in no list; the left one remains.
BlockId BlockPool::join(BlockId left, BlockId right) noexcept {
  Block& block = table_[left];
  const Block& gone = table_[right];
  note_borders(left, gone.address, gone.end());
  block.size += gone.size;
  block.next = gone.next;
  if (block.next != 0) table_[block.next].prev = left;
  table_.release(right);
  return left;
}

// Makes one busy block of chunks that held none.
void BlockPool::add_range(BlockId id, Segment& segment, std::size_t chunk,
                          std::size_t chunks) noexcept {
  Block& block = table_[id];
  block.address = segment.chunk_begin(chunk);
  block.size = chunks * segment.chunk_size;
  block.segment = &segment;
  block.first_chunk = static_cast<std::uint32_t>(chunk);
  block.state = BlockState::kBusy;
  if (chunk > 0) block.prev = segment.chunks[chunk - 1].tail;
  if (chunk + chunks < segment.chunks.size()) block.next = segment.chunks[chunk + chunks].head;
  if (block.prev != 0) table_[block.prev].next = id;
  if (block.next != 0) table_[block.next].prev = id;
  note_borders(id, block.address, block.end());
}

void BlockPool::take_out(BlockId id) noexcept {
  Block& block = table_[id];
  if (block.state == BlockState::kFree) bins(block.fast).remove(table_, id);
  block.state = BlockState::kBusy;
}

// Returns how many bytes from the start of a block lie on chunks of one kind.
std::size_t BlockPool::run_of_one_kind(const Block& block) const noexcept {
  const Segment& segment = *block.segment;
  const std::size_t last = segment.chunk_of(block.end() - 1);
  const Chunk& first = segment.chunks[block.first_chunk];
  for (std::size_t c = block.first_chunk + 1; c <= last; ++c) {
    const Chunk& chunk = segment.chunks[c];
    if (fast_tier(chunk) != fast_tier(first) || unbacked(chunk) != unbacked(first)) {
      return static_cast<std::size_t>(segment.chunk_begin(c) - block.address);
    }
  }
  return block.size;
}

bool BlockPool::on_device(const Block& block) const noexcept {
  return fast_tier(block.segment->chunks[block.first_chunk]) &&
         run_of_one_kind(block) == block.size;
}

void BlockPool::make_free_piece(BlockId id) noexcept {
  const bool fast = table_[id].fast;
  const auto mergeable = [&](BlockId other) {
    return other != 0 && table_[other].state == BlockState::kFree && table_[other].fast == fast;
  };
  if (const BlockId prev = table_[id].prev; mergeable(prev)) {
    take_out(prev);
    id = join(prev, id);
  }
  if (const BlockId next = table_[id].next; mergeable(next)) {
    take_out(next);
    id = join(id, next);
  }
  table_[id].state = BlockState::kFree;
  bins(fast).insert(table_, id);
}

// Puts a busy block into the bins, cut where the tier changes.
void BlockPool::make_free(BlockId id) noexcept {
  for (;;) {
    Block& block = table_[id];
    const std::size_t run = run_of_one_kind(block);
    block.fast = fast_tier(block.segment->chunks[block.first_chunk]);
    const BlockId rest = run < block.size ? split(id, run) : 0;
    bool backed = !unbacked(block.segment->chunks[block.first_chunk]);
    if (rest == 0 && run < block.size) {  // no node: one slow block
      block.fast = false;
      each_chunk(block, [&](const Chunk& c, std::size_t) { backed = backed && !unbacked(c); });
    }
    if (backed) make_free_piece(id);
    if (rest == 0) return;
    id = rest;
  }
}

void BlockPool::make_live(BlockId id) noexcept {
  Block& block = table_[id];
  block.state = BlockState::kLive;
  block.segment->entry(block.address) = id;
  used_bytes_ += block.size;
  each_chunk(block, [&](Chunk& chunk, std::size_t bytes) {
    if (chunk.used == 0) busy_bytes_ += block.segment->chunk_size;
    chunk.used += bytes;
  });
}

void BlockPool::uncount(const Block& block, std::uint64_t safe_point) noexcept {
  used_bytes_ -= block.size;
  each_chunk(block, [&](Chunk& chunk, std::size_t bytes) {
    chunk.used -= bytes;
    if (chunk.used != 0) return;
    chunk.idle_since = safe_point;
    busy_bytes_ -= block.segment->chunk_size;
  });
}

// --- blocks --------------------------------------------------------------------------------

BlockId BlockPool::take(std::size_t size, bool fast) {
  const BlockId id = bins(fast).find(table_, size);
  if (id == 0) return 0;
  const bool cut = table_[id].size > size;
  if (cut) table_.reserve(1);
  take_out(id);
  if (cut) {
    const BlockId rest = split(id, size);
    table_[rest].state = BlockState::kFree;
    bins(fast).insert(table_, rest);
  }
  make_live(id);
  return id;
}

void BlockPool::give_back(BlockId id, std::uint64_t safe_point) noexcept {
  Block& block = table_[id];
  uncount(block, safe_point);
  block.state = BlockState::kBusy;
  make_free(id);
}

// --- chunks --------------------------------------------------------------------------------

void BlockPool::add_segment(Segment& segment) { segments_.push_back(&segment); }

void BlockPool::remove_segment(const Segment& segment) noexcept { std::erase(segments_, &segment); }

GrowthPlace BlockPool::find_place(std::size_t size, bool fast) const noexcept {
  const auto free_size = [&](BlockId id) -> std::size_t {
    if (id == 0) return 0;
    const Block& block = table_[id];
    return block.state == BlockState::kFree && (block.fast || !fast) ? block.size : 0;
  };
  GrowthPlace best;
  std::size_t best_cost = 0;
  const auto offer = [&](Segment* segment, std::size_t first, std::size_t chunks) {
    const std::size_t cost = chunks * segment->chunk_size;
    if (best.segment != nullptr && cost >= best_cost) return;
    best = GrowthPlace{segment, first, chunks};
    best_cost = cost;
  };
  for (Segment* segment : segments_) {
    const std::vector<Chunk>& chunks = segment->chunks;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].tier != Tier::kFree) continue;
      std::size_t j = i + 1;
      while (j < chunks.size() && chunks[j].tier == Tier::kFree) ++j;
      const std::size_t before = i == 0 ? 0 : free_size(chunks[i - 1].tail);
      const std::size_t after = j == chunks.size() ? 0 : free_size(chunks[j].head);
      const std::size_t step = segment->chunk_size;
      if (before + (j - i) * step + after >= size) {
        const auto need = [&](std::size_t beside) {
          return std::clamp<std::size_t>(size > beside ? ceil_div(size - beside, step) : 1, 1,
                                         j - i);
        };
        const std::size_t low = need(before);
        const std::size_t high = need(after);
        if (low <= high) {
          offer(segment, i, low);
        } else {
          offer(segment, j - high, high);
        }
      }
      i = j;
    }
  }
  return best;
}

std::optional<BlockPool::Held> BlockPool::hold(const GrowthPlace& place, std::size_t size,
                                               bool fast) {
  table_.reserve(1);
  const std::vector<Chunk>& chunks = place.segment->chunks;
  std::size_t together = place.chunks * place.segment->chunk_size;
  const auto free_beside = [&](BlockId id) -> BlockId {
    if (id == 0 || table_[id].state != BlockState::kFree) return 0;
    if (fast && !table_[id].fast) return 0;
    together += table_[id].size;
    return id;
  };
  Held held;
  held.place = place;
  const std::size_t end = place.first_chunk + place.chunks;
  if (place.first_chunk > 0) held.before = free_beside(chunks[place.first_chunk - 1].tail);
  if (end < chunks.size()) held.after = free_beside(chunks[end].head);
  if (together < size) return std::nullopt;
  held.node = table_.try_acquire();
  if (held.before != 0) take_out(held.before);
  if (held.after != 0) take_out(held.after);
  return held;
}

void BlockPool::drop(const Held& held) noexcept {
  Segment& segment = *held.place.segment;
  BlockId node = held.node;
  for (std::size_t i = 0; i < held.place.chunks; ++i) {
    const std::size_t chunk = held.place.first_chunk + i;
    if (segment.chunks[chunk].tier == Tier::kFree) continue;
    if (node == 0) node = table_.try_acquire();
    if (node == 0) break;  // no memory for a node: the chunk stays unused
    add_range(node, segment, chunk, 1);
    make_free(node);
    node = 0;
  }
  if (node != 0) table_.release(node);
  if (held.before != 0) make_free(held.before);
  if (held.after != 0) make_free(held.after);
}

BlockId BlockPool::take_held(const Held& held, std::size_t size) noexcept {
  BlockId id = held.node;
  add_range(id, *held.place.segment, held.place.first_chunk, held.place.chunks);
  if (held.before != 0) id = join(held.before, id);
  if (held.after != 0) id = join(id, held.after);
  if (table_[id].size > size) {
    if (const BlockId rest = split(id, size); rest != 0) make_free(rest);
  }
  make_live(id);
  return id;
}

bool BlockPool::is_free(const Segment& segment, std::size_t chunk) const noexcept {
  if (segment.chunks[chunk].tier == Tier::kFree) return false;
  const std::byte* end = segment.chunk_begin(chunk) + segment.chunk_size;
  // Free memory of such a chunk is in no bin, and nobody else takes it out of one.
  const BlockState unused = unbacked(segment.chunks[chunk]) ? BlockState::kBusy : BlockState::kFree;
  BlockId id = segment.chunks[chunk].head;
  while (id != 0 && table_[id].state == unused && table_[id].end() < end) id = table_[id].next;
  return id != 0 && table_[id].state == unused;
}

BlockId BlockPool::carve(Segment& segment, std::size_t chunk) {
  table_.reserve(2);
  const std::byte* begin = segment.chunk_begin(chunk);
  const std::byte* end = begin + segment.chunk_size;
  BlockId id = segment.chunks[chunk].head;
  take_out(id);
  while (table_[id].end() < end) {
    const BlockId next = table_[id].next;
    take_out(next);
    id = join(id, next);
  }
  if (table_[id].address < begin) {
    const BlockId left = id;
    id = split(left, static_cast<std::size_t>(begin - table_[left].address));
    make_free(left);
  }
  if (table_[id].end() > end) {
    const BlockId rest = split(id, segment.chunk_size);
    make_free(rest);
  }
  return id;
}

void BlockPool::make_hole(BlockId carved) noexcept {
  const Block& block = table_[carved];
  if (block.prev != 0) table_[block.prev].next = 0;
  if (block.next != 0) table_[block.next].prev = 0;
  Chunk& chunk = block.segment->chunks[block.first_chunk];
  chunk.head = chunk.tail = 0;
  table_.release(carved);
}

void BlockPool::begin_retier(Segment& segment, std::size_t chunk) noexcept {
  const std::byte* end = segment.chunk_begin(chunk) + segment.chunk_size;
  for (BlockId id = segment.chunks[chunk].head; id != 0 && table_[id].address < end;
       id = table_[id].next) {
    if (table_[id].state == BlockState::kFree) take_out(id);
  }
}

void BlockPool::end_retier(Segment& segment, std::size_t chunk) noexcept {
  const std::byte* end = segment.chunk_begin(chunk) + segment.chunk_size;
  BlockId id = segment.chunks[chunk].head;
  while (id != 0) {
    // What follows inside the chunk is not in the bins, so making this one free cannot swallow it.
    const BlockId next = table_[id].end() < end ? table_[id].next : 0;
    if (table_[id].state == BlockState::kBusy) make_free(id);
    id = next;
  }
}

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Block nodes and segregated free lists.
#include "allocator/size_bins.h"

#include <limits>
#include <new>
#include <utility>

namespace commensal {

bool BlockTable::add_slab() noexcept {
  if (count_ == kSlabs) return false;
  const std::size_t size = kFirst << count_;
  try {
    slabs_[count_] = std::make_unique<Block[]>(size);
  } catch (const std::bad_alloc&) {
    return false;
  }
  ++count_;
  for (std::size_t i = size; i-- > 0;) {
    const auto id = static_cast<BlockId>(size - kFirst + i);
    if (id == 0) continue;  // zero is none
    (*this)[id].list_next = unused_;
    unused_ = id;
    ++unused_count_;
  }
  return true;
}

BlockId BlockTable::try_acquire() noexcept {
  if (unused_ == 0 && !add_slab()) return 0;
  const BlockId id = unused_;
  unused_ = (*this)[id].list_next;
  --unused_count_;
  (*this)[id] = Block{};
  return id;
}

void BlockTable::release(BlockId id) noexcept {
  Block& block = (*this)[id];
  block.state = BlockState::kUnused;
  block.address = nullptr;
  block.list_next = unused_;
  unused_ = id;
  ++unused_count_;
}

void BlockTable::reserve(std::size_t count) {
  while (unused_count_ < count) {
    if (!add_slab()) throw std::bad_alloc();
  }
}

void SizeBins::insert(BlockTable& table, BlockId id) noexcept {
  Block& block = table[id];
  const std::size_t bin = bin_of(block.size);
  block.list_prev = 0;
  block.list_next = heads_[bin];
  if (heads_[bin] != 0) table[heads_[bin]].list_prev = id;
  heads_[bin] = id;
  powers_ |= std::uint64_t{1} << (bin >> kSubShift);
  subs_[bin >> kSubShift] |= std::uint32_t{1} << (bin & (kSub - 1));
}

void SizeBins::remove(BlockTable& table, BlockId id) noexcept {
  const Block& block = table[id];
  if (block.list_next != 0) table[block.list_next].list_prev = block.list_prev;
  if (block.list_prev != 0) {
    table[block.list_prev].list_next = block.list_next;
    return;
  }
  const std::size_t bin = bin_of(block.size);
  heads_[bin] = block.list_next;
  if (heads_[bin] != 0) return;
  subs_[bin >> kSubShift] &= ~(std::uint32_t{1} << (bin & (kSub - 1)));
  if (subs_[bin >> kSubShift] == 0) powers_ &= ~(std::uint64_t{1} << (bin >> kSubShift));
}

// Returns the first non-empty bin at or after `bin`, or the number of bins.
std::size_t SizeBins::next_bin(std::size_t bin) const noexcept {
  const std::size_t power = bin >> kSubShift;
  if (power >= kPowers) return heads_.size();
  const std::uint32_t rest = subs_[power] & (~std::uint32_t{0} << (bin & (kSub - 1)));
  if (rest != 0) return (power << kSubShift) + static_cast<std::size_t>(std::countr_zero(rest));
  const std::uint64_t above = power + 1 >= 64 ? 0 : powers_ & (~std::uint64_t{0} << (power + 1));
  if (above == 0) return heads_.size();
  const auto next = static_cast<std::size_t>(std::countr_zero(above));
  return (next << kSubShift) + static_cast<std::size_t>(std::countr_zero(subs_[next]));
}

BlockId SizeBins::best_in(const BlockTable& table, std::size_t bin, std::size_t size,
                          std::size_t looks) const noexcept {
  BlockId best = 0;
  for (BlockId id = heads_[bin]; id != 0; id = table[id].list_next) {
    const Block& block = table[id];
    if (block.size >= size &&
        (best == 0 || block.size < table[best].size ||
         (block.size == table[best].size && block.address < table[best].address))) {
      best = id;
    }
    if (--looks == 0) break;
  }
  return best;
}

BlockId SizeBins::find(const BlockTable& table, std::size_t size) const noexcept {
  const std::size_t own = bin_of(size);
  if (own >= heads_.size()) return 0;
  if (heads_[own] != 0) {
    if (const BlockId id = best_in(table, own, size, kLooksAt); id != 0) return id;
  }
  if (const std::size_t larger = next_bin(own + 1); larger < heads_.size()) {
    return best_in(table, larger, size, kLooksAt);
  }
  // Nothing larger: a fitting block may still stand further back in its own list.
  return heads_[own] == 0 ? 0 : best_in(table, own, size, std::numeric_limits<std::size_t>::max());
}

}  // namespace commensal

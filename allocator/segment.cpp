// SPDX-License-Identifier: Apache-2.0
// Segments and the table that finds them by address.
#include "allocator/segment.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

namespace commensal {

std::uint64_t UseClock::latest(std::size_t chunk) const noexcept {
  std::uint64_t latest = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const Line& line = times_[lane * lines_ + chunk / kPerLine];
    latest = std::max<std::uint64_t>(latest, line.at[chunk % kPerLine]);
  }
  return latest;
}

Segment::Segment(AddressRange reserved, std::size_t chunk_bytes, std::size_t unit_bytes)
    : range(reserved),
      chunk_size(chunk_bytes),
      unit_shift(static_cast<unsigned>(std::countr_zero(unit_bytes))),
      uses(reserved.size.count() / chunk_bytes),
      chunks(reserved.size.count() / chunk_bytes) {
  if (std::has_single_bit(chunk_bytes)) {
    chunk_shift = static_cast<unsigned>(std::countr_zero(chunk_bytes));
  }
  // calloc, because large zeroed arrays cost no memory until they are touched.
  const std::size_t entries = reserved.size.count() / unit_bytes + 1;
  index.reset(static_cast<BlockId*>(std::calloc(entries, sizeof(BlockId))));
  if (!index) throw std::bad_alloc();
}

Segment& SegmentTable::add(std::unique_ptr<Segment> segment) {
  const auto at = std::upper_bound(
      segments_.begin(), segments_.end(), segment->range.begin,
      [](const std::byte* address, const auto& s) { return address < s->range.begin; });
  return **segments_.insert(at, std::move(segment));
}

std::unique_ptr<Segment> SegmentTable::remove(const Segment& segment) noexcept {
  const auto at = std::find_if(segments_.begin(), segments_.end(),
                               [&](const auto& s) { return s.get() == &segment; });
  std::unique_ptr<Segment> removed = std::move(*at);
  segments_.erase(at);
  return removed;
}

Segment* SegmentTable::find(const std::byte* address) const noexcept {
  const auto after = std::upper_bound(
      segments_.begin(), segments_.end(), address,
      [](const std::byte* wanted, const auto& s) { return wanted < s->range.begin; });
  if (after == segments_.begin()) return nullptr;
  Segment* found = std::prev(after)->get();
  return found->range.contains(address) ? found : nullptr;
}

}  // namespace commensal

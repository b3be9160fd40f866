// SPDX-License-Identifier: Apache-2.0
// Which chunks of elastic memory came and went between two looks at it.
#include "torch_ext/cuda/mapped_ranges.h"

#include <utility>

namespace commensal {

// Appends the chunks of `from` that `other` does not have, those side by side as one.
void MappedRanges::append_missing(const Chunks& from, const Chunks& other, bool mapped,
                                  std::vector<Change>& changes) {
  const std::byte* segment = nullptr;  // of the newest change
  for (const auto& [address, chunk] : from) {
    const auto same = other.find(address);
    if (same != other.end() && same->second == chunk) continue;
    if (segment == chunk.segment &&
        changes.back().address + changes.back().size.count() == address) {
      changes.back().size += chunk.size;
      continue;
    }
    segment = chunk.segment;
    changes.push_back({mapped, address, chunk.size, chunk.stream});
  }
}

std::vector<MappedRanges::Change> MappedRanges::update(const std::vector<SegmentMap>& now) {
  Chunks fresh;
  for (const SegmentMap& segment : now) {
    for (const ChunkResidency& chunk : segment.chunks) {
      fresh.emplace(chunk.address, Chunk{chunk.size, segment.stream, segment.range.begin});
    }
  }
  std::vector<Change> changes;
  append_missing(known_, fresh, false, changes);
  append_missing(fresh, known_, true, changes);
  known_ = std::move(fresh);
  return changes;
}

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Which chunks of elastic memory came and went between two looks at it.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/pool_key.h"
#include "allocator/tags.h"

namespace commensal {

/// What of a device's elastic memory holds chunks, as it was told last. Thread safety: none.
class MappedRanges {
 public:
  /// Chunks of one segment, side by side.
  struct Change {
    bool mapped = false;  ///< they came; else they went
    const std::byte* address = nullptr;
    Bytes size;
    StreamId stream = 0;
  };

  /// Takes over what there is now.
  /// @param now  as `ElasticAllocator::memory_map` returns it.
  /// @return what went, then what came, each in the order of addresses.
  std::vector<Change> update(const std::vector<SegmentMap>& now);

 private:
  struct Chunk {
    Bytes size;
    StreamId stream = 0;
    const std::byte* segment = nullptr;
    bool operator==(const Chunk&) const = default;
  };
  using Chunks = std::map<const std::byte*, Chunk>;

  static void append_missing(const Chunks& from, const Chunks& other, bool mapped,
                             std::vector<Change>& changes);

  Chunks known_;
};

}  // namespace commensal

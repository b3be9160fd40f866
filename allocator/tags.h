// SPDX-License-Identifier: Apache-2.0
// Blocks that share a name, so that all of them can be saved, given up or brought back together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/lifetime.h"
#include "allocator/memory_source.h"

namespace commensal {

/// Names a tag of one allocator; zero: none. A tag is never forgotten.
using TagId = std::uint32_t;

inline constexpr std::size_t kMostTags = 256;

struct TagOptions {
  bool keep = false;  ///< its chunks are the last that a limit moves out, and the first to return
};

/// What came of moving a tag. All bytes are those of whole chunks.
struct TagTicket {
  Bytes done;          ///< device memory given back, or (waking) memory brought back
  Bytes deferred;      ///< still on the device, or (waking) usable on the slower tier for now
  Bytes missing;       ///< waking: no memory could be had for it, and it must not be touched
  std::string reason;  ///< why not all is done

  [[nodiscard]] bool complete() const noexcept { return deferred.is_zero() && missing.is_zero(); }
};

/// Where a tag's memory is. Bytes of whole chunks, but for `live`.
struct TagResidency {
  std::string name;
  TagOptions options;
  bool parked = false;  ///< was parked, and neither touched nor woken since
  Bytes device;
  Bytes host;
  Bytes saved;    ///< chunks of the tier kParked
  Bytes dropped;  ///< chunks of the tier kDropped
  Bytes live;     ///< blocks handed out, rounded
};

/// One chunk's place, for `memory_summary` and pictures.
struct ChunkResidency {
  const std::byte* address = nullptr;
  Bytes size;
  Tier tier = Tier::kFree;
  Bytes live;
  bool away = false;  ///< nothing is mapped at the address
};

/// One block, live or free.
struct BlockPlace {
  const std::byte* address = nullptr;
  Bytes size;   ///< rounded
  Bytes asked;  ///< zero: free
  std::uint64_t stream = 0;
};

/// A segment with what lies in it, in the order of addresses.
struct SegmentMap {
  AddressRange range;
  bool small = false;                   ///< holds blocks of the small sizes
  Lifetime lifetime = Lifetime::kLong;  ///< of the blocks in it, as guessed
  std::string tag;                      ///< empty: none
  std::uint64_t stream = 0;             ///< of the blocks in it
  std::vector<ChunkResidency> chunks;   ///< those that are not kFree
  std::vector<BlockPlace> blocks;       ///< if asked for
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// What blocks have in common that lie in pools of their own: the stream that uses them, their tag.
#pragma once

#include <compare>
#include <cstdint>

#include "allocator/tags.h"

namespace commensal {

/// Names the queue of work that will use a block first (a CUDA stream). Zero: the usual one; on a
/// CPU there is no other.
using StreamId = std::uint64_t;

/// Names a pool beside those by lifetime, which hold what has neither stream nor tag.
struct PoolKey {
  StreamId stream = 0;
  TagId tag = 0;

  [[nodiscard]] bool none() const noexcept { return stream == 0 && tag == 0; }
  auto operator<=>(const PoolKey&) const = default;
};

}  // namespace commensal

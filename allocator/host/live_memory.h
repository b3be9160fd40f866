// SPDX-License-Identifier: Apache-2.0
// Reads memory that other threads may be writing, or while those threads are stopped.
#pragma once

#include <cstddef>
#include <cstdint>

namespace commensal {

/// Fingerprints bytes (XXH3, 128 bits).
struct Fingerprint {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

[[nodiscard]] inline bool same(Fingerprint a, Fingerprint b) noexcept {
  return a.low == b.low && a.high == b.high;
}

/// Copies bytes whatever other threads do to them: which mixture of old and new bytes arrives is
/// not said, but each comes from `from`. Never a call that a sanitizer or malloc could intercept,
/// so that it is safe while threads are stopped at any place.
void copy_live(void* to, const void* from, std::size_t size) noexcept;

/// Fingerprints bytes; safe while threads are stopped at any place.
[[nodiscard]] Fingerprint fingerprint(const void* bytes, std::size_t size) noexcept;

}  // namespace commensal

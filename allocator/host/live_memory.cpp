// SPDX-License-Identifier: Apache-2.0
// Reads memory that other threads may be writing. Built without sanitizers (sources.cmake): the
// races are meant, and a sanitizer's own lock may be held by a thread that is stopped.
#include "allocator/host/live_memory.h"

#include <xxhash.h>

namespace commensal {

void copy_live(void* to, const void* from, std::size_t size) noexcept {
#if defined(__x86_64__)
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
#else
  auto* out = static_cast<volatile std::uint64_t*>(to);
  const auto* in = static_cast<const volatile std::uint64_t*>(from);
  for (std::size_t i = 0; i < size / sizeof(*in); ++i) out[i] = in[i];
#endif
}

Fingerprint fingerprint(const void* bytes, std::size_t size) noexcept {
  const XXH128_hash_t hash = XXH3_128bits(bytes, size);
  return Fingerprint{hash.low64, hash.high64};
}

}  // namespace commensal

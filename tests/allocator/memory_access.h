// SPDX-License-Identifier: Apache-2.0
// How tests reach memory of a source: by the CPU, or where that cannot be, by copies.
#pragma once

#include <cstddef>
#include <cstring>

namespace commensal {

/// Writes to and reads from mapped chunks. The default is the CPU.
struct MemoryAccess {
  /// The CPU may touch the memory itself.
  bool direct = true;
  void (*store)(std::byte* to, const void* from, std::size_t bytes) =
      [](std::byte* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); };
  void (*load)(void* to, const std::byte* from, std::size_t bytes) =
      [](void* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); };
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Shows others what is held of the device, before it is taken.
#pragma once

#include "allocator/base/bytes.h"

namespace commensal {

/// Told of device memory before it is taken and after it is given back.
///
/// Called under the allocator's move lock, on any thread; it must not wait.
class MemoryClaims {
 public:
  MemoryClaims() = default;
  virtual ~MemoryClaims() = default;
  MemoryClaims(const MemoryClaims&) = delete;
  MemoryClaims& operator=(const MemoryClaims&) = delete;

  /// So many bytes more are about to be taken; they count until `give_back`.
  /// @return static text: why they may not be taken now, and then they do not count; null: they
  /// may.
  [[nodiscard]] virtual const char* claim(Bytes bytes) noexcept = 0;
  virtual void give_back(Bytes bytes) noexcept = 0;
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Memory that a session bounds beside its own allocator: that of another device, or of PyTorch.
#pragma once

#include "allocator/base/bytes.h"
#include "allocator/elastic_allocator.h"

namespace commensal {

/// Follows limits as an ElasticAllocator does (see there). Thread safety: all.
class LimitedMemory {
 public:
  virtual ~LimitedMemory() = default;

  /// Records a limit without doing anything for it yet.
  virtual LimitTicket post_limit(Bytes limit) = 0;
  /// Does what there is to do, as far as the calling thread may.
  virtual LimitTicket safe_point() = 0;
  /// As ElasticAllocator's.
  virtual void step_ended() noexcept {}
  /// As ElasticAllocator's.
  virtual void keep_live(bool /*keeps*/) noexcept {}
  /// Whether a safe point has something to do.
  [[nodiscard]] virtual bool work_pending() const noexcept = 0;
  [[nodiscard]] virtual AllocatorStats stats() const = 0;
  /// Bytes of its device; zero: not known.
  [[nodiscard]] virtual Bytes capacity() const { return {}; }
  /// Bytes that its slower tier can hold.
  [[nodiscard]] virtual Bytes slower_capacity() const { return {}; }
};

}  // namespace commensal

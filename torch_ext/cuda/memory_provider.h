// SPDX-License-Identifier: Apache-2.0
// Where the CUDA allocator gets its elastic memory from.
#pragma once

#include <functional>
#include <string>

#include "allocator/base/bytes.h"
#include "allocator/elastic_allocator.h"

namespace commensal {

/// The elastic memory of the devices of a process. Thread safety: all.
class MemoryProvider {
 public:
  virtual ~MemoryProvider() = default;

  /// Tells whether `of` may be asked yet: until then every block is the delegate's. Once true, it
  /// stays so.
  [[nodiscard]] virtual bool begun() noexcept { return true; }
  /// Returns the memory of a device, made at the first call, or null: the device is not ours. What
  /// it returns for a device never changes, and lives for ever.
  [[nodiscard]] virtual ElasticAllocator* of(int device) = 0;
  /// Says why `of` returned null.
  [[nodiscard]] virtual std::string reason(int device) = 0;
  /// Lets another device use memory of `device`, which is ours, now and from now on.
  /// @throws SourceError if the driver refuses; nothing has changed then.
  virtual void let_in(int device, int user) = 0;
  /// What a new block is for.
  [[nodiscard]] virtual AllocationContext context() noexcept { return {}; }
  /// A block was served.
  virtual void served() noexcept {}
  /// PyTorch's own allocator holds so much of a device.
  virtual void delegated(int /*device*/, Bytes /*held*/) noexcept {}
  /// Called with no lock held when memory of a device is short, before the slower tier serves:
  /// gives back what others hold there for nothing, and says in words what came of it.
  virtual void on_pressure(int device, std::function<std::string(Bytes needed)> helper) = 0;
};

}  // namespace commensal

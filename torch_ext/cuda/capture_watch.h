// SPDX-License-Identifier: Apache-2.0
// Knows of captures where PyTorch's own allocator serves everything.
#pragma once

#include <functional>
#include <utility>

#include "torch_ext/cuda/forwarding_allocator.h"
#include "torch_ext/cuda/pool_filters.h"

namespace commensal {

/// Forwards every call and leaves each block its deleter, so it may take its place at any time. It
/// only notes the pools that are in use, as of its own start. Thread safety: all.
class CaptureWatch final : public ForwardingAllocator {
 public:
  using ForwardingAllocator::ForwardingAllocator;

  /// Tells whether a graph may be captured now.
  [[nodiscard]] bool capturing() const noexcept { return filters_.any(); }

  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    native().beginAllocateToPool(device, pool, filter);
    filters_.begin(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override {
    native().endAllocateToPool(device, pool);
    filters_.end(device, pool);
  }

 private:
  PoolFilters<c10::MempoolId_t> filters_;
};

}  // namespace commensal

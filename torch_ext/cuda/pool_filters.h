// SPDX-License-Identifier: Apache-2.0
// Which allocations PyTorch has asked to go to a private pool: captures of graphs, user pools.
// The two are known apart: a pool alone forbids nothing, a capture most calls of CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "torch_ext/cuda/cuda_calls.h"

namespace commensal {

/// What a program wants a private pool for.
enum class PoolUse : std::uint8_t {
  kAllocations,  ///< `use_mem_pool`, a collective's buffers, the warm-up of cudagraph trees
  kCapture       ///< a graph is captured, or may be: what is not known counts as this
};

/// Tells, when the calling thread begins to allocate to a pool, what for.
///
/// Who captures begins with the pool, so its filter claims nothing yet: there is no capture. One
/// that claims what this thread allocates already is about threads, and captures nothing, unless
/// the thread's stream is being captured (a program that changes the pool during a capture).
[[nodiscard]] inline PoolUse use_of_pool(CudaCalls& calls, int device,
                                         const std::function<bool(cudaStream_t)>& filter) noexcept {
  try {
    cudaStream_t stream = calls.current_stream(device);
    const bool captures = calls.captures(stream) || !filter(stream);
    return captures ? PoolUse::kCapture : PoolUse::kAllocations;
  } catch (...) {
    return PoolUse::kCapture;
  }
}

/// The filters that are active for each device. `Pool` names a pool.
///
/// Thread safety: all. While none is active, asking costs one load.
template <typename Pool>
class PoolFilters {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  void begin(int device, Pool pool, PoolUse use, Filter filter) {
    const std::unique_lock lock(mutex_);
    active_.push_back({device, pool, use, std::move(filter)});
    count();
  }
  /// The newest of that pool ends.
  void end(int device, Pool pool) {
    const std::unique_lock lock(mutex_);
    const auto at = std::find_if(active_.rbegin(), active_.rend(), [&](const Active& active) {
      return active.device == device && active.pool == pool;
    });
    if (at == active_.rend()) return;
    active_.erase(std::next(at).base());
    count();
  }

  /// Tells whether a filter claims what the calling thread allocates for a stream.
  [[nodiscard]] bool claims(int device, cudaStream_t stream) const {
    if (count_.load(std::memory_order_acquire) == 0) return false;
    const std::shared_lock lock(mutex_);
    return std::any_of(active_.begin(), active_.end(), [&](const Active& active) {
      return active.device == device && active.filter(stream);
    });
  }
  /// Tells whether a filter for that pool is active.
  [[nodiscard]] bool in_use(int device, Pool pool) const {
    const std::shared_lock lock(mutex_);
    return std::any_of(active_.begin(), active_.end(), [&](const Active& active) {
      return active.device == device && active.pool == pool;
    });
  }
  /// Tells whether a graph may be captured now, on any device.
  [[nodiscard]] bool capturing() const noexcept {
    return captures_.load(std::memory_order_acquire) != 0;
  }

 private:
  struct Active {
    int device = 0;
    Pool pool{};
    PoolUse use = PoolUse::kCapture;
    Filter filter;
  };
  void count() {
    const auto captures = std::count_if(active_.begin(), active_.end(), [](const Active& active) {
      return active.use == PoolUse::kCapture;
    });
    captures_.store(static_cast<std::size_t>(captures), std::memory_order_release);
    count_.store(active_.size(), std::memory_order_release);
  }

  std::atomic<std::size_t> count_{0};
  std::atomic<std::size_t> captures_{0};
  mutable std::shared_mutex mutex_;
  std::vector<Active> active_;
};

}  // namespace commensal

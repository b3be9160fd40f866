// SPDX-License-Identifier: Apache-2.0
// Which allocations PyTorch has asked to go to a private pool: captures of graphs, user pools.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

namespace commensal {

/// The filters that are active for each device. `Pool` names a pool.
///
/// Thread safety: all. While none is active, asking costs one load.
template <typename Pool>
class PoolFilters {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  void begin(int device, Pool pool, Filter filter) {
    const std::unique_lock lock(mutex_);
    active_.push_back({device, pool, std::move(filter)});
    count_.store(active_.size(), std::memory_order_release);
  }
  /// The newest of that pool ends.
  void end(int device, Pool pool) {
    const std::unique_lock lock(mutex_);
    const auto at = std::find_if(active_.rbegin(), active_.rend(), [&](const Active& active) {
      return active.device == device && active.pool == pool;
    });
    if (at == active_.rend()) return;
    active_.erase(std::next(at).base());
    count_.store(active_.size(), std::memory_order_release);
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
  [[nodiscard]] bool any() const noexcept { return count_.load(std::memory_order_acquire) != 0; }

 private:
  struct Active {
    int device = 0;
    Pool pool{};
    Filter filter;
  };
  std::atomic<std::size_t> count_{0};
  mutable std::shared_mutex mutex_;
  std::vector<Active> active_;
};

}  // namespace commensal

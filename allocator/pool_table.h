// SPDX-License-Identifier: Apache-2.0
// The block pools of an allocator: a fixed few by size and lifetime, and one of each stream and
// tag.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "allocator/block_pool.h"
#include "allocator/pool_key.h"

namespace commensal {

/// Finds a pool by its number. Pools never move or vanish, so that whoever knows the number of one
/// that exists may look it up without a lock. Thread safety: none else (the block lock).
class PoolTable {
 public:
  static constexpr std::size_t kByLifetime = 4;
  /// Streams that a process uses (PyTorch has 32 of each of four priorities) times tags in use.
  static constexpr std::size_t kMostApart = 1024;
  static constexpr std::size_t kPools = kByLifetime + kMostApart;

  template <typename... Pools>
  explicit PoolTable(Pools&&... pools) : by_lifetime_{std::forward<Pools>(pools)...} {}

  [[nodiscard]] BlockPool& operator[](std::size_t number) noexcept {
    return number < kByLifetime ? by_lifetime_[number] : *apart_[number - kByLifetime];
  }
  [[nodiscard]] const BlockPool& operator[](std::size_t number) const noexcept {
    return number < kByLifetime ? by_lifetime_[number] : *apart_[number - kByLifetime];
  }

  /// Returns the number of the pool for a key, made on its first use; zero: there is no room for
  /// one more. @throws std::bad_alloc; nothing has changed then.
  [[nodiscard]] std::size_t number_for(PoolKey key, std::size_t unit) {
    const auto [at, added] = numbers_.try_emplace(key, 0);
    if (!added) return at->second;
    const std::size_t number = kByLifetime + numbers_.size() - 1;
    if (number >= kPools) {
      numbers_.erase(at);
      return 0;
    }
    try {
      apart_[number - kByLifetime] =
          std::make_unique<BlockPool>(unit, static_cast<std::uint32_t>(number));
    } catch (...) {
      numbers_.erase(at);
      throw;
    }
    keys_[number - kByLifetime] = key;
    at->second = number;
    return number;
  }
  /// Returns the key of a pool that exists; empty for those by lifetime.
  [[nodiscard]] PoolKey key(std::size_t number) const noexcept {
    return number < kByLifetime ? PoolKey{} : keys_[number - kByLifetime];
  }

  template <typename Visit>
  void each(Visit visit) const {
    for (const BlockPool& pool : by_lifetime_) visit(pool);
    for (const auto& pool : apart_) {
      if (pool == nullptr) break;  // they are made in order
      visit(*pool);
    }
  }

 private:
  std::array<BlockPool, kByLifetime> by_lifetime_;
  std::array<std::unique_ptr<BlockPool>, kMostApart> apart_;
  std::array<PoolKey, kMostApart> keys_{};
  std::map<PoolKey, std::size_t> numbers_;
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// The block pools of an allocator: a fixed few by size and lifetime, and one of each tag.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "allocator/block_pool.h"
#include "allocator/tags.h"

namespace commensal {

/// Finds a pool by its number. Pools never move or vanish, so that whoever knows the number of one
/// that exists may look it up without a lock. Thread safety: none else (the block lock).
class PoolTable {
 public:
  static constexpr std::size_t kByLifetime = 4;
  static constexpr std::size_t kPools = kByLifetime + kMostTags;

  template <typename... Pools>
  explicit PoolTable(Pools&&... pools) : by_lifetime_{std::forward<Pools>(pools)...} {}

  [[nodiscard]] BlockPool& operator[](std::size_t number) noexcept {
    return number < kByLifetime ? by_lifetime_[number] : *tagged_[number - kByLifetime];
  }
  [[nodiscard]] const BlockPool& operator[](std::size_t number) const noexcept {
    return number < kByLifetime ? by_lifetime_[number] : *tagged_[number - kByLifetime];
  }

  /// Makes the pool of a tag. @throws std::bad_alloc.
  void add(std::size_t unit, std::size_t number) {
    tagged_.at(number - kByLifetime) =
        std::make_unique<BlockPool>(unit, static_cast<std::uint32_t>(number));
  }

  template <typename Visit>
  void each(Visit visit) const {
    for (const BlockPool& pool : by_lifetime_) visit(pool);
    for (const auto& pool : tagged_) {
      if (pool == nullptr) break;  // they are made in order
      visit(*pool);
    }
  }

 private:
  std::array<BlockPool, kByLifetime> by_lifetime_;
  std::array<std::unique_ptr<BlockPool>, kMostTags> tagged_;
};

}  // namespace commensal

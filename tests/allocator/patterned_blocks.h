// SPDX-License-Identifier: Apache-2.0
// Live blocks whose contents tests know: written by a pattern, checked later.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "allocator/elastic_allocator.h"
#include "tests/allocator/memory_access.h"

namespace commensal {

/// Keeps blocks by address with the pattern each of them must show: a value at its start, at its
/// end and at every 4 KiB, different for each block and place.
class PatternedBlocks {
 public:
  explicit PatternedBlocks(ElasticAllocator& allocator, MemoryAccess access = {})
      : allocator_(&allocator), access_(access) {}

  struct Entry {
    std::size_t size = 0;
    std::uint64_t seed = 0;
  };

  /// Allocates and fills; null if memory is exhausted.
  std::byte* add(Bytes size) {
    void* block = nullptr;
    try {
      block = allocator_->allocate(size);
    } catch (const OutOfMemory&) {
      return nullptr;
    }
    auto* bytes = static_cast<std::byte*>(block);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes) % 64, 0U);
    expect_apart(bytes, size.count());
    live_ += size;
    entries_[bytes] = Entry{size.count(), ++seed_};
    write(bytes);
    return bytes;
  }
  /// Fills a block anew.
  void rewrite(std::byte* block) {
    entries_.at(block).seed = ++seed_;
    write(block);
  }
  void remove(std::byte* block) {
    expect_content(block, entries_.at(block));
    live_ -= Bytes{entries_.at(block).size};
    entries_.erase(block);
    EXPECT_TRUE(allocator_->deallocate(block));
  }
  void remove_all() {
    while (!entries_.empty()) remove(entries_.begin()->first);
  }
  void expect_all() const {
    for (const auto& [block, entry] : entries_) expect_content(block, entry);
  }
  /// Returns how many blocks do not show their pattern.
  [[nodiscard]] std::size_t damaged() const {
    return static_cast<std::size_t>(std::count_if(
        entries_.begin(), entries_.end(), [&](auto& e) { return !shows(e.first, e.second); }));
  }
  [[nodiscard]] Bytes live() const noexcept { return live_; }
  [[nodiscard]] const std::map<std::byte*, Entry>& entries() const noexcept { return entries_; }

 private:
  template <typename Visit>
  static void each_place(std::byte* block, const Entry& entry, Visit visit) {
    // The last place is the end; no other one may overlap it.
    for (std::size_t at = 0; at == 0 ? entry.size >= 8 : at + 16 <= entry.size; at += 4096) {
      visit(block + at, entry.seed * 0x9E3779B97F4A7C15U + at);
    }
    if (entry.size >= 16) visit(block + entry.size - 8, ~entry.seed);
  }
  void write(std::byte* block) {
    const Entry& entry = entries_.at(block);
    std::vector<std::byte> image(access_.direct ? 0 : entry.size);
    each_place(access_.direct ? block : image.data(), entry,
               [](std::byte* at, std::uint64_t value) { std::memcpy(at, &value, sizeof value); });
    if (!access_.direct) access_.store(block, image.data(), entry.size);
  }
  bool shows(std::byte* block, const Entry& entry) const {
    std::vector<std::byte> image(access_.direct ? 0 : entry.size);
    if (!access_.direct) access_.load(image.data(), block, entry.size);
    bool all = true;
    each_place(access_.direct ? block : image.data(), entry,
               [&](const std::byte* at, std::uint64_t value) {
                 std::uint64_t found = 0;
                 std::memcpy(&found, at, sizeof found);
                 all = all && found == value;
               });
    return all;
  }
  void expect_content(std::byte* block, const Entry& entry) const {
    EXPECT_TRUE(shows(block, entry))
        << "block " << static_cast<void*>(block) << " of " << entry.size << " B lost its content";
  }
  void expect_apart(std::byte* block, std::size_t size) const {
    const auto after = entries_.lower_bound(block);
    if (after != entries_.end()) {
      EXPECT_LE(block + size, after->first);
    }
    if (after != entries_.begin()) {
      const auto& [before, entry] = *std::prev(after);
      EXPECT_LE(before + entry.size, block);
    }
  }

  ElasticAllocator* allocator_;
  MemoryAccess access_;
  std::map<std::byte*, Entry> entries_;
  std::uint64_t seed_ = 0;
  Bytes live_;
};

}  // namespace commensal

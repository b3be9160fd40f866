// SPDX-License-Identifier: Apache-2.0
// Counts of a device's blocks as PyTorch's statistics have them, ours and the delegate's together.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/base/bytes.h"

namespace commensal {

/// One number of which PyTorch tells current, peak, and the sums of what came and went. What the
/// delegate holds at the same time counts for the peak. Thread safety: all; the peak is exact.
class MemoryCounter {
 public:
  struct Reading {
    std::int64_t current = 0;
    std::int64_t peak = 0;  ///< of both together
    std::int64_t allocated = 0;
    std::int64_t freed = 0;
  };

  void add(std::int64_t amount) noexcept {
    allocated_.fetch_add(amount, std::memory_order_relaxed);
    raise(current_.fetch_add(amount, std::memory_order_relaxed) + amount +
          others_.load(std::memory_order_relaxed));
  }
  void take(std::int64_t amount) noexcept {
    freed_.fetch_add(amount, std::memory_order_relaxed);
    current_.fetch_sub(amount, std::memory_order_relaxed);
  }
  /// What the delegate holds now.
  void note_others(std::int64_t current) noexcept {
    others_.store(current, std::memory_order_relaxed);
    raise(current + current_.load(std::memory_order_relaxed));
  }
  void reset_peak() noexcept {
    peak_.store(current_.load(std::memory_order_relaxed) + others_.load(std::memory_order_relaxed),
                std::memory_order_relaxed);
  }
  void reset_sums() noexcept {
    allocated_.store(0, std::memory_order_relaxed);
    freed_.store(0, std::memory_order_relaxed);
  }
  [[nodiscard]] Reading read() const noexcept {
    return {.current = current_.load(std::memory_order_relaxed),
            .peak = peak_.load(std::memory_order_relaxed),
            .allocated = allocated_.load(std::memory_order_relaxed),
            .freed = freed_.load(std::memory_order_relaxed)};
  }

 private:
  void raise(std::int64_t value) noexcept {
    std::int64_t most = peak_.load(std::memory_order_relaxed);
    while (value > most && !peak_.compare_exchange_weak(most, value, std::memory_order_relaxed)) {
    }
  }
  std::atomic<std::int64_t> current_{0};
  std::atomic<std::int64_t> others_{0};
  std::atomic<std::int64_t> peak_{0};
  std::atomic<std::int64_t> allocated_{0};
  std::atomic<std::int64_t> freed_{0};
};

/// PyTorch's kinds of a number: all, of small blocks, of large ones.
struct MemoryCounters {
  static constexpr std::size_t kAll = 0;
  static constexpr std::size_t kSmall = 1;
  static constexpr std::size_t kLarge = 2;
  static constexpr Bytes kLargestSmall = 1_MiB;

  std::array<MemoryCounter, 3> kinds;

  [[nodiscard]] static constexpr std::size_t kind_of(Bytes block) noexcept {
    return block <= kLargestSmall ? kSmall : kLarge;
  }
  /// @param block  of which size; @param amount  of what is counted.
  void add(Bytes block, std::uint64_t amount) noexcept {
    kinds[kAll].add(static_cast<std::int64_t>(amount));
    kinds[kind_of(block)].add(static_cast<std::int64_t>(amount));
  }
  void take(Bytes block, std::uint64_t amount) noexcept {
    kinds[kAll].take(static_cast<std::int64_t>(amount));
    kinds[kind_of(block)].take(static_cast<std::int64_t>(amount));
  }
};

/// What is counted of a device's blocks.
struct DeviceCounters {
  MemoryCounters allocation;  ///< blocks
  MemoryCounters allocated_bytes;
  MemoryCounters requested_bytes;
  MemoryCounters active;  ///< blocks, with those that a stream still uses after their free
  MemoryCounters active_bytes;

  void born(Bytes asked, Bytes size) noexcept {
    allocation.add(size, 1);
    allocated_bytes.add(size, size.count());
    requested_bytes.add(size, asked.count());
    active.add(size, 1);
    active_bytes.add(size, size.count());
  }
  /// The program gave it up.
  void freed(Bytes size) noexcept {
    allocation.take(size, 1);
    allocated_bytes.take(size, size.count());
  }
  /// And nobody uses it any more.
  void retired(Bytes asked, Bytes size) noexcept {
    requested_bytes.take(size, asked.count());  // only now, as in PyTorch's own
    active.take(size, 1);
    active_bytes.take(size, size.count());
  }
  template <typename Visit>
  void each(Visit visit) {
    for (MemoryCounters* counters :
         {&allocation, &allocated_bytes, &requested_bytes, &active, &active_bytes}) {
      for (MemoryCounter& counter : counters->kinds) visit(counter);
    }
  }
};

}  // namespace commensal

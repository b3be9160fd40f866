// SPDX-License-Identifier: Apache-2.0
// Remembers how long each kind of op takes, so that a gap can be judged before the op starts.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "allocator/base/clock.h"

namespace commensal {

/// A bounded table from an op's name pointer to a decayed duration. The estimate rises quickly and
/// falls slowly (the same op comes in many sizes, and too short a guess costs the neighbour).
/// When the table is full, further ops stay unknown.
///
/// Thread safety: any member from any thread, without locks; of two updates at once one may get
/// lost.
class OpDurations {
 public:
  static constexpr std::size_t kSlots = 4096;  // PyTorch has about 2,500 op overloads

  /// Returns the predicted duration; zero if the op was never seen.
  [[nodiscard]] Duration predict(const char* name) const noexcept {
    const std::size_t start = hash(name);
    for (std::size_t i = 0; i < kProbes; ++i) {
      const Slot& slot = slots_[(start + i) % kSlots];
      const char* key = slot.key.load(std::memory_order_relaxed);
      if (key == name) return Duration{slot.nanoseconds.load(std::memory_order_relaxed)};
      if (key == nullptr) break;
    }
    return Duration::zero();
  }

  void record(const char* name, Duration took) noexcept {
    const std::size_t start = hash(name);
    for (std::size_t i = 0; i < kProbes; ++i) {
      Slot& slot = slots_[(start + i) % kSlots];
      const char* key = slot.key.load(std::memory_order_relaxed);
      if (key == nullptr &&
          slot.key.compare_exchange_strong(key, name, std::memory_order_relaxed)) {
        key = name;
      }
      if (key != name) continue;
      const std::int64_t old = slot.nanoseconds.load(std::memory_order_relaxed);
      std::int64_t now = took.count() > 0 ? took.count() : 1;
      // One op that was preempted must not keep its kind out of every gap that follows.
      if (old != 0 && now > old * kMostRise) now = old * kMostRise;
      const std::int64_t step = now > old ? (now - old + 1) / 2 : (now - old) / 8;
      slot.nanoseconds.store(old == 0 ? now : old + step, std::memory_order_relaxed);
      return;
    }
  }

 private:
  static constexpr std::size_t kProbes = 8;
  static constexpr std::int64_t kMostRise = 8;
  struct Slot {
    std::atomic<const char*> key{nullptr};
    std::atomic<std::int64_t> nanoseconds{0};
  };

  static std::size_t hash(const char* name) noexcept {
    const auto bits = reinterpret_cast<std::uintptr_t>(name);
    return static_cast<std::size_t>((bits * 0x9E37'79B9'7F4A'7C15ULL) >> 52U);
  }

  std::array<Slot, kSlots> slots_{};
};

}  // namespace commensal

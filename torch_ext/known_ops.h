// SPDX-License-Identifier: Apache-2.0
// Remembers the kind and the usual duration of every op that came by, so that both are found once.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "torch_ext/gate/op_duration.h"
#include "torch_ext/op_kind.h"

namespace commensal {

/// What is known about one op.
class KnownOp {
 public:
  [[nodiscard]] OpKind kind() const noexcept { return kind_.load(std::memory_order_relaxed); }
  [[nodiscard]] OpDuration& duration() noexcept { return duration_; }

 private:
  friend class KnownOps;
  std::atomic<const char*> name_{nullptr};
  std::atomic<OpKind> kind_{OpKind::kUnknown};
  OpDuration duration_;
};

/// A bounded table of ops by their name pointer, which is constant for the process and distinct by
/// op. When it is full, further ops share one entry, whose kind is never known.
///
/// Thread safety: any member from any thread, without locks. Entries are never removed.
class KnownOps {
 public:
  static constexpr std::size_t kSlots = 4096;  // PyTorch has about 2,500 op overloads

  /// Returns the entry of a name; null if it has none yet.
  [[nodiscard]] KnownOp* find(const char* name) noexcept {
    const std::size_t start = hash(name);
    for (std::size_t i = 0; i < kProbes; ++i) {
      KnownOp& op = ops_[(start + i) % kSlots];
      const char* key = op.name_.load(std::memory_order_relaxed);
      if (key == name) return &op;
      if (key == nullptr) break;
    }
    return nullptr;
  }

  /// Returns the entry of a name, and notes its kind if the entry is new.
  KnownOp& add(const char* name, OpKind kind) noexcept {
    const std::size_t start = hash(name);
    for (std::size_t i = 0; i < kProbes; ++i) {
      KnownOp& op = ops_[(start + i) % kSlots];
      const char* key = nullptr;
      if (!op.name_.compare_exchange_strong(key, name, std::memory_order_relaxed) && key != name) {
        continue;
      }
      op.kind_.store(kind, std::memory_order_relaxed);
      return op;
    }
    return others_;
  }

 private:
  static constexpr std::size_t kProbes = 8;

  static std::size_t hash(const char* name) noexcept {
    const auto bits = reinterpret_cast<std::uintptr_t>(name);
    return static_cast<std::size_t>((bits * 0x9E37'79B9'7F4A'7C15ULL) >> 52U);
  }

  std::array<KnownOp, kSlots> ops_{};
  KnownOp others_;
};

}  // namespace commensal

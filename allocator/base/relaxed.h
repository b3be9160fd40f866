// SPDX-License-Identifier: Apache-2.0
// A value that one thread writes while others may read it.
#pragma once

#include <atomic>

namespace commensal {

inline constexpr std::memory_order kRelaxed = std::memory_order_relaxed;

/// A copyable atomic whose reads and writes order nothing. Whoever changes it depending on what it
/// was must be alone in doing so (a lock, or one writer).
template <typename T>
class Relaxed {
 public:
  Relaxed() noexcept = default;
  // NOLINTNEXTLINE(misc-explicit-constructor): a plain value
  Relaxed(T value) noexcept : value_(value) {}
  Relaxed(const Relaxed& other) noexcept : value_(T(other)) {}
  Relaxed& operator=(const Relaxed& other) noexcept {
    if (this != &other) *this = T(other);
    return *this;
  }
  Relaxed& operator=(T value) noexcept {
    value_.store(value, kRelaxed);
    return *this;
  }
  operator T() const noexcept {  // NOLINT(misc-explicit-constructor): a plain value
    return value_.load(kRelaxed);
  }

 private:
  std::atomic<T> value_{};
  static_assert(std::atomic<T>::is_always_lock_free);
};

}  // namespace commensal

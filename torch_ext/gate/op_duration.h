// SPDX-License-Identifier: Apache-2.0
// Remembers how long ops take on the device, so that a gap can be judged before an op starts.
#pragma once

#include <atomic>
#include <cstdint>

#include "allocator/base/clock.h"

namespace commensal {

/// A decayed duration. It rises quickly and falls slowly (the same op comes in many sizes, and too
/// short a guess costs the neighbour).
///
/// Thread safety: any member from any thread, without locks; of two updates at once one may get
/// lost.
class OpDuration {
 public:
  /// Returns the predicted duration; zero if the op was never seen.
  [[nodiscard]] Duration predicted() const noexcept {
    return Duration{nanoseconds_.load(std::memory_order_relaxed)};
  }

  [[nodiscard]] bool is_known() const noexcept { return predicted() != Duration::zero(); }
  /// As if the op was never seen.
  void forget() noexcept { nanoseconds_.store(0, std::memory_order_relaxed); }

  void record(Duration took) noexcept {
    const std::int64_t old = nanoseconds_.load(std::memory_order_relaxed);
    std::int64_t now = took.count() > 0 ? took.count() : 1;
    if (old != 0) {
      // One op that was preempted must not keep its kind out of every gap that follows.
      if (now > old * kMostRise) now = old * kMostRise;
      now = old + (now > old ? (now - old + 1) / 2 : (now - old) / 8);
    }
    nanoseconds_.store(now, std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t kMostRise = 8;
  std::atomic<std::int64_t> nanoseconds_{0};
};

/// What is known about one op: at its position in the step, and wherever it is called.
///
/// Two pointers, to be passed by value. What they point to outlives every op.
class OpEstimate {
 public:
  constexpr OpEstimate() noexcept = default;
  /// An op that is known by its name alone. Implicit: a duration is an estimate.
  constexpr OpEstimate(OpDuration& anywhere) noexcept  // NOLINT(misc-explicit-constructor)
      : anywhere_(&anywhere) {}
  /// @param here  at this position; null: the position is not followed.
  constexpr OpEstimate(OpDuration& anywhere, OpDuration* here) noexcept
      : anywhere_(&anywhere), here_(here) {}

  /// The same op as a whole graph: nothing comes between its kernels.
  [[nodiscard]] constexpr OpEstimate as_graph() const noexcept {
    OpEstimate graph = *this;
    graph.is_graph_ = true;
    return graph;
  }
  [[nodiscard]] constexpr bool is_graph() const noexcept { return is_graph_; }
  /// Whether there is an op at all.
  [[nodiscard]] explicit constexpr operator bool() const noexcept { return anywhere_ != nullptr; }
  /// Returns what it took at this position, else what it takes anywhere; zero if neither is known.
  [[nodiscard]] Duration predicted() const noexcept {
    if (here_ != nullptr && here_->is_known()) return here_->predicted();
    return anywhere_ == nullptr ? Duration::zero() : anywhere_->predicted();
  }
  void record(Duration took) const noexcept {
    if (anywhere_ != nullptr) anywhere_->record(took);
    if (here_ != nullptr) here_->record(took);
  }
  bool operator==(const OpEstimate&) const noexcept = default;

 private:
  OpDuration* anywhere_ = nullptr;
  OpDuration* here_ = nullptr;
  bool is_graph_ = false;
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Tells fetches of batches to train on from those of an evaluation.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "coordinator/wire/gaps.h"

namespace commensal {

/// A fetch belongs to an evaluation if more batches than usual were fetched since the job last
/// trained (an optimizer step, a `zero_grad`): more than one, or than gradient accumulation takes.
/// What is usual is the median of the last iterations, so one evaluation changes nothing.
/// Not thread-safe: the training thread's.
class FetchPhase {
 public:
  static constexpr std::size_t kWindow = 8;

  /// A fetch begins. @return its phase.
  [[nodiscard]] wire::GapPhase fetch() noexcept {
    ++fetches_;
    return trained_ && fetches_ > usual() ? wire::GapPhase::kEvaluation : wire::GapPhase::kLoader;
  }
  /// An optimizer stepped, or gradients were set to zero.
  void trained() noexcept {
    if (fetches_ != 0) recent_[seen_++ % kWindow] = fetches_;
    fetches_ = 0;
    trained_ = true;
  }

 private:
  [[nodiscard]] std::uint32_t usual() const noexcept {
    const auto count = static_cast<std::ptrdiff_t>(std::min(seen_, kWindow));
    if (count == 0) return 1;
    std::array<std::uint32_t, kWindow> sorted = recent_;
    const auto middle = sorted.begin() + (count - 1) / 2;
    std::nth_element(sorted.begin(), middle, sorted.begin() + count);
    return std::max<std::uint32_t>(1, *middle);
  }

  std::array<std::uint32_t, kWindow> recent_{};
  std::size_t seen_ = 0;
  std::uint32_t fetches_ = 0;
  bool trained_ = false;  // ever: a job that only serves or evaluates has one kind of fetch
};

}  // namespace commensal

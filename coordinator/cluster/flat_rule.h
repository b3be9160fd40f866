// SPDX-License-Identifier: Apache-2.0
// When a job's loss has been flat for so long that its own rule ends or parks it.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "allocator/base/field_rules.h"

namespace commensal::cluster {

/// A job's own rule: it is ended, or parked, once its loss has not moved for `window`.
struct FlatRule {
  std::chrono::seconds window{};  ///< at least `kShortest`
  double change = 0.01;           ///< of the loss, above 0 and at most 0.5: less is flat
  bool operator==(const FlatRule&) const = default;

  static constexpr std::chrono::seconds kShortest{10};
  static constexpr double kMostChange = 0.5;
};
void fields(SameAs<FlatRule> auto& rule, auto& field) {
  field("window_ms", rule.window, NotBelow{FlatRule::kShortest, "10 seconds"});
  field("change", rule.change, AboveUpTo{0.0, FlatRule::kMostChange});
}

struct LossPoint {
  TimePoint at;
  double loss = 0;  ///< may be infinite or no number
};

struct FlatVerdict {
  bool flat = false;
  std::string reason;  ///< part of a sentence; never empty
};

/// Compares the medians of the older and the newer half of the window, so that single values, noise
/// and NaN do not decide. Flat: they differ by no more than `rule.change` of the larger one. It is
/// not flat while less than a window is known, while a half has fewer than `kLeastPoints` numbers
/// (the job was paused, or its loss is no number), or while it rises. Pure.
/// @param curve  in the order of time; older points than the window's say since when it is known.
[[nodiscard]] FlatVerdict judge_flat(std::span<const LossPoint> curve, const FlatRule& rule,
                                     TimePoint now);
inline constexpr std::size_t kLeastPoints = 8;

/// Keeps what `judge_flat` needs of one attempt, bounded. Thread safety: none.
class LossCurve {
 public:
  static constexpr int kPointsOfWindow = 400;

  /// Adds a point, unless it is older than the last or comes sooner after it than a part of
  /// `kPointsOfWindow` of the window. Points that are older than two windows go, but for one.
  void add(LossPoint point, std::chrono::seconds window);
  [[nodiscard]] std::span<const LossPoint> points() const noexcept { return points_; }

 private:
  std::vector<LossPoint> points_;
};

}  // namespace commensal::cluster

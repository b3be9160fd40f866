// SPDX-License-Identifier: Apache-2.0
// How long the gaps of one phase last, and when the present one is likely to end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "allocator/base/clock.h"
#include "coordinator/wire/gaps.h"

namespace commensal {

/// A histogram of lengths in the buckets of wire/gaps.h, the newest counting most. Fixed memory
/// (2 KiB); adding is a few dozen instructions. Not thread-safe.
class GapHistogram {
 public:
  /// How many of the waits reach the length that is counted on: four of five.
  static constexpr double kSure = 0.8;
  /// Waits that must have lasted at least so long before anything is said of them.
  static constexpr double kLeastWaits = 3.0;
  /// The newest so many waits make nearly two thirds of all weight.
  static constexpr double kMemory = 64.0;

  void add(Duration length) noexcept;

  /// Returns the length that `kSure` of the waits reached which lasted at least as long as the
  /// bucket of `waited` begins: survival, not the mean. Zero: too few were seen.
  [[nodiscard]] Duration expected(Duration waited) const noexcept;
  /// The same for every bucket, in one go.
  void expected(std::array<std::uint64_t, wire::kGapBuckets>& nanoseconds) const noexcept;
  /// Returns the length below which this fraction of the waits ended; zero before the first.
  [[nodiscard]] Duration quantile(double fraction) const noexcept;

  [[nodiscard]] std::uint64_t waits() const noexcept { return waits_; }
  [[nodiscard]] Duration total() const noexcept { return total_; }
  /// Decayed number of waits in a bucket.
  [[nodiscard]] double count(std::size_t bucket) const noexcept;

 private:
  struct Bucket {
    double weight = 0.0;
    double least = 0.0;  // of late, in nanoseconds: a bucket is up to a quarter wide
    double most = 0.0;
  };
  [[nodiscard]] double length_at(double weight_above) const noexcept;

  std::array<Bucket, wire::kGapBuckets> buckets_{};
  double unit_ = 1.0;  // weight of the next wait; grows, so that older ones weigh less
  std::uint64_t waits_ = 0;
  Duration total_{};
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// How long copies between host and device take, by their size.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "allocator/base/bytes.h"
#include "torch_ext/gate/op_duration.h"

namespace commensal {

/// Which way a copy goes: the two links of a device are as fast as each other, what is behind them
/// is not.
enum class CopyWay : std::uint8_t { kToDevice, kToHost };

/// Copies of a size are known by one duration, four sizes an octave, which is corrected by what the
/// device measures. One that was never seen is foreseen by the nearest size that was; the first of
/// all by a rate that is slow for a GPU, so that it is rather held for a long gap than let into a
/// short one.
///
/// Thread safety: any member from any thread, without locks.
class CopyDurations {
 public:
  /// Smaller copies are a part of their op, as any other work of it.
  static constexpr Bytes kSmallest = 1_MiB;
  static constexpr double kFirstBytesPerNanosecond = 8.0;

  /// Returns what is known of copies of about this size; at least a guess.
  [[nodiscard]] OpDuration& of(Bytes size, CopyWay way) noexcept {
    auto& sizes = ways_[static_cast<std::size_t>(way)];
    const std::size_t here = bucket(size);
    if (!sizes[here].is_known()) sizes[here].record(guess(sizes, here));
    return sizes[here];
  }

 private:
  static constexpr std::size_t kBuckets = std::size_t{4} * 24;  // to 16 TiB
  static constexpr unsigned kFirstBit = 20;
  using Sizes = std::array<OpDuration, kBuckets>;

  [[nodiscard]] static std::size_t bucket(Bytes size) noexcept {
    const std::uint64_t count = std::max(size, kSmallest).count();
    const unsigned exponent =
        std::clamp(static_cast<unsigned>(std::bit_width(count)), kFirstBit + 1, 64U) - 1;
    const std::size_t quarter = (count >> (exponent - 2)) & 3U;
    return std::min(kBuckets - 1, std::size_t{4} * (exponent - kFirstBit) + quarter);
  }
  /// The largest size of a bucket: a guess is rather too long.
  [[nodiscard]] static double most(std::size_t bucket) noexcept {
    return static_cast<double>((5 + bucket % 4) << (kFirstBit - 2 + bucket / 4));
  }
  [[nodiscard]] static Duration guess(const Sizes& sizes, std::size_t here) noexcept {
    double rate = kFirstBytesPerNanosecond;
    for (std::size_t away = 1; away < kBuckets; ++away) {
      const std::size_t below = here >= away ? here - away : here;
      const std::size_t above = std::min(here + away, kBuckets - 1);
      const std::size_t near = sizes[above].is_known() ? above : below;
      if (!sizes[near].is_known()) continue;
      rate = most(near) / static_cast<double>(sizes[near].predicted().count());
      break;
    }
    return Duration{static_cast<Duration::rep>(most(here) / rate)};
  }

  std::array<Sizes, 2> ways_;
};

}  // namespace commensal

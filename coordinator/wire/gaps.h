// SPDX-License-Identifier: Apache-2.0
// The gaps that a guaranteed job leaves: their phases, the table of their lengths on its page, and
// the rules by which others may use them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "allocator/base/clock.h"

namespace commensal::wire {

/// Why a guaranteed job leaves its device idle. Waits of one phase last about as long as each
/// other, waits of different ones do not.
enum class GapPhase : std::uint64_t {
  kUnknown = 0,          ///< an older writer, or no wait was seen yet
  kLoader = 1,           ///< for a batch to train on
  kEvaluation = 2,       ///< for a batch, without training in between
  kBoundary = 3,         ///< from the end of an optimizer step to the next sign of work
  kCheckpoint = 4,       ///< in torch.save
  kSynchronisation = 5,  ///< from the end of the host's wait for a GPU to the next sign of work
  kRequests = 6          ///< for the next request
};
inline constexpr std::size_t kGapPhases = 7;
inline constexpr std::array<std::string_view, kGapPhases> kGapPhaseNames{
    "unknown", "loader", "evaluation", "boundary", "checkpoint", "synchronisation", "requests"};

/// Returns a phase's name; "unknown" for any other number.
[[nodiscard]] constexpr std::string_view to_string(GapPhase phase) noexcept {
  const auto index = static_cast<std::size_t>(phase);
  return kGapPhaseNames[index < kGapPhases ? index : 0];
}
/// A set of phases has this bit for each.
[[nodiscard]] constexpr std::uint32_t phase_bit(GapPhase phase) noexcept {
  const auto index = static_cast<std::uint32_t>(phase);
  return index < kGapPhases ? 1U << index : 1U;
}
/// Pauses, which nobody ends: the next sign of work does, and not every op is one.
inline constexpr std::uint32_t kPauses =
    phase_bit(GapPhase::kBoundary) | phase_bit(GapPhase::kSynchronisation);
inline constexpr std::uint32_t kAllGapPhases = (1U << kGapPhases) - 1;

// --- lengths, in four buckets an octave from 128 us to 6.4 s -------------------------------------

inline constexpr std::size_t kGapBuckets = 64;
inline constexpr unsigned kFirstGapBit = 17;  ///< bucket 0 ends at 2^17 ns

/// Returns the bucket of a length; what is longer than all is in the last one.
[[nodiscard]] constexpr std::size_t gap_bucket(std::uint64_t nanoseconds) noexcept {
  if (nanoseconds >> kFirstGapBit == 0) return 0;
  const auto exponent = static_cast<unsigned>(std::bit_width(nanoseconds)) - 1;
  const std::size_t quarter = (nanoseconds >> (exponent - 2)) & 3U;
  return std::min(kGapBuckets - 1, std::size_t{4} * (exponent - kFirstGapBit) + quarter + 1);
}
/// Returns the shortest length of a bucket, in nanoseconds.
[[nodiscard]] constexpr std::uint64_t gap_bucket_floor(std::size_t bucket) noexcept {
  if (bucket == 0) return 0;
  return (4 + (bucket - 1) % 4) << (kFirstGapBit - 2 + (bucket - 1) / 4);
}
static_assert(gap_bucket(gap_bucket_floor(5)) == 5 && gap_bucket(gap_bucket_floor(5) - 1) == 4);

/// How long waits last, on a job's page behind its `JobPage`. Writer: that process.
struct GapTable {
  /// By phase, and by the bucket of the time already waited: the length that most of the waits
  /// reached which lasted at least so long, in nanoseconds; 0: not known.
  std::atomic<std::uint64_t> expected_ns[kGapPhases][kGapBuckets];
};
static_assert(std::is_standard_layout_v<GapTable>);
static_assert(sizeof(GapTable) == 3584);
inline constexpr std::size_t kGapTableOffset = 1024;  ///< in a job's page

// --- rules ---------------------------------------------------------------------------------------

/// Which gaps an opportunistic job may use, and how. Zero durations and rates bound nothing.
struct GapRules {
  bool known = false;                    ///< false: an older coordinator, nothing is bounded
  std::uint32_t phases = kAllGapPhases;  ///< bits of those that it may use
  Duration smallest{};                   ///< gaps that are expected to be shorter are left alone
  Duration guard{};                      ///< ops end so long before a gap's expected end
  Duration in_flight{};                  ///< predicted run time of what may run at once
  double hand_overs = 0.0;               ///< gaps a second that it may enter
  /// What the device needs to change from one process to another and back.
  Duration change{};
  bool operator==(const GapRules&) const = default;
};

/// Returns what two sets of rules allow together.
[[nodiscard]] inline GapRules both(const GapRules& one, const GapRules& other) noexcept {
  if (!one.known) return other;
  if (!other.known) return one;
  const auto tighter = [](auto a, auto b) {  // zero bounds nothing
    const decltype(a) nothing{};
    return a == nothing ? b : b == nothing ? a : std::min(a, b);
  };
  return {true,
          one.phases & other.phases,
          std::max(one.smallest, other.smallest),
          std::max(one.guard, other.guard),
          tighter(one.in_flight, other.in_flight),
          tighter(one.hand_overs, other.hand_overs),
          std::max(one.change, other.change)};
}

/// The words of a DeviceEntry. Times are whole microseconds, up to 16 s; rates thousandths.
struct PackedGapRules {
  std::uint64_t gaps = 0;    ///< bits 0..14 phases, 15 known, 16..39 smallest, 40..63 guard
  std::uint64_t flight = 0;  ///< bits 0..31 work in flight, 32..63 hand-overs
  std::uint64_t change = 0;
};

[[nodiscard]] inline PackedGapRules pack(const GapRules& rules) noexcept {
  if (!rules.known) return {};
  const auto microseconds = [](Duration time, std::uint64_t most) {
    const auto count = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
    return std::min(most, static_cast<std::uint64_t>(std::max<Duration::rep>(0, count)));
  };
  constexpr std::uint64_t kMost24 = (1U << 24U) - 1;
  constexpr std::uint64_t kMost32 = UINT32_MAX;
  const double rate = std::clamp(rules.hand_overs * 1e3, 0.0, static_cast<double>(kMost32));
  return {std::uint64_t{rules.phases & kAllGapPhases} | 1U << 15U |
              microseconds(rules.smallest, kMost24) << 16U |
              microseconds(rules.guard, kMost24) << 40U,
          microseconds(rules.in_flight, kMost32) | static_cast<std::uint64_t>(std::llround(rate))
                                                       << 32U,
          microseconds(rules.change, kMost24)};
}

[[nodiscard]] inline GapRules unpack(const PackedGapRules& words) noexcept {
  GapRules rules;
  if ((words.gaps >> 15U & 1U) == 0) return rules;
  const auto microseconds = [](std::uint64_t count) {
    return Duration{std::chrono::microseconds{static_cast<std::int64_t>(count)}};
  };
  rules.known = true;
  rules.phases = static_cast<std::uint32_t>(words.gaps) & kAllGapPhases;
  rules.smallest = microseconds(words.gaps >> 16U & 0xFF'FFFFU);
  rules.guard = microseconds(words.gaps >> 40U);
  rules.in_flight = microseconds(words.flight & UINT32_MAX);
  rules.hand_overs = static_cast<double>(words.flight >> 32U) * 1e-3;
  rules.change = microseconds(words.change & 0xFF'FFFFU);
  return rules;
}

}  // namespace commensal::wire

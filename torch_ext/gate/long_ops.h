// SPDX-License-Identifier: Apache-2.0
// Ops that are longer than the guaranteed job's usual gaps. Internal to torch_ext/gate.
#pragma once

#include "allocator/base/clock.h"
#include "torch_ext/gate/pacing_law.h"

namespace commensal {

/// Holds ops that no usual gap has room for until a long gap comes (an evaluation, a checkpoint).
///
/// Such an op beside a busy guaranteed job is a collision of its full length. So it does not go at
/// once and pay afterwards, as short ones do, but **saves first**: it goes when the trickle would
/// have paid for it, and in the time until then a long gap may come. The trickle's rate is the same
/// either way, so nobody starves. If other threads use up what is saved, it goes after twice that
/// time.
///
/// Not thread-safe; equal inputs in equal order, equal decisions.
class LongOps {
 public:
  static constexpr Duration kLong = std::chrono::milliseconds{100};
  /// Notes the longest op that may start now, in the gap that began at `gap`.
  void note_room(TimePoint gap, Duration room) noexcept;
  /// Until a gap has ended, what is longer than `kLong` is long: a copy of gigabytes that was never
  /// made before (C15) must not begin beside a busy job at once.
  [[nodiscard]] bool is_long(Duration needs) const noexcept {
    return needs > (usual_ > Duration::zero() ? usual_ : kLong);
  }
  /// Decides on an op for which `is_long` and that has no room now.
  [[nodiscard]] PacingDecision hold(const PacingInput& input, Duration needs,
                                    Duration recheck) noexcept;

 private:
  TimePoint gap_;
  Duration room_{};  // most that this gap had
  // Room of the usual gap: a decayed mean of the most that each gap had; zero: none has ended yet.
  // One gap counts at most as four times the usual one.
  Duration usual_{};
  TimePoint held_since_;  // zero: none is held
  TimePoint asked_;
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Follows one thread's nested op events and says when that thread enters and leaves the gate.
#pragma once

#include <utility>

#include "torch_ext/gate/op_duration.h"
#include "torch_ext/op_kind.h"

namespace commensal {

/// What an event asks of the gate: leave one op, then enter another; empty: nothing.
struct GateCalls {
  OpEstimate leave;
  OpEstimate enter;
};

/// Counts the depth of one thread's events. Events of a thread end in the reverse order of their
/// begin; an event whose begin was not seen (the callback was off then) has no end either.
///
/// Thread safety: none; one object a thread.
class OpNesting {
 public:
  /// Whether a counted op is running: a begin then is nested, whatever its kind.
  [[nodiscard]] bool is_inside() const noexcept { return depth_ > 0; }
  /// Notes a begin while `is_inside()`.
  void begin_nested() noexcept { ++depth_; }

  /// Notes a begin while not `is_inside()`.
  /// @param op        what the gate is told to enter: the op, or all compiled regions.
  /// @param shielded  the thread belongs to a communication library now: nothing waits.
  [[nodiscard]] GateCalls begin_outermost(OpKind kind, OpEstimate op, bool shielded) noexcept {
    if (kind == OpKind::kTransparent) return {};
    if (kind != OpKind::kRegion) depth_ = 1;
    in_parts_ = false;
    // An op inside a compiled region ends the region's own run: the op is metered by itself.
    GateCalls calls{std::exchange(entered_, {}), {}};
    if (kind != OpKind::kCollective && !shielded) calls.enter = entered_ = op;
    return calls;
  }

  /// Notes the begin of a part of the running op that is metered by itself, and waits by itself.
  /// Where the op does not wait (a collective, a shielded thread), neither do its parts.
  [[nodiscard]] GateCalls begin_part(OpEstimate part) noexcept {
    if (depth_ == 0 || (!entered_ && !in_parts_)) return {};
    in_parts_ = true;
    return {std::exchange(entered_, part), part};
  }
  /// Notes its end; what follows in the op is not metered.
  [[nodiscard]] GateCalls end_part() noexcept { return {std::exchange(entered_, {}), {}}; }

  /// Whether `end_outermost` has to be told if the event is a region.
  [[nodiscard]] bool is_outside() const noexcept { return depth_ == 0; }
  /// Whether an op that is not the outermost one is running.
  [[nodiscard]] bool is_nested() const noexcept { return depth_ > 1; }
  /// Notes an end while `is_nested()`.
  void end_nested() noexcept { --depth_; }
  /// Notes any other end.
  /// @param is_region  the event is a compiled region; not read while an op is running.
  [[nodiscard]] GateCalls end_outermost(bool is_region) noexcept {
    if (depth_ == 0 && !is_region) return {};
    depth_ = 0;
    return {std::exchange(entered_, {}), {}};
  }

 private:
  int depth_ = 0;          // counted events that are running
  bool in_parts_ = false;  // the running op was left for a part of it
  OpEstimate entered_;     // what this thread entered the gate with and has not left
};

}  // namespace commensal

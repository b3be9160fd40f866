// SPDX-License-Identifier: Apache-2.0
// Says when memory may come back from the slower tier by itself.
#pragma once

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"

namespace commensal {

/// How much may begin to come back now.
struct ReturnLeave {
  Bytes most;               ///< zero: nothing
  const char* reason = "";  ///< why nothing may; static text
};

/// Asked before memory is copied back that nobody asked for: at safe points and between them. It
/// answers at once, so nothing is held meanwhile: no lock, no op, no fence of anybody. What has no
/// leave is asked about again at the next safe point.
/// Both are called by one thread at a time, with the allocator's lock for moves held: they must not
/// call the allocator.
class ReturnPace {
 public:
  virtual ~ReturnPace() = default;
  /// @param least  what can only come as a whole
  /// @param wanted  what would come, at least that
  /// @return nothing, or from `least` to `wanted`.
  [[nodiscard]] virtual ReturnLeave leave(Bytes least, Bytes wanted) noexcept = 0;
  /// Notes that so much came back, and how long it took.
  virtual void returned(Bytes copied, Duration took) noexcept = 0;
};

}  // namespace commensal

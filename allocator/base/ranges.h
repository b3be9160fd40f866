// SPDX-License-Identifier: Apache-2.0
// MIN[:MAX] of what a job may have of a device: its memory and its time.
#pragma once

#include <optional>

#include "allocator/base/bytes.h"
#include "allocator/base/field_rules.h"

namespace commensal {

/// Absent max: the whole device.
struct MemoryRange {
  Bytes min;
  std::optional<Bytes> max;
  bool operator==(const MemoryRange&) const = default;
};
void fields(SameAs<MemoryRange> auto& range, auto& field) {
  field("min_bytes", range.min);
  field("max_bytes", range.max, NotBelow{range.min, "min_bytes"});
}

/// 0 <= min <= max <= 1; the whole device is 1.
struct ShareRange {
  double min = 0.0;
  double max = 1.0;
  bool operator==(const ShareRange&) const = default;
};
void fields(SameAs<ShareRange> auto& range, auto& field) {
  field("min", range.min, Between{0.0, 1.0});
  // Who asks for no maximum need not say so.
  field("max", range.max, MayBeAbsent{}, Between{0.0, 1.0}, NotBelow{range.min, "min"});
}

}  // namespace commensal

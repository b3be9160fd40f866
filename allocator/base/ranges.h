// SPDX-License-Identifier: Apache-2.0
// MIN[:MAX] of what a job may have of a device: its memory and its time.
#pragma once

#include <optional>

#include "allocator/base/bytes.h"

namespace commensal {

/// Absent max: the whole device.
struct MemoryRange {
  Bytes min;
  std::optional<Bytes> max;
  bool operator==(const MemoryRange&) const = default;
};

/// 0 <= min <= max <= 1; the whole device is 1.
struct ShareRange {
  double min = 0.0;
  double max = 1.0;
  bool operator==(const ShareRange&) const = default;
};

}  // namespace commensal

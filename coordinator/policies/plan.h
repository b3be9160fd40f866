// SPDX-License-Identifier: Apache-2.0
// What a policy decides: changes, each with its reason. Values are absolute, so that applying a
// plan twice does no harm.
#pragma once

#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "coordinator/policies/view.h"

namespace commensal::policies {

struct MemoryChange {
  JobId job;
  DeviceId device;
  Bytes limit;
  std::string reason;  ///< for the log and `commensal status`
  bool operator==(const MemoryChange&) const = default;
};

struct ShareChange {
  JobId job;
  DeviceId device;
  double share = 1.0;  ///< of device time, while a guaranteed job is busy
  std::string reason;
  bool operator==(const ShareChange&) const = default;
};

/// Presses a job for memory, or lets go of it.
struct StageChange {
  JobId job;
  DeviceId device;
  Stage stage = Stage::kNone;
  std::string reason;
  bool operator==(const StageChange&) const = default;
};

/// Changes in the order in which they are to be made: what shrinks comes first. A job that is not
/// named keeps what it has.
struct Plan {
  std::vector<MemoryChange> memory;
  std::vector<ShareChange> shares;
  std::vector<StageChange> stages;
  bool operator==(const Plan&) const = default;
};

}  // namespace commensal::policies

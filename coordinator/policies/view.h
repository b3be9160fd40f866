// SPDX-License-Identifier: Apache-2.0
// What a policy sees: devices and the jobs on them. The same types serve the arbiter of a node,
// the policies of a cluster and the simulator. Plain values: equal view, equal plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"

namespace commensal::policies {

using GangId = StringId<struct GangIdTag>;
using NodeId = StringId<struct NodeIdTag>;

/// MIN[:MAX] of memory; absent max: the whole device.
struct MemoryRange {
  Bytes min;
  std::optional<Bytes> max;
  bool operator==(const MemoryRange&) const = default;
};

/// MIN[:MAX] of device time, 0..1.
struct ShareRange {
  double min = 0.0;
  double max = 1.0;
  bool operator==(const ShareRange&) const = default;
};

/// Processes of a job that must run together; a new epoch replaces the older one as a whole.
struct Gang {
  GangId id;  ///< empty: the job is no gang
  std::uint64_t epoch = 0;
  int world_size = 1;
  bool operator==(const Gang&) const = default;
};

/// One rank on the device.
struct RankView {
  int rank = 0;
  Bytes limit;  ///< last told
  Bytes held;   ///< last reported
  bool operator==(const RankView&) const = default;
};

/// One job on one device.
struct JobView {
  JobId id;
  TenantId tenant;
  JobClass job_class = JobClass::kOpportunistic;
  Gang gang;
  MemoryRange memory;
  ShareRange share;
  std::vector<RankView> ranks;  ///< in the order of their numbers
  bool paused = false;
  Bytes limit;          ///< last told, summed over its ranks
  Bytes held;           ///< last reported, summed
  Bytes wanted;         ///< would use now without a limit
  Bytes wanted_recent;  ///< largest of `wanted` within the last seconds
  Bytes asked;          ///< total that it needs to go on (an open AskMemory); zero: none
  bool operator==(const JobView&) const = default;
};

struct DeviceView {
  DeviceId id;
  std::string kind = "host";
  Bytes capacity;
  double cores = 0.0;
  std::vector<JobView> jobs;  ///< in the order of their arrival
  bool operator==(const DeviceView&) const = default;
};

struct NodeView {
  NodeId id;
  TimePoint now;
  std::vector<DeviceView> devices;
  bool operator==(const NodeView&) const = default;
};

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// What a policy sees: devices and the jobs on them. The same types serve the arbiter of a node,
// the policies of a cluster and the simulator. Plain values: equal view, equal plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "allocator/base/ranges.h"

namespace commensal::policies {

using GangId = StringId<struct GangIdTag>;
using NodeId = StringId<struct NodeIdTag>;

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

/// Memory that a job has wanted, and keeps until the lease runs out: a new peak renews it.
struct MemoryLease {
  Bytes bytes;     ///< the largest of `wanted` since it was renewed or ran out
  TimePoint ends;  ///< from then on, what is not wanted goes to others
  Duration
      term{};  ///< how long it runs after a peak; longer for a job that took back what it let go
  bool operator==(const MemoryLease&) const = default;
};

/// How fast a job was with a limit.
struct SpeedPoint {
  Bytes limit;
  double steps_per_second = 0.0;
  bool operator==(const SpeedPoint&) const = default;
};

/// How far a job is pressed for memory that it should give back.
enum class Stage : std::uint8_t {
  kNone,  ///< runs within its limit
  kPark,  ///< all its memory is saved and it waits
  kMove   ///< parked, and the engine is asked to start it elsewhere
};

[[nodiscard]] constexpr std::string_view to_string(Stage stage) noexcept {
  switch (stage) {
    case Stage::kNone: return "none";
    case Stage::kPark: return "park";
    case Stage::kMove: return "move";
  }
  return "none";
}

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
  Bytes limit;   ///< last decided, summed over its ranks
  Bytes held;    ///< last reported, summed
  Bytes wanted;  ///< would use now without a limit
  Bytes asked;   ///< total that it needs to go on (an open AskMemory); zero: none
  Bytes
      unmanaged;  ///< measured beside what it manages, forked children included; no limit moves it
  MemoryLease lease;
  /// Speeds that were measured among the same jobs, in the order of the limits.
  std::vector<SpeedPoint> speeds;
  Bytes owed;  ///< may still hold above its limit; zero: nothing
  TimePoint owed_since;
  Stage stage = Stage::kNone;
  TimePoint stage_since;
  bool operator==(const JobView&) const = default;
};

struct DeviceView {
  DeviceId id;
  std::string kind = "host";
  TimePoint now;
  Bytes capacity;
  Bytes outside;  ///< of the capacity, what others than these jobs have taken
  double cores = 0.0;
  std::vector<JobView> jobs;  ///< in the order of their arrival
  Bytes claimed;  ///< for a job that is to come: opportunistic ones shrink to their minima for it
  bool operator==(const DeviceView&) const = default;
};

struct NodeView {
  NodeId id;
  TimePoint now;
  std::vector<DeviceView> devices;
  bool operator==(const NodeView&) const = default;
};

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// What a policy of the cluster sees: jobs, the cluster, and what has happened since it last
// decided.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/enum_names.h"
#include "allocator/base/ids.h"
#include "coordinator/policies/cluster.h"
#include "coordinator/policies/cluster_index.h"
#include "coordinator/policies/placer.h"

namespace commensal::policies {

/// Seconds on the clock of the trace, or since the epoch. Whole seconds stay exact.
using Time = double;
using TenantIndex = std::uint32_t;

/// Who asks; GPUs of guaranteed jobs are charged to the quota.
struct Tenant {
  std::string name;
  std::optional<std::int32_t> quota;  ///< GPUs; absent: no limit
  std::int32_t charged_milli = 0;     ///< of guaranteed jobs that run, in thousandths of a GPU
  bool operator==(const Tenant&) const = default;
};

/// What a user asks for; `kAuto` begins as opportunistic where a guaranteed start would be late.
enum class AskedClass : std::uint8_t { kGuaranteed, kOpportunistic, kAuto };
constexpr EnumNames<AskedClass, 3> names_of(AskedClass) noexcept {
  return {{{AskedClass::kGuaranteed, "guaranteed"},
           {AskedClass::kOpportunistic, "opportunistic"},
           {AskedClass::kAuto, "auto"}}};
}
[[nodiscard]] constexpr std::string_view to_string(AskedClass asked) noexcept {
  return name_of(asked);
}

enum class JobPhase : std::uint8_t { kWaiting, kRunning, kEnded };

struct ClusterJob {
  // What was asked for.
  Time submit = 0;
  std::int32_t gpus = 1;      ///< zero: cores and memory of one node only
  std::int32_t min_gpus = 1;  ///< of an elastic job; else as `gpus`
  std::int32_t max_gpus = 1;
  std::int32_t gpu_milli = kWholeGpu;  ///< of each of them
  std::int64_t cpu_milli = 0;          ///< on each of its nodes
  std::int64_t memory_mib = 0;         ///< of the host, on each of its nodes
  Minima minima;                       ///< of each of its GPUs, beside others
  std::uint32_t gpu_types = 0;         ///< bits of types that will do; zero: any
  TenantIndex tenant = 0;
  AskedClass asked = AskedClass::kGuaranteed;
  std::int32_t load_milli = 0;  ///< of a GPU's time, that it makes busy; measured or assumed
  std::int32_t priority = 0;    ///< smaller is served first, where a policy looks at it
  std::uint32_t profile = 0;    ///< what ScalingModel knows it by
  double weight = 1;            ///< its share in proportion to those of others
  std::uint32_t group = 0;      ///< number of the group of jobs that are run again; zero: none
  double skew = -1;  ///< largest tensor as a part of its model, 0..1; negative: not known

  // What is.
  JobPhase phase = JobPhase::kWaiting;
  JobClass job_class = JobClass::kGuaranteed;  ///< as which it runs
  double attained = 0;                         ///< seconds that it has run
  double duration = 0;     ///< seconds in all with what it asked for; true or predicted
  double remaining = 0;    ///< of these; does not fall below zero
  std::int32_t epoch = 0;  ///< passes over its data that are done, where that is known
  std::uint64_t turn = 0;  ///< grows with each change of a phase, over all jobs
  Placement placement;     ///< empty while it waits, or where GPUs are only counted; of a job that
                           ///< has ended, where it was
  Placement reserved;      ///< GPUs that are kept for it while it waits

  /// GPUs that it holds.
  [[nodiscard]] std::int32_t held() const noexcept {
    if (phase != JobPhase::kRunning || gpus == 0) return 0;
    return placement.empty() ? gpus : static_cast<std::int32_t>(placement.size());
  }
};

class ScalingModel;     // step times by GPUs: scaling_model.h
class TypicalJobs;      // what jobs usually ask for: typical_jobs.h
class ThroughputTable;  // speeds by GPU type, alone and in pairs: throughput_table.h

/// What is known about jobs besides; a policy that needs one says so when it is not there.
struct JobModels {
  const ScalingModel* scaling = nullptr;
  const ThroughputTable* throughputs = nullptr;
  const TypicalJobs* typical = nullptr;
};

/// Plain values: equal view and equal notes, equal plan. Valid during one decision.
struct ClusterView {
  Time now = 0;
  std::span<const ClusterJob> jobs;  ///< every job that has arrived, by its index
  /// Since the last decision, in their order. After a restart without notes: all that wait, some
  /// with a reservation, and those that run if the policy adopts them.
  std::span<const JobIndex> arrived;
  std::span<const JobIndex> ended;    ///< since the last decision
  std::span<const JobIndex> running;  ///< in the order of their starts
  std::span<const Tenant> tenants;
  const Cluster* cluster = nullptr;     ///< never null
  const ClusterIndex* index = nullptr;  ///< never null; follows from cluster and jobs
  const Placer* placer = nullptr;       ///< never null; where jobs may go
  JobModels models;
};

}  // namespace commensal::policies

// SPDX-License-Identifier: Apache-2.0
// A job as the cluster coordinator keeps it: what was asked for, and what has become of it.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/base/enum_names.h"
#include "allocator/base/field_rules.h"
#include "allocator/base/ids.h"
#include "coordinator/cluster/flat_rule.h"
#include "coordinator/policies/cluster_view.h"
#include "coordinator/wire/terms.h"

namespace commensal::cluster {

/// Time on the machine's clock, which may be set: for people, never for a decision about waiting.
using WallTime = std::chrono::sys_time<std::chrono::milliseconds>;
/// Returns it as a number: milliseconds since 1970.
[[nodiscard]] constexpr std::int64_t in_milliseconds(WallTime time) noexcept {
  return time.time_since_epoch().count();
}

/// What a user asks for with `commensal submit`. Nothing of it changes afterwards.
struct JobSpec {
  std::string name;  ///< for people; need not be unique
  std::string tenant;
  policies::AskedClass asked = policies::AskedClass::kAuto;
  std::int32_t gpus = 1;             ///< devices, one rank each; all on one node if they fit on one
  std::int64_t cpu_milli = 0;        ///< thousandths of a core, on each node
  std::int64_t host_memory_mib = 0;  ///< on each node
  wire::TermsPatch terms;            ///< under which it runs on each device
  std::optional<std::chrono::seconds> time_limit;
  std::map<std::string, std::string> environment;
  std::optional<FlatRule> end_when_flat;   ///< its own rule: then it has finished
  std::optional<FlatRule> park_when_flat;  ///< likewise: then it is parked; not both
  /// It tries the first step of a gang: once that is done, or after so long, it has finished.
  std::optional<std::chrono::seconds> pre_run;
  std::optional<JobId> after;  ///< starts once that one has finished
  std::vector<std::string> command;
  std::string directory;  ///< absolute; where it starts
  bool operator==(const JobSpec&) const = default;
};
/// Says what does not fit together, with the path of its fields before it; empty: nothing.
[[nodiscard]] std::string problem_with(const JobSpec& spec, const std::string& path = "");
void fields(SameAs<JobSpec> auto& spec, auto& field) {
  field("name", spec.name);
  field("tenant", spec.tenant);
  field("class", spec.asked);
  field("gpus", spec.gpus, NotBelow{0});
  field("cpu_milli", spec.cpu_milli, NotBelow{0});
  field("host_memory_mib", spec.host_memory_mib, NotBelow{0});
  fields(spec.terms, field);
  field("time_limit_ms", spec.time_limit);
  field("end_when_flat", spec.end_when_flat);
  field("park_when_flat", spec.park_when_flat);
  field("pre_run_ms", spec.pre_run);
  field("environment", spec.environment);
  field("after", spec.after);
  field("command", spec.command);
  field("directory", spec.directory);
  field.check([&](const std::string& path) { return problem_with(spec, path); });
}
/// The rule that looks at the loss of a job, whatever follows from it; absent: none does.
[[nodiscard]] const std::optional<FlatRule>& flat_rule(const JobSpec& spec) noexcept;

enum class JobState : std::uint8_t {
  kSubmitted,  ///< written down, not looked at yet
  kQueued,     ///< waits
  kReserved,   ///< waits, and devices are kept for it
  kStarting,   ///< an engine was asked to start it
  kRunning,    ///< as `JobRecord::job_class`
  kParked,     ///< its own rule has stopped it; holds nothing until a user resumes it
  kUpgrading,  ///< opportunistic; becomes guaranteed where it runs
  kFinished,   ///< ended with 0, or by its own rule
  kFailed,     ///< ended with anything else
  kCancelled,  ///< ended, or never began, because somebody said so
  kLost        ///< its engine or node cannot say what became of it
};
constexpr EnumNames<JobState, 11> names_of(JobState) noexcept {
  return {{{JobState::kSubmitted, "submitted"},
           {JobState::kQueued, "queued"},
           {JobState::kReserved, "reserved"},
           {JobState::kStarting, "starting"},
           {JobState::kRunning, "running"},
           {JobState::kParked, "parked"},
           {JobState::kUpgrading, "upgrading"},
           {JobState::kFinished, "finished"},
           {JobState::kFailed, "failed"},
           {JobState::kCancelled, "cancelled"},
           {JobState::kLost, "lost"}}};
}
[[nodiscard]] constexpr std::string_view to_string(JobState state) noexcept {
  return name_of(state);
}
/// Finished, failed, cancelled, lost.
[[nodiscard]] bool is_end(JobState state) noexcept;
/// An engine has it: starting, running, upgrading.
[[nodiscard]] bool is_placed(JobState state) noexcept;
/// It is to be started: submitted, queued, reserved.
[[nodiscard]] bool waits(JobState state) noexcept;

/// A device that a job was given.
struct DevicePlace {
  std::string node;
  std::int32_t device = 0;  ///< number among `EngineNode::devices`; -1: none, for a job without
  bool operator==(const DevicePlace&) const = default;
};

void fields(SameAs<DevicePlace> auto& place, auto& field) {
  field("node", place.node);
  field("device", place.device, NotBelow{-1});
}

/// One job, its present. Its past is a list of `Transition`.
struct JobRecord {
  JobId id;
  JobSpec spec;
  JobState state = JobState::kSubmitted;
  std::string reason;         ///< of its last transition
  std::uint32_t attempt = 0;  ///< starts so far: tells events of an older one apart
  std::uint32_t retries = 0;  ///< attempts that failed and were tried again
  JobClass job_class = JobClass::kOpportunistic;  ///< of this attempt, while it is placed
  std::vector<DevicePlace> placement;  ///< of this attempt; of the last one after its end
  bool cancel_asked = false;           ///< its next end is `kCancelled`
  bool finish_asked = false;           ///< its own rule ends it: its next end is `kFinished`
  bool park_asked = false;             ///< its own rule parks it: next it is `kParked`
  bool unheld = false;           ///< guaranteed, and nothing holds its devices for it at the moment
  bool lowering = false;         ///< has become opportunistic; its nodes are to be told still
  std::optional<int> exit_code;  ///< of its last end; 128 + number for a signal
  WallTime submitted{};
  WallTime changed{};  ///< into `state`
  bool operator==(const JobRecord&) const = default;
};
void fields(SameAs<JobRecord> auto& record, auto& field) {
  field("id", record.id);
  field("spec", record.spec);
  field("state", record.state);
  field("reason", record.reason);
  field("attempt", record.attempt);
  field("retries", record.retries);
  field("class", record.job_class);
  field("placement", record.placement);
  field("cancel_asked", record.cancel_asked);
  field("finish_asked", record.finish_asked);
  field("park_asked", record.park_asked);
  field("unheld", record.unheld);
  field("lowering", record.lowering);
  field("exit_code", record.exit_code);
  field("submitted_ms", record.submitted);
  field("changed_ms", record.changed);
}
/// The engine was asked to end its attempt, by whomever, and has not yet.
[[nodiscard]] bool is_being_ended(const JobRecord& job) noexcept;

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// The life of a job as one state machine: a record and an event give the record that follows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/job.h"

namespace commensal::cluster {

enum class EventKind : std::uint8_t {
  kAccept,         ///< submitted -> queued
  kReserve,        ///< queued -> reserved
  kUnreserve,      ///< reserved -> queued
  kStart,          ///< queued, reserved -> starting; begins attempt `attempt`, one above the last
  kBegan,          ///< starting -> running
  kUpgrade,        ///< running, as opportunistic -> upgrading
  kUpgraded,       ///< upgrading -> running, as guaranteed
  kUpgradeFailed,  ///< upgrading -> running, as before
  kUnheld,         ///< running, as guaranteed: stays; nothing holds its devices for it
  kHeld,           ///< running: stays; they are held again
  kLower,       ///< running, as guaranteed -> running, as opportunistic: its devices are another's
  kLowered,     ///< running: stays; its nodes know of it
  kExited,      ///< placed -> finished, failed; cancelled if that was asked for
  kTakenBack,   ///< placed -> queued: the engine has stopped it because we said so
  kVanished,    ///< placed -> lost; cancelled if that was asked for
  kEndByRule,   ///< placed: stays, and its next end is `finished`
  kParkByRule,  ///< placed: stays, and is `parked` once the engine has ended it
  kResume,      ///< parked -> queued
  kRetry,       ///< failed, lost -> queued
  kCancel       ///< waiting, parked -> cancelled; placed: stays, its next end is `cancelled`
};
[[nodiscard]] std::string_view to_string(EventKind kind) noexcept;

/// Something that happened to a job. `attempt` is the one it is about; events of the engine carry
/// that of their launch. Those of a job that waits carry the number of starts so far.
struct JobEvent {
  EventKind kind{};
  std::uint32_t attempt = 0;
  std::string reason;                             ///< never empty
  std::optional<int> exit_code = std::nullopt;    ///< kExited
  JobClass job_class = JobClass::kOpportunistic;  ///< kStart
  std::vector<DevicePlace> placement = {};        ///< kStart, kReserve
};

/// What an event did.
enum class Applied : std::uint8_t {
  kChanged,
  kAlready,  ///< it is so already: the event came twice
  kStale,    ///< about an older attempt, or a job that has ended
  kRefused   ///< cannot happen in this state: `reason` says both
};

struct Step {
  Applied applied = Applied::kRefused;
  JobRecord after;     ///< as before, unless kChanged
  std::string reason;  ///< why it is not kChanged
};

/// Returns the record after an event. Pure; an event that is applied twice is `kAlready` or
/// `kStale` the second time and changes nothing.
[[nodiscard]] Step apply(const JobRecord& before, const JobEvent& event, WallTime now);

/// A line of a job's history: every change of its state, in order.
struct Transition {
  JobId job;
  std::uint64_t number = 0;  ///< over all jobs, growing
  WallTime at{};
  JobState from{};
  JobState to{};
  std::uint32_t attempt = 0;
  std::string reason;
  bool operator==(const Transition&) const = default;
};

}  // namespace commensal::cluster

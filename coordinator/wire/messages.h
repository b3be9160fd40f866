// SPDX-License-Identifier: Apache-2.0
// What jobs, command line and node coordinator say to each other. One frame is one JSON object;
// a message is one ZeroMQ frame from a DEALER (no empty delimiter) to the coordinator's ROUTER.
//
// Every message has `v` (protocol version) and `type`; the other keys are the members' names, and
// only std::optional ones may be absent. Unknown fields are ignored; a missing or wrong field is
// answered with an `error` that names it; a peer of another major version is told so (`error`, code
// "version"). Sizes are bytes, times milliseconds unless the name says otherwise.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "allocator/base/ids.h"
#include "coordinator/wire/outcome.h"
#include "coordinator/wire/terms.h"

namespace commensal::wire {

inline constexpr int kProtocolVersion = 1;
inline constexpr std::size_t kMaxFrameBytes = 1U << 20U;
/// Revisions count up from what a peer names: it must leave room for newer ones.
inline constexpr Revision kMaxRevision = Revision{1} << 62U;

/// Raised for a frame that cannot be used; `code` is "malformed", "version", "oversized" or
/// "unknown_type", `what` names the field and the value.
class BadMessage : public std::runtime_error {
 public:
  BadMessage(std::string code, const std::string& what)
      : std::runtime_error(what), code_(std::move(code)) {}
  [[nodiscard]] const std::string& code() const noexcept { return code_; }

 private:
  std::string code_;
};

/// A device that a process uses, and what it holds there already (after a daemon restart).
struct UsedDevice {
  /// "host", or a GPU as NVML writes it ("GPU-..." or "MIG-..."). Empty, of the first one alone: a
  /// GPU that is not known yet; it is said in a Register to come.
  std::string device = "host";
  std::uint64_t held_bytes = 0;  ///< device bytes
  Revision revision = 0;         ///< newest revision that it has applied there
  /// Limit in force: it may grow up to it until it hears from us. Absent: held.
  std::optional<std::uint64_t> limit_bytes = std::nullopt;
};
inline constexpr std::size_t kMaxDevices = 16;  ///< of a process

/// A process of a job says hello. First message on a connection; repeated after a daemon restart
/// (then with what it holds, so that the daemon can rebuild its ledger) and when its role changes.
struct Register {
  std::string job_id;
  std::string name;
  std::string tenant;
  JobClass job_class = JobClass::kOpportunistic;
  JobTerms terms;  ///< as far as its class has them; the fields of a frame stand beside the others
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;  ///< field 22 of /proc/PID/stat: tells a reused pid apart
  std::string role;               ///< "main", "rank" or "helper"
  int rank = 0;
  int world_size = 1;
  std::string gang;
  std::uint64_t epoch = 0;
  /// All that it uses by now, the one that it used first in front: on one that was named before and
  /// is not any more it holds nothing. Each is registered for itself: it has a limit of its own and
  /// revisions of its own. What is said about a device names it; "host" of a process that is on
  /// GPUs by now is its first one. The first one's coordinator says how the job is paced, and its
  /// class.
  std::vector<UsedDevice> devices{UsedDevice{}};
};

/// The coordinator's answer to Register, one for each device. One that is not there is answered
/// with an Error, code "no_device".
struct Registered {
  std::string job_id;
  std::string coordinator;  ///< instance name
  std::int64_t coordinator_pid = 0;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t limit_bytes = 0;  ///< device bytes granted to this process
  ShareRange share;
  std::string law;
  JobClass job_class = JobClass::kOpportunistic;  ///< may differ from what was asked, see reason
  Revision revision = 0;
  std::string reason;
  std::string device = "host";  ///< where it is registered
};

/// Periodic report of one process; `stats` is the object of docs/stats.md, which tells of all
/// devices but the first in `memory.devices`.
struct Stats {  // NOLINT(bugprone-exception-escape): a move of json asserts, throws nothing
  std::string job_id;
  std::int64_t pid = 0;
  nlohmann::json stats;
  bool final = false;  ///< the process is about to leave
};

/// A change that the coordinator wants; absent fields stay as they are.
struct Change {
  std::string job_id;
  Revision revision = 0;
  std::optional<std::uint64_t> limit_bytes;
  /// To be said again at the next registration. Its bounds of memory are told with a class alone.
  TermsPatch terms;
  std::optional<bool> paused;
  /// True: save all device memory and wait, `paused` says so too; false: bring it back. A job that
  /// does not know it gets limit 0 and is paused, which is nearly the same.
  std::optional<bool> parked;
  std::string reason;
  std::string device = "host";
  /// From now on the process runs as one of this class, and says so at its next registration. The
  /// answer tells which class is in force: one that does not know it keeps the one that it has.
  std::optional<JobClass> job_class = std::nullopt;
};

/// A job's answer to a Change.
struct Answer {
  std::string job_id;
  std::int64_t pid = 0;
  Revision revision = 0;
  Outcome outcome = Outcome::kApplied;
  std::uint64_t done_bytes = 0;
  std::uint64_t deferred_bytes = 0;
  std::uint64_t held_bytes = 0;  ///< device bytes held now: what the ledger may count on
  std::string reason;
  std::string device = "host";  ///< as of the Change
  /// Class in force. Absent: of another device than the first, or of a process that keeps the class
  /// which it began with.
  std::optional<JobClass> job_class = std::nullopt;
};

/// A job needs more device memory than its limit (the OOM conversation). Answered by a Change
/// (a new limit) or an Error with code "no_memory" and the reason.
struct AskMemory {
  std::string job_id;
  std::int64_t pid = 0;
  std::uint64_t needed_bytes = 0;  ///< beyond `held_bytes`
  std::uint64_t held_bytes = 0;
  std::string device = "host";
};

/// From the command line. `job` is an id or an unambiguous name.
struct StatusRequest {
  std::string job;  ///< empty: everything
};
// NOLINTNEXTLINE(bugprone-exception-escape): as Stats
struct StatusReply {
  nlohmann::json status;  ///< docs/stats.md, "status"
};
struct SetRequest {
  std::string job;
  TermsPatch terms;
  std::optional<bool> paused = std::nullopt;
  /// Changes the class of a running job; the terms then are those that it has in it.
  std::optional<JobClass> job_class = std::nullopt;
};
/// Answers SetRequest: what was applied or why it was refused. A change of the class is answered
/// once all processes have taken it, or as deferred.
struct SetReply {
  std::string job_id;
  Revision revision = 0;
  Outcome outcome = Outcome::kApplied;
  std::string reason;
};
/// Asks where the memory of a process lies. From the command line, which leaves `ticket` empty;
/// handed on to the process with a ticket by which the answer finds its way back.
struct MapRequest {
  std::string job;
  std::optional<std::int64_t> pid;  ///< absent: the job's first rank
  std::string ticket;
};
/// The process's answer, handed on to who asked.
// NOLINTNEXTLINE(bugprone-exception-escape): as Stats
struct MapReply {
  std::string job_id;
  std::int64_t pid = 0;
  std::string ticket;
  nlohmann::json map;  ///< docs/stats.md, "memory map"; null: see `reason`
  std::string reason;
};
/// Asks what happened to a job within the last minutes. From the command line.
struct ExplainRequest {
  std::string job;
  double seconds = 60.0;
  bool series = false;  ///< with a sample a second, for a timeline
};
/// Answers ExplainRequest.
// NOLINTNEXTLINE(bugprone-exception-escape): as Stats
struct ExplainReply {
  nlohmann::json explanation;  ///< docs/stats.md, "explain"
};
/// Answers what cannot be used or done. Codes: those of BadMessage; "no_memory" (AskMemory);
/// "unknown_job" (not registered here, for instance after a restart: register again);
/// "full" (no entry left on the device page); "no_device" (Register: no such device here).
struct Error {
  std::string code;
  std::string what;
  std::optional<std::string> device = std::nullopt;  ///< that it is about
};

using Message =
    std::variant<Register, Registered, Stats, Change, Answer, AskMemory, StatusRequest, StatusReply,
                 SetRequest, SetReply, Error, MapRequest, MapReply, ExplainRequest, ExplainReply>;

/// Turns a message into one frame.
[[nodiscard]] std::string encode(const Message& message);
/// Reads one frame. @throws BadMessage.
[[nodiscard]] Message decode(std::string_view frame);

}  // namespace commensal::wire

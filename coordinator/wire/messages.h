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

/// A GPU that a process uses beside its first one; the fields are those of Register, of this GPU.
struct FurtherDevice {
  std::string device;
  std::uint64_t held_bytes = 0;
  Revision revision = 0;
  std::optional<std::uint64_t> limit_bytes;
};
inline constexpr std::size_t kMaxFurtherDevices = 15;

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
  std::uint64_t held_bytes = 0;  ///< device bytes it holds already (after a restart)
  Revision revision = 0;         ///< newest revision it has applied
  /// Limit in force (after a restart): it may grow up to it until it hears from us. Absent: held.
  std::optional<std::uint64_t> limit_bytes;
  /// Where its managed memory is: "host", or a GPU as NVML writes it ("GPU-..." or "MIG-...").
  /// Empty: on a GPU that is not known yet; it is said in a Register to come. Absent: "host".
  std::optional<std::string> device;
  /// All further GPUs that it uses by now: on one that was named before and is not any more it
  /// holds nothing. Each is registered for itself: it has a limit of its own, revisions of its own,
  /// and is named in what is said about it (`device`). Absent: none. An older coordinator ignores
  /// them.
  std::optional<std::vector<FurtherDevice>> further = std::nullopt;
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
  std::optional<std::string> device;  ///< where it is registered; absent: an older coordinator
};

/// Periodic report of one process; `stats` is the object of docs/stats.md, which tells of further
/// devices in `memory.devices`.
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
  std::optional<std::string> device = std::nullopt;  ///< a further one; absent: the first
  /// From now on the process runs as one of this class, and says so at its next registration. The
  /// answer tells which class is in force: one that does not know it keeps the one that it has.
  std::optional<JobClass> job_class = std::nullopt;
};

/// A job's answer to a Change.
struct Answer {
  std::string job_id;
  std::int64_t pid = 0;
  Revision revision = 0;
  std::string outcome;  ///< "applied", "deferred", "stale" or "refused"
  std::uint64_t done_bytes = 0;
  std::uint64_t deferred_bytes = 0;
  std::uint64_t held_bytes = 0;  ///< device bytes held now: what the ledger may count on
  std::string reason;
  std::optional<std::string> device = std::nullopt;  ///< as of the Change
  /// Class in force. Absent: that of a further device, or of a process that keeps the class which
  /// it began with.
  std::optional<JobClass> job_class = std::nullopt;
};

/// A job needs more device memory than its limit (the OOM conversation). Answered by a Change
/// (a new limit) or an Error with code "no_memory" and the reason.
struct AskMemory {
  std::string job_id;
  std::int64_t pid = 0;
  std::uint64_t needed_bytes = 0;  ///< beyond `held_bytes`
  std::uint64_t held_bytes = 0;
  std::optional<std::string> device = std::nullopt;  ///< a further one; absent: the first
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
/// once all processes have taken it, or "deferred" with what it waits for.
struct SetReply {
  std::string job_id;
  Revision revision = 0;
  std::string outcome;
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
  std::optional<std::string> device = std::nullopt;  ///< about a further one alone
};

using Message =
    std::variant<Register, Registered, Stats, Change, Answer, AskMemory, StatusRequest, StatusReply,
                 SetRequest, SetReply, Error, MapRequest, MapReply, ExplainRequest, ExplainReply>;

/// Turns a message into one frame.
[[nodiscard]] std::string encode(const Message& message);
/// Reads one frame. @throws BadMessage.
[[nodiscard]] Message decode(std::string_view frame);

}  // namespace commensal::wire

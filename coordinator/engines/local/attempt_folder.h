// SPDX-License-Identifier: Apache-2.0
// The folder of one attempt, where engine and keeper leave each other notes.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/engines/local/process.h"

namespace commensal::cluster::local {

/// Raised for a note that is there and cannot be read; `what` names the file.
class BadNote : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// How much of a rank's output is kept.
struct LogLimits {
  std::uint64_t bytes = 64U << 20U;  ///< of a file, then the next one begins
  int files = 4;                     ///< of a rank, the one that grows among them
  bool operator==(const LogLimits&) const = default;
};

/// spec.json: written by `hold`.
struct HeldJob {
  JobSpec job;
  std::chrono::milliseconds grace{};  ///< of the other ranks when one has failed
  LogLimits logs;
  bool operator==(const HeldJob&) const = default;
};

void fields(SameAs<HeldJob> auto& held, auto& field) {
  field("job", held.job);
  field("grace_ms", held.grace);
  field("log_bytes", held.logs.bytes);
  field("log_files", held.logs.files);
}

/// placement.json: written by `place`; one device for each rank, in the order of ranks.
struct Placed {
  std::vector<DevicePlace> devices;
  std::vector<std::string> uuids;  ///< of `devices`; "host": none to be set
  JobClass job_class = JobClass::kOpportunistic;
  std::vector<std::string> command;  ///< what is executed: prefix and the job's command
  std::map<std::string, std::map<std::string, std::string>> node_environment;
  /// What starts a keeper on each of several nodes (GangHead); empty: one keeper has all ranks.
  std::vector<std::string> launcher = {};
  std::string meeting = {};  ///< address of the first rank's node; empty: all are on this machine
  bool operator==(const Placed&) const = default;
};

void fields(SameAs<Placed> auto& placed, auto& field) {
  field("devices", placed.devices);
  field("uuids", placed.uuids);
  field("class", placed.job_class);
  field("command", placed.command);
  field("launcher", placed.launcher);
  field("meeting", placed.meeting);
  field("node_environment", placed.node_environment);
}

/// Nodes of a placement, each once, in their order.
[[nodiscard]] std::vector<std::string> nodes_of(const Placed& placed);

/// keeper.json: who has the attempt.
struct KeeperNote {
  ProcessIdentity process;
  std::vector<std::string> groups;  ///< control groups that it made
  bool operator==(const KeeperNote&) const = default;
};

void fields(SameAs<KeeperNote> auto& note, auto& field) {
  field("pid", note.process.pid);
  field("start_ticks", note.process.start_ticks);
  field("boot", note.process.boot);
  field("groups", note.groups);
}

/// result.json: how it ended; the last note.
struct Outcome {
  EngineEvent::Kind kind = EngineEvent::Kind::kExited;  ///< never kBegan
  std::optional<int> exit_code;
  std::string reason;
  bool operator==(const Outcome&) const = default;
};

void fields(SameAs<Outcome> auto& outcome, auto& field) {
  field("kind", outcome.kind);
  field("exit_code", outcome.exit_code);
  field("reason", outcome.reason);
}

/// Reads and writes the notes of one attempt. Steps in their order: spec.json, placement.json,
/// `released`, the lock, keeper.json, `begun`, result.json; take_back.json at any time after
/// `released`. Each is there whole or not at all, and a crash between any two leaves a folder that
/// the next engine or keeper goes on with.
///
/// Getters return nothing for a note that is not there, and throw BadNote for one that cannot be
/// read; setters throw std::system_error. Copies stand for the same folder.
class AttemptFolder {
 public:
  AttemptFolder(std::filesystem::path state, Attempt attempt);

  [[nodiscard]] const Attempt& attempt() const noexcept { return attempt_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  /// STATE/logs/JOB-ATTEMPT-RANK.log.
  [[nodiscard]] std::filesystem::path log(std::size_t rank) const;

  /// Makes the folder, and the one of its job.
  void make() const;
  /// Removes the folder in one step, then what was in it.
  void remove() const;

  [[nodiscard]] bool is_held() const;  ///< spec.json is there
  [[nodiscard]] std::optional<HeldJob> held() const;
  void set(const HeldJob& held) const;

  [[nodiscard]] bool is_placed() const;  ///< placement.json is there
  [[nodiscard]] std::optional<Placed> placed() const;
  void set(const Placed& placed) const;

  [[nodiscard]] bool is_released() const;
  void set_released() const;
  void unset_released() const;

  [[nodiscard]] std::optional<KeeperNote> keeper() const;
  void set(const KeeperNote& keeper) const;

  [[nodiscard]] bool has_begun() const;
  /// @return false if it had begun before: then nothing may be started.
  [[nodiscard]] bool set_begun() const;

  /// How long the ranks have after SIGTERM, once somebody took the attempt back.
  [[nodiscard]] std::optional<std::chrono::milliseconds> take_back() const;
  void set_take_back(std::chrono::milliseconds grace) const;

  [[nodiscard]] bool has_ended() const;  ///< result.json is there
  [[nodiscard]] std::optional<Outcome> outcome() const;
  void set(const Outcome& outcome) const;

  [[nodiscard]] std::filesystem::path lock_file() const { return path_ / "lock"; }

 private:
  std::filesystem::path state_;
  Attempt attempt_;
  std::filesystem::path path_;
};

/// Attempts that have a folder, in order of their jobs' names. What crashes have left half removed
/// or half made is removed on the way.
[[nodiscard]] std::vector<Attempt> attempts_in(const std::filesystem::path& state);

/// Returns the highest number of a job that has a folder or a file of output; 0: none has. Other
/// names do not count. @throws std::system_error.
[[nodiscard]] std::uint64_t highest_job_in(const std::filesystem::path& state);

/// Says why a job's id cannot be the name of a folder; empty: it can.
[[nodiscard]] std::string obstacle_to_folder(const JobId& job);

/// Says who may write the outcome: held by the keeper as long as it lives, and by the engine while
/// it writes one in a keeper's place. Given back by the destructor, and when the process ends.
class FolderLock {
 public:
  /// @return nothing if somebody has it. @throws std::system_error, also if there is no folder.
  [[nodiscard]] static std::optional<FolderLock> try_take(const AttemptFolder& folder);
  /// Waits until nobody else has it. @throws std::system_error, also if there is no folder.
  [[nodiscard]] static FolderLock take(const AttemptFolder& folder);
  /// Whether somebody has it; asking is in nobody's way.
  [[nodiscard]] static bool is_taken(const AttemptFolder& folder);

 private:
  explicit FolderLock(wire::UniqueFd fd) : fd_(std::move(fd)) {}
  wire::UniqueFd fd_;
};

}  // namespace commensal::cluster::local

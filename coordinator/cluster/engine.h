// SPDX-License-Identifier: Apache-2.0
// What starts and stops processes on machines.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/job.h"

namespace commensal::cluster {

/// Raised when the engine cannot be asked (its command is missing, does not answer, or answers what
/// cannot be read); `what` is one sentence with the value. Nothing has changed as far as is known.
class EngineFailed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An attempt of a job, which is what an engine knows.
struct Attempt {
  JobId job;
  std::uint32_t number = 0;
  auto operator<=>(const Attempt&) const = default;
};

struct EngineNode {
  std::string name;
  std::vector<std::string> devices;  ///< UUIDs of GPUs; "host": the core set of a node without one
  std::string device_type;           ///< of all of them, as users name it
  std::int64_t cpu_milli = 0;
  std::int64_t memory_mib = 0;
  bool up = true;
  std::string reason;     ///< why it is not up
  Bytes device_memory{};  ///< of each device; zero: not known, or they differ
  bool operator==(const EngineNode&) const = default;
};

/// What an engine saw. Told until `watch` was called again after it.
struct EngineEvent {
  enum class Kind : std::uint8_t {
    kBegan,
    kExited,     ///< by itself; `exit_code`
    kTakenBack,  ///< it has ended because of `take_back`
    kVanished,   ///< nobody knows what became of it
    // Of one that was upgraded while it ran. Told again and again as long as it is so.
    kUnheld,  ///< nothing holds its devices for it at the moment
    kHeld,    ///< they are held again
    kTaken    ///< another job has got them: it cannot stay guaranteed
  };
  Attempt attempt;
  Kind kind{};
  std::optional<int> exit_code;  ///< 128 + number for a signal
  std::string reason;
  bool operator==(const EngineEvent&) const = default;
};
/// Of endings alone: the others are told, and not written down.
constexpr EnumNames<EngineEvent::Kind, 3> names_of(EngineEvent::Kind) noexcept {
  return {{{EngineEvent::Kind::kExited, "exited"},
           {EngineEvent::Kind::kTakenBack, "taken_back"},
           {EngineEvent::Kind::kVanished, "vanished"}}};
}

/// Whether an attempt is over.
[[nodiscard]] constexpr bool is_end(EngineEvent::Kind kind) noexcept {
  using Kind = EngineEvent::Kind;
  return kind == Kind::kExited || kind == Kind::kTakenBack || kind == Kind::kVanished;
}

/// Starts and stops attempts of jobs. Every call may be repeated: the second one does no harm, even
/// when the coordinator died in between and another object of the engine is asked (the contract
/// suite tests/coordinator/engine_contract.h; every engine passes it).
///
/// Order for one attempt: `hold`, `place`, `release`, then `take_back` or its own end. Thread
/// safety: none; no call waits for a job.
class Engine {
 public:
  virtual ~Engine() = default;

  /// "local", "slurm", "simulator".
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Machines as they are now. @throws EngineFailed.
  [[nodiscard]] virtual std::vector<EngineNode> nodes() = 0;

  /// Makes an attempt known; nothing of it runs.
  /// @throws EngineFailed; std::invalid_argument for a job that this engine can never start.
  virtual void hold(const Attempt& attempt, const JobSpec& spec) = 0;

  /// Says where and as what a held attempt is to run. Before `release` the last word counts.
  /// @throws EngineFailed, also if it is not held.
  virtual void place(const Attempt& attempt, const std::vector<DevicePlace>& placement,
                     JobClass job_class) = 0;

  /// Lets a placed attempt start. Its ranks start once, however often this is called.
  /// @throws EngineFailed, also if it is not placed.
  virtual void release(const Attempt& attempt) = 0;

  /// Ends an attempt: asked first (SIGTERM), after `grace` killed. One that is only held is
  /// forgotten. One that is not known, or has ended, is left as it is.
  virtual void take_back(const Attempt& attempt, std::chrono::milliseconds grace) = 0;

  /// Returns what happened since the last call.
  [[nodiscard]] virtual std::vector<EngineEvent> watch() = 0;
  /// Becomes readable when `watch` may have something to tell; -1: ask each second.
  [[nodiscard]] virtual int descriptor() const noexcept { return -1; }

  /// What a coordinator that has just been started finds of attempts that it may not have heard of:
  /// held or running ones. Those that have ended are told by `watch` afterwards.
  struct Found {
    Attempt attempt;
    bool running = false;                ///< else held
    std::vector<DevicePlace> placement;  ///< empty: not placed yet
    JobClass job_class = JobClass::kOpportunistic;
    bool operator==(const Found&) const = default;
  };
  [[nodiscard]] virtual std::vector<Found> adopt() = 0;

  /// All attempts of which there is anything: held, running, or ended and not forgotten. Ends and
  /// removes none of them. @throws EngineFailed.
  [[nodiscard]] virtual std::vector<Attempt> attempts() = 0;

  /// Returns the stamp of the store that decides about its attempts (store_owner.h), which
  /// `set_store_stamp` left beside them; empty: none was. @throws EngineFailed.
  [[nodiscard]] virtual std::string store_stamp() = 0;
  /// Leaves it there, durably. @throws EngineFailed.
  virtual void set_store_stamp(const std::string& stamp) = 0;

  /// Returns the highest number of a job of which there is anything left, known to the coordinator
  /// or not: an attempt, held, running, or ended and not forgotten, or a file of output; 0: there
  /// is nothing. A new job must have a higher one: it would meet what is left. Ids that are no
  /// numbers do not count. While `nodes` fails, what lies on this machine is enough: jobs are
  /// accepted meanwhile. @throws EngineFailed.
  [[nodiscard]] virtual std::uint64_t highest_job() = 0;

  /// Forgets what it keeps of an attempt that has ended and was told (logs stay).
  virtual void forget(const Attempt& attempt) = 0;

  /// Files of an attempt's output, one a rank, in their order; empty: there are none yet, or they
  /// are not on this machine.
  [[nodiscard]] virtual std::vector<std::string> logs(const Attempt& attempt) = 0;
};

}  // namespace commensal::cluster

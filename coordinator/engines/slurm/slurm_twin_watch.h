// SPDX-License-Identifier: Apache-2.0
// Replaces twins that are lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/engines/local/attempt_folder.h"
#include "coordinator/engines/slurm/slurm_twins.h"

namespace commensal::cluster::slurm {

/// One twin of a job when its twins are looked at.
struct TwinSeen {
  JobLine line;
  bool wrong = false;  ///< it has other devices than those that its job runs on
};

/// What is to be done about a job whose nodes were told that it is guaranteed, when no twin is
/// known to hold its devices.
struct TwinStep {
  enum class Kind : std::uint8_t {
    kNothing,
    kAsk,      ///< Slurm, which devices `twin` has
    kLetGo,    ///< `twin`, which is held
    kSubmit,   ///< another one
    kGiveBack  ///< all: they have had other devices of the nodes for long enough
  } kind = Kind::kNothing;
  std::uint64_t twin = 0;
  std::string reason;  ///< never empty
};

/// Decides it. Pure. `seen` are twins that are not over; `may_submit`: the last one was not
/// submitted just now; `out_of_patience`: some have had the wrong devices for long.
[[nodiscard]] TwinStep next_step(const std::vector<TwinSeen>& seen, bool may_submit,
                                 bool out_of_patience);

/// Looks after the twins of jobs that were upgraded. One that somebody cancels, whose time is over,
/// or that its node has lost, is noticed in what squeue shows at each watch, and another one is
/// asked for at once. A twin that holds the devices costs no command; a lost one those that ask
/// for another. Where another job has got the devices meanwhile, none is asked for any more, and
/// the job cannot stay guaranteed.
///
/// Thread safety: none.
class TwinWatch {
 public:
  struct Options {
    std::chrono::milliseconds again{10'000};     ///< between two that were submitted for a job
    std::chrono::milliseconds patience{20'000};  ///< of those with the wrong devices
    std::chrono::milliseconds pause{60'000};     ///< then none is submitted
    /// Between two looks at who has the devices, while no twin has.
    std::chrono::milliseconds others{5'000};
  };
  using Jobs = std::multimap<Attempt, JobLine>;  ///< twins by the attempt that they are of

  /// The others must outlive this object.
  TwinWatch(Options options, Twins& twins, SlurmCommands& commands, const Clock& clock)
      : options_(options), twins_(twins), commands_(commands), clock_(clock) {}

  /// Looks after an attempt that the last coordinator has upgraded, if it has.
  void meet(const local::AttemptFolder& folder);

  /// Looks at all. @param state  of the engine; @param jobs  as squeue has just shown them.
  /// @param news  gets kUnheld and kTaken at each look as long as it is so, and kHeld once.
  /// @throws EngineFailed if a command of Slurm fails; the others are looked at the next time.
  void look(const std::filesystem::path& state, const Jobs& jobs, std::vector<EngineEvent>& news);

 private:
  struct Known {
    std::optional<std::uint64_t> holder;
    std::set<std::uint64_t> others;  // have the wrong devices
    std::optional<TimePoint> wrong_since;
    TimePoint submit_from{};
    TimePoint others_from{};
    std::string lost;                               // what has become of the holder
    std::string taken;                              // by whom; empty: by nobody, as far as is known
    std::map<std::string, DevicesByNodes> devices;  // of jobs on its nodes, by their ids
  };
  /// @return false if it is not to be looked after any more.
  bool look_at(const local::AttemptFolder& folder, Known& known, const Jobs& jobs,
               std::vector<EngineEvent>& news);
  /// @param own  ids of its own jobs in Slurm.
  [[nodiscard]] std::string who_took(const local::AttemptFolder& folder, std::set<std::string> own,
                                     Known& known);
  void take(const TwinStep& step, const local::AttemptFolder& folder, Known& known,
            const std::vector<TwinSeen>& seen);
  void give_back(const std::vector<TwinSeen>& seen, std::optional<std::uint64_t> but);

  Options options_;
  Twins& twins_;
  SlurmCommands& commands_;
  const Clock& clock_;
  std::map<Attempt, Known> known_;
};

}  // namespace commensal::cluster::slurm

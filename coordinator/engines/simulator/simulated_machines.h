// SPDX-License-Identifier: Apache-2.0
// Machines without processes: attempts run for as long as they are said to, on a clock that may be
// held still.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/cluster/class_changer.h"
#include "coordinator/cluster/engine.h"
#include "coordinator/engines/simulator/coexecution.h"
#include "coordinator/wire/handover.h"

namespace commensal::simulator {

/// What an attempt does when it is left alone, and when it is asked to end.
struct SimulatedRun {
  std::optional<Duration> work;  ///< until it ends, alone on its devices; absent: it never does
  int exit_code = 0;             ///< then
  /// From SIGTERM to its end; absent: it has to be killed.
  std::optional<Duration> after_sigterm = Duration::zero();
};

/// Returns a run of the time that a job declares (`JobSpec::time_limit`) and the exit code 0;
/// without a limit one that does not end.
[[nodiscard]] SimulatedRun declared_run(const cluster::Attempt& attempt,
                                        const cluster::JobSpec& spec);

/// What outlives engines and coordinators: the machines, and all attempts on them.
///
/// A released attempt begins at once. Jobs that share a device slow each other down as the
/// policies' simulator has it (coexecution.h); an attempt is as fast as on its slowest device.
/// Nothing is random, and nothing happens between two calls: what is due by the clock is done at
/// the next one. Thread safety: none.
class SimulatedMachines {
 public:
  struct Options {
    std::vector<cluster::EngineNode> nodes;
    std::function<SimulatedRun(const cluster::Attempt&, const cluster::JobSpec&)> run_of =
        declared_run;
    SharingModel sharing;  ///< of each job the model's `busy` share; no memory
  };

  /// @param clock  not owned, must outlive this object; never goes back.
  /// @throws std::invalid_argument for two nodes of one name, and for a model of pairs.
  SimulatedMachines(const Clock& clock, Options options);

  /// When something happens by itself next; TimePoint::max(): never, if nobody calls.
  [[nodiscard]] TimePoint next_change();

  /// A node goes away, and what ran there vanishes; or it comes back, empty.
  /// @throws std::invalid_argument for an unknown one.
  void take_down(const std::string& node, const std::string& reason);
  void bring_up(const std::string& node);
  /// Nobody can say any more what became of an attempt that runs.
  void lose(const cluster::Attempt& attempt);
  /// Changes the class of one that runs. @return whether it does.
  bool set_class(const cluster::Attempt& attempt, JobClass job_class);

  /// How often an attempt began to run, forgotten ones included: never more than once.
  [[nodiscard]] int starts(const cluster::Attempt& attempt) const;
  [[nodiscard]] const std::vector<cluster::EngineNode>& nodes() const noexcept {
    return options_.nodes;
  }

  // For SimulatorEngine.

  struct Known {
    cluster::JobSpec spec;
    SimulatedRun run;
    std::vector<cluster::DevicePlace> placement;
    JobClass job_class = JobClass::kOpportunistic;
    bool released = false;
    std::optional<cluster::EngineEvent> began;
    std::optional<cluster::EngineEvent> ended;
    std::uint64_t began_as = 0;  ///< number of the event, over all
    std::uint64_t ended_as = 0;

    double left = 0;   ///< seconds of work
    double speed = 1;  ///< 1: as alone
    TimePoint ends = TimePoint::max();
    TimePoint killed = TimePoint::max();  ///< after it was taken back
    int killed_code = 0;
    [[nodiscard]] bool runs() const noexcept { return began && !ended; }
  };

  /// Does what is due by the clock.
  void pass();
  [[nodiscard]] Known* find(const cluster::Attempt& attempt);
  [[nodiscard]] const std::map<cluster::Attempt, Known>& attempts() const noexcept {
    return attempts_;
  }
  void add(const cluster::Attempt& attempt, const cluster::JobSpec& spec);
  void begin(const cluster::Attempt& attempt);
  void ask_to_end(const cluster::Attempt& attempt, Duration grace);
  void forget(const cluster::Attempt& attempt) { attempts_.erase(attempt); }
  [[nodiscard]] const std::string& store_stamp() const noexcept { return store_stamp_; }
  void set_store_stamp(std::string stamp) { store_stamp_ = std::move(stamp); }
  [[nodiscard]] const cluster::EngineNode* node(const std::string& name) const;
  /// Becomes readable with each event.
  [[nodiscard]] int news() const noexcept { return news_.get(); }
  void tell();
  void told();

 private:
  using Kind = cluster::EngineEvent::Kind;
  [[nodiscard]] cluster::EngineNode& node_named(const std::string& name);
  [[nodiscard]] TimePoint next_due() const;
  void run_until(TimePoint now);
  void end(const cluster::Attempt& attempt, Known& known, Kind kind, std::optional<int> exit_code,
           std::string reason);
  void set_speeds();

  const Clock& clock_;
  Options options_;
  std::map<cluster::Attempt, Known> attempts_;
  std::map<cluster::Attempt, int> starts_;
  std::string store_stamp_;
  std::uint64_t events_ = 0;
  TimePoint at_;  // up to when everything has run
  wire::UniqueFd news_;
};

/// Changes classes at once: simulated nodes refuse nothing. Thread safety: none.
class SimulatedClasses final : public cluster::ClassChanger {
 public:
  /// @param machines  not owned, must outlive this object.
  explicit SimulatedClasses(SimulatedMachines& machines) : machines_(machines) {}

  void change(const cluster::JobRecord& job, JobClass job_class) override;
  [[nodiscard]] std::vector<Outcome> outcomes() override;

 private:
  SimulatedMachines& machines_;
  std::vector<Outcome> outcomes_;
};

}  // namespace commensal::simulator

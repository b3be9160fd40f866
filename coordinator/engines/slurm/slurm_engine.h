// SPDX-License-Identifier: Apache-2.0
// The engine for clusters that Slurm runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/cluster/engine.h"
#include "coordinator/engines/local/attempt_folder.h"
#include "coordinator/engines/slurm/slurm_commands.h"
#include "coordinator/engines/slurm/slurm_twin_watch.h"

namespace commensal::cluster {

/// Makes each attempt a job of Slurm, called as `slurm::mark_of` says: `release` submits it held,
/// gives it its nodes and lets it go; Slurm starts it there when it has room. A guaranteed one asks
/// for whole devices (gres `gpu`), an opportunistic one for seats beside them (gres `seat`).
///
/// What it runs is `commensal-keeper`, as on one machine: the keeper starts the ranks, at most once
/// for each attempt, and leaves the outcome in STATE/jobs, so that the engine needs Slurm's memory
/// of ended jobs only for those that died without one. STATE must be on a file system that all
/// nodes share, with locks (NFS 4 has them). One object at a time uses a state folder.
///
/// A job on several nodes is one job of Slurm. Its keeper has one started on each node by srun
/// (local::GangHead), and ranks meet at the address that Slurm has of the first one's node.
///
/// When Slurm does not answer, what keepers have left is told all the same;
/// `nodes` says what is wrong.
class SlurmEngine : public Engine {
 public:
  struct Options {
    std::string instance = "default";  ///< part of the names of jobs, with a number of the state's
    std::filesystem::path state;       ///< made with mode 0700; must be this user's alone
    std::filesystem::path keeper;      ///< the program commensal-keeper, the same on all nodes
    std::string guaranteed_partition = "guaranteed";
    std::string opportunistic_partition = "opportunistic";
    slurm::SlurmCommands::Options commands;
    /// Words put before a job's command; default: none.
    std::function<std::vector<std::string>(const Attempt&, JobClass, const JobSpec&)> prefix;
    /// What the other ranks have after SIGTERM when one has failed.
    std::chrono::milliseconds failure_grace{10'000};
    local::LogLimits logs;
    /// How long an outcome may take to be seen after Slurm says that a job is over.
    std::chrono::milliseconds patience{5'000};
    /// How long Slurm is not asked again after a question that failed: the coordinator, which waits
    /// for answers, is there for its users meanwhile.
    std::chrono::milliseconds rest{10'000};
    slurm::TwinWatch::Options twins;  ///< those of jobs that were upgraded (slurm_guarantee.h)
  };

  /// `runner` and `clock` must outlive this object.
  /// @throws EngineFailed if the state folder cannot be used. Slurm need not answer.
  SlurmEngine(Options options, slurm::CommandRunner& runner,
              const Clock& clock = SteadyClock::instance());

  [[nodiscard]] std::string_view name() const noexcept override { return "slurm"; }
  [[nodiscard]] std::vector<EngineNode> nodes() override;
  void hold(const Attempt& attempt, const JobSpec& spec) override;
  void place(const Attempt& attempt, const std::vector<DevicePlace>& placement,
             JobClass job_class) override;
  void release(const Attempt& attempt) override;
  void take_back(const Attempt& attempt, std::chrono::milliseconds grace) override;
  [[nodiscard]] std::vector<EngineEvent> watch() override;
  [[nodiscard]] std::vector<Found> adopt() override;
  [[nodiscard]] std::vector<Attempt> attempts() override;
  [[nodiscard]] std::string store_stamp() override;
  void set_store_stamp(const std::string& stamp) override;
  [[nodiscard]] std::uint64_t highest_job() override;
  void forget(const Attempt& attempt) override;
  [[nodiscard]] std::vector<std::string> logs(const Attempt& attempt) override;

 private:
  struct Told {
    bool began = false;
    bool ended = false;
    std::optional<TimePoint> over_since;  // Slurm says so, and there is no outcome
  };
  /// Slurm's jobs by the attempt that they are for; several for one if a coordinator died while
  /// sbatch was on its way.
  using Jobs = std::multimap<Attempt, slurm::JobLine>;

  [[nodiscard]] local::AttemptFolder folder_of(const Attempt& attempt) const;
  void check_size(const Attempt& attempt, const JobSpec& spec);
  void look_up(const std::vector<DevicePlace>& placement);
  [[nodiscard]] const slurm::NodeLine& line_of(const std::string& node) const;
  void lay_out(const Attempt& attempt, local::Placed& placed) const;
  [[nodiscard]] Jobs jobs();
  template <typename Question>
  auto ask(Question question) -> decltype(question());
  [[nodiscard]] slurm::Submission submission(const local::AttemptFolder& folder,
                                             const JobSpec& spec, const local::Placed& placed);
  void let_go(const local::AttemptFolder& folder);
  void submit(const local::AttemptFolder& folder, const local::Placed& placed);
  void give_nodes(std::uint64_t job, const local::Placed& placed);
  void end_job(const Attempt& attempt, bool begun);
  void examine(const local::AttemptFolder& folder, const Jobs* jobs,
               std::vector<EngineEvent>& events);
  void settle_lost(const local::AttemptFolder& folder, Told& told, const Jobs& jobs);
  void sweep(const Jobs& jobs);
  [[nodiscard]] std::optional<Found> look_at(const local::AttemptFolder& folder);

  Options options_;
  slurm::SlurmCommands commands_;
  const Clock& clock_;
  std::string name_;                    // of this cluster of jobs, in the names of all of them
  std::string problem_;                 // what the last question failed with
  TimePoint rests_until_{};             // and until when none is asked
  bool sweep_due_ = true;               // Slurm may have jobs that nobody wants
  std::vector<slurm::NodeLine> nodes_;  // as they were when last asked for
  std::map<Attempt, Told> tracked_;     // released, not forgotten
  std::optional<slurm::Twins> twins_;
  std::optional<slurm::TwinWatch> twin_watch_;
  Jobs twin_jobs_;  // as they were when last asked for
};

}  // namespace commensal::cluster

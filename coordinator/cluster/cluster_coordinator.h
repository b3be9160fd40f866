// SPDX-License-Identifier: Apache-2.0
// The cluster coordinator without sockets: requests in, answers out, and an engine that is told
// what to do once it is written down.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/cluster/bad_inputs.h"
#include "coordinator/cluster/class_changer.h"
#include "coordinator/cluster/cluster_observer.h"
#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/failure_rules.h"
#include "coordinator/cluster/flat_rule.h"
#include "coordinator/cluster/input_files.h"
#include "coordinator/cluster/job_life.h"
#include "coordinator/cluster/log_retention.h"
#include "coordinator/cluster/node_health.h"
#include "coordinator/cluster/placement_index.h"
#include "coordinator/cluster/placement_source.h"
#include "coordinator/cluster/run_times.h"
#include "coordinator/cluster/scheduler.h"
#include "coordinator/cluster/shown_cluster.h"
#include "coordinator/cluster/store.h"
#include "coordinator/cluster/wait_forecast.h"

namespace spdlog {
class logger;
}

namespace commensal::cluster {

struct ClusterConfig {
  std::string policy = "antman";  ///< its name, for people
  std::int64_t pid = 0;           ///< of the process that this runs in, for people
  std::string page;               ///< its address (URL), for people; empty: none
  std::string page_token_file;    ///< where the page's token is
  RetryRules retries;
  HealthRules health;
  BadInputRules inputs;
  std::chrono::milliseconds grace{10'000};  ///< between asking an attempt to end and killing
  std::filesystem::path backups;            ///< folder of copies of the store; empty: none are made
  std::filesystem::path input_lists;        ///< folder of what jobs are given; empty: no files
  Duration look = std::chrono::seconds{5};  ///< between two looks at the engine's nodes
  /// What the coordinator cannot know of files and programs around it, for `health`; none: nothing.
  std::function<nlohmann::json()> surroundings;
  ClusterObserver* observer = nullptr;  ///< not owned; none: nobody looks on
  /// Attempts that are not the store's (store_owner.h) are ended; else it does not begin.
  bool begin_anew = false;
};

/// A request that cannot be met; nothing has changed. Codes: "unknown_job", "unknown_tenant",
/// "unknown_node", "refused" (it is not possible), "malformed", "unavailable" (nothing can be
/// written down, or the engine cannot be asked: it may work later).
class RequestRefused : public std::runtime_error {
 public:
  RequestRefused(std::string code, const std::string& what)
      : std::runtime_error(what), code_(std::move(code)) {}
  [[nodiscard]] const std::string& code() const noexcept { return code_; }

 private:
  std::string code_;
};

/// Variable of a job whose rule looks at its loss: seconds between two reports of it.
inline constexpr const char* kLossVariable = "COMMENSAL_REPORT_LOSS";

/// Variable of a job that is the pre-run of a gang: "1".
inline constexpr const char* kPreRunVariable = "COMMENSAL_PRE_RUN";

/// Keeps jobs, tenants and nodes of one cluster, and decides by a policy.
///
/// The order of every step: requests and what the engine saw change records; `settle` asks the
/// policy, makes all of it durable at once, and only then tells the engine, so that a crash at any
/// point leaves nothing that is acknowledged and forgotten, and nothing that is started twice
/// (attempts are numbered, and engines start each once). Thread safety: none.
class ClusterCoordinator final : public PlacementSource, public ShownCluster {
 public:
  using WallClock = std::function<WallTime()>;

  /// Begins with what the store has and what the engine still runs. Attempts of another store, or
  /// of one that was lost, are left as they are: StoreFailed (kForeign), unless
  /// `config.begin_anew`. The arguments must outlive this object. @throws StoreFailed,
  /// EngineFailed.
  ClusterCoordinator(ClusterConfig config, Store& store, Engine& engine, ClassChanger& classes,
                     const policies::ClusterPolicy& policy, WallClock wall,
                     std::shared_ptr<spdlog::logger> log, TimePoint now);

  /// Answers one request, an object with `type` (docs/cluster.md has them). What it changes is
  /// durable after `settle` only: the answer must not be sent before, and not at all if it fails.
  /// @throws RequestRefused, EngineFailed; StoreFailed, then `take_back_changes` is due.
  [[nodiscard]] nlohmann::json answer(const nlohmann::json& request, TimePoint now);

  /// Hands out the jobs that `queue` answers with, one by one and in its order: all of them at once
  /// may be 100,000. @throws as `answer`.
  void queue(const nlohmann::json& request, TimePoint now,
             const std::function<void(const JobRecord& job, nlohmann::json shown)>& take);

  /// Takes what the engine saw, decides, makes it durable, tells the engine.
  /// @throws StoreFailed, then `take_back_changes` is due.
  void settle(TimePoint now);

  /// Takes every change back that is not durable, after StoreFailed from `answer`. What the engine
  /// saw is taken again. @throws StoreFailed if nothing can be read: it may be called again.
  void take_back_changes() { reload(); }

  /// Returns whose job it is; nothing if there is none of this id. @throws StoreFailed.
  [[nodiscard]] std::optional<std::string> tenant_of(const std::string& id) const;

  /// Returns what became of a job, as far as its output is concerned. @throws StoreFailed.
  [[nodiscard]] JobEnd end_of(const JobId& id) const;

  [[nodiscard]] nlohmann::json picture(const PictureSize& size) override;
  [[nodiscard]] std::uint64_t revision() const noexcept override { return revision_; }
  [[nodiscard]] JobCounts counts() const override;
  [[nodiscard]] WallTime wall_time() const override { return wall_(); }

  /// When `settle` should be called if nothing happens before.
  [[nodiscard]] TimePoint next_wake() const noexcept;

  // What nodes are told: cluster_placements.cpp. As other answers it is not durable before
  // `settle`.
  [[nodiscard]] std::uint64_t placement_revision(const std::string& node) const override;
  [[nodiscard]] std::optional<std::vector<wire::Placement>> placements_on(
      const std::string& node) const override;

 private:
  using Number = std::uint64_t;  // of a job

  // Requests: cluster_answers.cpp.
  [[nodiscard]] nlohmann::json submit(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json explain(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json cancel(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json resume(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json logs(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json nodes() const;
  [[nodiscard]] nlohmann::json state() const;
  [[nodiscard]] nlohmann::json health() const;
  [[nodiscard]] nlohmann::json back_up();
  [[nodiscard]] nlohmann::json tenants() const;
  [[nodiscard]] nlohmann::json set_quota(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json drain(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json undrain(const nlohmann::json& request);
  [[nodiscard]] JobRecord find(const nlohmann::json& request);
  [[nodiscard]] std::string tenant_in(const nlohmann::json& request) const;
  void check_tenant(const std::string& tenant) const;

  // Bad inputs: cluster_inputs.cpp.
  [[nodiscard]] nlohmann::json report_input(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json inputs(const nlohmann::json& request) const;
  [[nodiscard]] nlohmann::json add_input(const nlohmann::json& request);
  [[nodiscard]] nlohmann::json remove_input(const nlohmann::json& request);
  void write(const InputChanges& changes);
  void end_reports(const Attempt& attempt, bool counts);
  [[nodiscard]] std::string version_of_inputs(const std::string& tenant) const;

  // Rules of jobs: cluster_losses.cpp.
  [[nodiscard]] nlohmann::json report_loss(const nlohmann::json& request);
  [[nodiscard]] std::string rule_of(const JobRecord& job) const;

  // Pre-runs of gangs: cluster_pre_runs.cpp.
  [[nodiscard]] static std::optional<JobSpec> pre_run_of(const JobSpec& gang,
                                                         const nlohmann::json& request);
  void note_pre_run(const JobRecord& job);
  void end_pre_runs();
  [[nodiscard]] nlohmann::json first_step(const nlohmann::json& request);
  [[nodiscard]] static std::string who_it_follows(const JobRecord& before);

  JobId add(const JobSpec& spec, const std::string& request);
  [[nodiscard]] JobSpec with_variables(const JobSpec& spec);
  [[nodiscard]] nlohmann::json shown(const JobRecord& job) const;
  [[nodiscard]] nlohmann::json summary(const nlohmann::json& nodes) const;
  [[nodiscard]] std::string why(const JobRecord& job) const;
  void check(const JobSpec& spec);
  void check_node(const std::string& name) const;
  [[nodiscard]] std::int32_t charged(const std::string& tenant) const;

  // Lives.
  void begins_to_wait(const JobRecord& job);
  bool happen(const JobId& id, const JobEvent& event);
  void wrote() noexcept {
    unwritten_ = true;
    ++revision_;
  }
  void commit();
  void moved(const JobRecord& before, const JobRecord& after);
  [[nodiscard]] std::vector<EngineEvent> watch_engine();
  void note_engine_problem(const std::string& problem);
  void take_engine_events();
  void take_class_outcomes();
  void take_lowered(const ClassChanger::Outcome& outcome);
  void lower_again();
  void look_at_nodes(TimePoint now);
  void cancel_those_that_wait_in_vain();
  void admit();
  void decide();
  [[nodiscard]] FailureVerdict verdict_of(const EngineEvent& event);
  void try_again(const JobId& id, const FailureVerdict& verdict);
  void judge_nodes(const JobRecord& job, const std::optional<FailureVerdict>& verdict);
  [[nodiscard]] bool may_start(const JobRecord& job) const;
  [[nodiscard]] bool may_upgrade(const JobRecord& job) const;
  void begin_scheduler();
  [[nodiscard]] std::vector<EngineNode> usable_nodes() const;

  // How long jobs run, and when others start: cluster_forecasts.cpp.
  void remember_times();
  void remember_submissions();
  void remember_back_off();
  void note_times(const JobRecord& before, const JobRecord& after);
  void refresh_estimates();
  [[nodiscard]] nlohmann::json estimate_of(const JobRecord& job) const;

  // Beginnings, and what is done once it is durable.
  void reload();
  void ask_for_numbers();
  [[nodiscard]] bool claim_attempts();
  void meet_engine(bool ours);
  void act();
  void start(const JobRecord& job);

  struct Action {
    enum class Kind : std::uint8_t { kStart, kTakeBack, kForget, kClass } kind;
    JobRecord job;
  };

  ClusterConfig config_;
  Store& store_;
  Engine& engine_;
  ClassChanger& classes_;
  const policies::ClusterPolicy& policy_;
  Scheduler scheduler_;
  NodeHealth health_;
  RunTimes run_times_;
  std::map<Number, TimePoint> submitted_;  // of all; the wall clock may be set meanwhile
  std::map<Number, TimePoint> began_;      // of those that run
  std::map<JobId, WaitEstimate> estimates_;
  TimePoint estimates_until_{};
  bool estimates_stale_ = true;  // something has happened since
  BadInputs bad_inputs_;
  WallTime inputs_since_{};  // when `bad_inputs_` was read: its versions count from there
  InputFiles input_files_;
  WallClock wall_;
  std::shared_ptr<spdlog::logger> log_;

  std::map<Number, JobRecord> jobs_;  // that have not ended
  std::map<std::string, TenantRecord> tenants_;
  std::map<std::string, DrainedNode> drained_;
  std::vector<EngineNode> nodes_;
  PlacementIndex placements_;    // of `jobs_`
  std::string engine_problem_;   // why the engine cannot be asked; empty: it can
  std::optional<Number> taken_;  // new jobs have numbers above it; absent: the engine has not said

  std::set<Number> admitted_;                          // wait, and the policy knows of them
  std::set<Number> outside_;                           // wait, and it does not
  std::set<Number> followers_;                         // wait, and were to follow another one
  std::vector<Number> over_;                           // have ended in this step
  std::map<Number, TimePoint> not_before_;             // wait, and are tried again then
  std::map<Number, TimePoint> no_upgrade_before_;      // the last one failed
  std::map<Number, int> failed_upgrades_;              // one after the other, up to a bound
  std::map<Number, TimePoint> lower_from_;             // their nodes could not be told
  std::map<Number, TimePoint> pre_runs_until_;         // run; nothing has failed then
  std::map<Number, LossCurve> losses_;                 // of attempts whose rule looks at them
  std::vector<EngineEvent> seen_;                      // by the engine; not durable yet
  std::set<Attempt> not_started_;                      // of these: the engine could not be asked
  std::vector<ClassChanger::Outcome> class_outcomes_;  // the same
  std::vector<Action> actions_;                        // follow from what is not durable yet
  std::vector<Action> due_;                            // from what is
  bool begin_anew_ = true;                             // the policy's view is not what is
  bool changed_ = true;                                // since the last decision
  std::uint64_t revision_ = 1;                         // of the picture
  bool unwritten_ = false;                             // something was put into the store
  TimePoint now_;                                      // of this step
  TimePoint next_look_{};
  TimePoint next_health_ = TimePoint::max();  // a node is avoided no longer
  TimePoint policy_wake_ = TimePoint::max();
};

}  // namespace commensal::cluster

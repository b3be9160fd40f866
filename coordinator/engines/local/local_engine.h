// SPDX-License-Identifier: Apache-2.0
// The engine that needs nothing installed: processes of this machine.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/engines/local/attempt_folder.h"
#include "coordinator/engines/local/keeper_watch.h"
#include "coordinator/engines/local/left_groups.h"

namespace commensal::cluster {

/// Returns this machine as one node, named as the host is, with the cores that this process may
/// use. Without devices it has one: "host". @throws EngineFailed.
[[nodiscard]] EngineNode this_machine(std::vector<std::string> devices = {},
                                      std::string device_type = "cpu");

/// Starts each attempt under a process of its own, `commensal-keeper`, that does not depend on this
/// one: it is found again through the state folder by whoever opens that next. What engine and
/// keeper tell each other is in STATE/jobs/JOB/ATTEMPT (attempt_folder.h), what ranks print in
/// STATE/logs. Control groups that the kernel does not give up at once when their attempt is
/// forgotten are removed later, at looks at the nodes; STATE/left_groups.json has them.
///
/// Several nodes may stand for this one machine. One object at a time uses a state folder.
class LocalEngine final : public Engine {
 public:
  struct Options {
    std::filesystem::path state;   ///< made with mode 0700; must be this user's alone
    std::filesystem::path keeper;  ///< the program commensal-keeper
    std::function<std::vector<EngineNode>()> nodes;  ///< default: `this_machine()`
    /// Words put before a job's command; default: none.
    std::function<std::vector<std::string>(const Attempt&, JobClass, const JobSpec&)> prefix;
    /// Variables of what runs on a node; the job's own come after them. Default: none.
    std::function<std::map<std::string, std::string>(const std::string& node)> node_environment;
    /// What the other ranks have after SIGTERM when one has failed.
    std::chrono::milliseconds failure_grace{10'000};
    local::LogLimits logs;
    node::GroupFiles* groups = nullptr;  ///< not owned; default: the kernel's control groups
  };

  /// @throws EngineFailed if the state folder cannot be used.
  explicit LocalEngine(Options options);
  LocalEngine(const LocalEngine&) = delete;
  LocalEngine& operator=(const LocalEngine&) = delete;

  [[nodiscard]] std::string_view name() const noexcept override { return "local"; }
  [[nodiscard]] std::vector<EngineNode> nodes() override;
  void hold(const Attempt& attempt, const JobSpec& spec) override;
  void place(const Attempt& attempt, const std::vector<DevicePlace>& placement,
             JobClass job_class) override;
  void release(const Attempt& attempt) override;
  void take_back(const Attempt& attempt, std::chrono::milliseconds grace) override;
  [[nodiscard]] std::vector<EngineEvent> watch() override;
  [[nodiscard]] int descriptor() const noexcept override { return watch_.descriptor(); }
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
    bool started = false;  // by this object: a keeper was
  };
  [[nodiscard]] local::AttemptFolder folder_of(const Attempt& attempt) const;
  void track(const local::AttemptFolder& folder);
  void follow_keeper(const local::AttemptFolder& folder);
  void start_keeper(const local::AttemptFolder& folder);
  void examine(const local::AttemptFolder& folder, std::vector<EngineEvent>& events);
  void settle_lost(const local::AttemptFolder& folder);
  [[nodiscard]] std::optional<Found> look_at(const local::AttemptFolder& folder);
  [[nodiscard]] node::GroupFiles& group_files() const;
  void remove_left_groups(const local::AttemptFolder& folder);

  Options options_;
  local::KeeperWatch watch_;
  std::optional<local::LeftGroups> left_groups_;  // there once the state folder is
  std::map<Attempt, Told> tracked_;               // released, not forgotten
};

}  // namespace commensal::cluster

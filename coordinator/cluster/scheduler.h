// SPDX-License-Identifier: Apache-2.0
// Shows a policy the jobs as they are, and turns its plan into events of their lives.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/job.h"
#include "coordinator/cluster/job_life.h"
#include "coordinator/cluster/store.h"
#include "coordinator/policies/cluster_policy.h"
#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/placer.h"

namespace commensal::cluster {

/// Of a device's time, in thousandths, that a job is taken to need until it is measured: a
/// guaranteed job leaves room for others, and of two devices the one with fewer jobs is the less
/// loaded one. At least its minimum share, at most its maximum.
[[nodiscard]] std::int32_t assumed_load_milli(const std::optional<ShareRange>& share) noexcept;

/// Says why no devices of these nodes can ever have the memory that a job needs at least; empty:
/// they can, as far as is known.
[[nodiscard]] std::string lack_of_memory(const JobSpec& spec, const std::vector<EngineNode>& nodes);

/// Says why these nodes can never have the cores and the host memory that a job asks for on each of
/// its nodes; empty: they can, as far as is known (a node that names none may have any).
[[nodiscard]] std::string lack_of_host(const JobSpec& spec, const std::vector<EngineNode>& nodes);

/// Writes a number of devices for people: "1 device", "2 devices".
[[nodiscard]] std::string counted(std::int64_t devices);

/// A change that the policy wants. A stop is no event yet: the engine has to end the attempt first.
struct Wanted {
  JobId job;
  std::optional<JobEvent> event;  ///< absent: take it back, for `reason`
  std::string reason;
};

/// Keeps the policies' view of the jobs of one cluster.
///
/// The records are the truth; this is made of them (`begin`) and follows their changes. Thread
/// safety: none.
class Scheduler {
 public:
  /// When a job was submitted, in seconds on the clock of `decide`.
  using Submitted = std::function<double(const JobRecord&)>;

  /// @param policy  not owned, must outlive this object.
  Scheduler(const policies::ClusterPolicy& policy, Submitted submitted)
      : policy_(policy), submitted_(std::move(submitted)) {}

  /// Begins anew with what is: `jobs` that wait to be started or are placed, in the order of their
  /// submission; `nodes` that may be given new jobs. Jobs on other nodes are charged to their
  /// tenants and left where they are.
  void begin(const std::vector<const JobRecord*>& jobs, const std::vector<EngineNode>& nodes,
             const std::vector<TenantRecord>& tenants);

  /// A job wants to be started.
  void arrive(const JobRecord& job);
  /// An attempt is over. A job that waits is no longer to be started.
  /// @return false if this needs a new `begin`: policies cannot be told.
  [[nodiscard]] bool leave(const JobId& job);

  /// Asks the policy. The changes are already made in its view.
  /// @param now  seconds; only differences matter.
  /// @throws std::logic_error if the plan breaks a rule; nothing has changed then.
  [[nodiscard]] std::vector<Wanted> decide(double now);
  /// When the policy wants to be asked again, if nothing happens before.
  [[nodiscard]] double wake() const noexcept { return wake_; }

  /// Why a job that waits was not started by the last decision.
  [[nodiscard]] std::string why_waiting(const JobRecord& job) const;

  /// Devices charged to a tenant's guaranteed jobs.
  [[nodiscard]] double charged(const std::string& tenant) const;

 private:
  /// Of a job: by these alone minima keep it from devices.
  struct MinimaAsked {
    std::int32_t gpus = 0;
    std::int32_t share_milli = 0;
    std::int64_t memory_mib = 0;
    bool beside = false;  // others, as an opportunistic job
    auto operator<=>(const MinimaAsked&) const = default;
  };

  /// Devices free of guaranteed jobs.
  struct FreeDevices {
    std::int32_t all = 0;
    std::int32_t kept = 0;                           // of these, for jobs that wait
    policies::JobIndex kept_for = policies::kNoJob;  // the first of them
  };
  /// Of a job: by these alone cores and memory of the hosts keep it from nodes.
  using HostAsked = std::tuple<std::int32_t, std::int64_t, std::int64_t>;
  /// Jobs that wait, by what they ask for; of opportunistic ones all tenants' are together.
  using Queue = std::pair<policies::AskedClass, policies::TenantIndex>;

  [[nodiscard]] policies::ClusterJob shown(const JobRecord& job) const;
  [[nodiscard]] std::optional<policies::Placement> parts_of(const JobRecord& job) const;
  [[nodiscard]] std::vector<DevicePlace> places_of(const policies::Placement& parts) const;
  [[nodiscard]] Wanted wanted(const policies::Decision& decision) const;
  /// Which of its minima keeps a job from its devices; empty: none.
  [[nodiscard]] std::string lacking(const JobSpec& spec) const;
  [[nodiscard]] std::string lacking(const MinimaAsked& asked) const;
  /// Says that its tenant's quota has no room for a job; empty: it has.
  [[nodiscard]] std::string quota_lacking(const JobSpec& spec) const;
  /// Says that nodes have not the cores or the host memory for a job free; empty: enough have.
  [[nodiscard]] std::string host_lacking(const JobSpec& spec) const;
  /// Says what a job waits for that could start beside others.
  [[nodiscard]] std::string waits_beside(const JobRecord& job, std::int32_t below) const;
  /// Says what a job waits for that wants devices of its own.
  [[nodiscard]] std::string waits_for_own(const JobRecord& job) const;
  /// Names the first that waits of those that are served before a job; empty: it is the job.
  [[nodiscard]] std::string who_is_before(const JobRecord& job) const;
  [[nodiscard]] const FreeDevices& free_devices() const;
  /// Something has changed: what was found for `why_waiting` is to be looked for again.
  void forget_reasons() noexcept;
  void charge_outside(const JobRecord& job, std::vector<policies::Tenant>& tenants);

  const policies::ClusterPolicy& policy_;
  const Submitted submitted_;
  const policies::MostFreePlacer placer_;
  std::unique_ptr<policies::ClusterState> state_;
  std::vector<std::string> nodes_;  // by their number in the view
  std::map<std::string, policies::NodeIndex> numbers_;
  std::map<std::string, policies::TenantIndex> tenants_;
  std::map<JobId, policies::JobIndex> index_;
  std::vector<std::pair<JobId, std::uint32_t>> jobs_;  // by index: the job and its starts so far
  std::set<JobId> outside_;                            // placed on nodes that are not in the view
  double wake_ = policies::kNever;
  mutable std::optional<FreeDevices> free_;                           // once asked for
  mutable std::map<MinimaAsked, std::string> lacking_;                // likewise
  mutable std::map<HostAsked, std::string> host_lacking_;             // likewise
  mutable std::optional<std::map<Queue, policies::JobIndex>> first_;  // likewise
};

}  // namespace commensal::cluster

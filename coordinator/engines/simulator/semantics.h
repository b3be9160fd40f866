// SPDX-License-Identifier: Apache-2.0
// The rules of somebody's simulator: its clock, its costs, its places. The engine is one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/engines/simulator/coexecution.h"
#include "coordinator/engines/simulator/trace.h"
#include "coordinator/policies/cluster_state.h"
#include "coordinator/policies/cluster_view.h"
#include "coordinator/policies/placer.h"

namespace commensal::simulator {

using policies::ClusterJob;
using policies::Time;

struct Outcome;

/// What a job has left, in its own unit.
struct Work {
  double left = 0;                     ///< units
  double beyond = 0;                   ///< of these: not reached, because the job fails before
  double done = 0;                     ///< units, where a profile counts them up
  double unit_seconds = 1;             ///< of a unit, at full speed
  double overhead = 0;                 ///< seconds that a profile takes off, by its own rule
  double round_units = 0;              ///< that it does in the round that begins, if a profile says
  double round_seconds = 0;            ///< that these take
  const TraceJob* recorded = nullptr;  ///< never null once it has arrived
};

/// Small strategies, made for one run: they may keep what they need of its jobs. Thread safety:
/// none.
class Semantics {
 public:
  virtual ~Semantics() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Where jobs go under `policy`.
  [[nodiscard]] virtual const policies::Placer& placer(std::string_view policy) const = 0;

  /// Whether its rules are for nodes with equally many GPUs only.
  [[nodiscard]] virtual bool equal_nodes() const noexcept { return false; }

  /// Options that a policy has under this profile unless the user gives others.
  [[nodiscard]] virtual std::map<std::string, std::string> options(std::string_view policy) const;

  /// What policies may know of the jobs besides.
  [[nodiscard]] virtual policies::JobModels models() const { return {}; }

  /// Brings a job to this profile's clock and units.
  virtual void prepare(const TraceJob& recorded, ClusterJob& job, Work& work) = 0;

  /// Makes of what was recorded what is run: called once, before the cluster is made of `nodes`. By
  /// default nothing changes.
  virtual void arrange(Trace& trace, std::vector<policies::NodeSpec>& nodes);

  /// Whether jobs end.
  [[nodiscard]] virtual bool leaves() const { return true; }

  /// What a run was like, by the names of those who publish such runs; by default `metrics_of`.
  [[nodiscard]] virtual std::map<std::string, double> metrics(const Trace& trace,
                                                              const policies::Cluster& cluster,
                                                              const Outcome& outcome) const;

  /// Sorts jobs in the order of their arrival; equal ones keep the order of the file.
  [[nodiscard]] virtual bool before(const ClusterJob& a, const ClusterJob& b) const;

  /// Lets a running job run for `seconds`.
  virtual void advance(ClusterJob& job, Work& work, double seconds) const;

  /// When a running job will end if nothing happens before.
  [[nodiscard]] virtual Time end(const ClusterJob& job, const Work& work, Time now) const;

  /// Whether an end is one event with the first.
  [[nodiscard]] virtual bool together(Time end, Time first) const { return end <= first; }

  /// Length of a round in seconds; zero: the policy is asked at each event. In rounds it is asked
  /// at their begin only, and a job that ends inside of one keeps its GPUs until the next.
  [[nodiscard]] virtual double round() const { return 0; }

  /// When the first round begins in which a job that arrives at `arrival` can run, if nobody runs.
  [[nodiscard]] virtual Time round_of(Time arrival) const;

  /// Runs a job through the round that begins at `now`; returns when it ends, if inside.
  [[nodiscard]] virtual std::optional<Time> run_round(ClusterJob& job, Work& work, Time now) const;

  /// What has just changed: who ended, then what was decided.
  struct Change {
    const std::vector<policies::JobIndex>& ended;
    const policies::ClusterPlan& plan;
    policies::ClusterState& state;
    std::vector<Work>& works;  ///< an entry a job
    /// Sets how long a unit of a job's work takes from now on.
    std::function<void(policies::JobIndex job, double unit_seconds)> set_unit;
  };

  /// Sets what follows from who runs where now: speeds of jobs that share, pauses of those that
  /// started or moved. Called after each plan was committed.
  virtual void settle(const Change& change);

  /// Whether jobs must be advanced at every event, because the result depends on how often.
  [[nodiscard]] virtual bool counts_events() const { return false; }

  /// Charges a job for being stopped.
  virtual void stopped(ClusterJob& job, Work& work) const;

  /// When to ask the policy again after a decision, with or without stops; kNever: at the next
  /// event.
  [[nodiscard]] virtual Time again(Time now, bool stops) const;
};

/// Makes a profile for a policy and a trace: commensal, fgd, gavel, helios, muri, pollux or
/// tiresias. What is random in it follows from the seed; `sharing` is for commensal.
/// @throws std::invalid_argument for another name, or if the trace lacks what the profile needs.
[[nodiscard]] std::unique_ptr<Semantics> make_semantics(std::string_view name,
                                                        std::string_view policy, const Trace& trace,
                                                        std::uint64_t seed = 0,
                                                        const SharingModel& sharing = {});

[[nodiscard]] const std::vector<std::string_view>& all_semantics();

}  // namespace commensal::simulator

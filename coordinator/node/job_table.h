// SPDX-License-Identifier: Apache-2.0
// The jobs of a node and their processes, as the coordinator knows them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "coordinator/node/core_pace.h"
#include "coordinator/node/core_share.h"
#include "coordinator/node/cpu_meter.h"
#include "coordinator/node/gang_keeper.h"
#include "coordinator/node/gap_control.h"
#include "coordinator/node/gpu_meter.h"
#include "coordinator/node/group_weight.h"
#include "coordinator/node/job_history.h"
#include "coordinator/node/ledger.h"
#include "coordinator/node/memory_lease.h"
#include "coordinator/node/process_use.h"
#include "coordinator/node/recent_least.h"
#include "coordinator/node/slowdown_split.h"
#include "coordinator/node/speed_curve.h"
#include "coordinator/policies/view.h"
#include "coordinator/wire/terms.h"

namespace commensal::node {

/// Where answers go: the ZeroMQ identity of a connection.
using PeerId = std::string;

/// What a process shows on its page.
struct PageReading {
  TimePoint heartbeat;
  std::uint64_t step_number = 0;
  Duration step_last{};
  TimePoint step_end;            ///< zero: an older writer
  double step_confidence = 1.0;  ///< 0..1: how sure its tracker is that these are steps
  Bytes memory_wanted;
  bool waits = false;  ///< for data, for a request, or at its closed gate
  WaitsShown waits_shown;
  bool serves = false;  ///< its steps are requests; `step_last` is a latency
  Duration burst{};     ///< longest run of ops of late; zero: not known
  std::uint64_t collectives_begun = 0;
  std::uint64_t collectives_ended = 0;
  std::uint64_t gang_epoch = 0;  ///< newest one that its gate acted on
  std::uint64_t gang_stand = 0;  ///< see wire::JobPage
};

/// How a process has answered to a change of its job's class.
struct ClassAnswer {
  Revision told = 0;  ///< the change; 0: none
  TimePoint told_at;
  bool open = false;    ///< it has not answered yet
  std::string problem;  ///< why it keeps the class that it had
};

/// A process of a job.
struct Member {
  std::int64_t pid = 0;
  std::uint64_t start_ticks = 0;
  std::string role;  ///< "main", "rank" or "helper"
  int rank = 0;
  PeerId peer;
  bool placed = true;       ///< it has said on which device its memory is
  bool first = true;        ///< this is the device that it used first
  bool registered = false;  ///< has been answered; changes go out as messages from then on
  bool left = false;        ///< has sent its last report
  TimePoint last_heard;
  Bytes held;
  std::optional<Bytes> resident;  ///< what the kernel showed last; nothing: it cannot be read
  std::string standstill;         ///< why none of its threads runs (`read_standstill`)
  bool reachable = false;         ///< signals of the coordinator reach it
  RecentLeast beside;             ///< of it, what is not `held`
  CpuMeter cpu;                   ///< its time on cores since it was first looked at
  CorePace pace;                  ///< of a guaranteed job's process
  TimeUseHistory time_use;        ///< of a guaranteed job's process: quiet and shared
  GpuTimeMeter gpu_time;          ///< of a guaranteed job's process on a GPU
  nlohmann::json stats;           ///< its newest report; null before the first
  std::optional<PageReading> page;
  TimePoint told_at;                     ///< when its limit was last told
  std::optional<wire::Outcome> outcome;  ///< of its newest answer
  std::string answer_reason;
  ClassAnswer class_answer;
  struct Ask {
    Bytes total;
    TimePoint deadline;
  };
  std::optional<Ask> ask;

  /// Whether it has managed memory here, and so a part of its job's limit.
  [[nodiscard]] bool is_managed() const noexcept { return placed && role != "helper"; }
  /// Whether its newest report says that its threads are in the kernel's idle class.
  [[nodiscard]] bool in_idle_class() const;
  /// Why the kernel kept them out, as it reported; empty: it did not.
  [[nodiscard]] std::string idle_class_refusal() const;
  /// What forked children still hold of what it gave back, as it reported.
  [[nodiscard]] Bytes held_by_children() const;
  /// What it reported that it holds of the device, with what PyTorch's own allocator does beside
  /// it: its limit is for both. Nothing: no number.
  [[nodiscard]] std::optional<Bytes> told_held() const;
  /// What it would use without a limit, as far as it has told.
  [[nodiscard]] Bytes wanted() const;
};

struct Job {
  /// What it was before a change of its class that not all of its processes have taken yet.
  struct Before {
    JobClass job_class;
    JobClass asked_class;
    std::string reason;
    wire::JobTerms terms;
    std::optional<wire::JobTerms> other_terms;
  };

  JobId id;
  std::string name;
  std::string tenant;
  JobClass job_class = JobClass::kOpportunistic;
  std::string reason;  ///< why it is not what was asked for; empty: it is
  /// As which its processes ask for it, or who changed it last.
  JobClass asked_class = JobClass::kOpportunistic;
  /// Of an opportunistic job that becomes guaranteed once it has its floor: what it then has.
  std::optional<wire::JobTerms> upgrading;
  /// What it had in the other class; nothing: it never was of that.
  std::optional<wire::JobTerms> other_terms;
  std::optional<Before> before_change;
  policies::Gang gang;
  /// Whether the ranks of an opportunistic job are gated together; one for all its devices.
  std::shared_ptr<GangKeeper> gang_keeper = std::make_shared<GangKeeper>();
  wire::JobTerms terms;                     ///< its law is known, whether asked for or not
  StepSignal signal = StepSignal::kMedian;  ///< what a guaranteed job's slowdown is measured by
  bool paused = false;
  std::vector<Member> members;
  Revision revision = 0;
  Bytes target;  ///< what the arbiter decided, for all its processes together
  std::string target_reason;
  double share_now = 1.0;  ///< what the compute controller decided
  std::string share_reason;
  TimePoint started;
  std::size_t slot = 0;  ///< on the device page
  LeaseKeeper lease;
  SpeedCurve speeds;
  JobUse use;                ///< what the kernel showed last
  RecentLeast group_beside;  ///< of its control group, what is not held
  RecentLeast of_children;   ///< what forked children hold
  Revision recalled = 0;     ///< see wire::DeviceEntry, `memory_recalled`
  bool stopped = false;      ///< from outside, by the coordinator
  TimePoint told_to_end;     ///< as the last resort; zero: it is not
  std::string end_reason;    ///< why
  Bytes owed;                ///< charged above its limits
  TimePoint owed_since;
  policies::Stage stage = policies::Stage::kNone;
  TimePoint stage_since;
  std::string stage_reason;
  JobHistory history;
  Duration gone_core_time{};  ///< of processes that have left
  CoreNeed need;              ///< of a guaranteed job
  wire::CoreSet allowed;      ///< CPUs that its owner lets it use; empty: not known
  GroupOutcome group;         ///< of an opportunistic job: the weight of its control group
  std::shared_ptr<const std::vector<GapClass>> gaps;  ///< of late; null: not known yet
  double hand_overs = 0.0;                            ///< gaps a second that it entered of late
  GapDecision gap_rules;                              ///< what the compute controller decided

  [[nodiscard]] LeaseKey key(const Member& member) const { return LeaseKey{id, member.pid}; }
  /// As what it gets memory: one that is to be upgraded gets it first, and one that was guaranteed
  /// keeps its floor until all of its processes have taken the change.
  [[nodiscard]] JobClass memory_class() const noexcept {
    return upgrading || keeps_floor() ? JobClass::kGuaranteed : job_class;
  }
  [[nodiscard]] MemoryRange memory_bounds() const noexcept {
    MemoryRange bounds = upgrading ? upgrading->memory : terms.memory;
    if (keeps_floor()) bounds.min = std::max(bounds.min, before_change->terms.memory.min);
    return bounds;
  }
  [[nodiscard]] bool keeps_floor() const noexcept {
    return before_change && before_change->job_class == JobClass::kGuaranteed;
  }
  [[nodiscard]] Member* member(std::int64_t pid) noexcept;
  /// Whether a process does the job's steps: ranks if there are any, else those mains that have
  /// made one. As long as none has, the main that came last: the others may be what started it.
  [[nodiscard]] bool trains(const Member& member) const noexcept;
  [[nodiscard]] std::size_t managed_count() const noexcept;
  /// The part of `total` that falls to a process. Those that train get equal parts; a main that
  /// does not, which started them and waits, gets what it uses, up to an equal part.
  [[nodiscard]] Bytes part_of(Bytes total, const Member& member) const;
  /// Whether all that train are in the kernel's idle class.
  [[nodiscard]] bool in_idle_class() const;
  /// Whether they are, or would be if the kernel let them, as far as they have reported.
  [[nodiscard]] bool wants_idle_class() const;
  /// Whether its steps are requests.
  [[nodiscard]] bool serves() const noexcept;
  /// The process whose steps tell how fast the job is: of those that train, the one that is least
  /// far; of several, the one whose last step took longest. Null before the first step.
  [[nodiscard]] const Member* slowest() const noexcept;
  /// What is known of its steps, and of its time on cores.
  [[nodiscard]] StepKnowledge step_knowledge() const noexcept;
  /// The training process on whose cores a piece of work took longest of late; null: none is known.
  [[nodiscard]] const Member* slowest_on_cores() const noexcept;
  /// Time for which it had work for its GPU, by the process that had it longest; nothing: no page
  /// of a training process has shown it yet.
  [[nodiscard]] std::optional<Duration> gpu_time() const noexcept;
  /// The process that speaks for the job: its lowest rank, else its first main.
  [[nodiscard]] const Member* speaker() const noexcept;
  /// Time on cores of all processes that ever registered, since each was first looked at.
  [[nodiscard]] Duration core_time() const noexcept;
  [[nodiscard]] bool parked() const noexcept { return stage != policies::Stage::kNone; }
  /// Notes what the kernel shows of its processes.
  void note_use(TimePoint now, JobUse measured);
  /// What it holds beside its managed memory, its forked children's part included.
  [[nodiscard]] Bytes unmanaged() const;
};

/// A job as users name it.
struct JobName {
  JobId id;
  std::string name;
  bool operator==(const JobName&) const = default;
};
struct FoundJob {
  std::optional<JobId> id;
  std::string problem;  ///< why there is none; names the candidates
};
/// Finds a job by its id, else by its name if only one has it. A job may stand in the list more
/// than once.
[[nodiscard]] FoundJob find_job(const std::vector<JobName>& jobs, const std::string& id_or_name);

/// Live jobs in the order of their arrival. Not thread safe.
class JobTable {
 public:
  [[nodiscard]] std::vector<Job>& jobs() noexcept { return jobs_; }
  [[nodiscard]] const std::vector<Job>& jobs() const noexcept { return jobs_; }
  [[nodiscard]] Job* find(const JobId& id) noexcept;
  [[nodiscard]] const Job* find(const JobId& id) const noexcept;
  /// Adds a job on a free slot. Null if none of the `slots` is free.
  Job* add(Job job, std::size_t slots);
  /// Takes a job out of the table, in which it must be. @param id  by value: the caller's may be
  /// inside of it.
  Job take(JobId id);

 private:
  std::vector<Job> jobs_;
};

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// One device, the jobs on it, and how it is divided among them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/node/compute_controller.h"
#include "coordinator/node/core_share.h"
#include "coordinator/node/device.h"
#include "coordinator/node/expected_jobs.h"
#include "coordinator/node/job_table.h"
#include "coordinator/node/last_resort.h"
#include "coordinator/node/ledger.h"
#include "coordinator/node/memory_arbiter.h"
#include "coordinator/node/turn_scheduler.h"
#include "coordinator/wire/messages.h"

namespace commensal::node {

struct CoordinatorConfig {
  std::string instance = "default";
  std::string version;
  std::string socket;       ///< for the status
  std::string law = "gap";  ///< of opportunistic jobs that ask for none; a name of wire::kLaws
  ArbiterConfig memory;
  ResortConfig resort;
  ComputeConfig compute;
  /// AskMemory is answered by then. An opportunistic job in a long step gives memory back after a
  /// second, and moving it may take two more.
  Duration ask_timeout = std::chrono::seconds(5);
  Duration retell_after = std::chrono::seconds(1);  ///< a shrink that is not done is told again
  /// After a crash, nothing grows so long, for the older instance's jobs to register again.
  Duration recovery{};
  ConfirmShrinks confirm = ConfirmShrinks::kYes;
  /// The capacity covers all that jobs hold, not only what they manage.
  bool charge_unmanaged = false;
  /// A shrink counts when the kernel shows it, not when the job says so. False exists to show in a
  /// test that the look is needed.
  bool prove_releases = true;
};

struct Outgoing {
  PeerId peer;
  wire::Message message;
};

/// What is to be done to a process from outside.
enum class ProcessSignal : std::uint8_t {
  kStop,  ///< until `kGoOn`
  kGoOn,
  kEnd,  ///< it may end by itself: SIGTERM
  kKill
};
struct SignalOrder {
  LeaseKey process;
  ProcessSignal signal = ProcessSignal::kGoOn;
};

/// One job's entry on the device page, as it should be.
struct PageEntry {
  std::size_t slot = 0;
  std::string job_id;
  JobClass job_class = JobClass::kOpportunistic;
  std::string law;
  double share_min = 0.0;
  double share_max = 1.0;
  bool paused = false;
  TimePoint lease_until;
  Bytes memory_grant;
  Revision memory_recalled = 0;
  double slo = 0.0;
  wire::GapRules gap_rules;
  TimePoint turn_until;  ///< law token_window: past for who has no turn; zero: no turns are given
  wire::CoreSet cores;   ///< that its threads should keep to; empty: those that it has
  std::uint64_t gang_epoch = 0;  ///< 0: each process is gated by itself
  bool operator==(const PageEntry&) const = default;
};

/// Over which a device's busy shares are told.
inline constexpr Duration kUseWindow = std::chrono::seconds(10);

/// Why a process is gone.
enum class Departure : std::uint8_t {
  kExited,   ///< its pidfd or /proc says so
  kSilent,   ///< no sign of life, and its pid cannot be checked from here
  kReplaced  ///< its pid has been taken by another process
};

/// Keeps the jobs that are on a device, divides it among them and answers their messages.
///
/// Holds no socket, file or clock: everything comes in as an argument, answers are collected until
/// `take_outgoing`. Not thread safe. What concerns a whole machine is the node coordinator's: which
/// job is where, the machine's cores, jobs with ranks on several devices.
class DeviceCoordinator {
 public:
  DeviceCoordinator(CoordinatorConfig config, Device device, std::int64_t pid,
                    std::uint64_t start_ticks, TimePoint now);

  /// Takes a message of a peer.
  void receive(const PeerId& peer, const wire::Message& message, TimePoint now);
  /// Registers a process on this device alone: `message.devices` names no other one.
  /// @param held  as what its job is taken if it is new here; null: as it says.
  /// @param first  it is the device that the process used first.
  void register_process(const PeerId& peer, const wire::Register& message, const Held* held,
                        bool first, TimePoint now);
  /// Keeps memory free for guaranteed jobs that are to come, from now on: what they must have here.
  /// Opportunistic jobs shrink to their minima for it, and no further. It ends for a job as soon as
  /// one of its processes has managed memory here: then its floor counts.
  void set_claims(std::map<JobId, Bytes> claims, TimePoint now);
  /// Counts a message that could not be used, and answers it.
  void receive_malformed(const PeerId& peer, const wire::BadMessage& problem);
  /// Says why a change that a user asks for cannot be made; empty: it can.
  [[nodiscard]] std::string problem_with(const JobId& id, const wire::SetRequest& message) const;
  /// Takes such a change. @return what was done, or why it was refused.
  [[nodiscard]] wire::SetReply set(const JobId& id, const wire::SetRequest& message, TimePoint now);

  // A change of a job's class, step by step; who drives them is `ClassChanges`. The job is here.
  /// Has a guaranteed job's floor kept for an opportunistic one, from now on.
  void begin_upgrade(const JobId& id, const wire::SetRequest& message, TimePoint now);
  void cancel_upgrade(const JobId& id, TimePoint now);
  /// What is lacking of that floor here.
  [[nodiscard]] Bytes floor_lacks(const JobId& id) const;
  /// Changes the class and tells the processes. @return what it has in it now, for people.
  std::string set_class(const JobId& id, const wire::SetRequest& message, TimePoint now);
  /// Takes that back; nothing where it was not changed, or all have taken it.
  void undo_class(const JobId& id, const std::string& why, TimePoint now);
  /// All have taken it: who was guaranteed gives its floor back.
  void settle_class(const JobId& id, TimePoint now);
  struct ClassAnswers {
    std::vector<std::int64_t> open;  ///< processes that have not answered yet
    std::string problem;             ///< why one keeps the class that it had; empty: none does
  };
  [[nodiscard]] ClassAnswers class_answers(const JobId& id) const;
  /// Tells those again who have not answered for a while.
  void retell_class(const JobId& id, TimePoint now);
  /// Lets a job that has just registered here be of the class that it has on another device.
  void follow_class(const Job& elsewhere, TimePoint now);

  /// Notes what a process shows on its page.
  void observe_page(const JobId& job, std::int64_t pid, const PageReading& reading, TimePoint now);
  /// Notes what a process says that it holds.
  void observe_held(const JobId& job, std::int64_t pid, Bytes held);
  /// Notes why a process stands still, empty: it runs, and whether signals reach it. Best called
  /// about once a second, and right away for those that `outdated` names.
  void observe_standstill(const LeaseKey& process, std::string why, bool reachable);
  /// What is to be done to processes now, each once.
  [[nodiscard]] std::vector<SignalOrder> take_signals() { return std::exchange(signals_, {}); }
  /// Processes that may act on a larger limit than their newest, because they have not answered.
  [[nodiscard]] std::vector<LeaseKey> outdated() const;
  /// Takes the older limits of a job back whose process stands still: its entry of the device page
  /// says so, and its processes are told their limits anew.
  void recall(const LeaseKey& process, TimePoint now);
  /// The page says so by now: what the process has taken or is about to take is what it is charged
  /// with from here on, whenever it goes on. @param taken  read after the page was written.
  void settle_recall(const LeaseKey& process, Bytes taken, TimePoint now);
  /// Notes what the kernel shows of a job's processes. Best called right before an Answer of one is
  /// received, and about once a second.
  void observe_use(const JobId& job, JobUse use, TimePoint now);
  /// Notes what the kernel shows of a process's time on cores, and, where it tells, for how long
  /// tasks of the machine were stalled on I/O. Best called about once a second, and for those that
  /// `take_timed` names.
  void observe_cpu(const JobId& job, std::int64_t pid, const ThreadTimes& threads,
                   std::optional<Duration> io_stalled, TimePoint now);
  /// Notes the clocks of all threads of a guaranteed job, forked children included, and the CPUs
  /// that its owner lets it use (empty: not known). Best called about once a second.
  void observe_need(const JobId& job, const ThreadTimes& threads, const wire::CoreSet& allowed,
                    TimePoint now);
  /// Notes what became of the weight of an opportunistic job's control group.
  void observe_group(const JobId& job, const GroupOutcome& outcome);
  /// Processes of guaranteed jobs to look at now, named once: what may run beside them has changed.
  [[nodiscard]] std::vector<LeaseKey> take_timed();
  /// Notes how much memory of the device anybody could take now. @param holders  what each process
  /// held at that moment, where that is told; else what was reported before counts.
  void observe_available(Bytes available, const std::map<std::int64_t, Bytes>& holders,
                         TimePoint now);
  /// Notes the part of the last moments in which this GPU ran anything, as its driver says.
  void observe_busy(double share, TimePoint now) { driver_busy_.note(share, now); }
  /// Returns a dead process's lease; the job ends with its last process that is no helper.
  void member_gone(const JobId& job, std::int64_t pid, Departure departure, TimePoint now);
  /// Returns the lease of a process that goes on elsewhere. @return its job, if that was its last
  /// process here: the job has not ended.
  std::optional<Job> member_moved(const JobId& job, std::int64_t pid, const std::string& where,
                                  TimePoint now);
  /// Lets a job that has just registered here go on as it is, or was, on another device: since when
  /// it runs, whether its user paused it, and the keeper of its gang.
  void go_on_as(const Job& elsewhere);
  /// Adds the guaranteed jobs of this device, and whether it has opportunistic ones.
  void add_needs(CoreShareInput& input) const;
  /// Keeps opportunistic jobs to these cores of the machine, from now on.
  void take_cores(const wire::CoreSet& cores, const std::string& reason, TimePoint now);
  /// Adds what a job's ranks on this device show, and whether they are ordered to close.
  void add_ranks(const Job& job, GangView& view) const;
  /// Takes the controller's samples; call every `sampling_period` while `wants_sampling`.
  void sample(TimePoint now);
  /// Does what is due by time: memory, deadlines, what was not answered. Call a few times a second.
  void tick(TimePoint now);

  [[nodiscard]] std::vector<Outgoing> take_outgoing();
  [[nodiscard]] std::vector<PageEntry> page_entries(TimePoint now) const;
  /// Whether a guaranteed and an opportunistic job are here together, or turns are given.
  [[nodiscard]] bool wants_sampling() const;
  /// Time between two samples: 20 ms, or 100 ms while the pages of guaranteed jobs show nothing new
  /// for a second and nothing of a moment's length is under way (a window, a turn, a gang's order).
  [[nodiscard]] Duration sampling_period(TimePoint now) const noexcept;
  /// When `sample` is due at the latest, while `wants_sampling`: the end of a turn.
  [[nodiscard]] TimePoint next_sample() const noexcept;
  /// docs/stats.md, "status", `devices[]`.
  [[nodiscard]] nlohmann::json device_status(TimePoint now) const;
  /// The same, `jobs[]`: a live job.
  [[nodiscard]] nlohmann::json job_status(const Job& job, TimePoint now) const;
  /// A job that is gone.
  struct Ended {
    nlohmann::json status;  ///< as it was at the end
    TimePoint started;
    TimePoint ended;
    std::optional<Job> job;  ///< with its history, while it can be explained
    nlohmann::json costs;    ///< of the guaranteed jobs, as they were then
    nlohmann::json device;   ///< its use, as it was then
  };
  /// Newest last.
  [[nodiscard]] const std::deque<Ended>& ended() const noexcept { return ended_; }
  /// docs/stats.md, "explain": who was throttled within the last minutes (of its life, if it has
  /// ended), why, and what it cost. @param ended  null: the job lives.
  [[nodiscard]] nlohmann::json explain(const Job& job, const Ended* ended, Duration last,
                                       bool series, TimePoint now) const;

  [[nodiscard]] const JobTable& table() const noexcept { return table_; }
  [[nodiscard]] JobTable& table() noexcept { return table_; }
  [[nodiscard]] const Ledger& ledger() const noexcept { return ledger_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] const ComputeController& compute() const noexcept { return compute_; }
  [[nodiscard]] std::uint64_t malformed_total() const noexcept { return malformed_total_; }
  /// When the last job ended; the start if there was none. Meaningful without live jobs.
  [[nodiscard]] TimePoint idle_since() const noexcept { return idle_since_; }
  [[nodiscard]] policies::DeviceView view(TimePoint now) const;
  void log(const JobId& job, std::string kind, std::string text, TimePoint now);

 private:
  void handle(const PeerId& peer, const wire::Register& message, TimePoint now) {
    register_process(peer, message, nullptr, true, now);
  }
  void handle(const PeerId& peer, const wire::Stats& message, TimePoint now);
  void handle(const PeerId& peer, const wire::Answer& message, TimePoint now);
  void handle(const PeerId& peer, const wire::AskMemory& message, TimePoint now);
  void handle(const PeerId& peer, const wire::MapRequest& message, TimePoint now);
  void handle(const PeerId& peer, const wire::MapReply& message, TimePoint now);

  Job* admit(const PeerId& peer, const wire::Register& message, TimePoint now);
  /// The same as what the cluster placed it as, if that is known.
  Job* admit_held(const PeerId& peer, const wire::Register& message, const Held* held,
                  TimePoint now);
  /// Adds a process, with a lease over what it has already.
  Member& enlist(Job& job, const wire::Register& message);
  struct Sender {
    Job* job = nullptr;
    Member* member = nullptr;
  };
  /// Finds the process that a message is from and notes that it lives. If it is not known, it is
  /// told so and the result is null.
  Sender find_sender(const PeerId& peer, const std::string& job_id, std::int64_t pid,
                     TimePoint now);
  void send_registered(const Job& job, const Member& member);
  /// Says to a process that has registered that its job is paused or parked, where it is.
  void tell_paused(Job& job, const Member& member);
  /// Sends a change, or an error, to a process, naming the device.
  template <typename Message>
  void send_to(const Member& member, Message message) {
    message.device = device_.id;
    send(member.peer, std::move(message));
  }
  /// Says what is wrong with bounds for a job; empty: nothing.
  [[nodiscard]] std::string problem_with(const JobId& job, JobClass job_class,
                                         const std::optional<MemoryRange>& memory,
                                         const std::optional<ShareRange>& share) const;
  /// Says what is wrong with a change of the class; empty: nothing.
  [[nodiscard]] std::string problem_with_class(const Job& job,
                                               const wire::SetRequest& message) const;
  /// What a job has in a class: what is asked for, else what it had when it was of that class.
  [[nodiscard]] wire::JobTerms terms_in(const Job& job, const wire::SetRequest& message) const;
  /// Forgets what was found out about a job as one of the class that it leaves.
  void leave_class(Job& job);
  /// Changes class and terms of a job and tells its processes.
  void change_class(Job& job, JobClass wanted, wire::JobTerms terms, const std::string& why,
                    TimePoint now);
  void tell_class(Job& job, Member& member, const std::string& why, TimePoint now);
  /// Notes what a process answers to a change of its class.
  void note_class_answer(const Job& job, Member& member, const wire::Answer& answer) const;
  [[nodiscard]] double slo_of(const Job& job) const;
  /// Minimum shares of the opportunistic jobs but this one.
  [[nodiscard]] double minimum_shares_except(const JobId& job) const;
  /// Part of the device's time that it used within the last `kUseWindow`: of its cores', or, of a
  /// GPU's, that it had work (a guaranteed job) and that its gate metered (an opportunistic one).
  [[nodiscard]] double used_of_late(const Job& job, TimePoint now) const;
  [[nodiscard]] Bytes floors_except(const JobId& job) const;
  void update_floors();

  /// Memory that is kept free for jobs that are to come.
  [[nodiscard]] Bytes claimed() const;
  void rebalance(TimePoint now);
  /// Brings up to date what the decision sees: floors, leases, debts.
  void observe_jobs(TimePoint now);
  void measure_speeds(TimePoint now);
  void forget_speeds() noexcept;
  void change_stage(Job& job, const policies::StageChange& change, TimePoint now);
  /// What a process holds, by its own word or, if that is more, by the kernel's.
  [[nodiscard]] Bytes shown_or_said(const Member& member, Bytes said) const;
  void apply_targets(TimePoint now);
  void move_toward_target(Job& job, Member& member, bool shrink, TimePoint now);
  void tell(Job& job, Member& member, Bytes limit, const std::string& reason, TimePoint now);
  /// Looks for what guaranteed jobs still lack of their minima beyond the budget, and elsewhere.
  void take_last_resort(TimePoint now);
  void grant_beyond_budget(const std::string& reason, TimePoint now);
  void end_for_others(Job& job, const std::string& reason, TimePoint now);
  void signal_all(const Job& job, ProcessSignal signal);
  [[nodiscard]] ResortView resort_view(TimePoint now) const;
  [[nodiscard]] Debtor debtor(const Job& job, TimePoint now) const;
  void settle_asks(TimePoint now);
  void retell(TimePoint now);
  void update_shares(TimePoint now);
  void update_turns(TimePoint now);
  /// Chooses what a guaranteed job's slowdown is measured by.
  /// Jobs that may have work in the device's queues at the same time: those by turns are one.
  [[nodiscard]] std::size_t queue_users() const;
  void follow_signal(Job& job, TimePoint now);
  /// Whether the gates of an opportunistic job are ordered to close.
  [[nodiscard]] bool is_closed(const Job& job) const;
  void keep_history(TimePoint now);
  [[nodiscard]] JobSample sample_of(const Job& job, TimePoint now) const;
  /// Forgets what is older than anybody may ask for.
  void forget_ended(TimePoint now);
  void follow_gaps(Job& job, TimePoint now);
  /// What it may do in gaps; without a reason for a guaranteed job.
  [[nodiscard]] static nlohmann::json rules_of(const Job& job);

  [[nodiscard]] bool is_host() const noexcept { return device_.kind == DeviceKind::kHost; }
  /// Whether all jobs on this GPU show their time on it.
  [[nodiscard]] bool shows_gpu_time() const;
  struct DeviceUse;
  [[nodiscard]] DeviceUse device_use(TimePoint now) const;
  /// Busy shares, the oracle and how near to it: of the last `kUseWindow`.
  [[nodiscard]] nlohmann::json device_shares(TimePoint now) const;
  /// Returns the slowdown of a guaranteed job, if it is known well enough to be told.
  [[nodiscard]] std::optional<SlowdownEstimate> known_slowdown(const Job& job) const;
  /// Why it is not; empty: it is.
  [[nodiscard]] std::string slowdown_reason(const Job& job) const;
  /// What is known of a guaranteed job's slowdown now.
  [[nodiscard]] nlohmann::json cost_of(const Job& job) const;
  /// The guaranteed jobs of a stretch, those that have ended among them, with what they lost in it.
  [[nodiscard]] nlohmann::json costs_of(const Ended* told, TimePoint since, TimePoint until,
                                        TimePoint now) const;
  /// Calls `visit(job, ended)` for each job that lived in a stretch and is remembered.
  template <typename Visit>
  void each_of(TimePoint since, TimePoint until, Visit visit) const;
  [[nodiscard]] nlohmann::json lease_status(const Job& job, TimePoint now) const;
  void end_job(Job& job, const std::string& exit_reason, TimePoint now);
  void send(const PeerId& peer, wire::Message message);

  CoordinatorConfig config_;
  Device device_;
  std::int64_t pid_;
  std::uint64_t start_ticks_;
  TimePoint started_;
  TimePoint idle_since_;
  JobTable table_;
  Ledger ledger_;
  std::map<JobId, Bytes> claims_;  // of jobs that are to come
  ComputeController compute_;
  TurnScheduler turns_;
  bool gives_turns_ = false;
  wire::CoreSet cores_;  // that opportunistic jobs are asked to keep to; empty: all
  DecisionLog log_;
  TimePoint newest_move_;         // on a page of a guaranteed job
  bool stretch_changed_ = false;  // since `take_timed`
  bool was_quiet_ = false;
  std::optional<Bytes> available_;  ///< as the kernel said last
  Bytes physical_;         ///< most that leases could come to on the machine; zero: unknown
  ResortDecision resort_;  ///< the newest
  std::vector<SignalOrder> signals_;
  RecentLeast outside_;
  DriverBusyShare driver_busy_{kUseWindow};
  std::vector<Outgoing> outgoing_;
  std::deque<Ended> ended_;
  std::uint64_t malformed_total_ = 0;
};

}  // namespace commensal::node

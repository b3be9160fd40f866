// SPDX-License-Identifier: Apache-2.0
// The session's parts and how they work together. Internal to torch_ext/runtime.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "allocator/background_mover.h"
#include "allocator/base/mutex.h"
#include "allocator/device_memory.h"
#include "allocator/elastic_allocator.h"
#include "allocator/memory_source.h"
#include "torch_ext/gate/gate.h"
#include "torch_ext/runtime/coordinator_client.h"
#include "torch_ext/runtime/core_keeper.h"
#include "torch_ext/runtime/device_claim.h"
#include "torch_ext/runtime/elastic_threads.h"
#include "torch_ext/runtime/idle_watch.h"
#include "torch_ext/runtime/job_page.h"
#include "torch_ext/runtime/multiprocessor_dial.h"
#include "torch_ext/runtime/peer_observer.h"
#include "torch_ext/runtime/return_meter.h"
#include "torch_ext/runtime/sample_windows.h"
#include "torch_ext/runtime/session.h"
#include "torch_ext/runtime/session_devices.h"
#include "torch_ext/runtime/statistics.h"
#include "torch_ext/runtime/step_tracker.h"

namespace commensal {

/// What a USER_SCOPE range of PyTorch means to a session.
enum class RangeKind : std::uint8_t { kOther, kFetch, kOptimizerStep, kZeroGrad };
[[nodiscard]] RangeKind range_kind(std::string_view name) noexcept;

[[nodiscard]] std::string_view to_string(MemberRole role) noexcept;

/// Throw std::invalid_argument naming the first wrong value.
void check_config(const SessionConfig& config);
void check_rank(int rank, int world_size);

struct Session::Impl final : public ClientHost {
  class Moving;
  class InItsStead;

  Impl(SessionConfig given, std::unique_ptr<MemorySource> memory_source);
  ~Impl() override;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Says by how much a limit is above the device; empty: it is not.
  [[nodiscard]] std::string above_device(const char* what, Bytes limit) const;
  void note_doubtful_values();
  /// Whether the host is its device; changes once at most (`take_device`).
  [[nodiscard]] bool on_host() const noexcept {
    return has_host_memory() && !left_host.load(std::memory_order_relaxed);
  }
  /// Whether `allocator` serves memory of the host.
  [[nodiscard]] bool has_host_memory() const noexcept { return config.device == kHostMemory; }
  /// Whether limits of a device's coordinator are for this process. A helper is listed, not
  /// managed: its share of the job's memory is not known. On the client's thread.
  [[nodiscard]] bool has_grant(const SessionDevice& device) const noexcept {
    return device.placed && told_role != MemberRole::kHelper;
  }
  /// Connects and enters the idle class. Throws nothing that has changed something.
  void begin();

  // --- the training thread's side (session_training.cpp)
  void range_begin(std::string_view name) noexcept;
  void range_end(std::string_view name) noexcept;
  void fetch_begin() noexcept;
  void fetch_end() noexcept;
  void optimizer_ended() noexcept;
  void batch_awaited() noexcept;
  void batch_arrived() noexcept;
  /// Returns whether this counts as a wait: then `activity.wait_end` belongs to it.
  bool checkpoint_begin() noexcept;
  void synchronised() noexcept;
  void user_step() noexcept;
  void touched() noexcept {
    if (const auto request = activity.touch()) request_found(*request);
  }
  void request_found(const FoundRequest& request) noexcept;
  void step_ended() noexcept;
  void publish_step(Duration last) noexcept;
  void safe_point() noexcept;
  /// Tells whether the caller is between two ops of the job: it is the thread that trains, or acts
  /// in its stead while ops wait at the gate. Before the first step that is taken to be the
  /// process's first thread.
  [[nodiscard]] static bool between_ops() noexcept;
  void become_rank(int new_rank, int new_world_size);
  void use_device(std::string id);
  void take_device(DeviceMemory& memory, std::string id, const std::string& why);
  /// The job does without the GPU that it could use, as far as is known by now: says so once, and
  /// has what it asked for bound on the host.
  void stay_on_host();
  /// Gives threads that came meanwhile an alternate signal stack, so that they can be stopped.
  void equip_threads(bool did_work) noexcept;
  /// Runs `work`, which may wait, with the GIL released.
  template <typename Work>
  void release_and(Work work);
  // --- the memory of its devices (session_moves.cpp)
  [[nodiscard]] AllocatorStats memory_stats() const { return first_device.memory().stats(); }
  /// Whether PyTorch's own allocator serves its first device.
  [[nodiscard]] bool is_native() const noexcept { return &first_device.memory() != &allocator; }
  [[nodiscard]] bool memory_pending() const noexcept;
  /// Does at a safe point what there is to do, on all devices or one, and answers.
  void move_memory();
  void move_memory(SessionDevice& device);
  /// Where the limit falls to this, or more is held: has others give back what they cache.
  void give_back_of_others(Bytes limit);
  void end_step_of_memory() noexcept;
  void add_device(DeviceMemory& memory, const std::string& id);
  void before_moves(std::function<void()> give_back);
  /// Sets MAX of all devices. @return the sum of what was done.
  LimitTicket limit_devices(Bytes max, bool here);
  /// Waits until the coordinator has answered to the registration of a device.
  /// @return false: it did not in time.
  bool wait_until_known(const SessionDevice& device);
  [[nodiscard]] std::vector<StatisticsView::Device> other_devices_view() const;
  /// Runs `work`, which moves memory: on a GPU with the GIL held, so that the program's other
  /// Python threads give the device no work meanwhile.
  template <typename Work>
  void move_and(Work work);
  /// Returns what came of it, in words.
  std::string ask_for_memory(SessionDevice& device, Bytes needed) noexcept;
  LimitTicket set_memory_limit(Bytes max);
  void set_compute_share(double max);

  // --- tags, and what lies where (session_memory.cpp)
  TagTicket move_tag(std::string_view name, TagTicket (ElasticAllocator::*move)(TagId));
  [[nodiscard]] nlohmann::json memory_map(bool with_blocks, bool coarse) const;

  // --- the client thread's side (session_client.cpp)
  wire::Register registration() override;
  nlohmann::json statistics() override;
  void on_registered(const wire::Registered& answer) override;
  void on_change(const wire::Change& change) override;
  void on_set_reply(const wire::SetReply& reply) override;
  void on_error(const wire::Error& error) override;
  void on_map_request(const wire::MapRequest& request) override;
  void on_disconnected() override;
  void on_device_page(wire::MappedPage page) override;
  void on_peer_added(std::int64_t pid, wire::MappedPage page) override;
  void on_peer_gone(std::int64_t pid) override;
  Duration on_tick() override;
  void publish(TimePoint now);
  /// Begins and ends the windows in which a guaranteed job's ops are sampled. Returns when it has
  /// to be called again; `TimePoint::max()`: there is nothing to sample.
  TimePoint follow_sampling(TimePoint now);
  void end_sampling() noexcept;
  void apply_waiting_limit(TimePoint now);
  /// Saves the memory of each device whose coordinator wants that.
  void park_if_asked(TimePoint now);
  /// Closes the gate for as long as any device's coordinator wants it closed.
  void follow_pauses();
  /// Runs again: whoever parked it is gone, or knows nothing of it.
  void forget_parking(SessionDevice& device);
  void take_grant(SessionDevice& device, Bytes limit, Revision revision);
  /// Takes what the first device's coordinator says of the job itself.
  void use_registration(const wire::Registered& answer);
  /// The same of a change. @return why it is refused; empty: it is not.
  [[nodiscard]] std::string use_change(const wire::Change& change);
  /// On the mover's thread: something moved between safe points.
  void moved_ahead() noexcept;
  /// On the mover's thread: runs what moves memory between safe points, where that may be.
  void move_between_steps(const std::function<void()>& batch);
  /// On the client's thread: notes since which step all ops pass the gate.
  void follow_held_steps() noexcept;
  // doing nothing (session_idle.cpp)
  /// Shows neighbours that a guaranteed job does nothing, though it says nothing.
  void follow_rest(TimePoint now);
  void follow_idleness(TimePoint now);
  void park_idle_job(Duration idle_for);
  void bring_back(TimePoint now);
  void ask_to_come_back(TimePoint now);
  void bring_away_back();
  [[nodiscard]] bool parks_away() const noexcept;
  void bring_more_back();
  void set_resting(bool rests, TimePoint now) noexcept;
  [[nodiscard]] SignsOfWork signs_of_work(const AllocatorStats& stats) const;
  // cores and threads (session_cores.cpp)
  /// On the client's thread: reads the page, and lets the next safe point move the threads.
  void follow_cores(TimePoint now);
  void apply_cores() noexcept;
  /// At a step border, on the thread that ends the step.
  void follow_thread_count() noexcept;
  [[nodiscard]] StatisticsView::Cores cores_view() const;
  // multiprocessors of a GPU (session_multiprocessors.cpp)
  /// At a step border, on the thread that ends the step.
  void follow_multiprocessors() noexcept;
  [[nodiscard]] std::optional<double> multiprocessor_share() const;
  [[nodiscard]] StatisticsView::Multiprocessors multiprocessors_view() const;
  void use_law(const std::string& name);
  /// Takes what the coordinator says about pacing. @throws std::invalid_argument.
  void use_terms(const wire::TermsPatch& change);
  // the class (session_class.cpp)
  /// Takes the class that the coordinator says at a registration.
  void use_class(JobClass wanted_class, const std::string& why);
  /// Takes a change of the class, with the bounds that come with it. @return why the class stays as
  /// it was; empty: it is as wanted. @throws std::invalid_argument for what is wrong in itself.
  [[nodiscard]] std::string change_class(const wire::Change& change);
  [[nodiscard]] std::string obstacle_to(JobClass wanted_class) const;
  [[nodiscard]] bool is_idle() const;
  void move_children(bool idle);
  /// Does what a process of its present class does, and no more what one of the other does.
  void follow_activity();
  [[nodiscard]] JobClass class_now() const;
  [[nodiscard]] Bytes memory_minimum() const;
  /// Puts the threads into the idle class, or out of it, as the class of the job wants it.
  void follow_class();
  /// A guaranteed job is back on fast memory from the next step; an opportunistic one does not wait
  /// for a disk at its safe points.
  void choose_who_brings_back();
  void answer(const LimitAnswer& limit_answer, const SessionDevice& device);

  // --- for people
  [[nodiscard]] StatisticsView view() const;
  [[nodiscard]] std::string active_line() const;
  void shutdown() noexcept;
  void note(const std::string& text);
  /// A line on stderr, unless the job is quiet.
  void say(const std::string& line);
  /// A line on stderr that a quiet job has, too.
  static void print(const std::string& line);
  /// Says once what keeps all memory in use in its place until somebody changes it.
  void tell_obstacle(bool at_start);
  /// On the client's thread: the same, when memory is deferred for another reason than before.
  void follow_obstacle();

  const SessionConfig config;
  const Clock& clock = SteadyClock::instance();
  std::atomic<MemberRole> role;
  std::atomic<int> rank;
  std::atomic<int> world_size;
  std::atomic<bool> awaits_device;  // what it asks for is for a GPU that it has not used yet
  std::atomic<bool> left_host{false};
  std::atomic<bool> told_host{false};  // that it stays there
  std::atomic<bool> in_child{false};
  std::unique_ptr<MemorySource> source;
  ElasticAllocator allocator;
  OwnPage own_page;
  wire::JobPage& page = own_page.page();
  PeerObserver observer;
  DeviceClaim claims{page, [this] { return observer.recalled(); }};
  Gate gate;
  StepTracker steps;
  ActivityRecorder activity;
  SampleWindows sample_windows COMMENSAL_GUARDED_BY(mutex);
  SessionDevices devices;
  SessionDevice& first_device = devices.first();  // its memory is the allocator's unless native
  ReturnMeter returns;

  OpSamples samples;
  std::atomic<void (*)(bool)> switch_sampling{nullptr};
  std::atomic<void* (*)()> release_gil{nullptr};
  std::atomic<void (*)(void*)> restore_gil{nullptr};
  std::atomic<void* (*)()> take_gil{nullptr};
  std::atomic<void (*)(void*)> give_gil{nullptr};
  std::atomic<TagId (*)() noexcept> region_tag{nullptr};
  std::atomic<int (*)()> get_thread_count{nullptr};
  std::atomic<void (*)(int)> set_thread_count{nullptr};
  std::atomic<bool> cores_due{false};                 // the threads are to be moved
  std::atomic<MultiprocessorDial*> sm_dial{nullptr};  // lives for ever
  std::atomic<bool> sm_followed{false};               // a share was asked for once
  std::atomic<bool> sm_busy{false};                   // a thread is inside of the dial
  std::atomic<const void*> training_thread{nullptr};  // ran the last step; see this_thread()
  std::atomic<std::int64_t> last_safe_point_ns{0};
  std::atomic<bool> in_optimizer{false};
  std::atomic<int> moving{0};                      // threads inside of a safe point; see Moving
  std::atomic<bool> ended{false};                  // shutdown was called
  std::atomic<bool> resting{false};                // parked because it was idle
  std::atomic<bool> op_came{false};                // since then
  std::atomic<const void*> in_its_stead{nullptr};  // the thread that acts for the one that trains

  // Since when all ops pass the gate: those that began before its callback came on are over when
  // the step is in which it did. Written by the client's thread.
  std::atomic<std::uint64_t> held_switch{0};  // Gate::callback_switches then; 0: it is off
  std::atomic<std::uint64_t> held_step{0};

  // The client thread's own.
  TimePoint work_since;                        // since when memory waits to be moved
  MemberRole told_role = MemberRole::kHelper;  // in the newest registration
  IdleWatch idle_watch;
  IdleWatch rest_watch;
  TimePoint looked_at;
  TimePoint rests_since;
  TimePoint return_began;
  Bytes parked_by_idleness;
  Bytes returning;      // not zero: some of this is still to come back
  TimePoint closed_at;  // the gate dozes since then, and nothing is parked yet; zero: it is not so
  TimePoint asked_back_at;     // when memory was last asked for to come back
  bool said_it_waits = false;  // for memory to come back to
  std::string deferred_for;    // the reason that was looked into last

  // Answers of the coordinator that other threads wait for.
  Mutex ask_mutex;
  std::condition_variable_any ask_answered;
  MemberRole known_role COMMENSAL_GUARDED_BY(ask_mutex);  // as which the coordinator knows it

  Mutex class_mutex;    // one walk over the threads at a time; taken before `mutex`
  mutable Mutex mutex;  // what people are told, and bounds that change rarely
  JobClass job_class COMMENSAL_GUARDED_BY(mutex);          // in force
  JobClass asked_class COMMENSAL_GUARDED_BY(mutex);        // said at a registration
  wire::JobTerms terms COMMENSAL_GUARDED_BY(mutex);        // the same; memory.max: see `devices`
  bool started_in_idle_class COMMENSAL_GUARDED_BY(mutex);  // by its launcher, until it is known
  std::optional<MultiprocessorState> sm_state COMMENSAL_GUARDED_BY(mutex);
  std::string reason COMMENSAL_GUARDED_BY(mutex);  // what the coordinator said last
  std::vector<std::string> notes COMMENSAL_GUARDED_BY(mutex);
  std::string told_obstacle COMMENSAL_GUARDED_BY(mutex);
  std::shared_ptr<const PressureHandler> helper COMMENSAL_GUARDED_BY(mutex);
  bool in_idle_class COMMENSAL_GUARDED_BY(mutex) = false;
  std::string idle_class_reason COMMENSAL_GUARDED_BY(mutex);
  TimePoint published COMMENSAL_GUARDED_BY(mutex);

  Mutex give_back_mutex;
  std::shared_ptr<const std::function<void()>> give_back_first
      COMMENSAL_GUARDED_BY(give_back_mutex);
  Bytes limit_before COMMENSAL_GUARDED_BY(give_back_mutex){UINT64_MAX};

  mutable Mutex cores_mutex;
  CoreKeeper keeper COMMENSAL_GUARDED_BY(cores_mutex);
  wire::CoreSet cores_wanted COMMENSAL_GUARDED_BY(cores_mutex);
  TimePoint cores_due_since COMMENSAL_GUARDED_BY(cores_mutex);
  std::string cores_reason COMMENSAL_GUARDED_BY(cores_mutex);
  int threads_left_alone COMMENSAL_GUARDED_BY(cores_mutex) = 0;
  ElasticThreads elastic COMMENSAL_GUARDED_BY(cores_mutex);
  int thread_count COMMENSAL_GUARDED_BY(cores_mutex) = 0;  // as it was set; 0: never

  BackgroundMover mover;     // its thread uses what stands above
  CoordinatorClient client;  // last: its thread uses everything above
};

/// What counts against a limit: bytes on the device, those of the slower tier that were touched,
/// and what PyTorch's own allocator holds.
[[nodiscard]] inline Bytes held_by(const AllocatorStats& stats) noexcept {
  return stats.device + stats.host_touched + stats.outside;
}

/// While it lives, the calling thread may be inside of a safe point, where no memory is asked for.
class Session::Impl::Moving {
 public:
  explicit Moving(Impl& session) noexcept : session_(session) { session_.moving.fetch_add(1); }
  ~Moving() { session_.moving.fetch_sub(1); }
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;

 private:
  Impl& session_;
};

/// While it lives, memory of a GPU may move on the calling thread: ops of the job pass its gate,
/// and wait there while that is closed or held. Not of a job that is guaranteed from the start:
/// what it launches beside ops (graphs) passes no gate. On a host memory moves on any thread.
class Session::Impl::InItsStead {
 public:
  explicit InItsStead(Impl& session) noexcept;
  ~InItsStead() {
    if (acts_) session_.in_its_stead.store(nullptr);
  }
  InItsStead(const InItsStead&) = delete;
  InItsStead& operator=(const InItsStead&) = delete;

 private:
  Impl& session_;
  bool acts_ = false;  // one thread at a time
};

/// Names the calling thread; constant while it lives.
[[nodiscard]] inline const void* this_thread() noexcept {
  thread_local constinit char mark = 0;
  return &mark;
}

inline Session::Impl::InItsStead::InItsStead(Impl& session) noexcept : session_(session) {
  if (session.on_host() || session.config.job_class != JobClass::kOpportunistic) return;
  session.gate.expect_hold(true);
  const void* nobody = nullptr;
  acts_ = session.in_its_stead.compare_exchange_strong(nobody, this_thread());
}

/// Does something about the GIL in a scope, and undoes it whatever happens.
class GilScope {
 public:
  GilScope(void* (*enter)(), void (*leave)(void*))
      : leave_(leave), token_(enter != nullptr && leave != nullptr ? enter() : nullptr) {}
  ~GilScope() {
    if (token_ != nullptr) leave_(token_);
  }
  GilScope(const GilScope&) = delete;
  GilScope& operator=(const GilScope&) = delete;

 private:
  void (*leave_)(void*);
  void* token_;
};

template <typename Work>
void Session::Impl::release_and(Work work) {
  const GilScope released(release_gil.load(std::memory_order_acquire),
                          restore_gil.load(std::memory_order_acquire));
  work();
}

template <typename Work>
void Session::Impl::move_and(Work work) {
  if (on_host() || !between_ops()) return work();  // by another thread no live memory moves
  const GilScope taken(take_gil.load(std::memory_order_acquire),
                       give_gil.load(std::memory_order_acquire));
  work();
}

}  // namespace commensal

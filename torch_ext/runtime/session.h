// SPDX-License-Identifier: Apache-2.0
// What is active in this process: allocator, gate, step tracker and the line to the coordinator.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/elastic_allocator.h"
#include "coordinator/wire/terms.h"
#include "torch_ext/runtime/op_samples.h"

namespace commensal {

class DeviceQueue;
class Gate;
class DeviceMemory;
class WorkClock;
class MemorySource;
class MultiprocessorDial;
class StepTracker;

/// Raised for a misuse of the session; the message is one clear sentence with the value.
class SessionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What becomes of memory above the limit.
enum class MemoryPolicy : std::uint8_t {
  kElastic,  ///< live memory moves: out when the limit falls, back when it rises
  kAntman    ///< what does not fit overflows when it is allocated, and stays there until it dies
};
[[nodiscard]] std::string_view to_string(MemoryPolicy policy) noexcept;
/// @throws std::invalid_argument naming a text that is no policy.
[[nodiscard]] MemoryPolicy to_memory_policy(std::string_view text);

/// How this process belongs to its job.
enum class MemberRole : std::uint8_t {
  kMain,   ///< the job's first process that imported torch
  kRank,   ///< started by torchrun or the like (RANK is set)
  kHelper  ///< spawned by a member: compile worker, DataLoader worker; counted, not managed,
           ///< unless `become_rank` says that it trains
};

struct SessionConfig {
  JobId job_id;
  std::string name;
  std::string tenant = "default";
  JobClass job_class = JobClass::kOpportunistic;
  wire::JobTerms terms;
  MemberRole role = MemberRole::kMain;
  int rank = 0;
  int world_size = 1;
  std::string instance = "default";   ///< which node coordinator
  std::filesystem::path runtime_dir;  ///< where its sockets are; empty: do not connect
  std::string device = "host";        ///< whose memory it manages: see `Session::offer_memory`
  /// A device, by the same names, that takes the place of the host once the process uses it
  /// (`Session::take_device`); empty: none will.
  std::string later_device;
  std::filesystem::path spill_dir;  ///< empty: /var/tmp
  std::optional<Bytes> host_cap;    ///< most bytes on the slower tier
  /// Most bytes a second that move between safe points; zero: no bound, nullopt: nothing moves
  /// then.
  std::optional<Bytes> background_rate = 512_MiB;
  MemoryPolicy memory_policy = MemoryPolicy::kElastic;
  /// An allocation that does not fit waits this long for the coordinator's memory; longer only
  /// where nothing else can serve it.
  std::chrono::milliseconds ask_wait{2000};
  /// A job that does nothing for so long is parked until its next op; absent: never.
  std::optional<std::chrono::milliseconds> park_idle;
  bool quiet = false;  ///< no line on stderr unless something is wrong
  /// What holds the share of a GPU's multiprocessors from outside of this process, for people;
  /// empty: nothing does.
  std::string sm_held_by;
  /// "PID:LIST:...": process PID, an ancestor, counts these CPUs as its own; see `own_cores`.
  std::string inherited_cpus;
  /// The number of PyTorch's threads follows the cores, at step borders: changes results.
  bool elastic_threads = false;
  std::chrono::milliseconds connect_timeout{1000};
  bool sample_ops = true;              ///< a guaranteed job's ops, in short windows (SampleWindows)
  std::filesystem::path summary_file;  ///< final statistics are written here; empty: nowhere
};

/// Makes the memory of a session. `between_ops`: see HostMemorySource::Options.
using MakeSource = std::unique_ptr<MemorySource> (*)(const SessionConfig& config,
                                                     bool (*between_ops)());

/// The one session of a process. Owns source, allocator, gate, step tracker and client thread;
/// never destroyed (blocks are freed after exit handlers). In a forked child `current()` is null
/// and everything is inert.
///
/// Thread safety: any member may be called from any thread.
class Session {
 public:
  /// Starts the session. Connects to the coordinator when there is one; without one the job runs
  /// on its own limits.
  /// @param make_source  for tests; null: the memory of this machine.
  /// @throws SessionError if one is active already; std::invalid_argument naming a wrong value.
  static Session& start(SessionConfig config, MakeSource make_source = nullptr);
  /// Makes memory known, by the name of its device, to sessions that start afterwards
  /// (`SessionConfig::device`). "host" is always there; a name that is known stays as it is.
  /// @param work  what tells how long the device works, not owned; null: ops are done on return.
  static void offer_memory(std::string_view device, MakeSource make, WorkClock* work = nullptr);
  /// Returns the active session; null before `start` and in a forked child.
  [[nodiscard]] static Session* current() noexcept;

  [[nodiscard]] const SessionConfig& config() const noexcept;
  [[nodiscard]] ElasticAllocator& allocator() noexcept;
  [[nodiscard]] Gate& gate() noexcept;

  // --- for the torch adaptor ---------------------------------------------------------------
  /// Lets the adaptor switch its FUNCTION callback: called with true when the gate begins to
  /// throttle, meter or remap, with false when it ends. Called at once with the present state.
  void on_callback_switch(void (*enable)(bool on));
  /// Lets the adaptor switch its sampling callback, which is on in short windows of a guaranteed
  /// job (SampleWindows). Called on the client's thread.
  void on_sampling_switch(void (*enable)(bool on));
  /// Takes an op that was sampled.
  void op_sampled(const OpSample& sample) noexcept;
  /// Lets the adaptor release and take back the GIL around a wait: `release` returns a token
  /// (null: was not held) that `restore` gets back.
  void on_wait(void* (*release)(), void (*restore)(void*));
  /// Lets the adaptor keep the program's Python threads from giving a GPU work while memory of it
  /// moves: `take` returns once the calling thread holds the GIL, with a token for `give` (null: it
  /// was not taken).
  void on_move(void* (*take)(), void (*give)(void*));
  /// Lets the adaptor say which tag a thread's new memory gets (zero: none).
  void on_region(TagId (*tag)() noexcept);
  [[nodiscard]] TagId current_tag() const noexcept;
  /// Lets the adaptor tell and set with how many threads the calling thread's ops compute. Called
  /// at step borders, by the thread that ends them, and only with `elastic_threads`.
  void on_thread_count(int (*get)(), void (*set)(int count));
  /// USER_SCOPE ranges and optimizer hooks feed the step tracker, the activity on the job page,
  /// and, at the end of a step, the safe point (which may wait).
  void range_begin(std::string_view name) noexcept;
  void range_end(std::string_view name) noexcept;
  /// A collective of a communication library begins or ends, on whichever thread.
  void collective_begin() noexcept;
  void collective_end() noexcept;
  /// Tells whether one has begun and not ended.
  [[nodiscard]] bool collective_outstanding() const noexcept;
  void optimizer_step_begin() noexcept;
  void optimizer_step_end() noexcept;
  /// A data loader that is fed by other processes looks for a batch, or has found one that is still
  /// to be unpacked: the end of the wait shows before the batch is used. Outside of a fetch on the
  /// training thread: nothing.
  void batch_awaited() noexcept;
  void batch_arrived() noexcept;
  /// A thread of the data loader has a batch for the one that fetches: the same, on any thread.
  void batch_handed_over() noexcept;
  /// The calling thread begins to write a checkpoint. @return whether the training waits for it:
  /// then `checkpoint_end` must follow.
  [[nodiscard]] bool checkpoint_begin() noexcept;
  void checkpoint_end() noexcept;
  /// The calling thread has waited for its GPU, which now has nothing to do.
  void synchronised() noexcept;
  /// Tells whether an optimizer step runs in this process: one relaxed load.
  [[nodiscard]] bool in_optimizer() const noexcept;
  /// Cheap sign of work from the allocator's hot path (one relaxed store every few calls).
  void touch() noexcept;
  /// The same for memory of the host: of a job on a GPU that says nothing of work there.
  void touch_host() noexcept;

  /// Makes a helper a rank: a spawned process that turns out to train (`mp.spawn`). From then on it
  /// has a part of the job's memory, and its steps count. Call it before the adaptor is installed.
  /// Waits until the coordinator knows it, at most for the `connect_timeout`.
  /// @throws SessionError if this process is no helper; std::invalid_argument naming a wrong rank.
  void become_rank(int rank, int world_size);

  /// Says on which GPU its memory is, by the id that NVML gives it ("GPU-..."), and waits for the
  /// limit there, a second at most. For a session whose device is no "host".
  void use_device(std::string id);
  /// Has waits of the job count for others once its device has done what it was given.
  /// @param make  makes the queue, with the word that the device is to write; called at once.
  void follow_queue(
      const std::function<std::unique_ptr<DeviceQueue>(std::atomic<std::uint64_t>& done)>& make);
  /// Lets the share of the multiprocessors be followed at the ends of steps. Makes no call of
  /// `dial`.
  void follow_multiprocessors(std::unique_ptr<MultiprocessorDial> dial);
  /// The process has begun to use a GPU whose memory is not elastic: that is its device from now
  /// on, instead of the host or of elastic memory that could not be had. The limits are those of
  /// `memory`, of which only the total can be bounded (`memory.policy` of the statistics says
  /// "native"); the gate goes by the work clock that was offered; memory of the host has no limit
  /// any more. Must live for ever. Waits as `use_device` does.
  /// @param id   as there.
  /// @param why  for people: why its memory is not elastic; empty: that was not asked for.
  void take_device(DeviceMemory& memory, std::string id, const std::string& why);
  /// Memory of one more GPU: the coordinator divides it as it does that of the first, it has safe
  /// points where this session's has them, and is told in the statistics. Must live for ever. Waits
  /// for the limit there as `use_device` does. @param id  as there, another one each time.
  void add_device(DeviceMemory& memory, const std::string& id);
  /// Asks the coordinator for more memory of that GPU; empty: of the first device. @return what
  /// came of it, in words.
  std::string ask_for_memory(const std::string& id, Bytes needed);
  /// Called at a safe point that has something to do, before anything moves: gives back what others
  /// hold on the device for nothing.
  void before_moves(std::function<void()> give_back);
  /// Tells whether it is one of those that train: no helper.
  [[nodiscard]] bool trains() const noexcept;
  /// Adds a line for people to `memory.notes` of the statistics.
  void note(const std::string& line);
  /// The same, and on stderr, of a quiet job, too.
  void warn(const std::string& line);
  /// Tells whether the calling thread is between two ops of the active session's job: it trains, or
  /// acts in its stead while ops wait at the gate.
  [[nodiscard]] static bool between_ops() noexcept;
  /// Called when memory is short, before the coordinator is asked, and when a limit falls: gives
  /// back what others hold on the device for nothing, and says in words what came of it.
  void on_pressure(PressureHandler help);

  // --- for users ---------------------------------------------------------------------------
  /// Ends a step by hand; from then on ranges and hooks no longer count steps.
  void step() noexcept;
  /// Sets MAX; called between ops of the training thread it is a safe point and returns when
  /// done, at the latest after 2 s with the rest deferred. `training_thread` false: posts it.
  LimitTicket set_memory_limit(Bytes max);
  void set_compute_share(double max);  ///< @throws std::invalid_argument outside 0..1
  /// See ElasticAllocator. Tags go by name; @throws std::invalid_argument for an unknown one,
  /// naming those that there are. Call between ops.
  TagId open_tag(std::string_view name, TagOptions options);
  TagTicket park_tag(std::string_view name);
  TagTicket drop_tag(std::string_view name);
  TagTicket wake_tag(std::string_view name);
  /// See ElasticAllocator. Call between ops.
  Bytes keep_in_place(AddressRange range, std::string_view why);
  void may_move(AddressRange range, std::string_view why);
  /// Says where memory lies as a JSON object (docs/stats.md, "memory map").
  [[nodiscard]] std::string memory_map_json(bool with_blocks) const;
  void pause();
  void resume();
  /// The statistics of docs/stats.md as a JSON object.
  [[nodiscard]] std::string stats_json() const;
  /// "opportunistic, 4 GiB, gate gap, coordinator 1234"
  [[nodiscard]] std::string active_line() const;
  /// Sends the last statistics, writes the summary file, stops the client thread. Idempotent.
  void shutdown() noexcept;

 private:
  Session(SessionConfig config, MakeSource make_source);
  ~Session();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// The one gate of a process: the point where an op waits before it is launched.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "torch_ext/gate/device_time.h"
#include "torch_ext/gate/op_duration.h"
#include "torch_ext/gate/pacing_law.h"

namespace commensal {

/// Totals of the gate, and its state now.
struct GateStats {
  std::string law;
  const char* state = "off";  ///< "off", "open", "closed" or "paused"
  std::string reason;         ///< of the newest decision
  Duration closed_total{};    ///< time that ops waited, summed over threads
  /// Of that, the waits that ended, by the reason of the decision; each reason once.
  std::vector<std::pair<std::string, Duration>> closed_by;
  Duration busy_total{};  ///< device time of outermost ops, summed over threads
  /// Time in ops in which their threads were not on the device, as far as ops were long enough.
  Duration off_device_total{};
  Duration in_flight{};        ///< predicted time of ops that run or are queued
  Duration in_flight_bound{};  ///< zero: none
  Duration waiting_op{};       ///< predicted time of the longest op that waits; zero: none does
  Duration burst{};            ///< PacingLaw::burst
  std::uint64_t ops_gated = 0;
  std::uint64_t ops_seen = 0;
  std::uint64_t hand_overs = 0;    ///< PacingLaw::hand_overs
  std::uint64_t ops_behind = 0;    ///< that passed because the rank was behind its gang
  std::uint64_t copied_bytes = 0;  ///< of `note_copy`
  std::uint64_t gang_epoch = 0;    ///< 0: not gated as a part of a gang
  double share_min = 0.0;
  double share_max = 1.0;  ///< the smaller of the job's own bound and the coordinator's
};

/// A border within the step, from which positions of ops are counted.
enum class StepPart : std::uint8_t {
  kUnknown,
  kBatch,           ///< a batch has arrived
  kOptimizer,       ///< an optimizer begins its step
  kAfterOptimizer,  ///< it has ended it
  kGradients,       ///< gradients were reset
  kStep             ///< the job says that a step has ended
};

/// Lets a thread's outermost dispatcher ops pass or wait, as its pacing law decides.
///
/// The op callback is switched on only while the gate has something to do (`wants_callback`), for
/// even an empty one costs 110 to 190 ns an event. While closed, `wait_op` waits outside of all
/// locks; the caller has released the GIL. The gate never throws from the op path.
/// Thread safety: any member may be called from any thread.
class Gate {
 public:
  /// How a wait passes time; a fake one in tests moves its clock. Returns early when the bell rings
  /// or the gate changed.
  using Sleeper = std::function<void(Duration, const Doorbell&)>;
  /// Whether the program has something to do on this thread before it can go on.
  using Summons = bool (*)() noexcept;

  /// @param view  answers what the device looks like now; called without locks, often. Not owned.
  Gate(std::unique_ptr<PacingLaw> law, const DeviceObserver& view,
       const Clock& clock = SteadyClock::instance(), Sleeper sleeper = {});
  Gate(std::unique_ptr<PacingLaw> law, const DeviceObserver& view, const Clock& clock,
       Sleeper sleeper, const DeviceTime& device_time);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  /// From now on ops count by the work that `DeviceTime::later` measures, for the process has begun
  /// to use another device. Without one: does nothing.
  void go_by_work() noexcept;

  /// What the gate keeps about one thread.
  struct Account;
  /// The accounts of all of its threads.
  struct SlotList;

  /// Returns the calling thread's account, to be used by that thread alone, and until it ends.
  [[nodiscard]] Account* account() noexcept;

  /// Called at the entry of a thread's outermost dispatcher op, with what is known about how long
  /// it takes. Quick when open, quicker with the thread's account at hand. Returns false if the op
  /// would have to wait: then call `wait_op`.
  [[nodiscard]] bool try_enter_op(OpEstimate op, Account* account = nullptr) noexcept;
  /// Waits until the gate opens for this op, then enters it; or enters it through the closed gate
  /// once `summoned` says so, which is asked all along.
  void wait_op(OpEstimate op, Summons summoned = nullptr) noexcept;
  /// Called when that op has ended, on the same thread; notes the device time that it took, which
  /// on a device with queues is known later. Without an entry before: does nothing.
  void leave_op(OpEstimate op, Account* account = nullptr) noexcept;

  /// How long work of our own that nobody waits for may take if it begins now, and goes no further
  /// than asking: nothing enters, nothing is charged. Beside a busy guaranteed job that is nothing,
  /// also where a trickle of ops passes, unless all may run there.
  struct Leave {
    Duration fits{};  ///< zero: it is to wait
    const char* reason = "";
  };
  /// @param takes  the shortest piece of it
  [[nodiscard]] Leave leave(Duration takes) noexcept;

  /// Counts a copy between host and device that passed the gate by its bytes.
  void note_copy(Bytes size) noexcept;

  /// Notes a border within the step; does nothing while no callback is wanted.
  void begin_part(StepPart part) noexcept;
  /// The newest border: its number, and a `StepPart` in the lowest 8 bits. Read on every op.
  [[nodiscard]] const std::atomic<std::uint64_t>& border() const noexcept;

  /// Closes until `resume`: `commensal pause`. `by` is static text for people: who closed it.
  void pause(const char* by = "paused by the job itself") noexcept;
  void resume() noexcept;
  [[nodiscard]] bool paused() const noexcept;
  /// Closes until `wake`, for a job that does nothing: an op that the gate would let in otherwise
  /// waits, and has whoever is set by `on_needed` called, once, on its thread and without a lock.
  /// @param for_all  an op that is summoned waits too: what it would touch is not there.
  void doze(bool for_all = false) noexcept;
  void wake() noexcept;
  [[nodiscard]] bool dozing() const noexcept;
  /// To be set before the first `doze`.
  void on_needed(std::function<void()> bring_back);
  /// Sets whom to tell, once, of a graph that has been held for `kGraphHeldLong` (`kGraphHeld`): of
  /// what length it is. Called on its thread, without a lock. To be set before the first op.
  void on_graph_held(std::function<void(Duration predicted)> tell);
  static constexpr Duration kGraphHeldLong = std::chrono::seconds{10};
  void set_law(std::unique_ptr<PacingLaw> law);
  /// Sets the job's own bounds, taken as 0 to 1; the coordinator's come with the observation.
  void set_share(double min, double max) noexcept;

  /// Ops pass by, not metered, while this says so: a graph is captured, and what is recorded then
  /// runs later. Null: never.
  void pass_while(bool (*recording)()) noexcept;
  [[nodiscard]] bool passes_by() const noexcept;

  /// The writer side, for who changes what ops work on: lets no further op begin, of any thread,
  /// and waits until none runs but on the calling thread. Ops pass the gate only while
  /// `wants_callback`: what began before it was switched on is not seen.
  /// @return false after the deadline, or where the kernel lacks what it takes: nobody is held
  /// then.
  [[nodiscard]] bool hold(Duration deadline) noexcept;
  /// Ends it. Not called after a `hold` that returned false.
  void release() noexcept;
  /// Whether `hold` is to be expected: then ops pass the gate from now on.
  void expect_hold(bool expected) noexcept;

  /// Number of threads that are inside of an op that they entered through the gate.
  [[nodiscard]] std::uint64_t ops_in_flight() const noexcept;

  /// Whether ops need the callback now; changes are reported to the listener, without locks
  /// that ops take. `refresh` looks at the device anew, and is called every few milliseconds by
  /// whoever watches it.
  [[nodiscard]] bool wants_callback() const noexcept;
  /// How often ops came to need it: grows with each change from no to yes.
  [[nodiscard]] std::uint64_t callback_switches() const noexcept;
  void refresh() noexcept;
  /// Called with the present state at once, and at each change.
  void on_callback_switch(void (*enable)(bool on));

  /// In a forked child: opens for ever.
  void disarm_in_child() noexcept;

  [[nodiscard]] GateStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace commensal

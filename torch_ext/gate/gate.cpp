// SPDX-License-Identifier: Apache-2.0
// The gate: a quick path over a cached decision, a slow path that asks the law, and the wait.
#include "torch_ext/gate/gate.h"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <ctime>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/base/relaxed.h"
#include "torch_ext/gate/tick_source.h"
#include "torch_ext/gate/work_in_flight.h"

namespace commensal {

/// One thread's account. Written by that thread alone, read by everybody.
struct alignas(64) Gate::Account {
  std::atomic<std::uint64_t> start_ticks{0};  // 0: no op running
  std::atomic<std::uint64_t> busy_ticks{0};
  std::atomic<std::uint64_t> capped_ticks{0};  // of that: run under a bound on the share
  std::atomic<std::uint64_t> ops{0};
  std::atomic<std::uint64_t> gated{0};
  std::atomic<std::int64_t> closed_ns{0};
  std::atomic<std::int64_t> wait_since_ns{0};      // 0: not waiting
  std::atomic<std::int64_t> waiting_ns{0};         // predicted, of the op that waits
  std::atomic<std::uint64_t> off_device_ticks{0};  // ops ran, and the thread did not
  std::atomic<std::int64_t> predicted_ns{0};       // of the running op
  std::uint8_t charge = 0;                         // of the running op: some of `Charge`
  WorkInFlight::Open open;                         // what was issued without a marker yet
  std::uint64_t issued_ticks = 0;                  // when the last of it was
  Duration prepaid{};                              // of the running op
  std::uint64_t asked_ticks = 0;                   // when ThreadTime was asked last; 0: never
  Duration thread_time{};                          // what it said
  std::uint64_t left_ticks = 0;                    // end of the op before; 0: none, or it waited
  std::uint64_t counted_ticks = 0;                 // of capped_ticks: since ThreadTime was asked
  std::atomic<bool> in_use{true};
  Account* next = nullptr;
};

namespace {

constexpr Duration kMinSleep = std::chrono::microseconds{50};
/// Between two looks of a rank whose gang was just ordered to close.
constexpr Duration kGangLook = std::chrono::milliseconds{1};
/// Ops shorter than this are not checked for running into the guaranteed job's burst.
constexpr Duration kNegligibleOverrun = std::chrono::microseconds{10};
/// Ops of this length are asked for how long of it their thread ran: two questions of some 200 ns.
constexpr Duration kLongEnoughToAsk = std::chrono::microseconds{200};
static_assert(kUnknownOp >= kLongEnoughToAsk, "an op that was never seen is one to ask about");
/// So often is asked besides, so that an op that took longer than foreseen has an answer from
/// before it.
constexpr Duration kAskAgain = std::chrono::milliseconds{1};
/// On a device without queues, what a thread does between two ops needs a core as they do, and
/// counts against a maximum. After a longer pause it is taken to have waited for something.
constexpr Duration kLongestBetween = std::chrono::milliseconds{1};
/// Credit for an op that saves up is kept so long after it asked.
constexpr Duration kKeepSavings = std::chrono::seconds{1};

/// What an op is charged to when it ends.
enum Charge : std::uint8_t { kNothing = 0, kCap = 1, kTrickle = 2, kOverrun = 4 };

void add(std::atomic<std::uint64_t>& counter, std::uint64_t n) noexcept {
  counter.store(counter.load(kRelaxed) + n, kRelaxed);  // one writer
}

using Slot = Gate::Account;

}  // namespace

/// All accounts of a gate. Shared by the gate and the threads that used it, whichever ends last.
struct Gate::SlotList {
  std::atomic<Slot*> head{nullptr};

  SlotList() = default;
  SlotList(const SlotList&) = delete;
  SlotList& operator=(const SlotList&) = delete;
  ~SlotList() {
    for (Slot* slot = head.load(); slot != nullptr;) delete std::exchange(slot, slot->next);
  }

  Slot* take() {
    for (Slot* slot = head.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
      bool free = false;
      if (slot->in_use.compare_exchange_strong(free, true, std::memory_order_acq_rel)) return slot;
    }
    auto* slot = new Slot;
    slot->next = head.load(kRelaxed);
    while (!head.compare_exchange_weak(slot->next, slot, std::memory_order_release)) {
    }
    return slot;
  }

  template <typename Visit>
  void each(Visit visit) const {
    for (Slot* slot = head.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
      visit(*slot);
    }
  }
};

namespace {

/// The accounts that this thread has, by gate; gives them back when the thread ends.
struct ThreadSlots {
  struct Entry {
    std::uint64_t gate;
    std::shared_ptr<Gate::SlotList> list;
    Slot* slot;
  };
  std::vector<Entry> entries;

  ThreadSlots() = default;
  ThreadSlots(const ThreadSlots&) = delete;
  ThreadSlots& operator=(const ThreadSlots&) = delete;
  ~ThreadSlots();
};

/// The account used last; trivial, so that reading it costs no initialisation check.
struct LastSlot {
  std::uint64_t gate;
  Slot* slot;
};
thread_local constinit LastSlot last_slot{0, nullptr};
thread_local ThreadSlots thread_slots;

ThreadSlots::~ThreadSlots() {
  last_slot = {0, nullptr};
  for (const Entry& entry : entries) {
    entry.slot->start_ticks.store(0, kRelaxed);
    // The next owner is another thread.
    entry.slot->asked_ticks = entry.slot->left_ticks = entry.slot->counted_ticks = 0;
    entry.slot->in_use.store(false, std::memory_order_release);
  }
}

std::uint64_t next_gate_id() {
  static std::atomic<std::uint64_t> id{0};
  return id.fetch_add(1, kRelaxed) + 1;
}

}  // namespace

struct Gate::Impl {
  Impl(std::unique_ptr<PacingLaw> pacing_law, const DeviceObserver& device, const Clock& time,
       Sleeper sleep, const DeviceTime& device_time)
      : view(device),
        clock(time),
        ticks(time),
        sleeper(std::move(sleep)),
        thread_time(device_time.threads),
        law(std::move(pacing_law)) {
    last_reason.store("not asked yet", kRelaxed);
    between_ticks = ticks.to_ticks(kLongestBetween);
    late_ticks = ticks.to_ticks(WorkInFlight::kLate);
    if (device_time.threads != nullptr) {
      long_ticks = ticks.to_ticks(kLongEnoughToAsk);
      ask_again_ticks = ticks.to_ticks(kAskAgain);
    }
    if (device_time.work != nullptr && !device_time.work->done_on_return()) {
      work = std::make_unique<WorkInFlight>(*device_time.work);
      has_queues.store(true);
    } else if (device_time.later != nullptr) {
      work = std::make_unique<WorkInFlight>(*device_time.later);
    }
  }

  // --- read by every op: one cache line
  alignas(64) std::atomic<bool> hard_closed{false};  // paused, dozing: no cached decision counts
  std::atomic<bool> held{false};                     // by the writer side
  std::atomic<bool> disarmed{false};
  std::atomic<bool> has_queues{false};
  std::atomic<std::uint64_t> open_until_ticks{0};
  std::atomic<std::int64_t> open_fits_ns{0};
  std::atomic<std::int64_t> open_bound_ns{0};  // on work in flight; 0: none
  std::atomic<std::uint8_t> open_charge{kNothing};
  const std::uint64_t id = next_gate_id();
  std::uint64_t long_ticks = UINT64_MAX;  // nobody to ask how long a thread ran
  std::uint64_t ask_again_ticks = UINT64_MAX;
  std::uint64_t between_ticks = 0;
  std::uint64_t late_ticks = 0;

  alignas(64) std::atomic<std::uint64_t> border{0};
  std::atomic<std::uint64_t> borders{0};

  alignas(64) const DeviceObserver& view;
  const Clock& clock;
  const TickSource ticks;
  const Sleeper sleeper;
  std::atomic<const ThreadTime*> thread_time;  // null: ops are taken to run all the time
  std::unique_ptr<WorkInFlight> work;          // null: an op that returned is done
  std::shared_ptr<SlotList> slots = std::make_shared<SlotList>();

  mutable Mutex mutex;  // law, meters, bounds; held for one decision
  std::unique_ptr<PacingLaw> law COMMENSAL_GUARDED_BY(mutex);
  RunTimeMeter cap COMMENSAL_GUARDED_BY(mutex);
  std::uint64_t capped_ticks_charged COMMENSAL_GUARDED_BY(mutex) = 0;
  RunTimeMeter trickle COMMENSAL_GUARDED_BY(mutex);
  Duration beside_total COMMENSAL_GUARDED_BY(mutex){};  // run beside a busy guaranteed job
  Duration gaps_seen COMMENSAL_GUARDED_BY(mutex){};     // run time elsewhere that was looked at
  Duration savings COMMENSAL_GUARDED_BY(mutex){};       // that an op may make by the trickle
  TimePoint savings_end COMMENSAL_GUARDED_BY(mutex);
  Duration completed COMMENSAL_GUARDED_BY(mutex){};  // work, as the device measured it
  double share_min COMMENSAL_GUARDED_BY(mutex) = 0.0;
  double share_max COMMENSAL_GUARDED_BY(mutex) = 1.0;
  const char* paused_by COMMENSAL_GUARDED_BY(mutex) = nullptr;
  std::atomic<bool> self_paused{
      false};  // paused_by is set; changed, like the next, under the mutex
  std::atomic<bool> dozing{false};
  std::atomic<bool> needed{false};   // since it dozes: an op has come
  std::atomic<bool> for_all{false};  // it dozes for ops that are summoned, too
  std::function<void()> bring_back;
  std::function<void(Duration)> graph_held;
  std::atomic<bool> graph_told{false};

  struct ClosedBy {
    const char* reason = nullptr;  // static text
    Duration total{};
  };
  static constexpr std::size_t kMostReasons = 32;
  std::array<ClosedBy, kMostReasons> closed_by COMMENSAL_GUARDED_BY(mutex);

  TimePoint ordered COMMENSAL_GUARDED_BY(mutex);  // first saw that it is to close; zero: it is not
  std::uint64_t ordered_epoch COMMENSAL_GUARDED_BY(mutex) = 0;
  Duration caught_up COMMENSAL_GUARDED_BY(mutex){};     // since then, by ops that were behind
  TimePoint passed_behind COMMENSAL_GUARDED_BY(mutex);  // the newest of them; zero: it is counted
  std::atomic<std::uint64_t> ops_behind{0};
  std::atomic<std::uint64_t> copied_bytes{0};

  std::atomic<bool> last_open{true};
  std::atomic<bool> last_paused{false};
  std::atomic<const char*> last_reason{""};

  std::atomic<std::uint32_t> generation{0};  // futex: grows with every change from outside

  std::atomic<bool> hold_expected{false};
  std::atomic<bool (*)()> recording{nullptr};
  Mutex switch_mutex;  // orders the listener's calls; never taken by ops
  void (*listener)(bool) COMMENSAL_GUARDED_BY(switch_mutex) = nullptr;
  std::atomic<bool> wanted{false};
  std::atomic<std::uint64_t> switches{0};  // of `wanted` to true

  Slot* slot() noexcept {
    if (last_slot.gate == id) return last_slot.slot;
    return find_slot();
  }

  Slot* find_slot() noexcept {
    for (const auto& entry : thread_slots.entries) {
      if (entry.gate == id) {
        last_slot = {id, entry.slot};
        return entry.slot;
      }
    }
    std::erase_if(thread_slots.entries, [](const ThreadSlots::Entry& entry) {
      return entry.list.use_count() == 1;  // that gate is gone
    });
    Slot* slot = slots->take();
    thread_slots.entries.push_back({id, slots, slot});
    last_slot = {id, slot};
    return slot;
  }

  /// Whether a thread has waited since it issued its last op.
  [[nodiscard]] bool is_late(const Slot& slot, std::uint64_t now) const noexcept {
    return now > slot.issued_ticks && now - slot.issued_ticks > late_ticks;
  }

  /// @param known  what is predicted for the op; zero: it was never seen.
  void enter(Slot& slot, std::uint64_t now, std::uint8_t charge, Duration known,
             Duration prepaid) noexcept {
    const Duration predicted = or_unknown(known);
    if (has_queues.load(kRelaxed)) {
      work->begins(slot.open, {known > Duration::zero(), charge, is_late(slot, now)});
    }
    slot.prepaid = prepaid;
    const ThreadTime* const threads = thread_time.load(kRelaxed);
    if (threads != nullptr && predicted >= kLongEnoughToAsk) {
      const Duration ran = ask_thread(slot, *threads, now);
      if ((slot.charge & kCap) != 0 && !has_queues.load(kRelaxed)) settle(slot, ran, 0);
      slot.left_ticks = 0;  // counted up to here
    }
    enter_quick(slot, now, charge, predicted);
  }
  static void enter_quick(Slot& slot, std::uint64_t now, std::uint8_t charge,
                          Duration predicted) noexcept {
    slot.charge = charge;
    slot.predicted_ns.store(predicted.count(), kRelaxed);
    slot.start_ticks.store(now | 1U, kRelaxed);
    add(slot.ops, 1);
  }

  /// Whether an op that has just entered must go back: the writer side has the gate. Who holds has
  /// seen the entry, or the thread that entered sees the hold: `hold` has every thread's stores
  /// before it come through (membarrier), so that ops need no fence.
  [[nodiscard]] bool goes_back(Slot& slot) const noexcept {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return held.load(kRelaxed) && withdraw(slot);
  }
  [[gnu::noinline]] static bool withdraw(Slot& slot) noexcept {
    slot.start_ticks.store(0, std::memory_order_release);
    slot.ops.store(slot.ops.load(kRelaxed) - 1, kRelaxed);
    return true;
  }

  void invalidate() noexcept { open_until_ticks.store(0); }

  void announce_change() noexcept {
    generation.fetch_add(1);
    (void)::syscall(SYS_futex, &generation, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

  void sleep(Duration time, const Doorbell& bell, std::uint32_t seen) noexcept {
    time = std::clamp(time, kMinSleep, kLongestSleep);
    if (sleeper) return sleeper(time, bell);
    sleep_until_rung(generation, seen, bell, time);
  }

  struct Verdict {
    PacingDecision decision;
    std::uint8_t charge = kNothing;
    bool needed = false;  // open, if the job were not dozing
  };

  [[gnu::noinline]] bool ask_and_enter(Slot& slot, const OpEstimate& op) noexcept {
    const Duration predicted = op.predicted();
    const Verdict verdict = ask({.predicted = predicted, .graph = op.is_graph()});
    if (verdict.decision.open) {
      enter(slot, ticks.now(), verdict.charge, predicted, verdict.decision.prepaid);
    }
    return verdict.decision.open && !goes_back(slot);
  }

  /// An op that is long: what its thread runs counts from here.
  [[gnu::noinline]] bool enter_long(Slot& slot, std::uint64_t now, Duration predicted) noexcept {
    enter(slot, now, open_charge.load(kRelaxed), predicted, Duration::zero());
    return !goes_back(slot);
  }

  /// Asks the calling thread's time. Returns what it ran since it was asked before; negative if it
  /// never was.
  static Duration ask_thread(Slot& slot, const ThreadTime& threads, std::uint64_t now) noexcept {
    const Duration total = threads.total();
    const Duration ran = slot.asked_ticks == 0 ? Duration{-1} : total - slot.thread_time;
    slot.thread_time = total;
    slot.asked_ticks = now | 1U;
    return ran;
  }

  /// Of the time that an op took, what its thread was on the device at most.
  /// @param before  what lies before the op and counts against a maximum.
  [[gnu::noinline]] std::uint64_t on_device(Slot& slot, std::uint64_t now, std::uint64_t took,
                                            std::uint64_t before) noexcept {
    const ThreadTime* const threads = thread_time.load(kRelaxed);
    if (threads == nullptr) return took;  // the device is another one since
    const Duration ran = ask_thread(slot, *threads, now);
    if (ran < Duration::zero()) return took;
    const std::uint64_t on = std::min(took, ticks.to_ticks(ran));
    add(slot.off_device_ticks, took - on);
    if ((slot.charge & kCap) != 0) settle(slot, ran, on + before);
    return on;
  }

  /// Counts against the maximum what a thread ran and nobody counted: the gate itself, falling
  /// asleep and waking up. As between two ops, at most a millisecond.
  /// @param ran  since the question before.  @param known  of that, what is being counted.
  void settle(Slot& slot, Duration ran, std::uint64_t known) noexcept {
    known += std::exchange(slot.counted_ticks, 0);
    const std::uint64_t all = ran > Duration::zero() ? ticks.to_ticks(ran) : 0;
    if (all > known) add(slot.capped_ticks, std::min(all - known, between_ticks));
  }

  static void count(Slot& slot, std::uint64_t ticks_run) noexcept {
    add(slot.capped_ticks, ticks_run);
    slot.counted_ticks += ticks_run;
  }

  /// What a thread did from the end of its last op to now, if that counts.
  [[nodiscard]] std::uint64_t between(const Slot& slot, std::uint64_t now) const noexcept {
    if (slot.left_ticks == 0 || now <= slot.left_ticks) return 0;
    const std::uint64_t passed = now - slot.left_ticks;
    return passed < between_ticks ? passed : 0;
  }

  /// Predicted time of the work in the device's queues.
  [[nodiscard]] Duration queued() const noexcept {
    return has_queues.load(kRelaxed) ? work->pending() : Duration::zero();
  }
  /// What the running ops are predicted to take still, and the work that is queued. An op that
  /// takes longer than predicted counts as nothing: its end is near, or was never known.
  [[nodiscard]] Duration in_flight() const noexcept {
    const std::uint64_t now = ticks.now();
    Duration sum = queued();
    slots->each([&](const Slot& slot) {
      const std::uint64_t start = slot.start_ticks.load(kRelaxed);
      if (start == 0) return;
      const Duration ran = now > start ? ticks.to_duration(now - start) : Duration::zero();
      const Duration predicted{slot.predicted_ns.load(kRelaxed)};
      sum += std::max(Duration::zero(), predicted - ran);
    });
    return sum;
  }
  [[gnu::noinline]] bool is_full(std::int64_t bound_ns) const noexcept {
    return in_flight().count() >= bound_ns;
  }

  /// Charges what the device has completed meanwhile.
  void collect() noexcept {
    if (!has_queues.load(kRelaxed)) return;
    const TimePoint now = clock.now();
    const DeviceObservation device = view.observe(now);
    Duration all{};
    Duration capped{};
    Duration beside{};
    Duration prepaid{};
    work->collect(now, gap_since(device), [&](const CompletedWork& done) {
      all += done.took;
      if ((done.charge & kCap) != 0) capped += done.took;
      beside += ran_beside(device, now, done.charge, done.took);
      // What the guaranteed job loses by it, besides the time that it took.
      if ((done.charge & kTrickle) != 0) beside += device.gap_rules.change;
      prepaid += done.prepaid;
    });
    if (all == Duration::zero()) return;
    const MutexLock lock(mutex);
    completed += all;
    cap.charge(capped);
    trickle.charge(beside - prepaid);
    beside_total += beside;
  }

  /// Since when the guaranteed jobs have been waiting; the largest time: one works.
  static TimePoint gap_since(const DeviceObservation& device) noexcept {
    if (!device.guaranteed_present) return {};
    return device.all_waiting ? device.idle_since : TimePoint::max();
  }

  /// What work that has just ended ran beside a busy guaranteed job.
  static Duration ran_beside(const DeviceObservation& device, TimePoint now, std::uint8_t charge,
                             Duration took) noexcept {
    if ((charge & kTrickle) != 0) return took;
    if ((charge & kOverrun) == 0 || !device.guaranteed_present || device.all_waiting ||
        device.busy_since == TimePoint{}) {
      return Duration::zero();
    }
    return std::clamp(now - device.busy_since, Duration::zero(), took);
  }

  /// Notes what an op issued to the device's queues.
  [[gnu::noinline]] void issued(Slot& slot, const OpEstimate& op) noexcept {
    if (disarmed.load(kRelaxed)) return;
    const TimePoint now = clock.now();
    work->issued(slot.open,
                 {.op = op,
                  .predicted = op.predicted(),
                  .charge = slot.charge,
                  .neighbour = (slot.charge & kTrickle) != 0   ? Neighbour::kWorking
                               : (slot.charge & kOverrun) != 0 ? Neighbour::kWaiting
                                                               : Neighbour::kNone,
                  .prepaid = std::exchange(slot.prepaid, Duration::zero())},
                 Duration{open_bound_ns.load(kRelaxed)}, now);
  }

  /// Counts how long a graph was held in one wait, and tells once.
  void note_held(const PacingDecision& decision, Duration slept, Duration predicted,
                 Duration& in_all) noexcept {
    if (decision.reason != kGraphHeld) return;
    in_all += slept;
    if (in_all >= kGraphHeldLong && graph_held && !graph_told.exchange(true)) graph_held(predicted);
  }

  struct Question {
    Duration predicted{};  ///< zero: not known
    bool graph = false;
    bool peek = false;    ///< only to report, with nothing cached
    bool in_line = true;  ///< it comes behind what is in flight, which is bounded
  };
  /// Asks the law.
  Verdict ask(const Question& op) noexcept {
    const bool peek = op.peek;
    collect();
    const MutexLock lock(mutex);
    const TimePoint now = clock.now();
    const DeviceObservation device = view.observe(now);
    const double share = std::min(share_max, device.share_max);
    const Duration run_total = charge_cap();
    cap.advance(now, share);
    const double beside = std::max(share_min, device.trickle);
    const bool saves = now < savings_end;
    trickle.advance(now, beside, saves ? std::max(savings, kMeterCredit) : kMeterCredit);
    const Duration gaps = run_total - beside_total;
    const Duration in_gaps = gaps - std::exchange(gaps_seen, gaps);
    if (beside <= device.least_trickle && !saves && in_gaps > Duration::zero()) {
      trickle.charge_up_to(in_gaps, Duration{static_cast<Duration::rep>(
                                        beside * static_cast<double>(kGapsCountFor.count()))});
    }

    Verdict verdict;
    const bool paused = paused_by != nullptr || device.paused;
    const bool is_ordered = follow_order(device, share);
    bool behind = is_ordered && catches_up(device.gang, now, peek);
    if (held.load()) {
      behind = false;
      verdict.decision = {.open = false,
                          .trickle = false,
                          .recheck = kLongestSleep,
                          .valid_for = {},
                          .fits = {},
                          .reason = "memory is being moved"};
    } else if (behind) {
      verdict.decision = one_op_behind(device);
    } else if (paused) {
      if (!peek && saves) savings_end = now + kKeepSavings;  // what is saved is not lost by it
      verdict.decision = {.open = false,
                          .trickle = false,
                          .recheck = until_looked_at(device, now),
                          .valid_for = {},
                          .fits = {},
                          .reason = paused_by != nullptr ? paused_by : "paused by the coordinator"};
    } else if (share <= 0.0) {
      verdict.decision = {
          .open = false,
          .trickle = false,
          .recheck = until_looked_at(device, now),
          .valid_for = {},
          .fits = {},
          .reason = share_max <= 0.0 ? "paused: its share of device time is 0"
                                     : "closed for a moment: a guaranteed job is measured alone"};
    } else {
      verdict.decision =
          law->decide({.device = device,
                       .predicted = op.predicted,
                       .graph = op.graph,
                       .cap_debt = debt_to_go_by(device.gang, cap.debt() + queued()),
                       .trickle_debt = debt_to_go_by(device.gang, trickle.debt() + queued()),
                       .share_min = share_min,
                       .share_max = share_max,
                       .run_total = run_total,
                       .in_flight = op.in_line ? in_flight() : Duration::zero(),
                       .queued = queued(),
                       .peek = peek});
      const bool owes = (share < 1.0 && cap.debt() > Duration::zero()) ||
                        (verdict.decision.trickle && trickle.debt() > Duration::zero());
      behind = device.gang.behind() && verdict.decision.open && owes;
      if (behind) verdict.decision.reason = kCatchUpReason;
    }
    if (dozing.load(kRelaxed) && verdict.decision.open) {
      verdict.decision = {.open = false,
                          .trickle = false,
                          .recheck = kLongestSleep,
                          .valid_for = {},
                          .fits = {},
                          .reason = "parked while idle: an op has it brought back"};
      verdict.needed = true;
    }
    const PacingDecision& decision = verdict.decision;
    if (!peek && !decision.open && decision.saves > Duration::zero()) {
      savings = decision.saves;
      savings_end = now + kKeepSavings;
    }
    if (!peek && decision.open) trickle.charge(decision.prepaid);
    if (share < 1.0) verdict.charge |= kCap;
    if (device.guaranteed_present) verdict.charge |= decision.trickle ? kTrickle : kOverrun;
    last_open.store(decision.open, kRelaxed);
    last_paused.store(paused || share <= 0.0, kRelaxed);
    last_reason.store(decision.reason, kRelaxed);
    if (device.gang.epoch != 0) {
      const bool stands = is_ordered && !decision.open;
      view.show_gang(device.gang.epoch, stands ? device.gang.stand() : 0);
    }
    if (!peek && behind && decision.open) ops_behind.fetch_add(1, kRelaxed);
    if (!peek && decision.open && decision.valid_for > Duration::zero()) {
      open_fits_ns.store(decision.fits.count(), kRelaxed);
      open_charge.store(verdict.charge, kRelaxed);
      const bool turns = has_queues.load(kRelaxed) && device.turn_until != TimePoint{};
      const bool bounded = device.guaranteed_present || turns;
      open_bound_ns.store(bounded ? device.gap_rules.in_flight.count() : 0, kRelaxed);
      // Under the mutex, so that a pause cannot slip in between and be overwritten.
      open_until_ticks.store(ticks.now() + ticks.to_ticks(decision.valid_for), kRelaxed);
    }
    return verdict;
  }

  /// Whether the coordinator wants the gate closed, whoever waits for this process. What the job
  /// itself wants (`paused_by`, a share of 0) is done at once.
  bool follow_order(const DeviceObservation& device, double share) noexcept
      COMMENSAL_REQUIRES(mutex) {
    const bool own = paused_by != nullptr || share_max <= 0.0;
    const bool is_ordered = !own && (device.paused || share <= 0.0);
    // It may have been open in between, too shortly for anybody here to have seen it.
    const bool is_new = std::exchange(ordered_epoch, device.gang.epoch) != device.gang.epoch;
    if (!is_ordered || is_new) {
      ordered = passed_behind = TimePoint{};
      caught_up = Duration::zero();
    }
    if (is_ordered && ordered == TimePoint{}) ordered = device.now;
    return is_ordered;
  }

  /// Whether an op passes the ordered close because others wait for this rank.
  bool catches_up(const GangObservation& gang, TimePoint now, bool peek) noexcept
      COMMENSAL_REQUIRES(mutex) {
    Duration in_all = caught_up;
    if (passed_behind != TimePoint{}) in_all += ran_on(gang, now - passed_behind);
    const bool passes = runs_on(gang, in_all);
    if (peek) return passes;
    caught_up = in_all;
    passed_behind = passes ? now : TimePoint{};
    return passes;
  }

  static PacingDecision one_op_behind(const DeviceObservation& device) noexcept {
    return {.open = true,
            .trickle = device.guaranteed_present,
            .recheck = {},
            .valid_for = {},
            .fits = {},
            .reason = kCatchUpReason};
  }

  /// A rank of a gang looks often at first: others may come to be ahead of it.
  Duration until_looked_at(const DeviceObservation& device, TimePoint now) const noexcept
      COMMENSAL_REQUIRES(mutex) {
    if (device.gang.epoch == 0 || ordered == TimePoint{}) return kLongestSleep;
    return std::clamp((now - ordered) / 8, kGangLook, kLongestSleep);
  }

  /// Notes that an op waited for so long because of this.
  void waited(const char* reason, Duration time) noexcept {
    const MutexLock lock(mutex);
    for (ClosedBy& entry : closed_by) {
      if (entry.reason == nullptr) entry.reason = reason;
      if (entry.reason != reason && &entry != &closed_by.back()) continue;
      entry.total += time;
      return;
    }
  }

  /// Charges the ops that ended under a bound since the last time. Returns the run time of all that
  /// ever ended.
  Duration charge_cap() noexcept COMMENSAL_REQUIRES(mutex) {
    std::uint64_t capped = 0;
    std::uint64_t all = 0;
    slots->each([&](const Slot& slot) {
      capped += slot.capped_ticks.load(kRelaxed);
      all += slot.busy_ticks.load(kRelaxed);
    });
    cap.charge(ticks.to_duration(capped - std::exchange(capped_ticks_charged, capped)));
    return ticks.to_duration(all) + completed;
  }

  /// Charges an op for what it ran beside a busy guaranteed job.
  [[gnu::noinline]] void charge_trickle(Slot& slot, Duration took) noexcept {
    if (disarmed.load(kRelaxed)) return;  // another thread may have held the lock at the fork
    const TimePoint now = clock.now();
    const Duration beside = ran_beside(view.observe(now), now, slot.charge, took);
    const Duration prepaid = std::exchange(slot.prepaid, Duration::zero());
    if (beside == Duration::zero() && prepaid == Duration::zero()) return;
    const MutexLock lock(mutex);
    trickle.charge(beside - prepaid);
    beside_total += beside;
  }

  /// Changes the bounds under the lock and lets waiting ops look again.
  template <typename Change>
  void change(Change apply) noexcept {
    {
      const MutexLock lock(mutex);
      apply();
      self_paused.store(paused_by != nullptr);
      hard_closed.store(paused_by != nullptr || dozing.load() || held.load());
      invalidate();
    }
    announce_change();
  }
};

Gate::Gate(std::unique_ptr<PacingLaw> law, const DeviceObserver& view, const Clock& clock,
           Sleeper sleeper)
    : Gate(std::move(law), view, clock, std::move(sleeper), DeviceTime::of_cpu(clock)) {}

Gate::Gate(std::unique_ptr<PacingLaw> law, const DeviceObserver& view, const Clock& clock,
           Sleeper sleeper, const DeviceTime& device_time)
    : impl_(std::make_unique<Impl>(std::move(law), view, clock, std::move(sleeper), device_time)) {}

Gate::~Gate() = default;

void Gate::go_by_work() noexcept {
  if (impl_->work == nullptr) return;
  impl_->thread_time.store(nullptr);
  impl_->has_queues.store(true);
  refresh();
}

Gate::Account* Gate::account() noexcept { return impl_->slot(); }

// The next two are all that an op at an open gate runs: what happens more rarely is out of line, in
// calls at their ends, so that they need no stack frame.

bool Gate::try_enter_op(OpEstimate op, Account* account) noexcept {
  if (account == nullptr) return try_enter_op(op, this->account());
  Impl& gate = *impl_;
  if (gate.disarmed.load(kRelaxed)) return true;
  const std::uint64_t now = gate.ticks.now();
  const Duration known = op.predicted();
  const Duration predicted = or_unknown(known);
  if (now >= gate.open_until_ticks.load(kRelaxed) || gate.hard_closed.load() ||
      (predicted + gate.queued()).count() > gate.open_fits_ns.load(kRelaxed)) {
    return gate.ask_and_enter(*account, op);
  }
  if (const std::int64_t bound = gate.open_bound_ns.load(kRelaxed);
      bound != 0 && gate.is_full(bound)) {
    return gate.ask_and_enter(*account, op);
  }
  if (predicted >= kLongEnoughToAsk) return gate.enter_long(*account, now, known);
  const std::uint8_t charge = gate.open_charge.load(kRelaxed);
  if (gate.has_queues.load(kRelaxed))
    gate.work->begins(account->open, {true, charge, gate.is_late(*account, now)});
  Impl::enter_quick(*account, now, charge, predicted);
  return !gate.goes_back(*account);
}

void Gate::wait_op(OpEstimate op, Summons summoned) noexcept {
  Impl& gate = *impl_;
  if (gate.disarmed.load(kRelaxed)) return;
  Slot& slot = *gate.slot();
  const Duration predicted = op.predicted();
  if (gate.has_queues.load(kRelaxed))
    gate.work->flush(slot.open, gate.is_late(slot, gate.ticks.now()));
  if ((slot.charge & kCap) != 0) Impl::count(slot, gate.between(slot, gate.ticks.now()));
  slot.left_ticks = 0;
  const TimePoint since = gate.clock.now();
  Duration held{};
  slot.waiting_ns.store(or_unknown(predicted).count(), kRelaxed);
  slot.wait_since_ns.store(since.time_since_epoch().count(), kRelaxed);
  add(slot.gated, 1);
  while (!gate.disarmed.load(kRelaxed)) {
    const std::uint32_t seen = gate.generation.load();
    const Impl::Verdict verdict = gate.ask({.predicted = predicted, .graph = op.is_graph()});
    bool called = summoned != nullptr && summoned();
    const bool dozes_for_all = gate.dozing.load() && gate.for_all.load();
    const bool needed = verdict.needed || (called && dozes_for_all);
    if (needed && !gate.needed.exchange(true) && gate.bring_back) gate.bring_back();
    // While memory is being moved, or is away, nobody goes through, whoever calls.
    if (gate.held.load() || dozes_for_all) called = false;
    if (verdict.decision.open || called) {
      gate.enter(slot, gate.ticks.now(), verdict.charge, predicted,
                 verdict.decision.open ? verdict.decision.prepaid : Duration::zero());
      if (!gate.goes_back(slot)) break;
      continue;
    }
    const TimePoint began = gate.clock.now();
    gate.sleep(verdict.decision.recheck, verdict.decision.bell, seen);
    if (!gate.disarmed.load(kRelaxed)) {
      const Duration slept = gate.clock.now() - began;
      gate.waited(verdict.decision.reason, slept);
      gate.note_held(verdict.decision, slept, predicted, held);
    }
  }
  slot.wait_since_ns.store(0, kRelaxed);
  slot.closed_ns.store(slot.closed_ns.load(kRelaxed) + (gate.clock.now() - since).count(),
                       kRelaxed);
}

void Gate::leave_op(OpEstimate op, Account* account) noexcept {
  if (account == nullptr) return leave_op(op, this->account());
  Impl& gate = *impl_;
  const std::uint64_t start = account->start_ticks.load(kRelaxed);
  if (start == 0) return;
  const std::uint64_t now = gate.ticks.now();
  std::uint64_t took = now > start ? now - start : 0;
  account->start_ticks.store(0, std::memory_order_release);
  if (gate.has_queues.load(kRelaxed)) {
    account->issued_ticks = now;
    return gate.issued(*account, op);
  }
  const std::uint8_t charge = account->charge;
  const std::uint64_t before = (charge & kCap) != 0 ? gate.between(*account, start) : 0;
  const bool asks = took >= gate.long_ticks || now - account->asked_ticks >= gate.ask_again_ticks;
  if (asks) took = gate.on_device(*account, now, took, before);
  add(account->busy_ticks, took);
  const Duration duration = gate.ticks.to_duration(took);
  op.record(duration);
  if ((charge & kCap) != 0) {
    Impl::count(*account, took + before);
    if (asks) account->counted_ticks = 0;  // settled just now
    account->left_ticks = now;
  }
  if ((charge & kTrickle) != 0 || ((charge & kOverrun) != 0 && duration > kNegligibleOverrun)) {
    gate.charge_trickle(*account, duration);
  }
}

void Gate::begin_part(StepPart part) noexcept {
  if (!impl_->wanted.load(kRelaxed)) return;
  const std::uint64_t number = impl_->borders.fetch_add(1, kRelaxed) + 1;
  impl_->border.store((number << 8U) | static_cast<std::uint64_t>(part), kRelaxed);
}

const std::atomic<std::uint64_t>& Gate::border() const noexcept { return impl_->border; }

void Gate::pause(const char* by) noexcept {
  impl_->change([&]() COMMENSAL_NO_THREAD_SAFETY_ANALYSIS { impl_->paused_by = by; });
  refresh();
}

void Gate::resume() noexcept {
  impl_->change([&]() COMMENSAL_NO_THREAD_SAFETY_ANALYSIS { impl_->paused_by = nullptr; });
  refresh();
}

bool Gate::paused() const noexcept { return impl_->self_paused.load(); }

void Gate::doze(bool for_all) noexcept {
  impl_->change([&] {
    impl_->needed.store(false);
    impl_->for_all.store(for_all);
    impl_->dozing.store(true);
  });
  refresh();
}

void Gate::wake() noexcept {
  impl_->change([&] { impl_->dozing.store(false); });
  refresh();
}

bool Gate::dozing() const noexcept { return impl_->dozing.load(); }

void Gate::on_needed(std::function<void()> bring_back) {
  impl_->bring_back = std::move(bring_back);
}

void Gate::on_graph_held(std::function<void(Duration)> tell) {
  impl_->graph_held = std::move(tell);
}

void Gate::set_law(std::unique_ptr<PacingLaw> law) {
  impl_->change([&]() COMMENSAL_NO_THREAD_SAFETY_ANALYSIS { impl_->law = std::move(law); });
  refresh();
}

void Gate::set_share(double min, double max) noexcept {
  impl_->change([&]() COMMENSAL_NO_THREAD_SAFETY_ANALYSIS {
    impl_->share_min = std::clamp(min, 0.0, 1.0);
    impl_->share_max = std::clamp(max, 0.0, 1.0);
  });
  refresh();
}

void Gate::pass_while(bool (*recording)()) noexcept { impl_->recording.store(recording); }

bool Gate::passes_by() const noexcept {
  auto* const recording = impl_->recording.load(kRelaxed);
  return recording != nullptr && recording();
}

bool Gate::hold(Duration deadline) noexcept {
  static const bool barriers =
      ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  Impl& gate = *impl_;
  if (!barriers || gate.disarmed.load()) return false;
  const Slot* const own = gate.slot();
  gate.change([&] { gate.held.store(true); });
  bool quiet = ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
  const TimePoint until = gate.clock.now() + deadline;
  const auto runs = [&] {
    bool any = false;
    gate.slots->each([&](const Slot& slot) {
      any = any || (&slot != own && slot.start_ticks.load(std::memory_order_acquire) != 0);
    });
    return any;
  };
  while (quiet && runs()) {
    if (gate.clock.now() >= until) {
      quiet = false;
    } else {
      gate.sleep(kMinSleep, {}, gate.generation.load());
    }
  }
  if (!quiet) release();
  return quiet;
}

void Gate::release() noexcept {
  impl_->change([&] { impl_->held.store(false); });
}

void Gate::expect_hold(bool expected) noexcept {
  if (impl_->hold_expected.exchange(expected) != expected) refresh();
}

Gate::Leave Gate::leave(Duration takes) noexcept {
  Impl& gate = *impl_;
  if (gate.disarmed.load(kRelaxed) || !gate.wanted.load()) return {Duration::max(), ""};
  // A closed gate is only looked at: what saves up for its turn is ops.
  for (const bool peek : {true, false}) {
    const PacingDecision decision =
        gate.ask({.predicted = takes, .peek = peek, .in_line = false}).decision;
    if (!decision.open) return {Duration::zero(), decision.reason};
    if (decision.trickle && decision.fits < takes) return {Duration::zero(), "guaranteed job busy"};
    if (!peek) return {std::max(takes, decision.fits - gate.queued()), decision.reason};
  }
  return {};
}

void Gate::note_copy(Bytes size) noexcept { impl_->copied_bytes.fetch_add(size.count(), kRelaxed); }

std::uint64_t Gate::ops_in_flight() const noexcept {
  std::uint64_t count = 0;
  impl_->slots->each([&count](const Slot& slot) {
    if (slot.start_ticks.load(kRelaxed) != 0) ++count;
  });
  return count;
}

bool Gate::wants_callback() const noexcept { return impl_->wanted.load(); }
std::uint64_t Gate::callback_switches() const noexcept { return impl_->switches.load(); }

void Gate::refresh() noexcept {
  Impl& gate = *impl_;
  const MutexLock order(gate.switch_mutex);
  bool wants = false;
  if (!gate.disarmed.load()) {
    const DeviceObservation device = gate.view.observe(gate.clock.now());
    const MutexLock lock(gate.mutex);
    const double share = std::min(gate.share_max, device.share_max);
    wants = gate.paused_by != nullptr || gate.dozing.load(kRelaxed) || device.paused ||
            share <= 0.0 || gate.hold_expected.load() || gate.law->throttles(device, share);
  }
  if (wants) (void)gate.ask({.peek = true});
  if (wants && !gate.wanted.load()) gate.switches.fetch_add(1);
  if (gate.wanted.exchange(wants) != wants && gate.listener != nullptr) gate.listener(wants);
}

void Gate::on_callback_switch(void (*enable)(bool on)) {
  {
    const MutexLock order(impl_->switch_mutex);
    impl_->listener = enable;
    if (enable != nullptr) enable(impl_->wanted.load());
  }
  refresh();
}

void Gate::disarm_in_child() noexcept {
  // Another thread of the parent may have held a lock at the fork: none is taken here.
  impl_->disarmed.store(true);
  impl_->wanted.store(false);
}

GateStats Gate::stats() const {
  Impl& gate = *impl_;
  GateStats stats;
  if (gate.disarmed.load()) {
    stats.reason = "inert in a forked child";
    return stats;
  }
  std::uint64_t busy_ticks = 0;
  std::uint64_t off_device_ticks = 0;
  const TimePoint now = gate.clock.now();
  const std::uint64_t now_ticks = gate.ticks.now();
  gate.slots->each([&](const Slot& slot) {
    stats.ops_seen += slot.ops.load(kRelaxed);
    stats.ops_gated += slot.gated.load(kRelaxed);
    stats.closed_total += Duration{slot.closed_ns.load(kRelaxed)};
    const std::int64_t waiting = slot.wait_since_ns.load(kRelaxed);
    if (waiting != 0) {
      stats.waiting_op = std::max(stats.waiting_op, Duration{slot.waiting_ns.load(kRelaxed)});
      stats.closed_total += std::max(Duration::zero(), now.time_since_epoch() - Duration{waiting});
    }
    busy_ticks += slot.busy_ticks.load(kRelaxed);
    off_device_ticks += slot.off_device_ticks.load(kRelaxed);
    const std::uint64_t start = slot.start_ticks.load(kRelaxed);
    if (start != 0 && now_ticks > start) busy_ticks += now_ticks - start;
  });
  stats.busy_total = gate.ticks.to_duration(busy_ticks);
  stats.off_device_total = gate.ticks.to_duration(off_device_ticks);
  stats.in_flight = gate.in_flight();
  const DeviceObservation device = gate.view.observe(now);
  {
    const MutexLock lock(gate.mutex);
    stats.law = std::string(gate.law->name());
    stats.busy_total += gate.completed;
    stats.burst = gate.law->burst();
    stats.hand_overs = gate.law->hand_overs();
    for (const Impl::ClosedBy& entry : gate.closed_by) {
      if (entry.reason == nullptr) break;
      const auto same =
          std::find_if(stats.closed_by.begin(), stats.closed_by.end(),
                       [&](const auto& known) { return known.first == entry.reason; });
      if (same == stats.closed_by.end()) {
        stats.closed_by.emplace_back(entry.reason, entry.total);
      } else {
        same->second += entry.total;  // the same words in another law
      }
    }
    stats.in_flight_bound = device.gap_rules.in_flight;
    stats.ops_behind = gate.ops_behind.load(kRelaxed);
    stats.copied_bytes = gate.copied_bytes.load(kRelaxed);
    stats.gang_epoch = device.gang.epoch;
    stats.share_min = std::max(gate.share_min, device.trickle);
    stats.share_max = std::min(gate.share_max, device.share_max);
  }
  if (!gate.wanted.load()) {
    stats.state = "off";
    stats.reason = "nothing to wait for";
  } else {
    stats.reason = gate.last_reason.load(kRelaxed);
    stats.state = gate.last_paused.load(kRelaxed) ? "paused"
                  : gate.last_open.load(kRelaxed) ? "open"
                                                  : "closed";
  }
  return stats;
}

}  // namespace commensal

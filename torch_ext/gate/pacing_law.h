// SPDX-License-Identifier: Apache-2.0
// Pacing laws: decisions, from what a device looks like to "open" or "wait, because".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "allocator/base/clock.h"
#include "coordinator/wire/gaps.h"
#include "torch_ext/gate/doorbell.h"
#include "torch_ext/gate/gang_rule.h"

namespace commensal {

/// What the guaranteed side of a device is doing, and what the coordinator allows this job, as one
/// observation.
struct DeviceObservation {
  TimePoint now;
  bool guaranteed_present = false;  ///< a guaranteed job's lease is alive
  bool coordinator_alive = false;   ///< its heartbeat is fresh
  bool all_waiting = false;         ///< every guaranteed process is in a wait
  /// If not: only because a device still works on what those that wait had given it before.
  /// Nobody rings when it is done.
  bool draining = false;
  /// All wait, and each says when its wait ends, and its device has said that it is done: nothing
  /// more is to come before that.
  bool surely_idle = false;
  TimePoint idle_since;         ///< when the last of them began to wait
  TimePoint idle_expected_end;  ///< earliest likely end of a wait; zero: not known
  /// What they wait for: a bit for each phase; zero: older pages, not known.
  std::uint32_t gap_phases = 0;
  wire::GapRules gap_rules;   ///< what the coordinator allows this job in gaps
  TimePoint last_touch;       ///< newest sign of work from any of them
  TimePoint busy_since;       ///< if not all wait: when the first of them became busy
  Doorbell bell;              ///< if one is busy itself: rings when it begins to wait
  std::size_t processes = 0;  ///< guaranteed processes that are seen
  std::uint64_t steps = 0;    ///< that they have ended, summed
  TimePoint step_end;         ///< of the newest of these steps; zero: none yet
  double slo = 0.01;          ///< slowdown that the guaranteed side allows
  TimePoint turn_until;       ///< end of this job's newest turn; zero: no turns are given
  double trickle = 0.0;       ///< share that is let through while the guaranteed side is busy
  /// The least trickle, which is only there so that nobody starves: what ran in gaps counts towards
  /// it. A larger one was measured to do no harm, or is a minimum that the job was promised.
  double least_trickle = 0.0;
  double share_max = 1.0;  ///< the coordinator's bound; 1: none
  bool paused = false;     ///< the coordinator closed this job's gate
  GangObservation gang;    ///< the job's other ranks
};

/// Looks at the shared pages. Called from the gate's hot path: a few atomic loads, no lock.
class DeviceObserver {
 public:
  virtual ~DeviceObserver() = default;
  [[nodiscard]] virtual DeviceObservation observe(TimePoint now) const noexcept = 0;
  /// Shows the coordinator what this rank's gate does in an epoch of its gang.
  /// @param stand  GangObservation::stand of a gate that closed as it was ordered to; 0: it did
  /// not.
  virtual void show_gang(std::uint64_t /*epoch*/, std::uint64_t /*stand*/) const noexcept {}
};

/// What the job itself did and may do.
struct PacingInput {
  DeviceObservation device;
  Duration predicted{};     ///< of the op at the gate; zero: not known
  bool graph = false;       ///< it is a graph of many kernels
  Duration cap_debt{};      ///< run time above `share_max` that is not paid off yet; <= 0: none.
                            ///< Work in queues counts as predicted until the device has told
  Duration trickle_debt{};  ///< the same for run time beside a busy guaranteed job
  double share_min = 0.0;   ///< run beside a busy guaranteed job: the trickle
  double share_max = 1.0;
  Duration run_total{};  ///< run time of all ops that have ended, summed over threads
  /// What running ops are predicted to take still, and work that was issued to a queue and is not
  /// known to be completed, over all threads.
  Duration in_flight{};
  Duration queued{};  ///< of that, in a queue of the device: the op at the gate comes after it
  bool peek = false;  ///< only to tell: no op starts by this decision
};

/// One decision and its reason (static text, shown by `stats` and `status`).
struct PacingDecision {
  bool open = true;
  bool trickle = false;  ///< open beside a busy guaranteed job: charge the op to the trickle
  Duration recheck{};    ///< when closed: ask again after this, at the latest
  Duration valid_for{};  ///< when open: ops that take up to `fits` may pass for that long
  Duration fits{};
  const char* reason = "";
  Duration saves{};    ///< when closed: run time that may be saved up for this op
  Duration prepaid{};  ///< when open: of the op's run time, this much was saved: charge it now
  Doorbell bell{};     ///< when closed: ask again when it rings, too
};

/// Decides whether an op may start. Has no clock, lock or socket: what a law remembers it has from
/// earlier inputs, so equal inputs in equal order give equal decisions. Not thread-safe; the gate
/// asks under its lock.
class PacingLaw {
 public:
  virtual ~PacingLaw() = default;
  /// Name in commands and statistics; lower case, unique.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// Whether decisions can ever be "wait" for these bounds: else the op callback stays off.
  [[nodiscard]] virtual bool throttles(const DeviceObservation& device,
                                       double share_max) const noexcept = 0;
  [[nodiscard]] virtual PacingDecision decide(const PacingInput& input) noexcept = 0;
  /// Longest run of ops without a pause, as of late; zero: the law does not need to know.
  [[nodiscard]] virtual Duration burst() const noexcept { return {}; }
  /// Gaps of the guaranteed side that the job has entered; zero for laws that know no gaps.
  [[nodiscard]] virtual std::uint64_t hand_overs() const noexcept { return 0; }
};

/// Makes a law by name:
/// - "gap": runs in the guaranteed job's gaps;
/// - "duty_cycle": sleeps in proportion to its own run time (AntMan's `perfControl`);
/// - "antman": that, with the share found from the guaranteed job's step time (antman_law.h);
/// - "rate_aimd": TGS's rate control (rate_aimd_law.h);
/// - "token_window": Gemini's turns, which the node coordinator gives (token_window_law.h);
/// - "open": never waits.
/// @throws std::invalid_argument naming the value.
[[nodiscard]] std::unique_ptr<PacingLaw> make_pacing_law(std::string_view name);

/// Duration that an op is taken to have before it was seen once.
inline constexpr Duration kUnknownOp = std::chrono::microseconds{200};
/// What an op is taken to last: as predicted, where it was seen before.
[[nodiscard]] constexpr Duration or_unknown(Duration predicted) noexcept {
  return predicted > Duration::zero() ? predicted : kUnknownOp;
}
/// The reason of a decision that holds a graph back: it is longer than what may run beside a
/// guaranteed job. An array has one address in all sources, by which the reason is known again.
inline constexpr char kGraphHeld[] =
    "CUDA graph is too long beside a guaranteed job: held for a gap that it fits in";
/// A wait counts as a gap once the guaranteed side has shown no sign of work for this long.
inline constexpr Duration kQuietBeforeGap = std::chrono::microseconds{500};
/// A boundary, or what follows a synchronisation, counts as a gap only after this: an op that
/// allocates nothing may run in it.
inline constexpr Duration kQuietBeforeBoundary = std::chrono::milliseconds{2};
/// Hand-overs that may be saved up, in seconds of their rate; one at the least.
inline constexpr double kHandOverCredit = 1.0;
/// A gate asks a closed law again after this at the latest.
inline constexpr Duration kLongestSleep = std::chrono::milliseconds{10};
/// Run time in gaps counts towards the least trickle for so long at most: after the last gap it
/// begins again within this.
inline constexpr Duration kGapsCountFor = std::chrono::seconds{1};
/// Idle time that a meter remembers as credit, so that late wake-ups do not cost share.
inline constexpr Duration kMeterCredit = std::chrono::milliseconds{2};

/// Meters run time against a share of the wall time: run time makes debt, time pays it off at the
/// rate of the share. An op may start while there is no debt, so after a run of `r` follows a rest
/// of r * (1/share - 1), and even the longest op goes some time. Not thread-safe.
class RunTimeMeter {
 public:
  /// Pays debt off for the time since the last call. A time that is a little earlier is
  /// ignored; after one that is much earlier the clock goes on from there.
  /// @param credit  what may be saved up while nothing runs.
  void advance(TimePoint now, double share, Duration credit = kMeterCredit) noexcept;
  /// Adds the run time of an op that ended.
  void charge(Duration run) noexcept { debt_ += run; }
  /// The same, but makes no debt above `most`.
  void charge_up_to(Duration run, Duration most) noexcept {
    debt_ = std::max(debt_, std::min(debt_ + run, most));
  }
  [[nodiscard]] Duration debt() const noexcept { return debt_; }

 private:
  Duration debt_{};
  TimePoint last_{};
  bool started_ = false;
};

}  // namespace commensal

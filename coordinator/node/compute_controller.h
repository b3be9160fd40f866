// SPDX-License-Identifier: Apache-2.0
// How much device time opportunistic jobs may use while a guaranteed job is busy: the slow loop.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "coordinator/node/gap_control.h"
#include "coordinator/node/step_history.h"
#include "coordinator/policies/plan.h"
#include "coordinator/policies/view.h"

namespace commensal::node {

struct ComputeConfig {
  double slo = 0.01;      ///< slowdown that a guaranteed job may see which asks for none
  double trickle = 0.01;  ///< share that an opportunistic job always has
  Duration period = std::chrono::milliseconds(500);
  double early_budget = 0.10;      ///< time in closed windows until the baseline is good
  double steady_budget = 0.015;    ///< and from then on
  std::size_t good_baseline = 20;  ///< quiet steps
  std::size_t good_tail = 200;     ///< the same of a job that serves requests
};

/// Where the control of a budget stands: device time that a group of opportunistic jobs may use
/// together, as a fraction of what they may use at most.
struct ShareState {
  static constexpr double kNoCeiling = 2.0;
  double share = 1.0;
  double ceiling = kNoCeiling;  ///< lowest share that was found to cost too much
  int periods_held = 0;
  bool operator==(const ShareState&) const = default;
};

struct ShareInput {
  ShareRange bounds;
  ShareState state;
  std::optional<SlowdownEstimate> slowdown;  ///< of the guaranteed job that suffers most
  double slo = 0.01;                         ///< which that one may see
  bool may_rise = true;  ///< false: gaps are restricted, and come back before the share rises
  /// The kernel takes cores from those whose share it is. The share of others rises only where it
  /// does no harm beyond doubt: their ops run beside the guaranteed job's, on its cores.
  bool idle_class = true;
  /// A look at the guaranteed job alone under the present shares showed the slowdown, too. Without
  /// one the idle class is not cut: the kernel keeps it out of the way meanwhile.
  bool confirmed = true;
};

struct ShareDecision {
  ShareState state;
  std::string reason;
  bool wants_look = false;  ///< at the guaranteed job alone, for it would cut otherwise
  bool operator==(const ShareDecision&) const = default;
};

/// Takes one control step: when the slowdown is above the SLO beyond doubt, cut to the part of the
/// share that the SLO is of the slowdown, at least by half; else rise quickly to four fifths of
/// what was too much, then probe rarely. Pure.
[[nodiscard]] ShareDecision decide_share(const ShareInput& input, const ComputeConfig& config);

/// What the controller sees at one moment.
struct ComputeView {
  struct Guaranteed {
    JobId id;
    std::uint64_t step_number = 0;  ///< of its slowest rank; 0: no step yet
    Duration step_last{};
    double slo = 0.01;
    StepSignal signal = StepSignal::kMedian;  ///< what counts: its steps, or its pace on cores
    std::shared_ptr<const std::vector<GapClass>> gaps = nullptr;  ///< of late; null: not known
    TimePoint step_end{};                                         ///< zero: when it was seen
    std::uint64_t stretch_number = 0;  ///< of its slowest rank's pace on cores (CorePace)
    Duration stretch_last{};
    bool operator==(const Guaranteed&) const = default;
  };
  struct Opportunistic {
    JobId id;
    ShareRange share;
    bool paused = false;
    bool idle_class = false;  ///< its threads are in the kernel's idle class
    bool controlled = true;   ///< its law takes its share from here; else no window closes it
    double used = 0.0;        ///< device time of late, in any unit that is the same for all
    double hand_overs = 0.0;  ///< gaps a second that it entered of late
    bool operator==(const Opportunistic&) const = default;
  };
  TimePoint now;
  DeviceId device;
  bool queues = false;  ///< the device has queues
  std::vector<Guaranteed> guaranteed;
  std::vector<Opportunistic> opportunistic;
};

/// Turns step times into shares and rules for gaps. One budget for the jobs in the kernel's idle
/// class, which hurt less, and one for the others; a budget is divided by minimum shares first,
/// then by deficit (share_division.h); the jobs of a budget have the same rules (gap_control.h).
/// What runs beside a busy guaranteed job is restricted first and released last.
///
/// A baseline is taken at once when a guaranteed job has none, or seems to have changed: such a
/// window is a credit on the early budget and is paid back before the next. Deterministic: the same
/// views in the same order give the same plans. Called often (it samples steps); shares move once a
/// period, at once when jobs come or go. Not thread safe.
class ComputeController {
 public:
  explicit ComputeController(const ComputeConfig& config) : config_(config) {}

  /// Takes a view and returns the share of every opportunistic job, in the view's order. While a
  /// window is closed every share is 0.
  policies::Plan update(const ComputeView& view);

  /// Says that what jobs do to each other has changed (they run on other cores): what was found to
  /// cost too much is found anew.
  void surroundings_changed(TimePoint now);

  /// The newest estimate; null until there is a baseline and steps beside an opportunistic job.
  /// Where no window can look at the job alone its baseline may be of another machine: then what
  /// it loses to waiting for cores counts, if that is more.
  [[nodiscard]] std::optional<SlowdownEstimate> slowdown(const JobId& guaranteed) const;
  /// What it loses to waiting for cores, which needs no baseline of the same speed: against what it
  /// waits alone, or, while too little is known of that, against no waiting at all. That is the
  /// most that it can have lost, and exact for a job that leaves cores: it has no thread that waits
  /// for another of its own. Null where windows look at it alone, or before it is known.
  [[nodiscard]] std::optional<SlowdownEstimate> waiting(const JobId& guaranteed) const;
  /// Whether windows look at guaranteed jobs alone: not beside a job with a law of its own.
  [[nodiscard]] bool looks_alone() const noexcept { return looks_alone_; }
  [[nodiscard]] MedianEstimate baseline(const JobId& guaranteed) const;
  /// What an opportunistic job may do in gaps, with the reason; unknown for one that is not here.
  [[nodiscard]] GapDecision gap_rules(const JobId& opportunistic) const;
  [[nodiscard]] bool window_closed() const noexcept { return window_closed_; }
  /// Time spent in closed windows since the controller began.
  [[nodiscard]] Duration closed_total() const noexcept { return closed_total_; }

 private:
  struct Tracked {
    StepHistory steps;
    StepHistory pace;  // on its cores; also while its steps are what counts
    bool by_pace = false;
    bool under_way = false;  // its first step is over
    [[nodiscard]] StepHistory& history() noexcept { return by_pace ? pace : steps; }
    [[nodiscard]] const StepHistory& history() const noexcept { return by_pace ? pace : steps; }
    void forget_shared();
    double slo = 0.01;
    std::optional<SlowdownEstimate> last_slowdown;
    std::optional<SlowdownEstimate> waiting;
    std::uint64_t last_stretch = 0;
    double step_seconds = 0.0;  // newest known length of a step
    std::uint64_t last_step = 0;
    bool alarmed = false;  // slowdown far above the SLO
    std::size_t quiet_at_alarm = 0;
    bool suspected = false;  // it seems to have changed; a window looks
    std::shared_ptr<const std::vector<GapClass>> gaps;
  };
  struct Controlled {
    double share = 1.0;
    ShareRange bounds;
    bool idle_class = false;
    bool takes_part = false;  ///< in the division of its group's budget
  };
  /// What the jobs of one kind may use together.
  struct Budget {
    ShareState state;
    double least = 0.0;  ///< of the device's time, all its jobs together
    double most = 0.0;
    std::string reason;
    GapDecision gaps;
  };
  bool sync_jobs(const ComputeView& view);
  void sample_steps(const ComputeView& view);
  void run_window(const ComputeView& view);
  void control(const ComputeView& view);
  void renew_budgets(const ComputeView& view, bool arrived);
  void divide(const ComputeView& view);
  void mark_exposure(TimePoint now);
  void estimate(Tracked& tracked) const;
  [[nodiscard]] bool needs_baseline(const Tracked& tracked) const;
  struct Worst {
    std::optional<SlowdownEstimate> slowdown;
    double slo = 0.01;
    std::shared_ptr<const std::vector<GapClass>> gaps;
    bool confirmed = false;
  };
  [[nodiscard]] Worst worst() const;
  /// Whether a guaranteed job that steps waits for a baseline, or a decision for a look at it.
  [[nodiscard]] bool urgent() const;
  void open_window(TimePoint now, std::size_t steps, double wanted);
  void end_window(TimePoint now);
  /// What was suspected is not looked at, or not any more.
  void settle_suspicions();
  [[nodiscard]] static bool takes_part(const ComputeView::Opportunistic& job) noexcept {
    return job.controlled && !job.paused;
  }
  [[nodiscard]] static GapUsers gap_users(const ComputeView& view, bool idle_class);
  [[nodiscard]] static bool all_controlled(const ComputeView& view);
  [[nodiscard]] static bool sharing(const ComputeView& view);

  ComputeConfig config_;
  std::map<JobId, Tracked> guaranteed_;
  std::map<JobId, Controlled> opportunistic_;
  std::map<bool, Budget> budgets_;  // by whether its jobs are in the idle class
  bool sharing_ = false;
  bool looks_alone_ = true;
  bool window_closed_ = false;
  bool look_wanted_ = false;    // at the guaranteed jobs alone, to confirm a slowdown
  double window_tokens_ = 0.0;  // seconds that windows may still take; below zero: a credit
  double window_floor_ = 0.0;   // of them, at which the present window ends
  std::size_t window_goal_ = 0;
  Duration closed_total_{};
  TimePoint last_update_;
  TimePoint last_control_;
};

}  // namespace commensal::node

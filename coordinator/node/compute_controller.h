// SPDX-License-Identifier: Apache-2.0
// How much device time opportunistic jobs may use while a guaranteed job is busy: the slow loop.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "coordinator/node/step_history.h"
#include "coordinator/policies/plan.h"
#include "coordinator/policies/view.h"

namespace commensal::node {

struct ComputeConfig {
  double slo = 0.01;      ///< slowdown that the guaranteed side may see
  double trickle = 0.01;  ///< share that an opportunistic job always has
  Duration period = std::chrono::milliseconds(500);
  double early_budget = 0.10;      ///< time in closed windows until the baseline is good
  double steady_budget = 0.015;    ///< and from then on
  std::size_t good_baseline = 20;  ///< quiet steps
};

/// Where the control of one opportunistic job stands.
struct ShareState {
  double share = 1.0;
  double ceiling = 1.0;  ///< lowest share that was found to cost too much; 1: none
  int periods_held = 0;
  bool operator==(const ShareState&) const = default;
};

struct ShareInput {
  policies::ShareRange bounds;
  ShareState state;
  std::optional<SlowdownEstimate> slowdown;  ///< of the guaranteed job that suffers most
};

struct ShareDecision {
  ShareState state;
  std::string reason;
  bool operator==(const ShareDecision&) const = default;
};

/// Takes one control step: halve when the slowdown is above the SLO beyond doubt, rise quickly to
/// four fifths of what was too much, then probe rarely. Pure.
[[nodiscard]] ShareDecision decide_share(const ShareInput& input, const ComputeConfig& config);

/// What the controller sees at one moment.
struct ComputeView {
  struct Guaranteed {
    JobId id;
    std::uint64_t step_number = 0;  ///< of its slowest rank's page; 0: no step yet
    Duration step_last{};
    bool operator==(const Guaranteed&) const = default;
  };
  struct Opportunistic {
    JobId id;
    policies::ShareRange share;
    bool paused = false;
    bool idle_class = false;  ///< its threads are in the kernel's idle class
    bool operator==(const Opportunistic&) const = default;
  };
  TimePoint now;
  DeviceId device;
  std::vector<Guaranteed> guaranteed;
  std::vector<Opportunistic> opportunistic;
};

/// Turns step times into shares. Deterministic: the same views in the same order give the same
/// plans. Called often (it samples steps); shares move once a period, at once when jobs come or go.
/// Not thread safe.
class ComputeController {
 public:
  explicit ComputeController(const ComputeConfig& config) : config_(config) {}

  /// Takes a view and returns the share of every opportunistic job, in the view's order. While a
  /// window is closed every share is 0.
  policies::Plan update(const ComputeView& view);

  /// The newest estimate; null until there is a baseline and steps beside an opportunistic job.
  [[nodiscard]] std::optional<SlowdownEstimate> slowdown(const JobId& guaranteed) const;
  [[nodiscard]] MedianEstimate baseline(const JobId& guaranteed) const;
  [[nodiscard]] bool window_closed() const noexcept { return window_closed_; }
  /// Time spent in closed windows since the controller began.
  [[nodiscard]] Duration closed_total() const noexcept { return closed_total_; }

 private:
  struct Tracked {
    StepHistory history;
    std::optional<SlowdownEstimate> last_slowdown;
    double step_seconds = 0.0;  // newest known length of a step
    std::uint64_t last_step = 0;
    bool alarmed = false;  // slowdown far above the SLO
    std::size_t quiet_at_alarm = 0;
  };
  struct Controlled {
    ShareState state;
    bool idle_class = false;
    std::string reason;
  };
  bool sync_jobs(const ComputeView& view);
  void sample_steps(const ComputeView& view);
  void run_window(const ComputeView& view);
  void control(const ComputeView& view);
  void mark_exposure(TimePoint now);
  [[nodiscard]] bool needs_baseline(const Tracked& tracked) const;
  [[nodiscard]] std::optional<SlowdownEstimate> worst() const;
  [[nodiscard]] static bool sharing(const ComputeView& view);

  ComputeConfig config_;
  std::map<JobId, Tracked> guaranteed_;
  std::map<JobId, Controlled> opportunistic_;
  bool sharing_ = false;
  bool window_closed_ = false;
  double window_tokens_ = 0.0;  // seconds that windows may still take
  std::size_t window_goal_ = 0;
  Duration closed_total_{};
  TimePoint last_update_;
  TimePoint last_control_;
};

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// The slow loop: baseline windows and shares.
#include "coordinator/node/compute_controller.h"

#include <algorithm>
#include <cstdio>

namespace commensal::node {
namespace {

using policies::Plan;
using policies::ShareChange;

constexpr double kDecrease = 0.5;
constexpr double kIncrease = 1.5;
constexpr double kLeastIncrease = 0.02;
constexpr double kBelowCeiling = 0.8;
constexpr int kPeriodsBeforeProbe = 40;
constexpr double kProbe = 1.2;
constexpr double kAlarm = 0.05;          // slowdown at which the baseline itself is checked
constexpr std::size_t kAlarmSteps = 10;  // ... with so many new quiet steps
constexpr std::size_t kEarlyWindowSteps = 3;
constexpr std::size_t kWindowSteps = 2;
constexpr double kUnknownStep = 1.0;  // seconds
constexpr double kMostTokens = 5.0;   // seconds, or two windows if those are longer

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", fraction * 100);
  return text;
}

double least_share(const policies::ShareRange& bounds, double trickle) {
  return std::min(std::max(bounds.min, trickle), bounds.max);
}

}  // namespace

ShareDecision decide_share(const ShareInput& input, const ComputeConfig& config) {
  const double least = least_share(input.bounds, config.trickle);
  const double most = input.bounds.max;
  ShareState state = input.state;
  state.share = std::clamp(state.share, least, most);
  if (!input.slowdown) return {state, "no slowdown measured yet"};
  const SlowdownEstimate& slowdown = *input.slowdown;
  const std::string measured =
      "slowdown " + percent(slowdown.value) + " (+-" + percent(slowdown.error) + ")";
  if (slowdown.value - slowdown.error > config.slo) {
    if (state.share <= least) return {state, measured + ": at its least share"};
    state.ceiling = state.share;
    state.share = std::max(least, state.share * kDecrease);
    state.periods_held = 0;
    return {state, measured + " above " + percent(config.slo) + ": halved"};
  }
  if (slowdown.value > config.slo) return {state, measured + ": not certain, held"};
  const double goal = state.ceiling < 1.0 ? std::min(most, kBelowCeiling * state.ceiling) : most;
  if (state.share < goal) {
    state.share = std::min(goal, std::max(state.share * kIncrease, state.share + kLeastIncrease));
    state.periods_held = 0;
    return {state, measured + ": raised"};
  }
  if (state.ceiling < 1.0 && ++state.periods_held >= kPeriodsBeforeProbe) {
    state.ceiling = std::min(1.0, state.ceiling * kProbe);
    state.periods_held = 0;
  }
  return {state, measured + ": held"};
}

bool ComputeController::sharing(const ComputeView& view) {
  return !view.guaranteed.empty() &&
         std::any_of(view.opportunistic.begin(), view.opportunistic.end(),
                     [](const auto& job) { return !job.paused && job.share.max > 0; });
}

bool ComputeController::sync_jobs(const ComputeView& view) {
  const auto present = [](const auto& jobs, const JobId& id) {
    return std::any_of(jobs.begin(), jobs.end(), [&](const auto& job) { return job.id == id; });
  };
  bool arrived = false;
  std::erase_if(guaranteed_, [&](const auto& e) { return !present(view.guaranteed, e.first); });
  for (const auto& job : view.guaranteed) {
    const auto [entry, is_new] = guaranteed_.try_emplace(job.id);
    if (!is_new) continue;
    arrived = true;
    entry->second.last_step = job.step_number;
    if (sharing_ && !window_closed_) {
      entry->second.history.begin_shared(view.now);
    } else {
      entry->second.history.begin_quiet(view.now);
    }
  }
  std::erase_if(opportunistic_,
                [&](const auto& e) { return !present(view.opportunistic, e.first); });
  bool changed = arrived;
  for (const auto& job : view.opportunistic) {
    const auto [entry, is_new] = opportunistic_.try_emplace(job.id);
    Controlled& controlled = entry->second;
    if (!is_new && !arrived && controlled.idle_class == job.idle_class) continue;
    // The kernel already keeps an idle-class job out of the way; any other begins at its trickle.
    controlled.idle_class = job.idle_class;
    controlled.state = ShareState{};
    controlled.state.share =
        job.idle_class ? job.share.max : least_share(job.share, config_.trickle);
    controlled.reason = job.idle_class ? "idle class: begins at its maximum"
                                       : "no idle class: begins at its trickle";
    changed = true;
  }
  return changed;
}

void ComputeController::sample_steps(const ComputeView& view) {
  for (const auto& job : view.guaranteed) {
    Tracked& tracked = guaranteed_.at(job.id);
    if (job.step_number == tracked.last_step) continue;
    tracked.last_step = job.step_number;
    tracked.history.add(view.now, job.step_last);
    tracked.step_seconds = seconds(job.step_last);
  }
}

void ComputeController::mark_exposure(TimePoint now) {
  for (auto& [id, tracked] : guaranteed_) {
    if (sharing_ && !window_closed_) {
      tracked.history.begin_shared(now);
    } else if (!tracked.history.is_quiet()) {
      tracked.history.begin_quiet(now);
    }
  }
}

bool ComputeController::needs_baseline(const Tracked& tracked) const {
  if (tracked.history.baseline_steps() < config_.good_baseline) return true;
  return tracked.alarmed &&
         tracked.history.quiet_steps_total() < tracked.quiet_at_alarm + kAlarmSteps;
}

void ComputeController::run_window(const ComputeView& view) {
  const double elapsed = seconds(view.now - last_update_);
  if (window_closed_) {
    closed_total_ += view.now - last_update_;
    window_tokens_ -= elapsed;
    std::size_t steps = 0;
    bool stepping = false;
    for (const auto& [id, tracked] : guaranteed_) {
      steps = std::max(steps, tracked.history.quiet_steps_total());
      stepping = stepping || tracked.last_step > 0;
    }
    if (window_tokens_ <= 0 || steps >= window_goal_ || !stepping) {
      window_closed_ = false;
      mark_exposure(view.now);
    }
    return;
  }
  bool early = false;
  bool stepping = false;
  double step = 0.0;
  std::size_t quiet = 0;
  for (const auto& [id, tracked] : guaranteed_) {
    if (tracked.last_step == 0) continue;
    stepping = true;
    early = early || needs_baseline(tracked);
    quiet = std::max(quiet, tracked.history.quiet_steps_total());
    step = std::max(step, tracked.step_seconds);
  }
  if (!stepping) return;
  if (step <= 0) step = kUnknownStep;
  const std::size_t goal = early ? kEarlyWindowSteps : kWindowSteps;
  const double age = seconds(kStepAge);
  const double wanted = age + step + static_cast<double>(goal) * std::max(step, age);
  window_tokens_ += elapsed * (early ? config_.early_budget : config_.steady_budget);
  window_tokens_ = std::min(window_tokens_, std::max(kMostTokens, 2 * wanted));
  if (window_tokens_ >= wanted) {
    window_closed_ = true;
    window_goal_ = quiet + goal;
    mark_exposure(view.now);
  }
}

std::optional<SlowdownEstimate> ComputeController::worst() const {
  std::optional<SlowdownEstimate> result;
  for (const auto& [id, tracked] : guaranteed_) {
    const auto slowdown = tracked.history.slowdown();  // of the present shares, or none yet
    if (slowdown && (!result || slowdown->value > result->value)) result = slowdown;
  }
  return result;
}

void ComputeController::control(const ComputeView& view) {
  if (view.now - last_control_ < config_.period) return;
  last_control_ = view.now;
  for (auto& [id, tracked] : guaranteed_) {
    const auto slowdown = tracked.history.slowdown();
    if (slowdown) tracked.last_slowdown = slowdown;
    const bool alarm = slowdown && slowdown->value - slowdown->error > kAlarm;
    if (alarm && !tracked.alarmed) tracked.quiet_at_alarm = tracked.history.quiet_steps_total();
    tracked.alarmed = alarm;
  }
  const auto slowdown = worst();
  bool moved = false;
  for (const auto& job : view.opportunistic) {
    Controlled& controlled = opportunistic_.at(job.id);
    ShareDecision decision = decide_share({job.share, controlled.state, slowdown}, config_);
    moved = moved || decision.state.share != controlled.state.share;
    controlled.state = decision.state;
    controlled.reason = std::move(decision.reason);
  }
  if (!moved) return;
  for (auto& [id, tracked] : guaranteed_) tracked.history.forget_shared();
  if (!window_closed_) mark_exposure(view.now);
}

Plan ComputeController::update(const ComputeView& view) {
  if (last_update_ == TimePoint{}) last_update_ = view.now;
  const bool changed = sync_jobs(view);
  sample_steps(view);
  if (const bool now_sharing = sharing(view); now_sharing != sharing_ || changed) {
    const bool began = now_sharing != sharing_;
    sharing_ = now_sharing;
    if (!sharing_) window_closed_ = false;
    for (auto& [id, tracked] : guaranteed_) tracked.history.forget_shared();
    if (began || !window_closed_) mark_exposure(view.now);
    last_control_ = view.now;
  }
  if (sharing_) {
    run_window(view);
    control(view);
  }
  last_update_ = view.now;

  Plan plan;
  for (const auto& job : view.opportunistic) {
    const Controlled& controlled = opportunistic_.at(job.id);
    ShareChange change{job.id, view.device, 0.0, ""};
    if (window_closed_) {
      change.reason = "closed for a moment: measuring the guaranteed job alone";
    } else if (view.guaranteed.empty()) {
      change.share = job.share.max;
      change.reason = "no guaranteed job on the device";
    } else {
      change.share = std::min(controlled.state.share, job.share.max);
      change.reason = controlled.reason;
    }
    plan.shares.push_back(std::move(change));
  }
  return plan;
}

std::optional<SlowdownEstimate> ComputeController::slowdown(const JobId& guaranteed) const {
  const auto found = guaranteed_.find(guaranteed);
  return found == guaranteed_.end() ? std::nullopt : found->second.last_slowdown;
}

MedianEstimate ComputeController::baseline(const JobId& guaranteed) const {
  const auto found = guaranteed_.find(guaranteed);
  return found == guaranteed_.end() ? MedianEstimate{} : found->second.history.baseline();
}

}  // namespace commensal::node

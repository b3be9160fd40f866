// SPDX-License-Identifier: Apache-2.0
// The slow loop: baseline windows and shares.
#include "coordinator/node/compute_controller.h"

#include <algorithm>
#include <utility>

#include "allocator/base/clock.h"
#include "coordinator/node/core_pace.h"
#include "coordinator/node/percent.h"
#include "coordinator/node/share_division.h"

namespace commensal::node {
namespace {

using policies::Plan;
using policies::ShareChange;

constexpr double kDecrease = 0.5;
constexpr double kMostDecrease = 1.0 / 32.0;  // at once
constexpr double kIncrease = 1.5;
constexpr double kLeastIncrease = 0.02;
constexpr double kBelowCeiling = 0.8;
constexpr int kPeriodsBeforeProbe = 40;
constexpr double kProbe = 1.2;
constexpr double kAlarm = 0.05;          // slowdown at which the baseline itself is checked
constexpr std::size_t kAlarmSteps = 10;  // ... with so many new quiet steps
constexpr std::size_t kEarlyWindowSteps = 3;
constexpr std::size_t kWindowSteps = 2;
constexpr std::size_t kWindowRequests = 8;
constexpr double kWindowSlack = 1.25;  // on credit: a window that ends before its last step is lost
constexpr double kUnknownStep = 1.0;   // seconds
constexpr double kLongStep = 0.15;     // seconds: two steps must do where a look is urgent
constexpr double kFreshSeconds = 2.0;  // a baseline of now, or of so many steps ago
constexpr double kFreshSteps = 5.0;
constexpr std::uint64_t kFirstSteps = 3;  // of a job that say little about those that follow
constexpr double kBetweenLooks = 0.2;     // at a job that is measured by its time on cores
constexpr double kMostTokens = 5.0;       // seconds, or two windows if those are longer

double least_share(const ShareRange& bounds, double trickle) {
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
  const std::string measured = "guaranteed step " + percent(slowdown.value) + " over baseline (+-" +
                               percent(slowdown.error) + ", n = " + std::to_string(slowdown.steps) +
                               ")";
  if (slowdown.certain() > input.slo) {
    if (state.share <= least) return {state, measured + ": at its least share"};
    if (input.idle_class && !input.confirmed) {
      return {state, measured + ": held until a look at it alone confirms it", true};
    }
    // What is certain of the slowdown grows with the share; what is too much is twice what is left.
    const double part = std::clamp(input.slo / slowdown.certain(), kMostDecrease, kDecrease);
    state.share *= part;
    state.ceiling = state.share / kDecrease;
    state.share = std::max(least, state.share);
    state.periods_held = 0;
    return {state, measured + ", above " + percent(input.slo) + ": " +
                       (part < kDecrease ? "cut to " + percent(state.share) : "halved")};
  }
  if (slowdown.value > input.slo || (!input.idle_class && slowdown.possible() > input.slo)) {
    return {state, measured + ": not certain, held"};
  }
  if (!input.may_rise) return {state, measured + ": held while gaps are restricted"};
  const bool bounded = state.ceiling < ShareState::kNoCeiling;
  const double goal = bounded ? std::min(most, kBelowCeiling * state.ceiling) : most;
  if (state.share < goal) {
    state.share = std::min(goal, std::max(state.share * kIncrease, state.share + kLeastIncrease));
    state.periods_held = 0;
    return {state, measured + ": raised"};
  }
  if (bounded && ++state.periods_held >= kPeriodsBeforeProbe) {
    state.ceiling = std::min(ShareState::kNoCeiling, state.ceiling * kProbe);
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
    Tracked& tracked = entry->second;
    tracked.slo = job.slo;
    tracked.gaps = job.gaps;
    const bool by_pace = job.signal == StepSignal::kCores;
    if (!by_pace) tracked.steps.follow(job.signal);
    if (std::exchange(tracked.by_pace, by_pace) != by_pace) {
      tracked.alarmed = false;
      // What was measured alone is as good as it was.
      tracked.history().forget_shared();
    }
    if (!is_new) continue;
    arrived = true;
    tracked.last_step = by_pace ? job.stretch_number : job.step_number;
    tracked.last_stretch = job.stretch_number;
    tracked.under_way = job.step_number > 0;
    tracked.pace.follow(StepSignal::kCores);
    for (StepHistory* const history : {&tracked.steps, &tracked.pace}) {
      if (sharing_ && !window_closed_) {
        history->begin_shared(view.now);
      } else {
        history->begin_quiet(view.now);
      }
    }
  }
  bool changed = arrived;
  const auto left = std::erase_if(
      opportunistic_, [&](const auto& e) { return !present(view.opportunistic, e.first); });
  bool regrouped = left > 0;
  for (const auto& job : view.opportunistic) {
    const auto [entry, is_new] = opportunistic_.try_emplace(job.id);
    Controlled& controlled = entry->second;
    regrouped =
        regrouped || controlled.bounds != job.share || controlled.takes_part != takes_part(job);
    controlled.bounds = job.share;
    controlled.takes_part = takes_part(job);
    if (!is_new && !arrived && controlled.idle_class == job.idle_class) continue;
    // The kernel already keeps an idle-class job out of the way; any other begins at its trickle.
    controlled.idle_class = job.idle_class;
    controlled.share = job.idle_class ? job.share.max : least_share(job.share, config_.trickle);
    changed = true;
  }
  if (changed || regrouped) renew_budgets(view, arrived);
  return changed;
}

GapUsers ComputeController::gap_users(const ComputeView& view, bool idle_class) {
  const auto jobs = std::count_if(
      view.opportunistic.begin(), view.opportunistic.end(),
      [&](const auto& job) { return takes_part(job) && job.idle_class == idle_class; });
  return {idle_class, view.queues, static_cast<std::size_t>(jobs)};
}

void ComputeController::renew_budgets(const ComputeView& view, bool arrived) {
  std::map<bool, Budget> renewed;
  std::map<bool, double> granted;
  for (const auto& job : view.opportunistic) {
    if (!takes_part(job)) continue;
    Budget& budget = renewed[job.idle_class];
    budget.least += least_share(job.share, config_.trickle);
    budget.most += job.share.max;
    granted[job.idle_class] += opportunistic_.at(job.id).share;
  }
  for (auto& [idle_class, budget] : renewed) {
    const auto before = budgets_.find(idle_class);
    if (before != budgets_.end() && !arrived) {
      budget.state = before->second.state;
      budget.gaps = before->second.gaps;
    } else {
      GapInput first;
      first.users = gap_users(view, idle_class);
      budget.gaps = decide_gaps(first);
    }
    // Who stays keeps what it had, who is new brings what it begins with.
    if (budget.most > 0.0) budget.state.share = std::min(1.0, granted[idle_class] / budget.most);
    budget.reason =
        idle_class ? "idle class: begins at its maximum" : "no idle class: begins at its trickle";
  }
  budgets_ = std::move(renewed);
  divide(view);
}

void ComputeController::divide(const ComputeView& view) {
  for (const auto& [idle_class, budget] : budgets_) {
    std::vector<Controlled*> jobs;
    std::vector<ShareClaim> claims;
    std::vector<double> used;
    for (const auto& job : view.opportunistic) {
      if (!takes_part(job) || job.idle_class != idle_class) continue;
      jobs.push_back(&opportunistic_.at(job.id));
      claims.push_back({{least_share(job.share, config_.trickle), job.share.max}, 0.0});
      used.push_back(job.used);
    }
    const std::vector<double> lacking = deficits(used);
    for (std::size_t i = 0; i < claims.size(); ++i) claims[i].deficit = lacking[i];
    const std::vector<double> parts = divide_share(budget.state.share * budget.most, claims);
    for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i]->share = parts[i];
  }
}

void ComputeController::sample_steps(const ComputeView& view) {
  for (const auto& job : view.guaranteed) {
    Tracked& tracked = guaranteed_.at(job.id);
    if (std::exchange(tracked.last_stretch, job.stretch_number) != job.stretch_number) {
      tracked.pace.add(view.now, job.stretch_last);
    }
    if (!tracked.under_way && job.step_number > 0) {
      tracked.under_way = true;
      // How it waited while it prepared is no measure of its steps.
      tracked.pace.forget();
      tracked.waiting.reset();
      tracked.last_slowdown.reset();
    }
    const std::uint64_t number = tracked.by_pace ? job.stretch_number : job.step_number;
    if (number == tracked.last_step) continue;
    tracked.last_step = number;
    if (tracked.by_pace) {
      tracked.step_seconds = std::max(in_seconds(job.stretch_last), kBetweenLooks);
    } else {
      // A step may be told long after its end, when the device's state was another one.
      const bool told = job.step_end > TimePoint{} && job.step_end < view.now;
      tracked.steps.add(told ? job.step_end : view.now, job.step_last);
      tracked.step_seconds = in_seconds(job.step_last);
    }
    if (sharing_ && !window_closed_ && tracked.history().change_suspected()) {
      tracked.suspected = true;
    }
  }
}

void ComputeController::Tracked::forget_shared() {
  steps.forget_shared();
  pace.forget_shared();
}

void ComputeController::mark_exposure(TimePoint now) {
  for (auto& [id, tracked] : guaranteed_) {
    for (StepHistory* const history : {&tracked.steps, &tracked.pace}) {
      if (sharing_ && !window_closed_) {
        history->begin_shared(now);
      } else if (!history->is_quiet()) {
        history->begin_quiet(now);
      }
    }
  }
}

bool ComputeController::needs_baseline(const Tracked& tracked) const {
  const bool serves = tracked.history().signal() == StepSignal::kTail;
  const std::size_t good = serves ? config_.good_tail : config_.good_baseline;
  if (tracked.history().baseline_steps() < good) return true;
  return tracked.alarmed &&
         tracked.history().quiet_steps_total() < tracked.quiet_at_alarm + kAlarmSteps;
}

bool ComputeController::urgent() const {
  return std::any_of(guaranteed_.begin(), guaranteed_.end(), [](const auto& entry) {
    const Tracked& tracked = entry.second;
    if (tracked.step_seconds <= 0.0 || tracked.last_step < kFirstSteps) return false;
    return tracked.suspected || (tracked.history().baseline_steps() == 0 &&
                                 tracked.history().signal() != StepSignal::kTail);
  });
}

void ComputeController::open_window(TimePoint now, std::size_t steps, double wanted) {
  window_closed_ = true;
  look_wanted_ = false;
  window_floor_ = std::min(0.0, window_tokens_ - kWindowSlack * wanted);
  window_goal_ = 0;
  for (auto& [id, tracked] : guaranteed_) {
    window_goal_ = std::max(window_goal_, tracked.history().quiet_steps_total() + steps);
    if (tracked.suspected) tracked.history().expect_change(steps);
  }
  mark_exposure(now);
}

void ComputeController::end_window(TimePoint now) {
  window_closed_ = false;
  settle_suspicions();
  mark_exposure(now);
}

void ComputeController::settle_suspicions() {
  for (auto& [id, tracked] : guaranteed_) {
    if (std::exchange(tracked.suspected, false)) tracked.history().settle_change();
  }
}

void ComputeController::run_window(const ComputeView& view) {
  const double elapsed = in_seconds(view.now - last_update_);
  if (window_closed_) {
    closed_total_ += view.now - last_update_;
    window_tokens_ -= elapsed;
    std::size_t steps = 0;
    bool stepping = false;
    for (const auto& [id, tracked] : guaranteed_) {
      steps = std::max(steps, tracked.history().quiet_steps_total());
      stepping = stepping || tracked.last_step > 0;
    }
    if (window_tokens_ <= window_floor_ || steps >= window_goal_ || !stepping) {
      end_window(view.now);
    }
    return;
  }
  bool early = false;
  bool serves = false;
  bool stepping = false;
  double step = 0.0;
  for (const auto& [id, tracked] : guaranteed_) {
    if (tracked.last_step == 0) continue;
    stepping = true;
    early = early || needs_baseline(tracked);
    serves = serves || tracked.history().signal() == StepSignal::kTail;
    step = std::max(step, tracked.step_seconds);
  }
  if (!stepping) return;
  if (step <= 0) step = kUnknownStep;
  const bool at_once = urgent();
  std::size_t goal = serves ? kWindowRequests : early ? kEarlyWindowSteps : kWindowSteps;
  if (at_once && step > kLongStep) goal = kWindowSteps;
  const double age = in_seconds(kStepAge);
  const double wanted = age + step + static_cast<double>(goal) * std::max(step, age);
  window_tokens_ += elapsed * (early ? config_.early_budget : config_.steady_budget);
  window_tokens_ = std::min(window_tokens_, std::max(kMostTokens, 2 * wanted));
  // Once the baseline is good, what one look takes is kept for those that are wanted at once.
  const double kept = early || look_wanted_ ? 0.0 : wanted;
  if (window_tokens_ >= wanted + kept || (at_once && window_tokens_ >= 0.0)) {
    open_window(view.now, goal, wanted);
  } else if (at_once) {
    // No credit left: what was suspected is taken for a cost of the shares, and acted upon.
    settle_suspicions();
  }
}

ComputeController::Worst ComputeController::worst() const {
  Worst result;
  for (const auto& [id, tracked] : guaranteed_) {
    const auto slowdown = tracked.history().slowdown();  // of the present shares, or none yet
    if (!slowdown) continue;
    const bool worse =
        !result.slowdown || slowdown->value - tracked.slo > result.slowdown->value - result.slo;
    if (worse) {
      result = {slowdown, tracked.slo, tracked.gaps, tracked.history().confirmed(tracked.slo)};
    }
  }
  return result;
}

bool ComputeController::all_controlled(const ComputeView& view) {
  return std::all_of(view.opportunistic.begin(), view.opportunistic.end(),
                     [](const auto& job) { return job.controlled || job.paused; });
}

void ComputeController::estimate(Tracked& tracked) const {
  auto loss = tracked.history().slowdown();
  if (looks_alone_) {
    tracked.waiting.reset();
  } else {
    const auto measured = tracked.pace.slowdown();
    if (measured && (!loss || measured->certain() > loss->certain())) loss = measured;
    // No window makes a baseline good here: who was alone for a moment would never be protected.
    const bool good = tracked.pace.baseline_steps() >= config_.good_baseline;
    const auto waiting = good ? measured : tracked.pace.slowdown_over(CorePace::kPiece);
    if (waiting) tracked.waiting = waiting;
  }
  if (loss) tracked.last_slowdown = loss;
}

void ComputeController::control(const ComputeView& view) {
  if (view.now - last_control_ < config_.period) return;
  last_control_ = view.now;
  for (auto& [id, tracked] : guaranteed_) {
    estimate(tracked);
    const auto slowdown = tracked.history().slowdown();
    const bool alarm = slowdown && slowdown->certain() > kAlarm;
    if (alarm && !tracked.alarmed) {
      tracked.quiet_at_alarm = tracked.history().quiet_steps_total();
      // Against a baseline of a while ago it may be the job that has changed.
      const double age = in_seconds(view.now - tracked.history().newest_quiet());
      const bool old = age > std::max(kFreshSeconds, kFreshSteps * tracked.step_seconds);
      if (old && tracked.history().signal() != StepSignal::kTail && looks_alone_) {
        tracked.suspected = true;
      }
    }
    tracked.alarmed = alarm;
  }
  const bool suspected = std::any_of(guaranteed_.begin(), guaranteed_.end(),
                                     [](const auto& entry) { return entry.second.suspected; });
  if (suspected) {  // a window looks first whether the job itself has changed
    last_control_ = view.now - config_.period;
    return;
  }
  const Worst suffers = worst();
  bool moved = false;
  for (auto& [idle_class, budget] : budgets_) {
    if (budget.most <= 0.0) continue;
    const ShareRange bounds{budget.least / budget.most, 1.0};
    const double least = least_share(bounds, config_.trickle);
    ShareDecision decision =
        decide_share({bounds, budget.state, suffers.slowdown, suffers.slo,
                      budget.gaps.state.level == 0, idle_class, suffers.confirmed},
                     config_);
    moved = moved || decision.state.share != budget.state.share;
    GapInput gap_input{budget.gaps.state, suffers.slowdown, suffers.slo,
                       budget.state.share <= least * (1 + 1e-6)};
    if (suffers.gaps) gap_input.gaps = *suffers.gaps;
    gap_input.users = gap_users(view, idle_class);
    gap_input.confirmed = suffers.confirmed;
    for (const auto& job : view.opportunistic) {
      if (takes_part(job) && job.idle_class == idle_class) gap_input.hand_overs += job.hand_overs;
    }
    GapDecision gaps = decide_gaps(gap_input);
    look_wanted_ = look_wanted_ || decision.wants_look || gaps.wants_look;
    moved = moved || gaps.state.level != budget.gaps.state.level;
    budget.state = decision.state;
    budget.reason = std::move(decision.reason);
    budget.gaps = std::move(gaps);
  }
  divide(view);
  if (!moved) return;
  for (auto& [id, tracked] : guaranteed_) tracked.forget_shared();
  if (!window_closed_) mark_exposure(view.now);
}

Plan ComputeController::update(const ComputeView& view) {
  if (last_update_ == TimePoint{}) last_update_ = view.now;
  const bool changed = sync_jobs(view);
  sample_steps(view);
  if (const bool now_sharing = sharing(view); now_sharing != sharing_ || changed) {
    const bool began = now_sharing != sharing_;
    sharing_ = now_sharing;
    if (!sharing_) {
      for (auto& [id, tracked] : guaranteed_) tracked.waiting.reset();
    }
    if (!sharing_ && window_closed_) end_window(view.now);
    for (auto& [id, tracked] : guaranteed_) tracked.forget_shared();
    if (began || !window_closed_) mark_exposure(view.now);
    last_control_ = view.now;
  }
  looks_alone_ = all_controlled(view);
  if (sharing_) {
    if (looks_alone_) {
      run_window(view);
    } else {  // beside another law there is no quiet
      settle_suspicions();
      if (window_closed_) end_window(view.now);
    }
    control(view);
  }
  last_update_ = view.now;

  Plan plan;
  for (const auto& job : view.opportunistic) {
    const Controlled& controlled = opportunistic_.at(job.id);
    ShareChange change{job.id, view.device, 0.0, ""};
    if (!job.controlled) {
      change.share = job.share.max;
      change.reason = "paced by its own law";
    } else if (job.paused) {
      change.reason = "paused";
    } else if (window_closed_) {
      change.reason = "closed for a moment: measuring the guaranteed job alone";
    } else if (view.guaranteed.empty()) {
      change.share = job.share.max;
      change.reason = "no guaranteed job on the device";
    } else {
      change.share = std::min(controlled.share, job.share.max);
      change.reason = budgets_.at(controlled.idle_class).reason;
    }
    plan.shares.push_back(std::move(change));
  }
  return plan;
}

void ComputeController::surroundings_changed(TimePoint now) {
  for (auto& [idle_class, budget] : budgets_) budget.state.ceiling = ShareState::kNoCeiling;
  for (auto& [id, tracked] : guaranteed_) tracked.forget_shared();
  if (!window_closed_) mark_exposure(now);
}

std::optional<SlowdownEstimate> ComputeController::slowdown(const JobId& guaranteed) const {
  const auto found = guaranteed_.find(guaranteed);
  return found == guaranteed_.end() ? std::nullopt : found->second.last_slowdown;
}

std::optional<SlowdownEstimate> ComputeController::waiting(const JobId& guaranteed) const {
  const auto found = guaranteed_.find(guaranteed);
  return found == guaranteed_.end() ? std::nullopt : found->second.waiting;
}

GapDecision ComputeController::gap_rules(const JobId& opportunistic) const {
  const auto found = opportunistic_.find(opportunistic);
  if (found == opportunistic_.end()) return {};
  const auto budget = budgets_.find(found->second.idle_class);
  return budget == budgets_.end() ? GapDecision{} : budget->second.gaps;
}

MedianEstimate ComputeController::baseline(const JobId& guaranteed) const {
  const auto found = guaranteed_.find(guaranteed);
  return found == guaranteed_.end() ? MedianEstimate{} : found->second.history().baseline();
}

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// Lives of jobs: what happens, what is decided, what is written down, what the engine is told.
#include "coordinator/cluster/cluster_coordinator.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "allocator/base/clock.h"
#include "coordinator/cluster/job_number.h"
#include "coordinator/cluster/store_owner.h"
#include "coordinator/wire/json_text.h"

namespace commensal::cluster {
namespace {

using namespace std::chrono_literals;

constexpr Duration kUpgradeAgain = 60s;   // after the first one that failed, then twice as long
constexpr int kUpgradesUntilSlowest = 6;  // about an hour
constexpr Duration kLowerAgain = 10s;     // where the nodes could not be told
constexpr int kCannotStart = 126;         // as a shell's

EventKind kind_of(EngineEvent::Kind kind) {
  switch (kind) {
    case EngineEvent::Kind::kBegan: return EventKind::kBegan;
    case EngineEvent::Kind::kExited: return EventKind::kExited;
    case EngineEvent::Kind::kTakenBack: return EventKind::kTakenBack;
    case EngineEvent::Kind::kVanished: return EventKind::kVanished;
    case EngineEvent::Kind::kUnheld: return EventKind::kUnheld;
    case EngineEvent::Kind::kHeld: return EventKind::kHeld;
    case EngineEvent::Kind::kTaken: return EventKind::kLower;
  }
  return EventKind::kVanished;
}

/// What an engine says may hold a command's name, which may be any bytes.
std::string as_text(const std::string& bytes) {
  using nlohmann::json;
  return wire::parse_json(json(bytes).dump(-1, ' ', false, json::error_handler_t::replace),
                          wire::kOwnFile);
}

Attempt attempt_of(const JobRecord& job) { return {job.id, job.attempt}; }

}  // namespace

ClusterCoordinator::ClusterCoordinator(ClusterConfig config, Store& store, Engine& engine,
                                       ClassChanger& classes, const policies::ClusterPolicy& policy,
                                       WallClock wall, std::shared_ptr<spdlog::logger> log,
                                       TimePoint now)
    : config_(std::move(config)),
      store_(store),
      engine_(engine),
      classes_(classes),
      policy_(policy),
      scheduler_(policy,
                 [this](const JobRecord& job) {
                   return in_seconds(submitted_.at(job_number(job.id)).time_since_epoch());
                 }),
      health_(config_.health),
      input_files_(config_.input_lists),
      wall_(std::move(wall)),
      log_(std::move(log)),
      now_(now) {
  reload();
  const bool ours = claim_attempts();
  look_at_nodes(now);
  ask_for_numbers();
  meet_engine(ours);
}

void ClusterCoordinator::reload() {
  StoredState stored = store_.load();
  jobs_.clear();
  admitted_.clear();
  outside_.clear();
  followers_.clear();
  losses_.clear();
  over_.clear();
  tenants_.clear();
  drained_.clear();
  for (JobRecord& job : stored.jobs) {
    const Number number = job_number(job.id);
    begins_to_wait(jobs_.emplace(number, std::move(job)).first->second);
  }
  placements_.begin(jobs_);
  for (TenantRecord& tenant : stored.tenants) tenants_.emplace(tenant.name, std::move(tenant));
  for (DrainedNode& node : stored.drained) drained_.emplace(node.node, std::move(node));
  bad_inputs_ = BadInputs{config_.inputs};
  inputs_since_ = wall_();
  for (BadInput& input : stored.bad_inputs) bad_inputs_.restore(std::move(input));
  // Who submits without a tenant is this one's; without a quota until somebody sets one.
  tenants_.try_emplace("default", TenantRecord{.name = "default", .quota = std::nullopt});
  actions_.clear();
  begin_anew_ = changed_ = true;
  remember_submissions();
  remember_back_off();
  remember_times();
  pre_runs_until_.clear();
  for (const auto& [number, job] : jobs_) note_pre_run(job);
  unwritten_ = false;
  ++revision_;
}

/// The store may be an older copy: the numbers that it has for new jobs were others', and some of
/// these may still run or have left their output.
void ClusterCoordinator::ask_for_numbers() {
  try {
    taken_ = engine_.highest_job();
  } catch (const EngineFailed& error) {
    log_->warn("which numbers jobs have had is asked again before the next one is given: {}",
               error.what());
  }
}

/// @return whether the attempts that the engine keeps are the store's.
bool ClusterCoordinator::claim_attempts() {
  const StoreOwner owner = read_owner(store_, engine_);
  const bool ours = owns_attempts(owner);
  if (!ours && !config_.begin_anew) throw foreign_store(store_.file(), owner);
  stamp_both(owner, store_, engine_);
  return ours;
}

void ClusterCoordinator::meet_engine(bool ours) {
  std::set<Attempt> known;
  for (const Engine::Found& found : engine_.adopt()) {
    const auto job = jobs_.find(job_number(found.attempt.job));
    if (!ours || job == jobs_.end() || attempt_of(job->second) != found.attempt ||
        !is_placed(job->second.state)) {
      log_->warn("job {}, attempt {}, runs and should not: it is ended", found.attempt.job.str(),
                 found.attempt.number);
      engine_.take_back(found.attempt, config_.grace);
      continue;
    }
    if (!found.running) continue;
    known.insert(found.attempt);
    seen_.push_back({found.attempt, EngineEvent::Kind::kBegan, {}, "found running"});
  }
  for (EngineEvent& event : watch_engine()) {
    if (event.kind != EngineEvent::Kind::kBegan) known.insert(event.attempt);
    seen_.push_back(std::move(event));
  }
  for (const auto& [number, job] : jobs_) {
    if (!is_placed(job.state)) continue;
    if (is_being_ended(job)) due_.push_back({Action::Kind::kTakeBack, job});
    if (job.state == JobState::kUpgrading || job.lowering) {
      due_.push_back({Action::Kind::kClass, job});
    }
    if (known.contains(attempt_of(job))) continue;
    if (job.state == JobState::kStarting) {
      due_.push_back({Action::Kind::kStart, job});
    } else {
      seen_.push_back({attempt_of(job),
                       EngineEvent::Kind::kVanished,
                       {},
                       fmt::format("the engine {} does not know it any more", engine_.name())});
    }
  }
}

void ClusterCoordinator::settle(TimePoint now) {
  now_ = now;
  take_engine_events();
  take_class_outcomes();
  lower_again();
  if (now >= next_look_) look_at_nodes(now);
  if (now >= next_health_) begin_anew_ = true;
  end_pre_runs();
  cancel_those_that_wait_in_vain();
  admit();
  estimates_stale_ = estimates_stale_ || changed_ || begin_anew_;
  decide();
  commit();
  seen_.clear();
  not_started_.clear();
  class_outcomes_.clear();
  std::move(actions_.begin(), actions_.end(), std::back_inserter(due_));
  actions_.clear();
  for (const Number number : std::exchange(over_, {})) {
    const auto job = jobs_.find(number);  // a failed one may wait again
    if (job == jobs_.end() || !is_end(job->second.state)) continue;
    jobs_.erase(job);
    submitted_.erase(number);
    failed_upgrades_.erase(number);
  }
  std::erase_if(no_upgrade_before_, [this](const auto& entry) { return now_ >= entry.second; });
  act();
}

void ClusterCoordinator::commit() {
  ClusterObserver* const observer = unwritten_ ? config_.observer : nullptr;
  if (observer != nullptr) observer->begins(Work::kStoreWrite);
  store_.commit();
  if (observer != nullptr) observer->ended(Work::kStoreWrite);
  unwritten_ = false;
}

TimePoint ClusterCoordinator::next_wake() const noexcept {
  TimePoint wake = std::min({next_look_, policy_wake_, next_health_});
  for (const auto& [number, at] : not_before_) wake = std::min(wake, at);
  for (const auto& [number, at] : pre_runs_until_) wake = std::min(wake, at);
  for (const auto& [number, at] : lower_from_) wake = std::min(wake, at);
  if (!seen_.empty() || !due_.empty() || engine_.descriptor() < 0) {
    wake = std::min(wake, now_ + 1s);
  }
  return wake;
}

bool ClusterCoordinator::happen(const JobId& id, const JobEvent& event) {
  const auto found = jobs_.find(job_number(id));
  if (found == jobs_.end()) return false;
  Step step = apply(found->second, event, wall_());
  if (step.applied != Applied::kChanged) {
    const auto level =
        step.applied == Applied::kRefused ? spdlog::level::err : spdlog::level::debug;
    log_->log(level, "job {}: {}: {}", id.str(), to_string(event.kind), step.reason);
    return false;
  }
  const JobRecord before = std::exchange(found->second, std::move(step.after));
  const JobRecord& after = found->second;
  store_.put(after, Transition{.job = id,
                               .at = wall_(),
                               .from = before.state,
                               .to = after.state,
                               .attempt = after.attempt,
                               .reason = event.reason});
  log_->info("job {}: {} -> {}: {}", id.str(), to_string(before.state), to_string(after.state),
             event.reason);
  wrote();
  if (config_.observer != nullptr) config_.observer->moved(before, after);
  moved(before, after);
  note_times(before, after);
  note_pre_run(after);
  return true;
}

void ClusterCoordinator::begins_to_wait(const JobRecord& job) {
  if (!waits(job.state)) return;
  outside_.insert(job_number(job.id));
  if (job.spec.after) followers_.insert(job_number(job.id));
}

void ClusterCoordinator::moved(const JobRecord& before, const JobRecord& after) {
  changed_ = true;
  const Number number = job_number(after.id);
  placements_.moved(number, before, after);
  if (!waits(before.state)) begins_to_wait(after);
  if (is_placed(after.state) || is_end(after.state)) {
    outside_.erase(number);
    followers_.erase(number);
  }
  if (is_end(after.state)) over_.push_back(number);
  const bool was_placed = is_placed(before.state);
  if (was_placed && !is_placed(after.state)) losses_.erase(number);
  if (was_placed && !is_placed(after.state)) {
    actions_.push_back({Action::Kind::kForget, before});
    if (!scheduler_.leave(after.id)) begin_anew_ = true;
    admitted_.erase(number);
  } else if (!was_placed && is_end(after.state)) {
    not_before_.erase(number);
    if (admitted_.erase(number) > 0) begin_anew_ = true;  // a policy cannot be told
  }
  if (after.state == JobState::kStarting && before.state != JobState::kStarting) {
    actions_.push_back({Action::Kind::kStart, after});
  }
  if (after.state == JobState::kUpgrading && before.state != JobState::kUpgrading) {
    actions_.push_back({Action::Kind::kClass, after});
  }
  if (after.lowering && !before.lowering) actions_.push_back({Action::Kind::kClass, after});
  if (is_being_ended(after) && !is_being_ended(before)) {
    actions_.push_back({Action::Kind::kTakeBack, after});
  }
}

std::vector<EngineEvent> ClusterCoordinator::watch_engine() {
  try {
    return engine_.watch();
  } catch (const EngineFailed& error) {
    note_engine_problem(error.what());  // what it saw is told the next time
    return {};
  }
}

void ClusterCoordinator::note_engine_problem(const std::string& problem) {
  if (engine_problem_.empty() && config_.observer != nullptr) config_.observer->engine_failed();
  if (engine_problem_ == problem) return;
  log_->error("the engine {}: {}", engine_.name(), problem);
  engine_problem_ = problem;
  ++revision_;
}

void ClusterCoordinator::take_engine_events() {
  for (EngineEvent& event : watch_engine()) seen_.push_back(std::move(event));
  for (const EngineEvent& event : seen_) {
    const bool over = is_end(event.kind);
    const bool failed = event.kind == EngineEvent::Kind::kVanished ||
                        (event.kind == EngineEvent::Kind::kExited && event.exit_code != 0);
    std::optional<FailureVerdict> verdict;
    if (failed) verdict = verdict_of(event);
    std::string reason = as_text(event.reason);
    if (verdict && verdict->kind != FailureClass::kUser && verdict->why != event.reason) {
      reason += fmt::format("; {} failure: {}", to_string(verdict->kind), verdict->why);
    }
    const bool changed = happen(event.attempt.job, {.kind = kind_of(event.kind),
                                                    .attempt = event.attempt.number,
                                                    .reason = std::move(reason),
                                                    .exit_code = event.exit_code});
    if (changed && over) {
      const JobRecord& job = jobs_.at(job_number(event.attempt.job));
      judge_nodes(job, verdict);
      end_reports(event.attempt, job.state == JobState::kFailed && verdict &&
                                     verdict->kind != FailureClass::kInfrastructure);
    }
    if (changed && verdict) try_again(event.attempt.job, *verdict);
    if (changed && event.kind == EngineEvent::Kind::kTaken) {
      begin_anew_ = true;  // the policy's view has it as guaranteed
      no_upgrade_before_[job_number(event.attempt.job)] = now_ + kUpgradeAgain;
    }
    // Of an attempt that nobody here knows the engine needs to keep nothing.
    if (!changed && over) {
      JobRecord unknown;
      unknown.id = event.attempt.job;
      unknown.attempt = event.attempt.number;
      actions_.push_back({Action::Kind::kForget, std::move(unknown)});
    }
  }
}

FailureVerdict ClusterCoordinator::verdict_of(const EngineEvent& event) {
  const auto job = jobs_.find(job_number(event.attempt.job));
  return classify({.vanished = event.kind == EngineEvent::Kind::kVanished,
                   .exit_code = event.exit_code,
                   .reason = as_text(event.reason),
                   .ranks = job == jobs_.end() ? 1 : job->second.spec.gpus,
                   .output = ends_of_files(engine_.logs(event.attempt))});
}

void ClusterCoordinator::try_again(const JobId& id, const FailureVerdict& verdict) {
  const JobRecord& job = jobs_.at(job_number(id));
  if (job.state != JobState::kLost && job.state != JobState::kFailed) return;
  const RetryDecision decision = decide_retry(verdict, job.retries, config_.retries);
  if (!decision.wait) {
    log_->info("job {}: {}", id.str(), decision.reason);
    return;
  }
  if (happen(id, {.kind = EventKind::kRetry, .attempt = job.attempt, .reason = decision.reason})) {
    not_before_[job_number(id)] = now_ + *decision.wait;
  }
}

void ClusterCoordinator::judge_nodes(const JobRecord& job,
                                     const std::optional<FailureVerdict>& verdict) {
  std::set<std::string> nodes;
  for (const DevicePlace& place : job.placement) nodes.insert(place.node);
  for (const std::string& node : nodes) {
    if (job.state == JobState::kFinished) health_.worked(node);
    const bool of_node = verdict && verdict->kind == FailureClass::kInfrastructure &&
                         !not_started_.contains(attempt_of(job));
    if (!of_node) continue;
    if (!health_.failed(node, job.id, job.attempt, now_)) continue;
    log_->warn("node {}: {}", node, *health_.avoided(node, now_));
    begin_anew_ = changed_ = true;
  }
}

void ClusterCoordinator::take_class_outcomes() {
  for (ClassChanger::Outcome& outcome : classes_.outcomes()) {
    class_outcomes_.push_back(std::move(outcome));
  }
  for (const ClassChanger::Outcome& outcome : class_outcomes_) {
    if (outcome.asked == JobClass::kOpportunistic) {
      take_lowered(outcome);
      continue;
    }
    const EventKind kind = outcome.changed ? EventKind::kUpgraded : EventKind::kUpgradeFailed;
    const bool changed =
        happen(outcome.attempt.job,
               {.kind = kind, .attempt = outcome.attempt.number, .reason = outcome.reason});
    const Number number = job_number(outcome.attempt.job);
    if (outcome.changed) failed_upgrades_.erase(number);
    if (!changed || outcome.changed) continue;
    begin_anew_ = true;  // the policy's view has it as guaranteed
    int& failed = failed_upgrades_[number];
    no_upgrade_before_[number] = now_ + kUpgradeAgain * (1 << failed);
    failed = std::min(failed + 1, kUpgradesUntilSlowest);
  }
}

void ClusterCoordinator::take_lowered(const ClassChanger::Outcome& outcome) {
  const Number number = job_number(outcome.attempt.job);
  if (outcome.changed) {
    happen(
        outcome.attempt.job,
        {.kind = EventKind::kLowered, .attempt = outcome.attempt.number, .reason = outcome.reason});
    return;
  }
  log_->warn("job {}: its nodes cannot be told yet that it is opportunistic: {}",
             outcome.attempt.job.str(), outcome.reason);
  lower_from_[number] = now_ + kLowerAgain;
}

void ClusterCoordinator::lower_again() {
  std::erase_if(lower_from_, [this](const auto& entry) {
    if (now_ < entry.second) return false;
    const auto job = jobs_.find(entry.first);
    const bool still = job != jobs_.end() && job->second.lowering;
    if (still) actions_.push_back({Action::Kind::kClass, job->second});
    return true;
  });
}

void ClusterCoordinator::look_at_nodes(TimePoint now) {
  next_look_ = now + config_.look;
  try {
    std::vector<EngineNode> nodes = engine_.nodes();
    if (!engine_problem_.empty()) {
      log_->info("the engine {} answers again", engine_.name());
      ask_for_numbers();
      ++revision_;
    }
    engine_problem_.clear();
    if (nodes == nodes_) return;
    nodes_ = std::move(nodes);
    placements_.touch_all();
    begin_anew_ = changed_ = true;
    ++revision_;
  } catch (const EngineFailed& error) {
    note_engine_problem(error.what());
  }
}

void ClusterCoordinator::cancel_those_that_wait_in_vain() {
  for (const Number number : std::set<Number>{followers_}) {
    const JobRecord& job = jobs_.at(number);
    if (jobs_.contains(job_number(*job.spec.after))) continue;
    const auto before = store_.job(*job.spec.after);
    if (!before || before->state == JobState::kFinished) {
      followers_.erase(number);
      continue;
    }
    const std::string reason = before->spec.pre_run
                                   ? fmt::format("{}, is {}: {}", who_it_follows(*before),
                                                 to_string(before->state), before->reason)
                                   : fmt::format("job {}, which it was to follow, is {}",
                                                 job.spec.after->str(), to_string(before->state));
    happen(job.id, {.kind = EventKind::kCancel, .attempt = job.attempt, .reason = reason});
  }
}

bool ClusterCoordinator::may_start(const JobRecord& job) const {
  if (job.state != JobState::kQueued && job.state != JobState::kReserved) return false;
  const auto at = not_before_.find(job_number(job.id));
  if (at != not_before_.end() && now_ < at->second) return false;
  if (!job.spec.after) return true;
  const auto before = jobs_.find(job_number(*job.spec.after));
  return before == jobs_.end() || before->second.state == JobState::kFinished;
}

void ClusterCoordinator::admit() {
  if (begin_anew_) changed_ = true;
  for (const Number number : std::set<Number>{outside_}) {
    const JobRecord& job = jobs_.at(number);
    if (job.state == JobState::kSubmitted) {
      happen(
          job.id,
          {.kind = EventKind::kAccept, .attempt = job.attempt, .reason = "waits for the policy"});
    }
    if (!may_start(job)) continue;
    outside_.erase(number);
    admitted_.insert(number);
    not_before_.erase(number);
    changed_ = true;
    if (!begin_anew_) scheduler_.arrive(job);
  }
}

bool ClusterCoordinator::may_upgrade(const JobRecord& job) const {
  const auto at = no_upgrade_before_.find(job_number(job.id));
  return !job.lowering && (at == no_upgrade_before_.end() || now_ >= at->second);
}

std::vector<EngineNode> ClusterCoordinator::usable_nodes() const {
  std::vector<EngineNode> usable;
  for (const EngineNode& node : nodes_) {
    if (node.up && !drained_.contains(node.name)) usable.push_back(node);
  }
  std::vector<EngineNode> good;
  std::copy_if(usable.begin(), usable.end(), std::back_inserter(good),
               [this](const EngineNode& node) { return !health_.avoided(node.name, now_); });
  return good.empty() ? usable : good;  // a bad node is better than none
}

void ClusterCoordinator::begin_scheduler() {
  std::vector<const JobRecord*> jobs;
  admitted_.clear();
  for (const auto& [number, job] : jobs_) {
    const bool waiting = may_start(job);
    if (waiting) admitted_.insert(number);
    if (waiting) outside_.erase(number);
    if (waits(job.state) && !waiting) outside_.insert(number);
    if (waiting || is_placed(job.state)) jobs.push_back(&job);
  }
  next_health_ = health_.next_change(now_);
  std::vector<TenantRecord> tenants;
  tenants.reserve(tenants_.size());
  for (const auto& [name, tenant] : tenants_) tenants.push_back(tenant);
  scheduler_.begin(jobs, usable_nodes(), tenants);
  begin_anew_ = false;
}

void ClusterCoordinator::decide() {
  if (!changed_ && now_ < policy_wake_) return;
  if (!engine_problem_.empty()) return;  // nothing could be started
  if (begin_anew_) begin_scheduler();
  std::vector<Wanted> changes;
  ++revision_;  // why jobs wait
  try {
    if (config_.observer != nullptr) config_.observer->begins(Work::kDecision);
    changes = scheduler_.decide(in_seconds(now_.time_since_epoch()));
    if (config_.observer != nullptr) config_.observer->ended(Work::kDecision);
  } catch (const std::logic_error& error) {
    log_->error("policy {}: {}; nothing of its plan is done", config_.policy, error.what());
    begin_anew_ = true;
    policy_wake_ = now_ + config_.look;
    changed_ = false;
    return;
  }
  changed_ = false;
  for (const Wanted& change : changes) {
    const JobRecord& job = jobs_.at(job_number(change.job));
    if (!change.event) {
      actions_.push_back({Action::Kind::kTakeBack, job});
      continue;
    }
    const bool too_early = change.event->kind == EventKind::kUpgrade && !may_upgrade(job);
    if (too_early || !happen(change.job, *change.event)) begin_anew_ = true;
  }
  changed_ = begin_anew_;
  const double wake = scheduler_.wake();
  policy_wake_ =
      wake == policies::kNever
          ? TimePoint::max()
          : TimePoint{std::chrono::duration_cast<Duration>(std::chrono::duration<double>(wake))};
}

void ClusterCoordinator::act() {
  for (Action& action : std::exchange(due_, {})) {
    try {
      switch (action.kind) {
        case Action::Kind::kStart: start(action.job); break;
        case Action::Kind::kTakeBack:
          engine_.take_back(attempt_of(action.job), config_.grace);
          break;
        case Action::Kind::kForget: engine_.forget(attempt_of(action.job)); break;
        case Action::Kind::kClass:
          classes_.change(action.job,
                          action.job.lowering ? JobClass::kOpportunistic : JobClass::kGuaranteed);
          break;
      }
    } catch (const EngineFailed& error) {
      log_->error("job {}: {}", action.job.id.str(), error.what());
      due_.push_back(std::move(action));  // the next time
    }
  }
}

void ClusterCoordinator::start(const JobRecord& job) {
  const Attempt attempt = attempt_of(job);
  try {
    engine_.hold(attempt, with_variables(job.spec));
    engine_.place(attempt, job.placement, job.job_class);
    engine_.release(attempt);
  } catch (const std::invalid_argument& error) {
    seen_.push_back({attempt, EngineEvent::Kind::kExited, kCannotStart, error.what()});
  } catch (const EngineFailed& error) {
    // Nobody knows how far it came: this attempt is not tried again.
    seen_.push_back({attempt, EngineEvent::Kind::kVanished, {}, error.what()});
    not_started_.insert(attempt);
    due_.push_back({Action::Kind::kTakeBack, job});
  }
}

}  // namespace commensal::cluster

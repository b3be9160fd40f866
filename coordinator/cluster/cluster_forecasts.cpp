// SPDX-License-Identifier: Apache-2.0
// What the coordinator knows of how long jobs run, and what it tells those who wait.
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "allocator/base/clock.h"
#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/job_number.h"

namespace commensal::cluster {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr std::size_t kRemembered = 500;  // ended jobs that a coordinator learns from at its start
constexpr std::size_t kQuickly = 100;     // so few waiting jobs are estimated anew at each change
constexpr Duration kEstimatesLast = 5s;
constexpr ForecastBounds kBounds{};

/// By the wall clock, which may have been set back meanwhile.
Duration since(WallTime from, WallTime to) {
  return std::max(to - from, WallTime::duration::zero());
}

/// When the last attempt began to run.
std::optional<WallTime> beginning(const std::vector<Transition>& history, std::uint32_t attempt) {
  std::optional<WallTime> at;
  for (const Transition& line : history) {
    const bool began = line.from == JobState::kStarting && line.to == JobState::kRunning;
    if (began && line.attempt == attempt) at = line.at;
  }
  return at;
}

}  // namespace

/// What was submitted to a former coordinator is dated by the wall clock, as far as it can be:
/// never after now, and never before what was submitted earlier.
void ClusterCoordinator::remember_submissions() {
  const std::map<Number, TimePoint> known = std::exchange(submitted_, {});
  TimePoint earliest = TimePoint::min();
  for (const auto& [number, job] : jobs_) {
    const auto found = known.find(number);
    const TimePoint at =
        found != known.end() ? found->second : now_ - since(job.submitted, wall_());
    submitted_[number] = earliest = std::max(earliest, at);
  }
}

/// Of jobs that a former coordinator meant to try again; at most as long as it meant to wait.
void ClusterCoordinator::remember_back_off() {
  for (const auto& [number, job] : jobs_) {
    if (job.state != JobState::kQueued || job.retries == 0 || not_before_.contains(number))
      continue;
    const auto last = store_.history(job.id, 1);
    if (last.empty() || !is_end(last.back().from)) continue;
    const Duration left =
        config_.retries.wait_after(job.retries - 1) - since(last.back().at, wall_());
    if (left > Duration::zero()) not_before_[number] = now_ + left;
  }
}

void ClusterCoordinator::remember_times() {
  run_times_ = RunTimes{};
  const std::map<Number, TimePoint> known = std::exchange(began_, {});
  estimates_stale_ = true;
  for (const auto& [number, job] : jobs_) {
    if (!is_placed(job.state)) continue;
    const auto at = beginning(store_.history(job.id), job.attempt);
    if (!at) continue;
    const auto found = known.find(number);
    began_[number] = found != known.end() ? found->second : now_ - since(*at, wall_());
  }
  for (const JobRecord& job : store_.ended(kRemembered)) {
    if (job.state != JobState::kFinished && job.state != JobState::kFailed) continue;
    const auto at = beginning(store_.history(job.id), job.attempt);
    if (at) run_times_.learn(job.spec, in_seconds(since(*at, job.changed)));
  }
}

void ClusterCoordinator::note_times(const JobRecord& before, const JobRecord& after) {
  const Number number = job_number(after.id);
  if (before.state == JobState::kStarting && after.state == JobState::kRunning) {
    began_[number] = now_;
  }
  if (is_placed(after.state)) return;
  const auto began = began_.find(number);
  if (began == began_.end()) return;
  if (after.state == JobState::kFinished || after.state == JobState::kFailed) {
    run_times_.learn(after.spec, in_seconds(elapsed(began->second, now_)));
  }
  began_.erase(began);
}

void ClusterCoordinator::refresh_estimates() {
  if (now_ < estimates_until_ && (!estimates_stale_ || estimates_.size() > kQuickly)) return;
  ForecastWorld world;
  std::size_t waiting = 0;
  for (const auto& [number, job] : jobs_) {
    if (is_end(job.state)) continue;
    if (waits(job.state) && ++waiting > kBounds.waiting) continue;
    ForecastJob shown{.record = &job, .expected = run_times_.expect(job.spec)};
    if (const auto began = began_.find(number); began != began_.end()) {
      shown.elapsed = in_seconds(elapsed(began->second, now_));
    }
    shown.waited = in_seconds(elapsed(submitted_.at(number), now_));
    if (const auto at = not_before_.find(number); at != not_before_.end()) {
      shown.not_before = std::chrono::duration<double>(at->second - now_).count();
    }
    world.jobs.push_back(shown);
  }
  estimates_.clear();
  if (waiting > 0) {
    world.nodes = usable_nodes();
    for (const auto& [name, tenant] : tenants_) world.tenants.push_back(tenant);
    estimates_ = forecast_waits(policy_, world, kBounds);
  }
  estimates_until_ = now_ + kEstimatesLast;
  estimates_stale_ = false;
}

json ClusterCoordinator::estimate_of(const JobRecord& job) const {
  json estimate = json::object();
  json& starts = estimate["starts_in_ms"] = nullptr;
  json& words = estimate["words"];
  if (!engine_problem_.empty()) {
    words = "no estimate while the engine does not answer";
  } else if (const auto found = estimates_.find(job.id); found == estimates_.end()) {
    words = "no estimate yet: many jobs wait before it";
  } else {
    const auto& [seconds, text] = found->second;
    words = text;
    if (seconds) starts = static_cast<std::int64_t>(*seconds * 1000);
  }
  return estimate;
}

}  // namespace commensal::cluster

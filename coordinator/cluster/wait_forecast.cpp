// SPDX-License-Identifier: Apache-2.0
// A small simulation over the live scheduler's view.
#include "coordinator/cluster/wait_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <set>
#include <stdexcept>
#include <utility>

#include "coordinator/cluster/scheduler.h"

namespace commensal::cluster {
namespace {

std::string in_about(double seconds) {
  if (seconds < 1) return "soon";
  if (seconds < 100) return fmt::format("in about {:.0f} s", std::ceil(seconds));
  if (seconds < 100 * 60) return fmt::format("in about {:.0f} min", std::ceil(seconds / 60));
  if (seconds < 48 * 3600) return fmt::format("in about {:.0f} h", std::ceil(seconds / 3600));
  return fmt::format("in about {:.0f} days", std::ceil(seconds / 86'400));
}

class Forecast {
 public:
  Forecast(const policies::ClusterPolicy& policy, const ForecastWorld& world,
           const ForecastBounds& bounds)
      : scheduler_(policy, [this](const JobRecord& job) { return submitted_.at(job.id); }),
        world_(world),
        bounds_(bounds) {}

  std::map<JobId, WaitEstimate> run() && {
    try {
      begin();
      while (!waiting_.empty() && decisions_ < bounds_.decisions && step()) {
      }
    } catch (const std::logic_error& error) {
      stopped_by_ = fmt::format("the policy's plan cannot be followed: {}", error.what());
    }
    for (const JobId& job : waiting_) estimates_[job] = {std::nullopt, why_none()};
    return std::move(estimates_);
  }

 private:
  struct Happening {
    double at = 0;
    std::size_t job = 0;
    bool ends = false;  // else it may be started from now on
    std::uint32_t start = 0;
    auto operator<=>(const Happening&) const = default;
  };

  void begin() {
    std::vector<const JobRecord*> now;
    std::size_t waiting = 0;
    for (const ForecastJob& job : world_.jobs) submitted_[job.record->id] = -job.waited;
    for (std::size_t i = 0; i < world_.jobs.size(); ++i) {
      const ForecastJob& job = world_.jobs[i];
      const JobId& id = job.record->id;
      if (job.record->state == JobState::kParked) continue;  // who follows it waits on
      if (!is_placed(job.record->state) && ++waiting > bounds_.waiting) {
        estimates_[id] = {std::nullopt, fmt::format("no estimate: more than {} jobs wait before it",
                                                    bounds_.waiting)};
        continue;
      }
      index_.emplace(id, i);
      if (is_placed(job.record->state)) {
        now.push_back(job.record);
        runs(i, 0, job.elapsed);
        continue;
      }
      waiting_.insert(id);
      if (job.record->spec.after && submitted_.contains(*job.record->spec.after)) {
        followers_[*job.record->spec.after].push_back(i);
      } else if (job.not_before > 0) {
        future_.push({job.not_before, i, false, 0});
      } else {
        now.push_back(job.record);
      }
    }
    scheduler_.begin(now, world_.nodes, world_.tenants);
    decide(0);
  }

  void runs(std::size_t i, double now, double elapsed) {
    const ForecastJob& job = world_.jobs[i];
    const std::uint32_t start = ++starts_[i];
    if (!job.expected) {
      if (unknown_.empty()) unknown_ = job.record->id.str();
      return;
    }
    alike_ = alike_ && job.expected->alike;
    const double left = job.expected->seconds - elapsed;
    future_.push({now + (left > 0 ? left : 0.1 * elapsed), i, true, start});
  }

  /// Goes on to what happens next. @return false if nothing does.
  bool step() {
    const double wake = scheduler_.wake();
    if (future_.empty() && wake == policies::kNever) return false;
    const double at = future_.empty() ? wake : std::min(wake, future_.top().at);
    now_ = std::max(now_, at);
    while (!future_.empty() && future_.top().at <= now_) {
      const Happening next = future_.top();
      future_.pop();
      if (!next.ends) {
        scheduler_.arrive(*world_.jobs[next.job].record);
      } else if (starts_[next.job] == next.start) {  // else it was stopped meanwhile
        ends(next.job);
      }
    }
    decide(now_);
    return true;
  }

  void ends(std::size_t i) {
    const JobId& id = world_.jobs[i].record->id;
    // Of one on a node that is given no jobs nothing becomes free but what its tenant is charged,
    // and of that this scheduler could only be told anew.
    (void)scheduler_.leave(id);
    const auto found = followers_.find(id);
    if (found == followers_.end()) return;
    for (const std::size_t next : found->second) scheduler_.arrive(*world_.jobs[next].record);
    followers_.erase(found);
  }

  void decide(double now) {
    ++decisions_;
    for (const Wanted& change : scheduler_.decide(now)) {
      const auto found = index_.find(change.job);
      if (found == index_.end()) continue;
      if (!change.event) {
        ++starts_[found->second];  // its end does not come
      } else if (change.event->kind == EventKind::kStart) {
        if (waiting_.erase(change.job) > 0) estimates_[change.job] = started(now);
        runs(found->second, now, 0);
      }
    }
  }

  WaitEstimate started(double now) const {
    return {now, fmt::format("{}, if jobs run as long as {} did", in_about(now),
                             alike_ ? "those like them" : "others")};
  }

  std::string why_none() const {
    if (!stopped_by_.empty()) return "no estimate: " + stopped_by_;
    if (!unknown_.empty()) {
      return fmt::format("no estimate: how long job {} runs is not known", unknown_);
    }
    if (decisions_ >= bounds_.decisions) return "no estimate: too much happens before";
    return "no estimate: what is known to end does not let it start";
  }

  Scheduler scheduler_;
  const ForecastWorld& world_;
  ForecastBounds bounds_;
  std::map<JobId, WaitEstimate> estimates_;
  std::map<JobId, double> submitted_;  // of all that are here
  std::set<JobId> waiting_;
  std::map<JobId, std::size_t> index_;
  std::map<JobId, std::vector<std::size_t>> followers_;
  std::map<std::size_t, std::uint32_t> starts_;
  std::priority_queue<Happening, std::vector<Happening>, std::greater<>> future_;
  std::string unknown_;  // the first job of unknown length
  std::string stopped_by_;
  bool alike_ = true;
  double now_ = 0;
  std::size_t decisions_ = 0;
};

}  // namespace

std::map<JobId, WaitEstimate> forecast_waits(const policies::ClusterPolicy& policy,
                                             const ForecastWorld& world,
                                             const ForecastBounds& bounds) {
  return Forecast(policy, world, bounds).run();
}

}  // namespace commensal::cluster

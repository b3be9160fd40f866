// SPDX-License-Identifier: Apache-2.0
// The event loop: ends first, then arrivals, then the policy.
#include "coordinator/engines/simulator/simulation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <stdexcept>
#include <utility>

#include "coordinator/engines/simulator/model_skew.h"

namespace commensal::simulator {
namespace {

using policies::Action;
using policies::ClusterPlan;
using policies::Decision;
using policies::JobIndex;
using policies::JobPhase;
using policies::kNever;

constexpr std::uint64_t kEventsBetweenProgress = 1000;

/// When jobs end; an entry that is older than the job's newest is passed over.
class Ends {
 public:
  void set(JobIndex job, Time end) {
    if (at_.size() <= job) at_.resize(job + 1, kNever);
    if (at_[job] == end) return;
    at_[job] = end;
    if (end < kNever) queue_.emplace(end, job);
  }
  [[nodiscard]] Time of(JobIndex job) const { return at_[job]; }

  /// The earliest; kNever if nobody ends.
  [[nodiscard]] std::pair<Time, JobIndex> first() {
    while (!queue_.empty() && at_[queue_.top().second] != queue_.top().first) queue_.pop();
    return queue_.empty() ? std::pair{kNever, policies::kNoJob} : queue_.top();
  }

 private:
  using Entry = std::pair<Time, JobIndex>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::vector<Time> at_;
};

class Run {
 public:
  Run(const Trace& trace, const policies::Cluster& cluster, Semantics& semantics,
      std::string_view policy_name, const policies::ClusterPolicy& policy, const Observer& observer)
      : trace_(trace),
        semantics_(semantics),
        placer_(semantics.placer(policy_name)),
        policy_(policy),
        every_event_(policy.reads_progress() || semantics.counts_events()),
        observer_(observer),
        state_(cluster) {
    prepare();
  }

  Outcome run(const Progress& progress) {
    while (!over()) {
      semantics_.round() > 0 ? round() : step();
      ++outcome_.events;
      if (progress && outcome_.events % kEventsBetweenProgress == 0) {
        progress(ended_, jobs_.size());
      }
    }
    return std::move(outcome_);
  }

 private:
  /// Where jobs stay, a run is over once all have arrived.
  [[nodiscard]] bool over() const {
    return (semantics_.leaves() ? ended_ : arrived_) == jobs_.size();
  }

  struct Prepared {
    std::size_t row;
    ClusterJob job;
    Work work;
  };

  void prepare() {
    for (std::size_t row = 0; row < trace_.jobs.size(); ++row) {
      const TraceJob& recorded = trace_.jobs[row];
      Prepared prepared{.row = row, .job = {}, .work = {}};
      prepared.job.gpus = prepared.job.min_gpus = prepared.job.max_gpus = recorded.gpus;
      prepared.job.gpu_milli = recorded.gpu_milli;
      prepared.job.cpu_milli = recorded.cpu_milli;
      prepared.job.memory_mib = recorded.memory_mib;
      prepared.job.gpu_types = state_.cluster().type_bits(recorded.gpu_types);
      prepared.job.asked = recorded.asked;
      prepared.job.priority = recorded.priority;
      prepared.job.weight = recorded.weight;
      prepared.job.skew = model_skew(recorded.model);
      prepared.job.group = group_of(recorded);
      prepared.work.recorded = &recorded;
      semantics_.prepare(recorded, prepared.job, prepared.work);
      if (recorded.gpus > state_.cluster().total_gpus()) {
        throw std::invalid_argument(fmt::format(
            "{}: job {} asks for more GPUs than the cluster has: {} > {}", trace_.source,
            recorded.name, recorded.gpus, state_.cluster().total_gpus()));
      }
      if (!recorded.gpu_types.empty() && prepared.job.gpu_types == 0) {
        throw std::invalid_argument(
            fmt::format("{}: job {} asks for GPUs of a type that the cluster does not have: {}",
                        trace_.source, recorded.name, fmt::join(recorded.gpu_types, ", ")));
      }
      jobs_.push_back(std::move(prepared));
    }
    std::stable_sort(jobs_.begin(), jobs_.end(), [&](const Prepared& a, const Prepared& b) {
      return semantics_.before(a.job, b.job);
    });
    state_.jobs().reserve(jobs_.size());
    outcome_.jobs.reserve(jobs_.size());
    if (semantics_.round() == 0 && !jobs_.empty()) now_ = jobs_.front().job.submit;
  }

  /// Number of the group of jobs that are run again and again; jobs of a model are one.
  std::uint32_t group_of(const TraceJob& recorded) {
    if (recorded.model.empty()) return 0;
    const auto next = static_cast<std::uint32_t>(groups_.size() + 1);
    return groups_.try_emplace(recorded.model, next).first->second;
  }

  void step() {
    const Time arrival = arrived_ < jobs_.size() ? jobs_[arrived_].job.submit : kNever;
    const Time finish = ends_.first().first;
    const Time event = std::min(arrival, finish);
    if (event == kNever && wake_ == kNever) fail_waiting();
    const bool only_wake = wake_ < event;
    now_ = only_wake ? wake_ : event;
    if (every_event_) {
      for (const JobIndex job : state_.running()) advance(job);
    }
    now_ended_.clear();
    if (!only_wake) {
      end_jobs();
      while (arrived_ < jobs_.size() && jobs_[arrived_].job.submit <= now_) arrive();
    }
    decide();
  }

  /// One round: who has arrived is decided on, then all run to the next boundary.
  void round() {
    while (arrived_ < jobs_.size() && jobs_[arrived_].job.submit <= now_) arrive();
    if (arrived_ == ended_) {  // nobody is here
      now_ = semantics_.round_of(jobs_[arrived_].job.submit);
      return;
    }
    decide();
    if (state_.running().empty()) {
      if (arrived_ == jobs_.size() && wake_ == kNever) fail_waiting();
      now_ = arrived_ == jobs_.size() ? wake_ : semantics_.round_of(jobs_[arrived_].job.submit);
      now_ended_.clear();
      return;
    }
    now_ended_.clear();
    for (const JobIndex job : state_.running()) {
      const auto last = semantics_.run_round(state_.jobs()[job], work_[job], now_);
      if (!last) continue;
      outcome_.jobs[job].end = *last;
      now_ended_.push_back(job);
    }
    for (const JobIndex job : now_ended_) state_.end(job);
    ended_ += now_ended_.size();
    now_ += semantics_.round();
  }

  [[noreturn]] void fail_waiting() const {
    throw std::logic_error(fmt::format("{}: nothing runs and {} jobs wait for ever", trace_.source,
                                       jobs_.size() - ended_));
  }

  /// Brings a running job up to now.
  void advance(JobIndex job) {
    if (since_[job] == now_ || semantics_.round() > 0) return;  // a round advances them itself
    semantics_.advance(state_.jobs()[job], work_[job], now_ - since_[job]);
    since_[job] = now_;
  }

  void end_jobs() {
    for (auto [end, job] = ends_.first(); end < kNever && semantics_.together(end, now_);
         std::tie(end, job) = ends_.first()) {
      advance(job);
      ends_.set(job, kNever);
      outcome_.jobs[job].end = now_;
      now_ended_.push_back(job);
    }
    // In the order of their starts, as the policy sees them.
    std::sort(now_ended_.begin(), now_ended_.end(),
              [&](JobIndex a, JobIndex b) { return state_.job(a).turn < state_.job(b).turn; });
    for (const JobIndex job : now_ended_) state_.end(job);
    ended_ += now_ended_.size();
  }

  void arrive() {
    Prepared& next = jobs_[arrived_++];
    outcome_.jobs.push_back({.row = next.row,
                             .submit = next.job.submit,
                             .first_start = kNever,
                             .end = kNever,
                             .gpus = next.job.gpus});
    waits_since_.push_back(next.job.submit);
    since_.push_back(now_);
    work_.push_back(next.work);
    state_.arrive(std::move(next.job));
  }

  void decide() {
    const ClusterPlan plan = state_.decide(policy_, placer_, semantics_.models(), now_);
    for (const Decision& decision : plan.decisions) {
      if (decision.action != Action::kStart && decision.action != Action::kReserve) {
        advance(decision.job);
      }
    }
    state_.commit(plan);
    outcome_.decisions += plan.decisions.size();
    bool stops = false;
    for (const Decision& decision : plan.decisions) stops = note(decision) || stops;
    semantics_.settle({now_ended_, plan, state_, work_,
                       [this](JobIndex job, double unit_seconds) { set_unit(job, unit_seconds); }});
    if (every_event_) {
      for (const JobIndex job : state_.running()) set_end(job);
    } else {
      for (const Decision& decision : plan.decisions) {
        if (state_.job(decision.job).phase == JobPhase::kRunning) set_end(decision.job);
      }
    }
    const Time asked = std::min(plan.wake, semantics_.again(now_, stops));
    // Asked twice at one moment without a change, it would be asked for ever.
    const bool idle = asked <= now_ && last_decision_ == now_ && plan.decisions.empty();
    wake_ = idle ? kNever : asked;
    last_decision_ = now_;
    if (observer_) observer_(state_, now_, arrived_ - ended_ - state_.running().size());
  }

  /// Keeps the books of a decision; returns whether it stops a job.
  bool note(const Decision& decision) {
    JobOutcome& job = outcome_.jobs[decision.job];
    if (decision.action == Action::kMove) ++job.restarts;
    if (decision.action == Action::kStart) {
      if (job.first_start == kNever) {
        job.first_start = now_;
      } else {
        ++job.restarts;
      }
      job.waited += now_ - waits_since_[decision.job];
      since_[decision.job] = now_;
    }
    if (decision.action != Action::kStop) return false;
    ++job.preemptions;
    waits_since_[decision.job] = now_;
    ends_.set(decision.job, kNever);
    semantics_.stopped(state_.jobs()[decision.job], work_[decision.job]);
    return true;
  }

  void set_unit(JobIndex job, double unit_seconds) {
    if (work_[job].unit_seconds == unit_seconds) return;
    advance(job);
    work_[job].unit_seconds = unit_seconds;
    state_.jobs()[job].remaining = work_[job].left * unit_seconds;
    set_end(job);
  }

  void set_end(JobIndex job) { ends_.set(job, semantics_.end(state_.job(job), work_[job], now_)); }

  const Trace& trace_;
  Semantics& semantics_;
  const policies::Placer& placer_;
  const policies::ClusterPolicy& policy_;
  const bool every_event_;
  const Observer& observer_;
  policies::ClusterState state_;
  std::vector<Prepared> jobs_;  // in the order of arrival
  std::map<std::string, std::uint32_t> groups_;
  std::size_t arrived_ = 0;
  std::size_t ended_ = 0;
  std::vector<Work> work_;
  std::vector<Time> since_;  // up to when a running job's work is counted
  Ends ends_;
  std::vector<JobIndex> now_ended_;
  std::vector<Time> waits_since_;
  Time now_ = 0;
  Time wake_ = kNever;
  Time last_decision_ = -kNever;
  Outcome outcome_;
};

void check_nodes(const policies::Cluster& cluster, const Semantics& semantics) {
  if (!semantics.equal_nodes()) return;
  for (const policies::NodeSpec& node : cluster.nodes()) {
    const policies::NodeSpec& first = cluster.nodes().front();
    if (node.gpus == first.gpus) continue;
    throw std::invalid_argument(
        fmt::format("semantics {} know equal nodes only: {} has {} GPUs and {} has {}",
                    semantics.name(), first.name, first.gpus, node.name, node.gpus));
  }
}

}  // namespace

Outcome simulate(const Trace& trace, const policies::Cluster& cluster, Semantics& semantics,
                 std::string_view policy_name, const policies::ClusterPolicy& policy,
                 const Progress& progress, const Observer& observer) {
  check_nodes(cluster, semantics);
  return Run(trace, cluster, semantics, policy_name, policy, observer).run(progress);
}

}  // namespace commensal::simulator

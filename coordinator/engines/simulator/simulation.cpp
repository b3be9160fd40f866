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
#include <tuple>
#include <utility>

#include "coordinator/engines/simulator/model_skew.h"
#include "coordinator/engines/simulator/tenant_book.h"

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
      std::string_view policy_name, const policies::ClusterPolicy& policy, const Observer& observer,
      const Conditions& conditions)
      : trace_(trace),
        tenants_(trace, conditions.tenants),
        semantics_(semantics),
        placer_(semantics.placer(policy_name)),
        policy_(policy),
        every_event_(policy.reads_progress() || semantics.counts_events()),
        observer_(observer),
        failures_(conditions.failures),
        predicted_(conditions.predicted),
        until_settled_(conditions.until_settled),
        state_(cluster, tenants_.tenants()) {
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
    Failures::Admission admission = {};  // with failures only
    Time submit = 0;                     // before its pre-run
  };

  /// A job that failed and is to be tried again: number `outcome` of the outcomes and jobs.
  struct Retry {
    Time at;
    std::size_t outcome;
    bool operator>(const Retry& other) const {
      return std::tuple(at, outcome) > std::tuple(other.at, other.outcome);
    }
  };

  void prepare() {
    for (std::size_t row = 0; row < trace_.jobs.size(); ++row) {
      const TraceJob& recorded = trace_.jobs[row];
      Prepared prepared{.row = row, .job = {}, .work = {}};
      prepared.job.gpus = recorded.gpus;
      prepared.job.min_gpus = recorded.min_gpus > 0 ? recorded.min_gpus : recorded.gpus;
      prepared.job.max_gpus = recorded.max_gpus > 0 ? recorded.max_gpus : recorded.gpus;
      prepared.job.tenant = tenants_.of(recorded);
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
    const auto sort = [this] {
      std::stable_sort(jobs_.begin(), jobs_.end(), [&](const Prepared& a, const Prepared& b) {
        return semantics_.before(a.job, b.job);
      });
    };
    sort();
    for (Prepared& job : jobs_) {
      job.submit = job.job.submit;
      if (failures_ == nullptr) continue;
      job.admission = failures_->admit(job.row, job.submit, job.job.duration);
      job.job.submit = job.admission.release;
    }
    if (failures_ != nullptr) sort();
    state_.jobs().reserve(jobs_.size());
    outcome_.jobs.reserve(jobs_.size());
    if (semantics_.round() == 0 && !jobs_.empty()) now_ = jobs_.front().job.submit;
  }

  /// Number of the group of jobs that are run again and again; if none is told, jobs of a model are
  /// one. Zero: nothing is known.
  std::uint32_t group_of(const TraceJob& recorded) {
    const std::string& name = recorded.group.empty() ? recorded.model : recorded.group;
    if (name.empty()) return 0;
    const auto next = static_cast<std::uint32_t>(groups_.size() + 1);
    return groups_.try_emplace(name, next).first->second;
  }

  void step() {
    Time arrival = arrived_ < jobs_.size() ? jobs_[arrived_].job.submit : kNever;
    if (!retries_.empty()) arrival = std::min(arrival, retries_.top().at);
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
      while (!retries_.empty() && retries_.top().at <= now_) {
        const std::size_t outcome = retries_.top().outcome;
        retries_.pop();
        waits_since_.push_back(outcome_.jobs[outcome].end);
        enter(outcome);
      }
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
      outcome_.jobs[outcome_of_[job]].end = *last;
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
    show(job);
  }

  void end_jobs() {
    for (auto [end, job] = ends_.first(); end < kNever && semantics_.together(end, now_);
         std::tie(end, job) = ends_.first()) {
      advance(job);
      ends_.set(job, kNever);
      outcome_.jobs[outcome_of_[job]].end = now_;
      now_ended_.push_back(job);
    }
    // In the order of their starts, as the policy sees them.
    std::sort(now_ended_.begin(), now_ended_.end(),
              [&](JobIndex a, JobIndex b) { return state_.job(a).turn < state_.job(b).turn; });
    for (const JobIndex job : now_ended_) {
      state_.end(job);
      if (tried_again(job)) continue;
      ++ended_;
      if (predicted_ != nullptr && outcome_.jobs[outcome_of_[job]].completed) predicted_->end(job);
    }
  }

  /// Whether a job that has ended failed and comes back.
  bool tried_again(JobIndex job) {
    if (failures_ == nullptr) return false;
    const std::size_t outcome = outcome_of_[job];
    const auto ending = failures_->end(jobs_[outcome].row, now_, state_.job(job).attained);
    outcome_.jobs[outcome].completed = ending.completed;
    if (ending.again) retries_.push({*ending.again, outcome});
    return ending.again.has_value();
  }

  void arrive() {
    const Prepared& next = jobs_[arrived_];
    outcome_.jobs.push_back({.row = next.row,
                             .submit = next.submit,
                             .first_start = kNever,
                             .end = kNever,
                             .gpus = next.job.gpus});
    ++arrived_;
    if (next.admission.fails) {
      outcome_.jobs.back().first_start = next.admission.begin;
      outcome_.jobs.back().end = now_;
      outcome_.jobs.back().completed = false;
      ++ended_;
      return;
    }
    waits_since_.push_back(next.submit);
    enter(arrived_ - 1);
  }

  /// Gives a job, or what is left of it after a failure, to the policy.
  void enter(std::size_t outcome) {
    ClusterJob& asked = jobs_[outcome].job;  // needed again only by one that is tried again
    ClusterJob job = failures_ == nullptr ? std::move(asked) : asked;
    Work work = jobs_[outcome].work;
    if (failures_ != nullptr && job.duration > 0) {
      const Failures::Attempt attempt = failures_->begin(jobs_[outcome].row);
      work.beyond = work.left * attempt.beyond / job.duration;
      work.left *= 1 - attempt.done / job.duration;
      job.remaining *= 1 - attempt.done / job.duration;
      job.duration -= attempt.done;
      job.submit = now_;
    }
    outcome_of_.push_back(outcome);
    since_.push_back(now_);
    work_.push_back(work);
    const JobIndex index = state_.arrive(std::move(job));
    if (predicted_ != nullptr) predicted_->arrive(state_.jobs()[index], work_[index]);
  }

  /// Hides from policies what is left of a job in truth, where durations are predicted.
  void show(JobIndex job) {
    if (predicted_ != nullptr) predicted_->show(job, state_.jobs()[job], work_[job]);
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
    const Time again =
        until_settled_ && !plan.decisions.empty() ? now_ : semantics_.again(now_, stops);
    const Time asked = std::min(plan.wake, again);
    // Asked twice at one moment without a change, it would be asked for ever.
    const bool idle = asked <= now_ && last_decision_ == now_ && plan.decisions.empty();
    wake_ = idle ? kNever : asked;
    last_decision_ = now_;
    if (observer_) observer_(state_, now_, arrived_ - ended_ - state_.running().size());
  }

  /// Keeps the books of a decision; returns whether it stops a job.
  bool note(const Decision& decision) {
    JobOutcome& job = outcome_.jobs[outcome_of_[decision.job]];
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
    show(decision.job);
    return true;
  }

  void set_unit(JobIndex job, double unit_seconds) {
    if (work_[job].unit_seconds == unit_seconds) return;
    advance(job);
    work_[job].unit_seconds = unit_seconds;
    state_.jobs()[job].remaining = work_[job].left * unit_seconds;
    show(job);
    set_end(job);
  }

  void set_end(JobIndex job) {
    if (work_[job].beyond == 0) {
      ends_.set(job, semantics_.end(state_.job(job), work_[job], now_));
      return;
    }
    Work reached = work_[job];
    reached.left -= reached.beyond;
    ends_.set(job, std::max(now_, semantics_.end(state_.job(job), reached, now_)));
  }

  const Trace& trace_;
  const TenantBook tenants_;
  Semantics& semantics_;
  const policies::Placer& placer_;
  const policies::ClusterPolicy& policy_;
  const bool every_event_;
  const Observer& observer_;
  Failures* const failures_;
  PredictedDurations* const predicted_;  // null: policies see the truth
  const bool until_settled_;
  policies::ClusterState state_;
  std::vector<Prepared> jobs_;  // in the order of arrival
  std::map<std::string, std::uint32_t> groups_;
  std::size_t arrived_ = 0;
  std::size_t ended_ = 0;
  std::vector<std::size_t> outcome_of_;  // by job: failed ones come back as another
  std::priority_queue<Retry, std::vector<Retry>, std::greater<>> retries_;
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

void check_failures(const Semantics& semantics, const Conditions& conditions) {
  if (conditions.failures == nullptr || (semantics.round() == 0 && semantics.leaves())) return;
  throw std::invalid_argument(fmt::format("semantics {} have {}, and failures happen between",
                                          semantics.name(),
                                          semantics.leaves() ? "rounds" : "no ends of jobs"));
}

}  // namespace

Outcome simulate(const Trace& trace, const policies::Cluster& cluster, Semantics& semantics,
                 std::string_view policy_name, const policies::ClusterPolicy& policy,
                 const Progress& progress, const Observer& observer, const Conditions& conditions) {
  check_nodes(cluster, semantics);
  check_failures(semantics, conditions);
  return Run(trace, cluster, semantics, policy_name, policy, observer, conditions).run(progress);
}

}  // namespace commensal::simulator

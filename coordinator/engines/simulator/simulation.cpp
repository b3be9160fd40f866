// SPDX-License-Identifier: Apache-2.0
// The event loop: ends first, then arrivals, then the policy.
#include "coordinator/engines/simulator/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace commensal::simulator {
namespace {

using policies::Action;
using policies::ClusterPlan;
using policies::Decision;
using policies::JobIndex;
using policies::JobPhase;
using policies::kNever;

constexpr std::uint64_t kEventsBetweenProgress = 1000;

class Run {
 public:
  Run(const Trace& trace, const policies::Cluster& cluster, const Semantics& semantics,
      std::string_view policy_name, const policies::ClusterPolicy& policy)
      : trace_(trace),
        semantics_(semantics),
        placer_(semantics.placer(policy_name)),
        policy_(policy),
        state_(cluster) {
    prepare();
  }

  Outcome run(const Progress& progress) {
    while (ended_ < jobs_.size()) {
      semantics_.round() > 0 ? round() : step();
      ++outcome_.events;
      if (progress && outcome_.events % kEventsBetweenProgress == 0) {
        progress(ended_, jobs_.size());
      }
    }
    return std::move(outcome_);
  }

 private:
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
      prepared.job.asked = recorded.asked;
      prepared.job.priority = recorded.priority;
      prepared.work.recorded = &recorded;
      semantics_.prepare(recorded, prepared.job, prepared.work);
      if (recorded.gpus > state_.cluster().total_gpus()) {
        throw std::invalid_argument(
            fmt::format("{}: job {} asks for more GPUs than the cluster has: {} > {}",
                        trace_.source, recorded.name, recorded.gpus,
                        state_.cluster().total_gpus()));
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

  void step() {
    const Time arrival = arrived_ < jobs_.size() ? jobs_[arrived_].job.submit : kNever;
    Time finish = kNever;
    for (const JobIndex job : state_.running()) finish = std::min(finish, ends_[job]);
    const Time event = std::min(arrival, finish);
    if (event == kNever && wake_ == kNever) fail_waiting();
    const bool only_wake = wake_ < event;
    advance_to(only_wake ? wake_ : event);
    if (!only_wake) {
      if (finish <= event || semantics_.together(finish, event)) end_jobs(event);
      while (arrived_ < jobs_.size() && jobs_[arrived_].job.submit <= event) arrive();
    }
    decide();
  }

  /// One round: who has arrived is decided on, then all run to the next boundary.
  void round() {
    const double length = semantics_.round();
    while (arrived_ < jobs_.size() && jobs_[arrived_].job.submit <= now_) arrive();
    if (arrived_ == ended_) {  // nobody is here
      now_ = std::ceil(jobs_[arrived_].job.submit / length) * length;
      return;
    }
    decide();
    if (state_.running().empty() && arrived_ == jobs_.size()) fail_waiting();
    std::vector<JobIndex> due;
    for (const JobIndex job : state_.running()) {
      const auto last = semantics_.run_round(state_.jobs()[job], work_[job], now_);
      if (!last) continue;
      outcome_.jobs[job].end = *last;
      due.push_back(job);
    }
    for (const JobIndex job : due) state_.end(job);
    ended_ += due.size();
    now_ += length;
  }

  [[noreturn]] void fail_waiting() const {
    throw std::logic_error(fmt::format("{}: nothing runs and {} jobs wait for ever",
                                       trace_.source, jobs_.size() - ended_));
  }

  void advance_to(Time time) {
    const double seconds = time - now_;
    for (const JobIndex job : state_.running()) {
      semantics_.advance(state_.jobs()[job], work_[job], seconds);
    }
    now_ = time;
  }

  void end_jobs(Time event) {
    std::vector<JobIndex> due;
    for (const JobIndex job : state_.running()) {
      if (semantics_.together(ends_[job], event)) due.push_back(job);
    }
    for (const JobIndex job : due) {
      state_.end(job);
      outcome_.jobs[job].end = now_;
      ++ended_;
    }
  }

  void arrive() {
    Prepared& next = jobs_[arrived_++];
    outcome_.jobs.push_back({.row = next.row,
                             .submit = next.job.submit,
                             .first_start = kNever,
                             .end = kNever,
                             .gpus = next.job.gpus});
    waits_since_.push_back(next.job.submit);
    work_.push_back(next.work);
    ends_.push_back(kNever);
    state_.arrive(std::move(next.job));
  }

  void decide() {
    const ClusterPlan plan = state_.decide(policy_, placer_, semantics_.models(), now_);
    state_.commit(plan);
    outcome_.decisions += plan.decisions.size();
    bool stops = false;
    for (const Decision& decision : plan.decisions) {
      JobOutcome& job = outcome_.jobs[decision.job];
      if (decision.action == Action::kStop) {
        stops = true;
        ++job.preemptions;
        waits_since_[decision.job] = now_;
        semantics_.stopped(state_.jobs()[decision.job], work_[decision.job]);
      } else if (decision.action == Action::kStart) {
        if (job.first_start == kNever) {
          job.first_start = now_;
        } else {
          ++job.restarts;
        }
        job.waited += now_ - waits_since_[decision.job];
      } else if (decision.action == Action::kMove) {
        ++job.restarts;
      }
    }
    semantics_.settle(plan, state_, work_);
    for (const JobIndex job : state_.running()) {
      ends_[job] = semantics_.end(state_.jobs()[job], work_[job], now_);
    }
    const Time asked = std::min(plan.wake, semantics_.again(now_, stops));
    // Asked twice at one moment without a change, it would be asked for ever.
    const bool idle = asked <= now_ && last_decision_ == now_ && plan.decisions.empty();
    wake_ = idle ? kNever : asked;
    last_decision_ = now_;
  }

  const Trace& trace_;
  const Semantics& semantics_;
  const policies::Placer& placer_;
  const policies::ClusterPolicy& policy_;
  policies::ClusterState state_;
  std::vector<Prepared> jobs_;  // in the order of arrival
  std::size_t arrived_ = 0;
  std::size_t ended_ = 0;
  std::vector<Work> work_;
  std::vector<Time> ends_;
  std::vector<Time> waits_since_;
  Time now_ = 0;
  Time wake_ = kNever;
  Time last_decision_ = -kNever;
  Outcome outcome_;
};

}  // namespace

Outcome simulate(const Trace& trace, const policies::Cluster& cluster, const Semantics& semantics,
                 std::string_view policy_name, const policies::ClusterPolicy& policy,
                 const Progress& progress) {
  return Run(trace, cluster, semantics, policy_name, policy).run(progress);
}

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// What a change of a job's class does on one device.
#include <algorithm>
#include <utility>

#include "coordinator/node/device_coordinator.h"

namespace commensal::node {
namespace {

constexpr std::string_view kOpen = "open";
constexpr std::string_view kHoldsShare = "duty_cycle";  // "open" cannot hold a share below 1

std::string name_of(const Member& member) { return "process " + std::to_string(member.pid); }

}  // namespace

wire::JobTerms DeviceCoordinator::terms_in(const Job& job, const wire::SetRequest& message) const {
  const bool guaranteed = message.job_class == JobClass::kGuaranteed;
  wire::JobTerms terms = job.terms;
  if (message.job_class != job.job_class) {
    terms.law.clear();
    terms.slo.reset();
    // Who gives way gives way with all of it, unless it was, or is, told to keep something.
    if (!guaranteed) terms.memory.min = Bytes{};
    if (job.other_terms) wire::apply(wire::class_terms(wire::as_patch(*job.other_terms)), terms);
    if (!guaranteed && minimum_shares_except(job.id) + terms.share.min > 1.0) terms.share.min = 0.0;
  }
  wire::apply(wire::class_terms(message.terms), terms);
  if (terms.law.empty() && !guaranteed) terms.law = config_.law;
  if (terms.law.empty()) terms.law = terms.share.max < 1.0 ? kHoldsShare : kOpen;
  return terms;
}

std::string DeviceCoordinator::problem_with_class(const Job& job,
                                                  const wire::SetRequest& message) const {
  if (std::string wrong = wire::problem_with(message.terms, *message.job_class); !wrong.empty()) {
    return wrong;
  }
  const wire::JobTerms terms = terms_in(job, message);
  // Where it holds nothing it needs no floor.
  std::optional<MemoryRange> memory;
  if (message.terms.memory || job.managed_count() > 0) memory = terms.memory;
  return problem_with(job.id, *message.job_class, memory, terms.share);
}

void DeviceCoordinator::begin_upgrade(const JobId& id, const wire::SetRequest& message,
                                      TimePoint now) {
  Job& job = *table_.find(id);
  job.upgrading = terms_in(job, message);
  log(id, "class", "to be guaranteed: gets its floor first", now);
  rebalance(now);
}

void DeviceCoordinator::cancel_upgrade(const JobId& id, TimePoint now) {
  Job& job = *table_.find(id);
  if (!job.upgrading) return;
  job.upgrading.reset();
  log(id, "class", "stays opportunistic", now);
  rebalance(now);
}

Bytes DeviceCoordinator::floor_lacks(const JobId& id) const {
  const Job& job = *table_.find(id);
  if (job.managed_count() == 0) return Bytes{};
  Bytes granted;
  for (const Member& member : job.members) granted += ledger_.limit(job.key(member));
  // What divides evenly only nearly is no lack.
  const Bytes lacks = saturating_sub(job.memory_bounds().min, granted);
  return lacks.count() < job.members.size() ? Bytes{} : lacks;
}

std::string DeviceCoordinator::set_class(const JobId& id, const wire::SetRequest& message,
                                         TimePoint now) {
  Job& job = *table_.find(id);
  wire::JobTerms terms = job.upgrading ? *job.upgrading : terms_in(job, message);
  if (!job.before_change) {
    job.before_change =
        Job::Before{job.job_class, job.asked_class, job.reason, job.terms, job.other_terms};
  }
  change_class(job, *message.job_class, std::move(terms),
               *message.job_class == JobClass::kGuaranteed ? "upgraded where it runs"
                                                           : "gives way where it runs",
               now);
  std::string done{to_string(job.job_class)};
  done += ", law " + job.terms.law;
  if (job.job_class == JobClass::kGuaranteed) {
    done += ", limit " + to_string(job.target) + " (" + job.target_reason + ")";
  }
  return done;
}

void DeviceCoordinator::undo_class(const JobId& id, const std::string& why, TimePoint now) {
  Job& job = *table_.find(id);
  if (!job.before_change) return;
  Job::Before before = *std::exchange(job.before_change, std::nullopt);
  change_class(job, before.job_class, std::move(before.terms), why, now);
  job.asked_class = before.asked_class;
  job.reason = std::move(before.reason);
  job.other_terms = std::move(before.other_terms);
}

void DeviceCoordinator::settle_class(const JobId& id, TimePoint now) {
  Job& job = *table_.find(id);
  const bool kept = job.keeps_floor();
  job.before_change.reset();
  if (kept) rebalance(now);
}

void DeviceCoordinator::leave_class(Job& job) {
  for (Member& member : job.members) {
    member.pace = {};
    member.time_use = {};
    member.gpu_time = {};
  }
  job.signal = StepSignal::kMedian;
  job.gaps.reset();
  job.gap_rules = {};
  job.hand_overs = 0.0;
  job.need = {};
  job.allowed = {};
  job.share_now = 1.0;
  job.share_reason.clear();
}

void DeviceCoordinator::change_class(Job& job, JobClass wanted, wire::JobTerms terms,
                                     const std::string& why, TimePoint now) {
  job.upgrading.reset();
  if (wanted != job.job_class) {
    job.other_terms = job.terms;
    leave_class(job);
  }
  wire::apply(wire::process_terms(wire::as_patch(job.terms)), terms);
  job.terms = std::move(terms);
  job.job_class = job.asked_class = wanted;
  job.reason.clear();
  forget_speeds();  // another number of jobs gives way
  log(job.id, "class", std::string{to_string(wanted)} + ", law " + job.terms.law + ": " + why, now);
  for (Member& member : job.members) {
    if (member.registered) tell_class(job, member, why, now);
  }
  rebalance(now);
  update_shares(now);
}

// A process has one class, whatever devices it uses: the first one's coordinator tells it.
void DeviceCoordinator::tell_class(Job& job, Member& member, const std::string& why,
                                   TimePoint now) {
  if (!member.first) return;
  wire::Change change;
  change.job_id = job.id.str();
  change.revision = ++job.revision;
  change.job_class = job.job_class;
  change.terms = wire::class_terms(wire::as_patch(job.terms));
  change.reason = why;
  member.class_answer = {change.revision, now, true, ""};
  send_to(member, std::move(change));
}

void DeviceCoordinator::note_class_answer(const Job& job, Member& member,
                                          const wire::Answer& answer) const {
  ClassAnswer& known = member.class_answer;
  if (!known.open || answer.revision != known.told) return;
  if (answer.outcome == wire::Outcome::kStale) return;  // it is told again
  known.open = false;
  known.problem.clear();
  if (!answer.job_class) {
    known.problem =
        name_of(member) + " is of an older commensal: it keeps the class that it began with";
  } else if (*answer.job_class != job.job_class) {
    known.problem = name_of(member) + ": " + answer.reason;
  }
}

DeviceCoordinator::ClassAnswers DeviceCoordinator::class_answers(const JobId& id) const {
  ClassAnswers answers;
  for (const Member& member : table_.find(id)->members) {
    if (!member.first) continue;
    if (member.class_answer.open) answers.open.push_back(member.pid);
    if (answers.problem.empty()) answers.problem = member.class_answer.problem;
  }
  return answers;
}

void DeviceCoordinator::retell_class(const JobId& id, TimePoint now) {
  Job& job = *table_.find(id);
  for (Member& member : job.members) {
    const ClassAnswer& known = member.class_answer;
    if (!known.open || now - known.told_at < config_.retell_after) continue;
    tell_class(job, member, "told again: " + std::string{to_string(job.job_class)}, now);
  }
}

void DeviceCoordinator::follow_class(const Job& elsewhere, TimePoint now) {
  Job* const job = table_.find(elsewhere.id);
  if (job == nullptr || job->job_class == elsewhere.job_class) return;
  if (elsewhere.asked_class != elsewhere.job_class) return;  // it is not what was asked for there
  wire::SetRequest message;
  message.job_class = elsewhere.job_class;
  if (std::string problem = problem_with_class(*job, message); !problem.empty()) {
    job->reason =
        "on " + device_.id + " it stays " + std::string{to_string(job->job_class)} + ": " + problem;
    return;
  }
  change_class(*job, elsewhere.job_class, terms_in(*job, message), "as on its other device", now);
}

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// Combines own bound and grant, and follows a change until it is done.
#include "torch_ext/runtime/limit_keeper.h"

#include <algorithm>

namespace commensal {
namespace {

Bytes held(const AllocatorStats& stats) { return stats.device + stats.host_touched; }

}  // namespace

LimitKeeper::LimitKeeper(DeviceMemory& memory, std::optional<Bytes> own_max)
    : memory_(&memory), own_max_(own_max) {}

void LimitKeeper::move_to(DeviceMemory& memory, std::optional<Bytes> own_max) {
  const MutexLock lock(mutex_);
  memory_.store(&memory);
  own_max_ = own_max;
  own_bound_new_ = false;
  grant_.reset();
  waiting_.reset();
  revision_ = 0;
  (void)post_locked();
}

std::optional<Bytes> LimitKeeper::effective_locked() const {
  if (!grant_) return own_max_;
  if (own_max_ && own_bound_new_) return std::min(*own_max_, *grant_);
  return grant_;
}

std::optional<LimitAnswer> LimitKeeper::grant(Bytes limit, Revision revision, TimePoint now) {
  const MutexLock lock(mutex_);
  if (revision < revision_) {
    return LimitAnswer{.revision = revision,
                       .outcome = wire::Outcome::kStale,
                       .done = {},
                       .deferred = {},
                       .reason = "revision " + std::to_string(revision_) + " is newer"};
  }
  revision_ = revision;
  grant_ = limit;
  waiting_.reset();
  const LimitTicket ticket = post_locked();
  if (held(memory_.load()->stats()) <= ticket.limit) {
    return LimitAnswer{.revision = revision,
                       .outcome = wire::Outcome::kApplied,
                       .done = {},
                       .deferred = {},
                       .reason = {}};
  }
  waiting_ = Waiting{.revision = revision,
                     .allocator_revision = ticket.revision,
                     .since = now,
                     .told_deferred = false};
  return std::nullopt;
}

LimitTicket LimitKeeper::post_locked() {
  const Bytes target = effective_locked().value_or(kNoLimit);
  LimitTicket ticket = memory_.load()->post_limit(target);
  ticket.limit = target;
  return ticket;
}

bool LimitKeeper::note_revision(Revision revision) {
  const MutexLock lock(mutex_);
  if (revision < revision_) return false;
  revision_ = revision;
  return true;
}

void LimitKeeper::start_over(Revision revision) {
  const MutexLock lock(mutex_);
  revision_ = revision;
  waiting_.reset();
  own_bound_new_ = false;  // MAX was in the registration
}

LimitTicket LimitKeeper::set_own(Bytes max, bool here) {
  std::string note;
  LimitTicket ticket;
  {
    const MutexLock lock(mutex_);
    own_max_ = max;
    own_bound_new_ = true;
    ticket = post_locked();
    if (grant_ && *grant_ < max) note = "the coordinator grants " + to_string(*grant_);
  }
  if (here) ticket = memory_.load()->safe_point();
  if (!note.empty()) ticket.reason = ticket.reason.empty() ? note : note + "; " + ticket.reason;
  return ticket;
}

void LimitKeeper::own_bound_answered(bool taken) {
  const MutexLock lock(mutex_);
  if (taken) own_bound_new_ = false;
}

void LimitKeeper::take_max(std::optional<Bytes> max) {
  const MutexLock lock(mutex_);
  if (!own_bound_new_) own_max_ = max;
}

std::optional<LimitAnswer> LimitKeeper::after_safe_point(const LimitTicket& ticket) {
  const MutexLock lock(mutex_);
  if (!waiting_ || ticket.revision < waiting_->allocator_revision) return std::nullopt;
  LimitAnswer answer{.revision = waiting_->revision,
                     .outcome = wire::Outcome::kApplied,
                     .done = ticket.done,
                     .deferred = ticket.deferred,
                     .reason = ticket.reason};
  if (ticket.deferred.is_zero()) {
    waiting_.reset();
    return answer;
  }
  if (waiting_->told_deferred) return std::nullopt;
  waiting_->told_deferred = true;
  answer.outcome = wire::Outcome::kDeferred;
  return answer;
}

std::optional<LimitAnswer> LimitKeeper::if_met() {
  const MutexLock lock(mutex_);
  if (!waiting_ || held(memory_.load()->stats()) > effective_locked().value_or(kNoLimit))
    return std::nullopt;
  const Revision answered = waiting_->revision;
  waiting_.reset();
  return LimitAnswer{.revision = answered,
                     .outcome = wire::Outcome::kApplied,
                     .done = {},
                     .deferred = {},
                     .reason = {}};
}

std::optional<TimePoint> LimitKeeper::waiting_since() const {
  const MutexLock lock(mutex_);
  return waiting_ ? std::optional(waiting_->since) : std::nullopt;
}

Revision LimitKeeper::revision() const {
  const MutexLock lock(mutex_);
  return revision_;
}

std::optional<Bytes> LimitKeeper::own_max() const {
  const MutexLock lock(mutex_);
  return own_max_;
}

std::optional<Bytes> LimitKeeper::effective() const {
  const MutexLock lock(mutex_);
  return effective_locked();
}

bool LimitKeeper::allows(Bytes total) const {
  const MutexLock lock(mutex_);
  return effective_locked().value_or(kNoLimit) >= total;
}

bool LimitKeeper::bound_by_itself() const {
  const MutexLock lock(mutex_);
  return own_max_ && (!grant_ || (own_bound_new_ && *own_max_ <= *grant_));
}

}  // namespace commensal

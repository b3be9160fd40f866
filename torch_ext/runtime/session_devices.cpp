// SPDX-License-Identifier: Apache-2.0
// Memory that the session bounds beside its allocator, or instead of it.
#include <algorithm>
#include <utility>

#include "torch_ext/runtime/session_impl.h"

namespace commensal {
namespace {

void add(LimitTicket& sum, const LimitTicket& part) {
  sum.done += part.done;
  if (part.deferred.is_zero()) return;
  sum.deferred += part.deferred;
  sum.reason += (sum.reason.empty() ? "" : "; ") + part.reason;
}

}  // namespace

bool Session::Impl::memory_pending() const noexcept {
  if (allocator.work_pending() || device_memory.load()->work_pending()) return true;
  if (!has_more.load(std::memory_order_acquire)) return false;
  const MutexLock lock(more_mutex);
  return std::any_of(more_memory.begin(), more_memory.end(),
                     [](const auto& more) { return more->memory.work_pending(); });
}

// The ticket is that of the memory which the coordinator knows.
LimitTicket Session::Impl::memory_safe_point() {
  if (between_ops()) give_back_of_others(limits.effective().value_or(kNoLimit));
  for (FurtherMemory* const more : further()) {
    if (more->memory.work_pending() || more->limits.waiting_since()) move_further(*more);
  }
  if (is_native() && allocator.work_pending()) (void)allocator.safe_point();  // of the host
  return device_memory.load()->safe_point();
}

void Session::Impl::move_further(FurtherMemory& more) {
  const auto owed =
      between_ops() ? more.limits.after_safe_point(more.memory.safe_point()) : more.limits.if_met();
  if (owed) answer(*owed, &more);
}

void Session::Impl::give_back_of_others(Bytes limit) {
  std::shared_ptr<const std::function<void()>> give_back;
  bool over = held_by(memory_stats()) > limit;
  for (const FurtherMemory* const more : further()) {
    over = over || held_by(more->memory.stats()) > more->limits.effective().value_or(kNoLimit);
  }
  {
    const MutexLock lock(more_mutex);
    if (over || limit < limit_before) give_back = give_back_first;
    limit_before = limit;
  }
  if (give_back != nullptr) (*give_back)();
}

std::vector<FurtherMemory*> Session::Impl::further() const {
  std::vector<FurtherMemory*> all;
  if (!has_more.load(std::memory_order_acquire)) return all;
  const MutexLock lock(more_mutex);
  for (const auto& more : more_memory) all.push_back(more.get());
  return all;
}

FurtherMemory* Session::Impl::further(const std::optional<std::string>& id) const {
  for (FurtherMemory* const more : further()) {
    if (more->id == id) return more;
  }
  return nullptr;
}

std::optional<TimePoint> Session::Impl::limit_waits_since() const {
  std::optional<TimePoint> since = limits.waiting_since();
  for (const FurtherMemory* const more : further()) {
    const auto there = more->limits.waiting_since();
    if (there) since = std::min(since.value_or(*there), *there);
  }
  return since;
}

void Session::Impl::end_step_of_memory() noexcept {
  allocator.step_ended();
  if (!has_more.load(std::memory_order_acquire)) return;
  const MutexLock lock(more_mutex);
  for (const auto& more : more_memory) more->memory.step_ended();
}

void Session::Impl::add_device(DeviceMemory& memory, std::string id) {
  if (class_now() == JobClass::kGuaranteed) memory.keep_live(true);
  auto made = std::make_unique<FurtherMemory>(memory, std::move(id), limits.own_max());
  const FurtherMemory& added = *made;
  {
    const MutexLock lock(more_mutex);
    more_memory.push_back(std::move(made));
    has_more.store(true, std::memory_order_release);
  }
  client.register_again();
  // What is allocated from here on should find the limit on that device.
  bool known = false;
  release_and([&] {
    const auto until = std::chrono::steady_clock::now() + config.connect_timeout;
    const MutexLock lock(ask_mutex);
    while (!(known = added.known) && client.connected()) {
      if (ask_answered.wait_until(ask_mutex, until) == std::cv_status::timeout) break;
    }
  });
  if (known || !client.connected()) return;
  note("the memory of " + added.id +
       " is bound by the job's own limit alone: the coordinator did not answer within " +
       std::to_string(config.connect_timeout.count()) + " ms");
}

void Session::Impl::before_moves(std::function<void()> give_back) {
  const Bytes limit = limits.effective().value_or(kNoLimit);
  const MutexLock lock(more_mutex);
  limit_before = limit;
  give_back_first = std::make_shared<const std::function<void()>>(std::move(give_back));
}

void Session::Impl::limit_devices(Bytes max, bool here, LimitTicket& ticket) {
  for (FurtherMemory* const more : further()) {
    const LimitTicket part = more->limits.set_own(max, here);
    add(ticket, part);
    if (!here) continue;
    if (const auto owed = more->limits.after_safe_point(part)) answer(*owed, more);
  }
}

std::vector<StatisticsView::Device> Session::Impl::devices_view() const {
  std::vector<StatisticsView::Device> all;
  for (const FurtherMemory* const more : further()) {
    all.push_back({more->id, more->memory.stats(), more->wanted()});
  }
  return all;
}

}  // namespace commensal

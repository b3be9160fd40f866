// SPDX-License-Identifier: Apache-2.0
// Memory that the session bounds beside its allocator, or instead of it.
#include <algorithm>
#include <utility>

#include "torch_ext/runtime/session_impl.h"

namespace commensal {
namespace {

constexpr Bytes kNoLimit{UINT64_MAX};

void add(LimitTicket& sum, const LimitTicket& part) {
  sum.done += part.done;
  if (part.deferred.is_zero()) return;
  sum.deferred += part.deferred;
  sum.reason += (sum.reason.empty() ? "" : "; ") + part.reason;
}

}  // namespace

AllocatorStats Session::Impl::memory_stats() const {
  const LimitedMemory* const instead = capped.load();
  return instead != nullptr ? instead->stats() : allocator.stats();
}

bool Session::Impl::memory_pending() const noexcept {
  const LimitedMemory* const instead = capped.load();
  if (instead != nullptr ? instead->work_pending() : allocator.work_pending()) return true;
  if (!has_more.load(std::memory_order_acquire)) return false;
  const MutexLock lock(more_mutex);
  return std::any_of(more_memory.begin(), more_memory.end(),
                     [](const MoreMemory& more) { return more.memory->work_pending(); });
}

// The ticket is that of the memory which the coordinator knows.
LimitTicket Session::Impl::memory_safe_point() {
  if (between_ops()) give_back_of_others(limits.effective().value_or(kNoLimit));
  for (const MoreMemory& more : further()) {
    if (more.memory->work_pending()) (void)more.memory->safe_point();
  }
  LimitedMemory* const instead = capped.load();
  return instead != nullptr ? instead->safe_point() : allocator.safe_point();
}

void Session::Impl::give_back_of_others(Bytes limit) {
  std::shared_ptr<const std::function<void()>> give_back;
  const bool over = held_by(memory_stats()) > limit;
  {
    const MutexLock lock(more_mutex);
    if (over || limit < limit_before) give_back = give_back_first;
    limit_before = limit;
  }
  if (give_back != nullptr) (*give_back)();
}

std::vector<Session::Impl::MoreMemory> Session::Impl::further() const {
  if (!has_more.load(std::memory_order_acquire)) return {};
  const MutexLock lock(more_mutex);
  return more_memory;
}

void Session::Impl::end_step_of_memory() noexcept {
  allocator.step_ended();
  if (!has_more.load(std::memory_order_acquire)) return;
  const MutexLock lock(more_mutex);
  for (const MoreMemory& more : more_memory) more.memory->step_ended();
}

void Session::Impl::cap_only(LimitedMemory& memory) {
  limits.follow(memory);
  capped.store(&memory);
}

void Session::Impl::add_device(LimitedMemory& memory, std::string id) {
  (void)memory.post_limit(limits.own_max().value_or(kNoLimit));
  const MutexLock lock(more_mutex);
  more_memory.push_back({&memory, std::move(id)});
  has_more.store(true, std::memory_order_release);
}

void Session::Impl::before_moves(std::function<void()> give_back) {
  const Bytes limit = limits.effective().value_or(kNoLimit);
  const MutexLock lock(more_mutex);
  limit_before = limit;
  give_back_first = std::make_shared<const std::function<void()>>(std::move(give_back));
}

void Session::Impl::limit_devices(Bytes max, bool here, LimitTicket& ticket) {
  for (const MoreMemory& more : further()) {
    const LimitTicket posted = more.memory->post_limit(max);
    add(ticket, here ? more.memory->safe_point() : posted);
  }
}

std::vector<StatisticsView::Device> Session::Impl::devices_view() const {
  std::vector<StatisticsView::Device> all;
  for (const MoreMemory& more : further()) all.push_back({more.id, more.memory->stats()});
  return all;
}

}  // namespace commensal

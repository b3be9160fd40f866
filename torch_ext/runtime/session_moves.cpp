// SPDX-License-Identifier: Apache-2.0
// The memory of all devices of a session: its limits, and the safe points at which it moves.
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

bool is_over(const SessionDevice& device, Bytes limit) {
  return held_by(device.memory().stats()) > limit;
}

}  // namespace

// Where the first device is a native GPU, memory of the host may be left to be moved.
bool Session::Impl::memory_pending() const noexcept {
  return devices.work_pending() || (is_native() && allocator.work_pending());
}

void Session::Impl::move_memory() {
  if (between_ops()) give_back_of_others(first_device.limits.effective().value_or(kNoLimit));
  if (is_native() && allocator.work_pending()) (void)allocator.safe_point();
  for (const auto& device : devices.others()) {
    if (device->memory().work_pending() || device->limits.waiting_since()) move_memory(*device);
  }
  move_memory(first_device);
}

// What the first device's memory may do on another thread than the one that trains, it knows.
void Session::Impl::move_memory(SessionDevice& device) {
  const bool here = &device == &first_device || between_ops();
  const auto owed =
      here ? device.limits.after_safe_point(device.memory().safe_point()) : device.limits.if_met();
  if (owed) answer(*owed, device);
}

void Session::Impl::give_back_of_others(Bytes limit) {
  std::shared_ptr<const std::function<void()>> give_back;
  bool over = is_over(first_device, limit);
  for (const auto& device : devices.others()) {
    over = over || is_over(*device, device->limits.effective().value_or(kNoLimit));
  }
  {
    const MutexLock lock(give_back_mutex);
    if (over || limit < limit_before) give_back = give_back_first;
    limit_before = limit;
  }
  if (give_back != nullptr) (*give_back)();
}

void Session::Impl::before_moves(std::function<void()> give_back) {
  const Bytes limit = first_device.limits.effective().value_or(kNoLimit);
  const MutexLock lock(give_back_mutex);
  limit_before = limit;
  give_back_first = std::make_shared<const std::function<void()>>(std::move(give_back));
}

LimitTicket Session::Impl::limit_devices(Bytes max, bool here) {
  LimitTicket sum;
  for (const auto& device : devices.all()) {
    const LimitTicket part = device->limits.set_own(max, here);
    if (device.get() == &first_device) {
      sum = part;
    } else {
      add(sum, part);
    }
    if (!here) continue;
    if (const auto owed = device->limits.after_safe_point(part)) answer(*owed, *device);
  }
  return sum;
}

void Session::Impl::end_step_of_memory() noexcept {
  if (is_native()) allocator.step_ended();
  devices.step_ended();
}

bool Session::Impl::wait_until_known(const SessionDevice& device) {
  const auto until = std::chrono::steady_clock::now() + config.connect_timeout;
  const MutexLock lock(ask_mutex);
  while (!device.known && client.connected()) {
    if (ask_answered.wait_until(ask_mutex, until) == std::cv_status::timeout) break;
  }
  return device.known || !client.connected();
}

void Session::Impl::add_device(DeviceMemory& memory, const std::string& id) {
  if (class_now() == JobClass::kGuaranteed) memory.keep_live(true);
  const SessionDevice& added = devices.add(memory, id, first_device.limits.own_max());
  client.register_again();
  // What is allocated from here on should find the limit on that device.
  bool known = false;
  release_and([&] { known = wait_until_known(added); });
  if (known) return;
  note("the memory of " + id +
       " is bound by the job's own limit alone: the coordinator did not answer within " +
       std::to_string(config.connect_timeout.count()) + " ms");
}

std::vector<StatisticsView::Device> Session::Impl::other_devices_view() const {
  std::vector<StatisticsView::Device> all;
  for (const auto& device : devices.others()) {
    all.push_back({device->id(), device->memory().stats(), device->wanted()});
  }
  return all;
}

}  // namespace commensal

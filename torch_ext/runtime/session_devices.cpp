// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/runtime/session_devices.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace commensal {

SessionDevices::SessionDevices(DeviceMemory& memory, std::string id, std::optional<Bytes> own_max) {
  list_.front() = std::make_unique<SessionDevice>(memory, std::move(id), own_max);
}

SessionDevice* SessionDevices::find(std::string_view id) const {
  if (id == kHostMemory) return &first();
  for (const auto& device : all()) {
    if (device->id() == id) return device.get();
  }
  return nullptr;
}

SessionDevice& SessionDevices::add(DeviceMemory& memory, std::string id,
                                   std::optional<Bytes> own_max) {
  const MutexLock lock(adding_);
  const std::size_t size = size_.load();
  if (size == list_.size()) {
    throw std::length_error("a process uses " + std::to_string(size) + " devices at most: " + id +
                            " is one more");
  }
  auto made = std::make_unique<SessionDevice>(memory, id, own_max);
  made->registered_as = std::move(id);
  made->limits.move_to(memory, own_max);
  list_.at(size) = std::move(made);
  size_.store(size + 1, std::memory_order_release);
  return *list_.at(size);
}

bool SessionDevices::work_pending() const noexcept {
  return std::ranges::any_of(all(),
                             [](const auto& device) { return device->memory().work_pending(); });
}

void SessionDevices::step_ended() const noexcept {
  for (const auto& device : all()) device->memory().step_ended();
}

std::optional<TimePoint> SessionDevices::limit_waits_since() const {
  std::optional<TimePoint> since;
  for (const auto& device : all()) {
    const auto there = device->limits.waiting_since();
    if (there) since = std::min(since.value_or(*there), *there);
  }
  return since;
}

bool SessionDevices::any_paused() const noexcept {
  return std::ranges::any_of(all(), [](const auto& device) { return device->paused; });
}

}  // namespace commensal

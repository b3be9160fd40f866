// SPDX-License-Identifier: Apache-2.0
// The devices of a process, one list.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "coordinator/wire/messages.h"
#include "torch_ext/runtime/session_device.h"

namespace commensal {

/// All devices that a process uses, the one that it used first in front. Entries are added, never
/// removed. Thread safety: any member may be called from any thread; none but `add` waits.
class SessionDevices {
 public:
  /// The first device, whose memory may change: see `LimitKeeper::move_to`.
  SessionDevices(DeviceMemory& memory, std::string id, std::optional<Bytes> own_max);

  [[nodiscard]] SessionDevice& first() const noexcept { return *list_.front(); }
  [[nodiscard]] std::span<const std::unique_ptr<SessionDevice>> all() const noexcept {
    return {list_.data(), size_.load(std::memory_order_acquire)};
  }
  /// All but the first.
  [[nodiscard]] std::span<const std::unique_ptr<SessionDevice>> others() const noexcept {
    return all().subspan(1);
  }
  /// The device that a message of the coordinator names: "host" is the first one, too, which may be
  /// on a GPU by now. Null: there is none of this name.
  [[nodiscard]] SessionDevice* find(std::string_view id) const;

  /// Adds one, which must outlive this, and bounds it. @throws std::length_error if there are too
  /// many.
  SessionDevice& add(DeviceMemory& memory, std::string id, std::optional<Bytes> own_max);

  /// Whether memory of any waits to be moved.
  [[nodiscard]] bool work_pending() const noexcept;
  void step_ended() const noexcept;
  /// Since when a grant of any waits to be applied; nullopt if none does.
  [[nodiscard]] std::optional<TimePoint> limit_waits_since() const;
  /// Whether the coordinator of any wants the job paused. On the client's thread.
  [[nodiscard]] bool any_paused() const noexcept;

 private:
  Mutex adding_;
  std::array<std::unique_ptr<SessionDevice>, wire::kMaxDevices> list_;
  std::atomic<std::size_t> size_{1};
};

}  // namespace commensal

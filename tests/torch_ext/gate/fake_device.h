// SPDX-License-Identifier: Apache-2.0
// A device whose guaranteed job does what a test says.
#pragma once

#include <functional>
#include <mutex>

#include "torch_ext/gate/pacing_law.h"

namespace commensal::testing {

/// A device whose state tests set from any thread.
class FakeDevice final : public DeviceObserver {
 public:
  DeviceObservation observe(TimePoint now) const noexcept override {
    const std::lock_guard lock(mutex_);
    DeviceObservation seen = seen_;
    seen.now = now;
    return seen;
  }
  void set(const std::function<void(DeviceObservation&)>& change) {
    const std::lock_guard lock(mutex_);
    change(seen_);
  }
  void burst(TimePoint now) {
    set([now](DeviceObservation& seen) {
      seen.guaranteed_present = seen.coordinator_alive = true;
      seen.all_waiting = false;
      seen.busy_since = now;
    });
  }
  void gap(TimePoint since, TimePoint end) {
    set([=](DeviceObservation& seen) {
      seen.guaranteed_present = seen.coordinator_alive = seen.all_waiting = true;
      seen.idle_since = seen.last_touch = since;
      seen.idle_expected_end = end;
    });
  }

 private:
  mutable std::mutex mutex_;
  DeviceObservation seen_;
};

}  // namespace commensal::testing

// SPDX-License-Identifier: Apache-2.0
// What a session keeps of a GPU that its process uses beside the first one.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "allocator/base/mutex.h"
#include "allocator/device_memory.h"
#include "torch_ext/runtime/limit_keeper.h"
#include "torch_ext/runtime/wanted_memory.h"

namespace commensal {

/// Answers of the coordinator to questions for more memory of a device.
struct AskedMemory {
  std::uint64_t refusals = 0;
  std::string refusal;  ///< the newest one's reason
  TimePoint again;      ///< not before
};

/// A further device's memory: its limit is what the coordinator grants there. Thread safety: all,
/// but for what is said to be another's.
class FurtherMemory {
 public:
  FurtherMemory(DeviceMemory& of, std::string device, std::optional<Bytes> own_max)
      : memory(of), id(std::move(device)), limits(of, own_max) {
    limits.move_to(of, own_max);
  }

  void note_need(const AllocatorStats& stats, Bytes more, std::uint64_t step, TimePoint now) {
    const MutexLock lock(mutex_);
    Bytes need = needed_now(stats, {}) + more;
    if (stats.peak_live > peak_seen_) need = std::max(need, peak_seen_ = stats.peak_live);
    wanted_.note(need, step, now);
  }
  [[nodiscard]] Bytes wanted() const {
    const MutexLock lock(mutex_);
    return wanted_.wanted();
  }

  DeviceMemory& memory;
  const std::string id;  ///< as NVML writes it
  LimitKeeper limits;
  AskedMemory asked;    ///< under the session's lock for questions
  bool known = false;   ///< the same: the coordinator has answered to its registration
  bool paused = false;  ///< the client's thread alone: the device's coordinator wants it so
  bool parked = false;  ///< the same

 private:
  mutable Mutex mutex_;
  WantedMemory wanted_ COMMENSAL_GUARDED_BY(mutex_);
  Bytes peak_seen_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal

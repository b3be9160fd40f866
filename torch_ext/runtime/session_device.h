// SPDX-License-Identifier: Apache-2.0
// A device of the process: its memory, and what its coordinator says of it.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/device_memory.h"
#include "torch_ext/runtime/limit_keeper.h"
#include "torch_ext/runtime/wanted_memory.h"

namespace commensal {

/// The device whose memory is that of this machine.
inline constexpr std::string_view kHostMemory = "host";

/// Answers of the coordinator to questions for more memory of a device.
struct AskedMemory {
  std::uint64_t refusals = 0;
  std::string refusal;  ///< the newest one's reason
  TimePoint again;      ///< not before
};

/// One of the devices that a process uses: its limit is what the coordinator grants there.
/// Thread safety: all, but for what is said to be another's.
class SessionDevice {
 public:
  /// @param id  "host", or a GPU as NVML writes it; empty: a GPU that is not known yet.
  /// @param own_max  the job's own bound, which `memory` has already, as far as it counts there.
  SessionDevice(DeviceMemory& memory, std::string id, std::optional<Bytes> own_max)
      : limits(memory, own_max), id_(std::move(id)) {}

  [[nodiscard]] std::string id() const {
    const MutexLock lock(mutex_);
    return id_;
  }
  /// @return whether it was another one.
  bool set_id(std::string id) {
    const MutexLock lock(mutex_);
    return std::exchange(id_, std::move(id)) != id_;
  }

  [[nodiscard]] DeviceMemory& memory() const noexcept { return limits.memory(); }

  /// Notes what the job needs here. @param stats  of its memory. @param more  beyond what it has.
  void note_need(const AllocatorStats& stats, const std::vector<TagResidency>& tags, Bytes more,
                 std::uint64_t step, TimePoint now) {
    const MutexLock lock(mutex_);
    Bytes need = needed_now(stats, tags) + more;
    if (stats.peak_live > peak_seen_) need = std::max(need, peak_seen_ = stats.peak_live);
    wanted_.note(need, step, now);
  }
  [[nodiscard]] Bytes wanted() const {
    const MutexLock lock(mutex_);
    return wanted_.wanted();
  }

  LimitKeeper limits;

  // Under the session's lock for questions.
  AskedMemory asked;
  bool known = false;                      ///< the coordinator has answered to its registration
  std::string registered_as{kHostMemory};  ///< as which device the coordinator knows it

  // The client's thread alone.
  bool placed =
      true;  ///< of the first device:  the coordinator knows on which device its memory is
  bool paused = false;  ///< its coordinator wants it so
  bool parked = false;  ///< its coordinator wants all of it saved
  TimePoint parked_at;  ///< when that was last tried

 private:
  mutable Mutex mutex_;
  std::string id_ COMMENSAL_GUARDED_BY(mutex_);
  WantedMemory wanted_ COMMENSAL_GUARDED_BY(mutex_);
  Bytes peak_seen_ COMMENSAL_GUARDED_BY(mutex_);
};

}  // namespace commensal

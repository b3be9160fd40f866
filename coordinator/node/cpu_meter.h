// SPDX-License-Identifier: Apache-2.0
// Time that a process's threads spent on cores, and waiting for one, as the kernel counts it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "allocator/base/clock.h"
#include "coordinator/node/host_device.h"

namespace commensal::node {

/// One thread's totals (/proc/PID/task/TID/schedstat).
struct ThreadTime {
  Duration run{};      ///< on a core
  Duration delayed{};  ///< ready to run, and waiting for a core
  bool operator==(const ThreadTime&) const = default;
};

/// The threads of a process by id; nothing if they cannot be read.
using ThreadTimes = std::map<std::int64_t, ThreadTime>;
[[nodiscard]] std::optional<ThreadTimes> read_thread_times(std::int64_t pid,
                                                           const HostRoots& roots = {});

/// Adds up what the threads of a process used while it was looked at. A thread that came and went
/// between two looks is missed, and what ended ones used stays counted. Not thread safe.
class CpuMeter {
 public:
  struct Totals {
    Duration run{};
    Duration delayed{};
    Duration main_run{};  ///< of that, the process's first thread
    Duration main_delayed{};
    bool operator==(const Totals&) const = default;
  };

  /// @param main  id of the first thread, which is the process's.
  void note(const ThreadTimes& threads, std::int64_t main);
  [[nodiscard]] const Totals& totals() const noexcept { return totals_; }

 private:
  ThreadTimes seen_;
  Totals totals_;
  bool began_ = false;
};

}  // namespace commensal::node

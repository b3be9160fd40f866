// SPDX-License-Identifier: Apache-2.0
// What the kernel says that a job's processes hold, whatever they say themselves.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "coordinator/node/host_device.h"

namespace commensal::node {

/// A forked process of a job that has not registered, and the memory that is its alone.
struct ChildUse {
  std::int64_t pid = 0;
  Bytes bytes;
  bool operator==(const ChildUse&) const = default;
};

/// What a job's processes hold. File pages that can be dropped do not count.
struct JobUse {
  std::map<std::int64_t, Bytes> resident;  ///< by registered process: anonymous and shared memory
  std::vector<ChildUse> children;          ///< in the order of their pids
  /// What their control group holds, where it has this job's processes and no others; then it is
  /// the truth about the job, kernel memory included.
  std::optional<Bytes> group;
  std::string by;  ///< "process", "cgroup v1" or "cgroup v2"; empty: nothing can be read
};

/// What a process holds in memory; nothing if it cannot be read.
[[nodiscard]] std::optional<Bytes> read_resident(std::int64_t pid, const HostRoots& roots = {});

/// Field 22 of /proc/PID/stat: when the process started; 0 if it cannot be read.
[[nodiscard]] std::uint64_t read_start_ticks(std::int64_t pid, const HostRoots& roots = {});

/// Says why no thread of a process runs, whatever it does: "stopped", "stopped by a debugger" or
/// "frozen". Empty: at least one may run, or nothing can be read. It may go on at any moment.
[[nodiscard]] std::string read_standstill(std::int64_t pid, const HostRoots& roots = {});

/// Measures a job. @param members  its registered processes; @param known  those of all jobs,
/// which are nobody's children here.
[[nodiscard]] JobUse measure_job(const std::set<std::int64_t>& members,
                                 const std::set<std::int64_t>& known, const HostRoots& roots = {});

}  // namespace commensal::node

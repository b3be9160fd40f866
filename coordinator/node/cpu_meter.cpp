// SPDX-License-Identifier: Apache-2.0
// Reads schedstat and adds up differences.
#include "coordinator/node/cpu_meter.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "coordinator/node/kernel_files.h"

namespace commensal::node {

std::optional<ThreadTimes> read_thread_times(std::int64_t pid, const HostRoots& roots) {
  namespace fs = std::filesystem;
  ThreadTimes threads;
  std::error_code gone;
  const fs::path tasks = roots.proc / std::to_string(pid) / "task";
  for (fs::directory_iterator task{tasks, gone}, end; !gone && task != end; task.increment(gone)) {
    const auto fields = words(read_file(task->path() / "schedstat").value_or(""));
    const auto tid = to_number(task->path().filename().string());
    if (fields.size() < 2 || !tid) continue;  // ended meanwhile
    const auto run = to_number(fields[0]);
    const auto delayed = to_number(fields[1]);
    if (!run || !delayed || *run < 0 || *delayed < 0) continue;
    threads[*tid] = {Duration{*run}, Duration{*delayed}};
  }
  if (threads.empty()) return std::nullopt;
  return threads;
}

void CpuMeter::note(const ThreadTimes& threads, std::int64_t main) {
  for (const auto& [tid, now] : threads) {
    const auto before = seen_.find(tid);
    // All of what a new thread used was since the last look; what was before the first one was not.
    ThreadTime from = before != seen_.end() ? before->second : began_ ? ThreadTime{} : now;
    if (now.run < from.run || now.delayed < from.delayed) from = {};  // its id was used again
    const Duration run = now.run - from.run;
    const Duration delayed = now.delayed - from.delayed;
    totals_.run += run;
    totals_.delayed += delayed;
    if (tid != main) continue;
    totals_.main_run += run;
    totals_.main_delayed += delayed;
  }
  seen_ = threads;
  began_ = true;
}

}  // namespace commensal::node

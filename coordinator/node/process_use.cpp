// SPDX-License-Identifier: Apache-2.0
// Measuring processes through /proc and their control group.
#include "coordinator/node/process_use.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "coordinator/node/kernel_files.h"

namespace commensal::node {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 16;  // a tree of processes that goes deeper is cut there

/// Field 3 of a thread's stat: what it does; zero if it cannot be read.
char state_of(const std::string& stat) {
  const std::size_t name_end = stat.rfind(')');  // the name may hold spaces and brackets
  return name_end == std::string::npos || name_end + 2 >= stat.size() ? '\0' : stat[name_end + 2];
}

/// A "Key:   123 kB" of such a file.
std::optional<Bytes> kibibytes(const std::string& text, const char* key) {
  const auto value = value_of(text, key);
  const auto number = to_number(value ? value->substr(0, value->find(' ')) : "");
  if (!number || *number < 0) return std::nullopt;
  return Bytes{static_cast<std::uint64_t>(*number) * 1024};
}

/// Adds the processes below `pid`, without those that are registered (and what is below them).
void add_children(const HostRoots& roots, std::int64_t pid, const std::set<std::int64_t>& known,
                  int depth, std::set<std::int64_t>& found) {
  if (depth == kDeepest) return;
  std::error_code gone;
  const fs::path tasks = roots.proc / std::to_string(pid) / "task";
  for (fs::directory_iterator task{tasks, gone}, end; !gone && task != end; task.increment(gone)) {
    for (const std::string& word : words(read_file(task->path() / "children").value_or(""))) {
      const auto child = to_number(word);
      if (!child || known.contains(*child) || !found.insert(*child).second) continue;
      add_children(roots, *child, known, depth + 1, found);
    }
  }
}

/// The folder of a process's memory group and its version; nothing without one.
std::optional<std::pair<fs::path, int>> memory_group(const HostRoots& roots,
                                                     const std::string& process) {
  for (const GroupChain& chain : group_chains(roots, process, "memory")) {
    const fs::path& folder = chain.folders.front();
    const char* usage = chain.version == 1 ? "memory.usage_in_bytes" : "memory.current";
    if (read_number(folder / usage)) return std::pair{folder, chain.version};
  }
  return std::nullopt;
}

/// Whether a group and those below it have these processes only.
bool has_only(const fs::path& group, const std::set<std::int64_t>& processes, int depth = 0) {
  for (const std::string& word : words(read_file(group / "cgroup.procs").value_or(""), '\n')) {
    const auto pid = to_number(word);
    if (!pid || !processes.contains(*pid)) return false;
  }
  if (depth == kDeepest) return false;
  std::error_code problem;
  for (fs::directory_iterator entry{group, problem}, end; !problem && entry != end;
       entry.increment(problem)) {
    if (entry->is_directory() && !has_only(entry->path(), processes, depth + 1)) return false;
  }
  return !problem;
}

/// What a group uses without page cache that can be dropped.
std::optional<Bytes> group_use(const fs::path& group, int version) {
  const auto used =
      read_number(group / (version == 1 ? "memory.usage_in_bytes" : "memory.current"));
  if (!used) return std::nullopt;
  const std::string stat = read_file(group / "memory.stat").value_or("");
  const auto value = [&](const char* v1, const char* v2) {
    return to_number(value_of(stat, version == 1 ? v1 : v2).value_or("0")).value_or(0);
  };
  const std::int64_t cache = value("total_cache ", "file ") - value("total_shmem ", "shmem ");
  const std::int64_t clean =
      cache - value("total_dirty ", "file_dirty ") - value("total_writeback ", "file_writeback ");
  return Bytes{static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, *used - std::max<std::int64_t>(0, clean)))};
}

}  // namespace

std::optional<Bytes> read_resident(std::int64_t pid, const HostRoots& roots) {
  const std::string status = read_file(roots.proc / std::to_string(pid) / "status").value_or("");
  const auto anonymous = kibibytes(status, "RssAnon:");
  if (!anonymous) return std::nullopt;
  return *anonymous + kibibytes(status, "RssShmem:").value_or(Bytes{});
}

std::uint64_t read_start_ticks(std::int64_t pid, const HostRoots& roots) {
  constexpr std::size_t kAfterName = 19;
  const std::string stat = read_file(roots.proc / std::to_string(pid) / "stat").value_or("");
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  const std::vector<std::string> fields = words(stat.substr(name_end + 1));
  const auto ticks = fields.size() > kAfterName ? to_number(fields[kAfterName]) : std::nullopt;
  return ticks && *ticks > 0 ? static_cast<std::uint64_t>(*ticks) : 0;
}

std::string read_standstill(std::int64_t pid, const HostRoots& roots) {
  const std::string process = std::to_string(pid);
  const fs::path tasks = roots.proc / process / "task";
  std::string states;
  std::error_code gone;
  for (fs::directory_iterator task{tasks, gone}, end; !gone && task != end; task.increment(gone)) {
    const char state = state_of(read_file(task->path() / "stat").value_or(""));
    if (state != 'X' && state != 'Z') states += state;  // what has ended does not count
  }
  if (!states.empty() && states.find_first_not_of("Tt") == std::string::npos) {
    return states.find('T') != std::string::npos ? "stopped" : "stopped by a debugger";
  }
  for (const GroupChain& chain : group_chains(roots, process, "freezer")) {
    const fs::path& folder = chain.folders.front();
    const auto text = read_file(folder / (chain.version == 1 ? "freezer.state" : "cgroup.events"));
    if (!text) continue;
    if (chain.version == 1 ? text->starts_with("FROZEN") : value_of(*text, "frozen ") == "1") {
      return "frozen";
    }
  }
  return "";
}

JobUse measure_job(const std::set<std::int64_t>& members, const std::set<std::int64_t>& known,
                   const HostRoots& roots) {
  JobUse use;
  std::set<std::int64_t> children;
  for (const std::int64_t pid : members) {
    const auto resident = read_resident(pid, roots);
    if (!resident) continue;
    use.resident[pid] = *resident;
    add_children(roots, pid, known, 0, children);
  }
  if (use.resident.empty()) return use;
  use.by = "process";
  for (const std::int64_t pid : children) {
    const std::string rollup =
        read_file(roots.proc / std::to_string(pid) / "smaps_rollup").value_or("");
    use.children.push_back({pid, kibibytes(rollup, "Private_Dirty:").value_or(Bytes{})});
  }
  children.insert(members.begin(), members.end());
  const std::string process = std::to_string(use.resident.begin()->first);
  // With the coordinator in the same group nothing has to be looked up, once a second and job.
  if (read_file(roots.proc / process / "cgroup") == read_file(roots.proc / "self/cgroup")) {
    return use;
  }
  const auto own = memory_group(roots, "self");
  const auto group = memory_group(roots, process);
  if (!group || (own && own->first == group->first) || !has_only(group->first, children)) {
    return use;
  }
  use.group = group_use(group->first, group->second);
  if (use.group) use.by = group->second == 1 ? "cgroup v1" : "cgroup v2";
  return use;
}

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// cpu.max and memory.max, or cpu.cfs_quota_us and memory.limit_in_bytes.
#include "coordinator/engines/local/limit_groups.h"

#include <signal.h>

#include <algorithm>
#include <optional>

#include "coordinator/engines/local/process.h"
#include "coordinator/node/kernel_files.h"

namespace commensal::cluster::local {
namespace {

namespace fs = std::filesystem;
using node::GroupChain;
using node::GroupFiles;

constexpr std::int64_t kPeriod = 100'000;  // microseconds; the kernel's own default

struct Limit {
  std::string controller;
  std::string file;
  std::string value;
};

Limit cpu_limit(int version, std::int64_t milli) {
  const std::string quota = std::to_string(std::max<std::int64_t>(milli * kPeriod / 1000, 1000));
  if (version == 1) return {"cpu", "cpu.cfs_quota_us", quota};
  return {"cpu", "cpu.max", quota + ' ' + std::to_string(kPeriod)};
}

Limit memory_limit(int version, std::int64_t mib) {
  const std::string bytes = std::to_string(mib << 20U);
  return {"memory", version == 1 ? "memory.limit_in_bytes" : "memory.max", bytes};
}

std::vector<fs::path> parents_in(const GroupChain& chain, GroupFiles& files) {
  std::vector<fs::path> parents{chain.folders.front()};
  const bool beside = chain.version == 2 && chain.folders.size() > 1;
  if (beside && files.delegated(chain.folders[1])) parents.push_back(chain.folders[1]);
  return parents;
}

bool has_controller(GroupFiles& files, const fs::path& parent, const fs::path& group,
                    const Limit& limit) {
  if (files.read(group / limit.file)) return true;
  if (!files.delegated(parent)) return false;
  return files.write(parent / "cgroup.subtree_control", '+' + limit.controller).empty() &&
         files.read(group / limit.file).has_value();
}

class Maker {
 public:
  Maker(GroupFiles& files, std::string name) : files_(files), name_(std::move(name)) {}

  /// @return why the limit is not kept by a group in `parent`; empty: it is.
  std::string limit(const fs::path& parent, const Limit& limit) {
    const fs::path group = parent / name_;
    if (const std::string why = files_.make(group); !why.empty()) return why;
    std::string why;
    if (!has_controller(files_, parent, group, limit)) {
      why = "groups in " + parent.native() + " have no " + limit.file;
    } else {
      why = files_.write(group / limit.file, limit.value);
    }
    const bool known = std::find(folders.begin(), folders.end(), group) != folders.end();
    if (!why.empty() && !known) (void)files_.remove(group);
    if (why.empty() && !known) folders.push_back(group);
    return why;
  }

  std::vector<fs::path> folders;

 private:
  GroupFiles& files_;
  std::string name_;
};

}  // namespace

LimitGroups make_limit_groups(const node::HostRoots& roots, GroupFiles& files,
                              const std::string& name, const GroupLimits& limits) {
  Maker maker{files, name};
  std::vector<std::string> problems;
  const auto keep = [&](const std::string& controller, auto limit_of, std::int64_t value) {
    if (value <= 0) return;
    std::string why = "there is no such controller";
    for (const GroupChain& chain : node::group_chains(roots, "self", controller)) {
      for (const fs::path& parent : parents_in(chain, files)) {
        why = maker.limit(parent, limit_of(chain.version, value));
        if (why.empty()) return;
      }
    }
    problems.push_back("no limit of " + controller + " is kept: " + why);
  };
  keep("cpu", cpu_limit, limits.cpu_milli);
  keep("memory", memory_limit, limits.memory_mib);
  return {std::move(maker.folders), std::move(problems)};
}

std::uint64_t killed_for_memory(GroupFiles& files, const std::vector<fs::path>& folders) {
  std::uint64_t killed = 0;
  for (const fs::path& folder : folders) {
    for (const char* file : {"memory.events", "memory.oom_control"}) {
      const auto text = files.read(folder / file);
      const auto value = text ? node::value_of(*text, "oom_kill ") : std::nullopt;
      const auto count = value ? node::to_number(*value) : std::nullopt;
      killed += static_cast<std::uint64_t>(count.value_or(0));
    }
  }
  return killed;
}

void kill_in_groups(GroupFiles& files, const std::vector<fs::path>& folders) {
  for (const fs::path& folder : folders) {
    for (const std::string& line :
         node::words(files.read(folder / "cgroup.procs").value_or(""), '\n')) {
      const auto pid = node::to_number(line);
      if (pid && *pid > 1) ::kill(static_cast<pid_t>(*pid), SIGKILL);
    }
  }
}

void remove_groups(GroupFiles& files, const std::vector<fs::path>& folders) {
  for (const fs::path& folder : folders) (void)files.remove(folder);
}

}  // namespace commensal::cluster::local

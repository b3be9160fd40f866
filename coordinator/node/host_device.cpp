// SPDX-License-Identifier: Apache-2.0
// Cores and memory from /proc and control groups.
#include "coordinator/node/host_device.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace commensal::node {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_file(const fs::path& path) {
  std::ifstream file{path};
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> words(const std::string& line, char separator = ' ') {
  std::vector<std::string> result;
  std::istringstream stream{line};
  for (std::string word; std::getline(stream, word, separator);) {
    if (!word.empty()) result.push_back(word);
  }
  return result;
}

std::optional<std::int64_t> to_number(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::result_out_of_range) return std::numeric_limits<std::int64_t>::max();
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::int64_t> read_number(const fs::path& path) {
  const auto text = read_file(path);
  return text ? to_number(*text) : std::nullopt;
}

/// The value behind "Key:" or "key " in a file of such lines.
std::optional<std::string> value_of(const std::string& text, const std::string& key) {
  std::istringstream lines{text};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t begin = line.find_first_not_of(" \t", key.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return std::nullopt;
}

/// Counts the CPUs of "0-3,8".
unsigned count_cpus(const std::string& list) {
  unsigned count = 0;
  for (const std::string& range : words(list, ',')) {
    const auto ends = words(range, '-');
    const auto first = to_number(ends.empty() ? "" : ends.front());
    const auto last = to_number(ends.empty() ? "" : ends.back());
    if (!first || !last || *last < *first) throw std::runtime_error("not a list of CPUs: " + list);
    count += static_cast<unsigned>(*last - *first + 1);
  }
  return count;
}

/// The folders of one controller's group: the own one, then its parents up to the mount's root.
struct GroupChain {
  int version = 1;
  std::vector<fs::path> folders;
};

struct Mount {
  std::string root;  // of the mount within the hierarchy
  fs::path point;
  int version = 1;
  std::string options;
};

std::vector<Mount> cgroup_mounts(const HostRoots& roots) {
  std::vector<Mount> mounts;
  std::istringstream lines{read_file(roots.proc / "self/mountinfo").value_or("")};
  for (std::string line; std::getline(lines, line);) {
    const auto parts = words(line);
    const auto dash = std::find(parts.begin(), parts.end(), "-");
    if (parts.size() < 6 || parts.end() - dash < 4) continue;
    if (dash[1] != "cgroup" && dash[1] != "cgroup2") continue;
    mounts.push_back(Mount{parts[3], roots.mounts / fs::path{parts[4]}.relative_path(),
                           dash[1] == "cgroup" ? 1 : 2, dash[3]});
  }
  return mounts;
}

bool has_word(const std::string& list, const std::string& word) {
  const auto all = words(list, ',');
  return std::find(all.begin(), all.end(), word) != all.end();
}

std::vector<fs::path> folders_up(const Mount& mount, const std::string& group) {
  // The mount may show a part of the hierarchy only: a container's.
  fs::path relative = fs::path{group}.relative_path();
  if (mount.root != "/") {
    const fs::path inside = fs::path{group}.lexically_relative(mount.root);
    relative = !inside.empty() && *inside.begin() != ".." ? inside : fs::path{};
  }
  std::vector<fs::path> folders;
  for (fs::path path = relative; !path.empty() && path != "."; path = path.parent_path()) {
    folders.push_back(mount.point / path);
  }
  folders.push_back(mount.point);
  return folders;
}

std::vector<GroupChain> group_chains(const HostRoots& roots, const std::string& controller) {
  std::vector<GroupChain> chains;
  const auto mounts = cgroup_mounts(roots);
  std::istringstream lines{read_file(roots.proc / "self/cgroup").value_or("")};
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    const int version = controllers.empty() ? 2 : 1;
    if (version == 1 && !has_word(controllers, controller)) continue;
    for (const Mount& mount : mounts) {
      if (mount.version != version) continue;
      if (version == 1 && !has_word(mount.options, controller)) continue;
      chains.push_back(GroupChain{version, folders_up(mount, group)});
      break;
    }
  }
  return chains;
}

/// What one group still allows; nothing if it sets no limit.
std::optional<std::int64_t> group_memory_left(const fs::path& group, int version) {
  std::optional<std::int64_t> limit;
  const std::vector<const char*> files = version == 1 ? std::vector{"memory.limit_in_bytes"}
                                                      : std::vector{"memory.max", "memory.high"};
  for (const char* name : files) {
    if (const auto value = read_number(group / name)) {
      limit = std::min(limit.value_or(*value), *value);
    }
  }
  // Version 1 writes "none" as a number near the largest one.
  if (!limit || *limit > (std::int64_t{1} << 60)) return std::nullopt;
  const auto used =
      read_number(group / (version == 1 ? "memory.usage_in_bytes" : "memory.current"));
  const std::string stat = read_file(group / "memory.stat").value_or("");
  const auto cache = to_number(
      value_of(stat, version == 1 ? "total_inactive_file " : "inactive_file ").value_or("0"));
  const std::int64_t in_use = std::max<std::int64_t>(0, used.value_or(0) - cache.value_or(0));
  return std::max<std::int64_t>(0, *limit - in_use);
}

/// The cores that one group's quota allows; nothing if it sets none.
std::optional<double> group_cores(const fs::path& group, int version) {
  std::optional<std::int64_t> quota;
  std::optional<std::int64_t> period;
  if (version == 1) {
    quota = read_number(group / "cpu.cfs_quota_us");
    period = read_number(group / "cpu.cfs_period_us");
  } else {
    const auto parts = words(read_file(group / "cpu.max").value_or(""));
    if (parts.size() == 2) {
      quota = to_number(parts[0]);  // "max": no number
      period = to_number(parts[1]);
    }
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::string cores_text(double cores) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", std::round(cores * 100) / 100);
  return text;
}

}  // namespace

HostFacts read_host_facts(const HostRoots& roots) {
  HostFacts facts;
  const auto status =
      value_of(read_file(roots.proc / "self/status").value_or(""), "Cpus_allowed_list:");
  if (!status)
    throw std::runtime_error("no Cpus_allowed_list in " + (roots.proc / "self/status").native());
  facts.affinity = std::max(1U, count_cpus(*status));
  facts.cores = facts.affinity;
  facts.cores_reason = "affinity: " + std::to_string(facts.affinity) + " CPUs";
  for (const GroupChain& chain : group_chains(roots, "cpu")) {
    for (const fs::path& folder : chain.folders) {
      const auto cores = group_cores(folder, chain.version);
      if (!cores || *cores >= facts.cores) continue;
      facts.cores = std::max(0.01, *cores);
      facts.cores_reason = "CPU quota of " + folder.native() + ": " + cores_text(*cores);
    }
  }

  const std::string meminfo = read_file(roots.proc / "meminfo").value_or("");
  const auto bytes_of = [&](const char* name) -> std::optional<Bytes> {
    const auto text = value_of(meminfo, name);
    const auto kib = to_number(text ? text->substr(0, text->find(' ')) : "");
    if (!kib) return std::nullopt;
    return Bytes{static_cast<std::uint64_t>(*kib) * 1024};
  };
  const auto available = bytes_of("MemAvailable:");
  if (!available)
    throw std::runtime_error("no MemAvailable in " + (roots.proc / "meminfo").native());
  facts.available = *available;
  facts.total = bytes_of("MemTotal:").value_or(facts.total);
  facts.memory_reason = "MemAvailable: " + to_string(facts.available);
  for (const GroupChain& chain : group_chains(roots, "memory")) {
    for (const fs::path& folder : chain.folders) {
      const auto left = group_memory_left(folder, chain.version);
      if (!left || static_cast<std::uint64_t>(*left) >= facts.available.count()) continue;
      facts.available = Bytes{static_cast<std::uint64_t>(*left)};
      facts.memory_reason =
          "left in the control group " + folder.native() + ": " + to_string(facts.available);
    }
  }
  return facts;
}

MemoryBudget parse_memory_budget(const std::string& text) {
  const auto refuse = [&]() -> std::invalid_argument {
    return std::invalid_argument(
        "memory budget must be bytes (\"6GiB\") or a fraction above 0 and at most 1 (\"0.8\"): '" +
        text + "'");
  };
  const bool is_number =
      !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
  if (is_number && (text.find('.') != std::string::npos || text == "1")) {
    double fraction = 0.0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fraction);
    if (error != std::errc{} || end != text.data() + text.size() || fraction <= 0 || fraction > 1) {
      throw refuse();
    }
    return MemoryBudget{std::nullopt, fraction};
  }
  std::string number = text;
  try {
    if (text.empty() || text.front() < '0' || text.front() > '9' ||
        !CLI::AsSizeValue{false}(number).empty()) {
      throw refuse();
    }
  } catch (const CLI::Error&) {
    throw refuse();
  }
  const auto bytes = to_number(number);
  if (!bytes || *bytes <= 0) throw refuse();
  return MemoryBudget{Bytes{static_cast<std::uint64_t>(*bytes)}, 0.0};
}

HostDevice make_host_device(const HostFacts& facts, const MemoryBudget& budget,
                            std::optional<double> cores) {
  HostDevice device;
  device.cores = cores.value_or(facts.cores);
  const std::string cores_reason = cores ? "cores as configured" : facts.cores_reason;
  if (budget.bytes) {
    device.capacity = *budget.bytes;
    device.reason = "memory as configured; " + cores_reason;
    if (device.capacity > facts.available) {
      device.reason += "; more than is available (" + to_string(facts.available) + ")";
    }
    return device;
  }
  constexpr std::uint64_t kMiB = 1U << 20U;
  const auto bytes =
      static_cast<std::uint64_t>(static_cast<double>(facts.available.count()) * budget.fraction);
  device.capacity = Bytes{bytes > kMiB ? bytes - bytes % kMiB : bytes};
  device.fraction = budget.fraction;
  device.machine = facts.total;
  device.reason = cores_text(budget.fraction) + " of the available memory (" + facts.memory_reason +
                  "); " + cores_reason;
  return device;
}

}  // namespace commensal::node

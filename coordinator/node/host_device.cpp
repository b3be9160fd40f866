// SPDX-License-Identifier: Apache-2.0
// Cores and memory from /proc and control groups.
#include "coordinator/node/host_device.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "coordinator/node/kernel_files.h"

namespace commensal::node {
namespace {

namespace fs = std::filesystem;

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

void read_cores(const HostRoots& roots, HostFacts& facts) {
  const auto status =
      value_of(read_file(roots.proc / "self/status").value_or(""), "Cpus_allowed_list:");
  if (!status)
    throw std::runtime_error("no Cpus_allowed_list in " + (roots.proc / "self/status").native());
  facts.affinity = std::max(1U, count_cpus(*status));
  facts.cores = facts.affinity;
  facts.cores_reason = "affinity: " + std::to_string(facts.affinity) + " CPUs";
  for (const GroupChain& chain : group_chains(roots, "self", "cpu")) {
    for (const fs::path& folder : chain.folders) {
      const auto cores = group_cores(folder, chain.version);
      if (!cores || *cores >= facts.cores) continue;
      facts.cores = std::max(0.01, *cores);
      facts.cores_reason = "CPU quota of " + folder.native() + ": " + cores_text(*cores);
    }
  }
}

void read_memory(const HostRoots& roots, HostFacts& facts) {
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
  for (const GroupChain& chain : group_chains(roots, "self", "memory")) {
    for (const fs::path& folder : chain.folders) {
      const auto left = group_memory_left(folder, chain.version);
      if (!left || static_cast<std::uint64_t>(*left) >= facts.available.count()) continue;
      facts.available = Bytes{static_cast<std::uint64_t>(*left)};
      facts.memory_reason =
          "left in the control group " + folder.native() + ": " + to_string(facts.available);
    }
  }
}

}  // namespace

HostFacts read_host_facts(const HostRoots& roots) {
  HostFacts facts;
  read_cores(roots, facts);
  read_memory(roots, facts);
  return facts;
}

Bytes read_available(const HostRoots& roots) {
  HostFacts facts;
  read_memory(roots, facts);
  return facts.available;
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

Device make_host_device(const HostFacts& facts, const MemoryBudget& budget,
                        std::optional<double> cores) {
  Device device;
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

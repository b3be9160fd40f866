// SPDX-License-Identifier: Apache-2.0
// Lines with fields between bars.
#include "coordinator/engines/slurm/slurm_texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

namespace commensal::cluster::slurm {
namespace {

using std::string_view;

/// Splits a line into at most `count` fields; bars in the last one are its own.
std::vector<string_view> fields_of(string_view line, char bar, std::size_t count) {
  std::vector<string_view> fields;
  while (fields.size() + 1 < count) {
    const std::size_t at = line.find(bar);
    if (at == string_view::npos) break;
    fields.push_back(line.substr(0, at));
    line.remove_prefix(at + 1);
  }
  fields.push_back(line);
  return fields;
}

std::vector<string_view> lines_of(string_view text) {
  std::vector<string_view> lines;
  while (!text.empty()) {
    const std::size_t at = text.find('\n');
    if (at != 0) lines.push_back(text.substr(0, at));
    text.remove_prefix(at == string_view::npos ? text.size() : at + 1);
  }
  return lines;
}

std::vector<string_view> words_of(string_view text) {
  constexpr string_view kSpaces = " \n";
  std::vector<string_view> words;
  for (std::size_t at = text.find_first_not_of(kSpaces); at != string_view::npos;
       at = text.find_first_not_of(kSpaces, at)) {
    const std::size_t end = std::min(text.find_first_of(kSpaces, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

template <typename Number>
std::optional<Number> number_from(string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool is_state(string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return (c >= 'A' && c <= 'Z') || c == '_'; });
}

std::optional<JobLine> job_from(string_view line) {
  const auto fields = fields_of(line, '|', 4);
  if (fields.size() != 4 || !is_state(fields[1])) return std::nullopt;
  const auto id = number_from<std::uint64_t>(fields[0]);
  if (!id) return std::nullopt;
  return JobLine{*id, std::string{fields[1]}, std::string{fields[2]}, std::string{fields[3]}};
}

/// A count, which Slurm writes "8+" where it sums up several nodes.
std::optional<std::int64_t> count_from(string_view text) {
  constexpr std::int64_t kMost = 1'000'000'000;
  if (text.ends_with('+')) text.remove_suffix(1);
  const auto count = number_from<std::int64_t>(text);
  return count && *count > 0 && *count <= kMost ? count : std::nullopt;
}

/// Cuts at commas, but not at those in parentheses ("gpu:4(S:0,2),seat:4").
std::vector<string_view> kinds_of(string_view text) {
  std::vector<string_view> kinds;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    if (at == text.size() || (text[at] == ',' && depth == 0)) {
      kinds.push_back(text.substr(begin, at - begin));
      begin = at + 1;
    } else if (text[at] == '(') {
      ++depth;
    } else if (text[at] == ')') {
      --depth;
    }
  }
  return kinds;
}

constexpr std::int32_t kMostDevices = 1'000;  // of a node

/// Adds the numbers of "0,2-3". What is no number of a device is left out.
void add_numbers(string_view list, std::set<std::int32_t>& numbers) {
  for (const string_view part : kinds_of(list)) {
    const auto ends = fields_of(part, '-', 2);
    const auto first = number_from<std::int32_t>(ends.front());
    const auto last = number_from<std::int32_t>(ends.back());
    if (!first || !last || *first < 0 || *last >= kMostDevices) continue;
    for (std::int32_t number = *first; number <= *last; ++number) numbers.insert(number);
  }
}

/// Adds the numbers of the GPUs in "gpu:a100:3(IDX:0,2-3),seat:1(IDX:5)".
void add_gpus(string_view gres, std::set<std::int32_t>& numbers) {
  for (const string_view kind : kinds_of(gres)) {
    constexpr string_view kIndices = "(IDX:";
    const std::size_t at = kind.find(kIndices);
    if (!kind.starts_with("gpu:") || !kind.ends_with(')') || at == string_view::npos) continue;
    add_numbers(kind.substr(at + kIndices.size(), kind.size() - at - kIndices.size() - 1), numbers);
  }
}

[[noreturn]] void garbage(const char* command, string_view line) {
  throw EngineFailed(
      fmt::format("{} answers what cannot be read: '{}'", command, first_line(std::string{line})));
}

/// Slurm's own rule is stricter. What is kept of a placement must be text.
bool is_node_name(string_view name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
}

NodeLine node_from(string_view line) {
  const auto fields = fields_of(line, '|', 7);
  if (fields.size() != 7 || !is_node_name(fields[0]) || fields[1].empty()) garbage("sinfo", line);
  const auto cores = count_from(fields[2]);
  const auto memory = count_from(fields[3]);
  if (!cores || !memory) garbage("sinfo", line);
  const Gres gres = gres_from(std::string{fields[4]});
  NodeLine read;
  EngineNode& node = read.node;
  node.name = fields[0];
  node.cpu_milli = *cores * 1000;
  node.memory_mib = *memory;
  const auto count = [&](const char* kind) {
    const auto found = gres.counts.find(kind);
    return found == gres.counts.end() ? 0 : found->second;
  };
  for (std::int32_t i = 0; i < count("gpu"); ++i) {
    node.devices.push_back(fmt::format("{}:gpu:{}", node.name, i));
  }
  const auto type = gres.types.find("gpu");
  node.device_type = node.devices.empty() ? "cpu" : type == gres.types.end() ? "gpu" : type->second;
  if (node.devices.empty()) node.devices.emplace_back("host");
  read.seats = count("seat");
  read.address = fields[5].empty() ? fields[0] : fields[5];
  node.reason = obstacle_of_node(std::string{fields[1]}, std::string{fields[6]});
  node.up = node.reason.empty();
  return read;
}

}  // namespace

std::string mark_of(const std::string& instance, const Attempt& attempt) {
  return fmt::format("commensal:{}:{}:{}", instance, attempt.job.str(), attempt.number);
}

std::optional<Attempt> attempt_of_mark(const std::string& instance, string_view name) {
  const auto fields = fields_of(name, ':', 5);
  if (fields.size() != 4 || fields[0] != "commensal" || fields[1] != instance) return std::nullopt;
  const auto number = number_from<std::uint32_t>(fields[3]);
  if (!number || fields[2].empty()) return std::nullopt;
  return Attempt{JobId{std::string{fields[2]}}, *number};
}

std::vector<JobLine> jobs_from_squeue(const std::string& output) {
  std::vector<JobLine> jobs;
  const auto lines = lines_of(output);
  if (!lines.empty() && !job_from(lines.front())) garbage("squeue", lines.front());
  for (const string_view line : lines) {
    if (auto job = job_from(line)) jobs.push_back(*std::move(job));
  }
  return jobs;
}

bool is_over(string_view state) noexcept {
  constexpr std::array<string_view, 12> kOver{
      "BOOT_FAIL", "CANCELLED",     "COMPLETED", "DEADLINE",      "FAILED",  "LAUNCH_FAILED",
      "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"};
  return std::find(kOver.begin(), kOver.end(), state) != kOver.end();
}

bool is_held(const JobLine& job) noexcept {
  return job.state == "PENDING" && job.reason == "JobHeldUser";
}

Gres gres_from(const std::string& text) {
  Gres gres;
  if (text.empty() || text == "(null)" || text == "N/A") return gres;
  for (string_view kind : kinds_of(text)) {
    kind = kind.substr(0, kind.find('('));  // which sockets, which indices
    if (kind.starts_with("gres/")) kind.remove_prefix(5);
    const auto parts = fields_of(kind, ':', 4);
    const auto count = parts.size() == 1 ? std::optional<std::int32_t>{1}
                                         : number_from<std::int32_t>(parts.back());
    const std::string name{parts.front()};
    const auto before = gres.counts.find(name);
    const std::int32_t more = kMostDevices - (before == gres.counts.end() ? 0 : before->second);
    const bool countable = count && *count >= 0 && *count <= more;
    if (name.empty() || parts.size() > 3 || !countable) {
      // "craynetwork:4K", "tmpdisk:100000": amounts, no devices.
      const bool amount = parts.size() > 1 && !name.empty() && !parts.back().empty() &&
                          std::isdigit(static_cast<unsigned char>(parts.back().front())) != 0;
      if (amount && name != "gpu" && name != "seat") continue;
      throw EngineFailed(
          fmt::format("Slurm names a generic resource that cannot be read: '{}' in '{}'",
                      first_line(std::string{kind}), first_line(text)));
    }
    gres.counts[name] += *count;
    if (parts.size() == 3) gres.types.try_emplace(name, parts[1]);
  }
  return gres;
}

std::string obstacle_of_node(const std::string& state, const std::string& reason) {
  constexpr string_view kSuffixes = "*~#!%$@^-+";
  const std::size_t end = state.find_first_of(kSuffixes);
  std::string base = state.substr(0, end);
  std::transform(base.begin(), base.end(), base.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const string_view suffix =
      end == std::string::npos ? string_view{} : string_view{state}.substr(end);
  const auto because = [&](const std::string& what) {
    const bool told = !reason.empty() && reason != "none" && reason != "(null)";
    return told ? fmt::format("Slurm: {}: {}", what, first_line(reason)) : "Slurm: " + what;
  };
  if (suffix.find('*') != string_view::npos) return because(base + ", does not answer");
  if (suffix.find_first_of("!%$@^") != string_view::npos) return because(state);
  constexpr std::array<string_view, 6> kUsable{"idle",       "mixed",   "allocated",
                                               "completing", "planned", "alloc"};
  const bool usable = std::find(kUsable.begin(), kUsable.end(), base) != kUsable.end();
  return usable ? "" : because(base);
}

std::vector<NodeLine> nodes_from_sinfo(const std::string& output) {
  std::vector<NodeLine> nodes;
  for (const string_view line : lines_of(output)) {
    NodeLine read = node_from(line);
    const bool known = std::any_of(nodes.begin(), nodes.end(), [&](const NodeLine& one) {
      return one.node.name == read.node.name;
    });
    if (!known) nodes.push_back(std::move(read));
  }
  return nodes;
}

DevicesByNodes devices_from_scontrol(const std::string& output) {
  const auto words = words_of(output);
  const auto is_end = [](string_view word) { return word.starts_with("MinCPUsNode="); };
  const auto end = std::find_if(words.begin(), words.end(), is_end);
  if (end == words.end() || std::any_of(end + 1, words.end(), is_end)) return {};
  DevicesByNodes devices;
  constexpr std::array<string_view, 4> kNames{"Nodes=", "CPU_IDs=", "Mem=", "GRES="};
  const auto is_entry = [&](auto word) {
    return std::all_of(kNames.begin(), kNames.end(),
                       [&](string_view name) { return (word++)->starts_with(name); });
  };
  for (auto at = end; at - words.begin() >= 4 && is_entry(at - 4); at -= 4) {
    const string_view nodes = (at - 4)->substr(kNames.front().size());
    add_gpus((at - 1)->substr(kNames.back().size()), devices[std::string{nodes}]);
  }
  return devices;
}

std::vector<std::string> ids_from_squeue(const std::string& output) {
  std::vector<std::string> ids;
  for (const string_view line : lines_of(output)) {
    if (line.find_first_not_of("0123456789_+") != string_view::npos) garbage("squeue", line);
    ids.emplace_back(line);
  }
  return ids;
}

std::string time_limit_from_squeue(const std::string& output) {
  const auto words = words_of(output);
  if (words.size() != 1) return "";
  const bool time = words.front().find_first_not_of("0123456789-:") == string_view::npos;
  return time || words.front() == "UNLIMITED" ? std::string{words.front()} : "";
}

std::uint64_t id_from_sbatch(const std::string& output) {
  const auto lines = lines_of(output);
  const string_view line = lines.empty() ? string_view{} : lines.back();
  const auto id = number_from<std::uint64_t>(line.substr(0, line.find(';')));
  if (!id || *id == 0) garbage("sbatch", output);
  return *id;
}

std::string first_line(const std::string& text) {
  constexpr std::size_t kMost = 200;
  std::string line = text.substr(0, std::min(text.find('\n'), kMost));
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return line;
}

}  // namespace commensal::cluster::slurm

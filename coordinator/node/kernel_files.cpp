// SPDX-License-Identifier: Apache-2.0
// Reading the kernel's text files.
#include "coordinator/node/kernel_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <limits>
#include <sstream>

#include "coordinator/wire/handover.h"

namespace commensal::node {

namespace fs = std::filesystem;

std::optional<std::string> read_file(const fs::path& path) {
  // Without a stream: a coordinator reads some hundred of these a second.
  const wire::UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) return std::nullopt;
  std::string text;
  std::array<char, 4096> piece;
  while (true) {
    const ssize_t count = ::read(file.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
}

std::vector<std::string> words(const std::string& line, char separator) {
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

namespace {

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
    if (line.find(" - cgroup") == std::string::npos) continue;
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

}  // namespace

std::vector<GroupChain> group_chains(const HostRoots& roots, const std::string& process,
                                     const std::string& controller) {
  std::vector<GroupChain> chains;
  const auto mounts = cgroup_mounts(roots);
  std::istringstream lines{read_file(roots.proc / process / "cgroup").value_or("")};
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

}  // namespace commensal::node

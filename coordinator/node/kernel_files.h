// SPDX-License-Identifier: Apache-2.0
// The kernel's text files: /proc and control groups of both versions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/node/host_device.h"

namespace commensal::node {

[[nodiscard]] std::optional<std::string> read_file(const std::filesystem::path& path);
/// Splits a line; empty words are left out.
[[nodiscard]] std::vector<std::string> words(const std::string& line, char separator = ' ');
/// Reads a whole number, the largest one if it does not fit; nothing if it is none.
[[nodiscard]] std::optional<std::int64_t> to_number(std::string_view text);
[[nodiscard]] std::optional<std::int64_t> read_number(const std::filesystem::path& path);
/// The value behind "Key:" or "key " in a file of such lines.
[[nodiscard]] std::optional<std::string> value_of(const std::string& text, const std::string& key);

/// The folders of one controller's group: the own one, then its parents up to the mount's root.
struct GroupChain {
  int version = 1;
  std::vector<std::filesystem::path> folders;
};
/// The groups of a process (a pid, or "self") that count for a controller.
[[nodiscard]] std::vector<GroupChain> group_chains(const HostRoots& roots,
                                                   const std::string& process,
                                                   const std::string& controller);

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// What /proc tells about this process, for tests that check the truth of what memory is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "allocator/base/bytes.h"

namespace commensal {

/// Returns a field of /proc/self/status that is given in kB, for example "RssAnon".
inline Bytes status_field(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(name + ":")) {
      return Bytes{std::stoull(line.substr(name.size() + 1)) * 1024};
    }
  }
  return {};
}

/// Counts the mappings that lie in `[begin, begin + size)`.
inline int mappings_in(const std::byte* begin, std::size_t size) {
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int count = 0;
  while (std::getline(maps, line)) {
    std::istringstream text(line);
    std::uintptr_t from = 0;
    std::uintptr_t to = 0;
    char dash = 0;
    text >> std::hex >> from >> dash >> to;
    if (to > first && from < first + size) ++count;
  }
  return count;
}

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Job ids are decimal numbers: this is the number.
#pragma once

#include <charconv>
#include <cstdint>

#include "allocator/base/ids.h"

namespace commensal::cluster {

/// Returns the number of an id; 0, which no job has, for one that is none.
[[nodiscard]] inline std::uint64_t job_number(const JobId& id) noexcept {
  std::uint64_t number = 0;
  const char* const end = id.str().data() + id.str().size();
  const auto [last, error] = std::from_chars(id.str().data(), end, number);
  return error == std::errc{} && last == end ? number : 0;
}

}  // namespace commensal::cluster

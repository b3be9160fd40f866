// SPDX-License-Identifier: Apache-2.0
// The clock that all processes of the machine share, and stretches of its time.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace probes {

/// Nanoseconds of the monotonic clock.
std::uint64_t now_ns();
double us_since(std::uint64_t start_ns);
void sleep_for(std::chrono::nanoseconds time);

struct Stretch {
  std::uint64_t start;  ///< ns
  std::uint64_t end;
  [[nodiscard]] double us() const { return static_cast<double>(end - start) / 1000.0; }
};

/// Microseconds of each.
std::vector<double> lengths(const std::vector<Stretch>& stretches);

/// Microseconds of the longest of `others` that overlaps each operation; an operation that none
/// overlaps is left out. Of `others` none may begin before the one in front of it.
std::vector<double> longest_during(const std::vector<Stretch>& operations,
                                   const std::vector<Stretch>& others);

template <typename Call>
Stretch stretch_of(Call&& call) {
  const std::uint64_t start = now_ns();
  call();
  return {start, now_ns()};
}

template <typename Call>
double timed_us(Call&& call) {
  return stretch_of(call).us();
}

}  // namespace probes

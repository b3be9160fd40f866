// SPDX-License-Identifier: Apache-2.0
// The clock that all processes of the machine share, and stretches of its time.
#include "timeline.h"

#include <algorithm>
#include <ctime>
#include <thread>

namespace probes {

std::uint64_t now_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(time.tv_nsec);
}

double us_since(std::uint64_t start_ns) {
  return static_cast<double>(now_ns() - start_ns) / 1000.0;
}

void sleep_for(std::chrono::nanoseconds time) { std::this_thread::sleep_for(time); }

std::vector<double> lengths(const std::vector<Stretch>& stretches) {
  std::vector<double> result;
  for (const Stretch& stretch : stretches) result.push_back(stretch.us());
  return result;
}

std::vector<double> longest_during(const std::vector<Stretch>& operations,
                                   const std::vector<Stretch>& others) {
  std::vector<double> result;
  for (const Stretch& operation : operations) {
    double longest = -1;
    for (const Stretch& other : others) {
      if (other.start >= operation.end) break;
      if (operation.start < other.end) longest = std::max(longest, other.us());
    }
    if (longest >= 0) result.push_back(longest);
  }
  return result;
}

}  // namespace probes

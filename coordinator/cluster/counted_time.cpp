// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/counted_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace commensal::cluster {
namespace {

using std::chrono::milliseconds;

// Smaller differences are corrections of a clock that is right (leap seconds, network time).
constexpr milliseconds kAgrees = std::chrono::minutes{1};

}  // namespace

ClockReading read_clocks(const std::filesystem::path& proc) {
  double seconds = -1;
  std::ifstream{proc / "uptime"} >> seconds;
  ClockReading now;
  std::ifstream{proc / "sys/kernel/random/boot_id"} >> now.boot;
  if (seconds < 0 || now.boot.empty()) {
    throw std::runtime_error("cannot read how long the machine has run: " + proc.native());
  }
  now.wall = std::chrono::time_point_cast<milliseconds>(std::chrono::system_clock::now());
  now.since_boot = milliseconds{static_cast<std::int64_t>(seconds * 1000)};
  return now;
}

CountedTime::CountedTime(const std::string& text) {
  std::istringstream words{text};
  std::int64_t since_boot = 0;
  if (!(words >> boot_ >> since_boot)) return;
  since_boot_ = milliseconds{since_boot};
  for (std::int64_t from = 0, length = 0; words >> from >> length;) {
    stretches_.push_back({WallTime{milliseconds{from}}, milliseconds{length}});
  }
}

bool CountedTime::look(const ClockReading& now) {
  if (!stretches_.empty() && now.boot == boot_) {
    Stretch& last = stretches_.back();
    const milliseconds passed = now.since_boot - since_boot_;
    const milliseconds off = (now.wall - last.from) - passed;
    if (passed >= last.length && off <= kAgrees && off >= -kAgrees) {
      last.length = passed;
      return false;
    }
  }
  stretches_.push_back({now.wall, milliseconds{0}});
  boot_ = now.boot;
  since_boot_ = now.since_boot;
  return true;
}

// The wall clock may have shown a moment in several stretches: then the least counts; or in none:
// then the least of what each one says of it.
milliseconds CountedTime::since(WallTime then) const {
  if (stretches_.empty()) return milliseconds{0};
  milliseconds within = milliseconds::max();
  milliseconds least = milliseconds::max();
  milliseconds since_begin = counted();
  for (const Stretch& stretch : stretches_) {
    const milliseconds at = then - stretch.from;
    const milliseconds passed = since_begin - std::min(at, stretch.length);
    least = std::min(least, passed);
    if (at >= milliseconds{0} && at <= stretch.length) within = std::min(within, passed);
    since_begin -= stretch.length;
  }
  return within != milliseconds::max() ? within : least;
}

milliseconds CountedTime::counted() const {
  return std::accumulate(stretches_.begin(), stretches_.end(), milliseconds{0},
                         [](milliseconds sum, const Stretch& one) { return sum + one.length; });
}

WallTime CountedTime::now() const {
  return stretches_.empty() ? WallTime{} : stretches_.back().from + stretches_.back().length;
}

void CountedTime::forget_before(milliseconds longest) {
  while (stretches_.size() > 1 && counted() - stretches_.front().length > longest) {
    stretches_.erase(stretches_.begin());
  }
}

std::string CountedTime::text() const {
  std::string text = fmt::format("{} {}", boot_, since_boot_.count());
  for (const Stretch& one : stretches_) {
    text += fmt::format("\n{} {}", one.from.time_since_epoch().count(), one.length.count());
  }
  return text;
}

}  // namespace commensal::cluster

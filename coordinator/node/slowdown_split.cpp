// SPDX-License-Identifier: Apache-2.0
// The split, the history that it is made from, and PSI.
#include "coordinator/node/slowdown_split.h"

#include <algorithm>
#include <cmath>

#include "allocator/base/clock.h"
#include "coordinator/node/kernel_files.h"

namespace commensal::node {
namespace {

void scale(Duration& duration, double factor) {
  duration = Duration{std::llround(static_cast<double>(duration.count()) * factor)};
}

}  // namespace

TimeUse& TimeUse::operator+=(const TimeUse& other) noexcept {
  wall += other.wall;
  run += other.run;
  delayed += other.delayed;
  io += other.io;
  return *this;
}

std::optional<SlowdownParts> split_slowdown(double slowdown, const TimeUse& quiet,
                                            const TimeUse& shared) {
  if (quiet.wall <= Duration::zero() || shared.wall <= Duration::zero()) return std::nullopt;
  const auto grew = [&](Duration TimeUse::*kind) {
    return (1.0 + slowdown) * (in_seconds(shared.*kind) / in_seconds(shared.wall)) -
           in_seconds(quiet.*kind) / in_seconds(quiet.wall);
  };
  SlowdownParts parts;
  parts.memory = grew(&TimeUse::run);
  parts.scheduling = grew(&TimeUse::delayed);
  const double blocked = slowdown - parts.memory - parts.scheduling;
  parts.io = std::clamp(grew(&TimeUse::io), 0.0, std::max(0.0, blocked));
  parts.unknown = blocked - parts.io;
  return parts;
}

void TimeUseHistory::note(TimePoint now, const CpuMeter::Totals& totals, Duration io_stalled,
                          bool quiet) {
  if (noted_ != TimePoint{} && now > noted_) {
    TimeUse& used = used_[quiet_ ? 1 : 0];
    const TimeUse since{now - noted_, totals.main_run - last_.main_run,
                        totals.main_delayed - last_.main_delayed, io_stalled - last_io_};
    const double kept = std::exp2(-in_seconds(since.wall) / in_seconds(kHalfLife));
    for (Duration TimeUse::*kind :
         {&TimeUse::wall, &TimeUse::run, &TimeUse::delayed, &TimeUse::io}) {
      scale(used.*kind, kept);
    }
    used += since;
  }
  noted_ = now;
  last_ = totals;
  last_io_ = io_stalled;
  quiet_ = quiet;
}

std::optional<Duration> read_io_stalled(const HostRoots& roots) {
  const std::string text = read_file(roots.proc / "pressure" / "io").value_or("");
  const std::string line = text.substr(0, text.find('\n'));
  for (const std::string& word : words(line)) {
    if (!word.starts_with("total=")) continue;
    const auto total = to_number(word.substr(std::string("total=").size()));
    if (total && *total >= 0) return std::chrono::microseconds{*total};
  }
  return std::nullopt;
}

}  // namespace commensal::node

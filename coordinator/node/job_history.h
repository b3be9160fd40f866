// SPDX-License-Identifier: Apache-2.0
// The last minutes of a node: what was decided, and how its jobs went, for `commensal explain`.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "coordinator/node/gap_report.h"

namespace commensal::node {

/// How far back it can be asked.
inline constexpr Duration kHistory = std::chrono::minutes(10);
/// How long samples and decisions are kept: who ended as long ago as can be asked may be asked for
/// as long before its end.
inline constexpr Duration kKept = 2 * kHistory;
/// How many ended jobs can be asked for, of those that ended within `kHistory`.
inline constexpr std::size_t kEndedExplained = 64;

/// Something that was decided, or happened.
struct Decision {
  TimePoint at;
  JobId job;         ///< whom it concerns; empty: the device
  std::string kind;  ///< "share", "gaps", "window", "turn", "memory", "set", "arrival", "departure"
  std::string text;  ///< what and why, for people
  bool operator==(const Decision&) const = default;
};

/// Decisions of the last `kKept`, at most `kMost`; the oldest go first. Not thread safe.
class DecisionLog {
 public:
  static constexpr std::size_t kMost = 4096;
  void note(Decision decision);
  [[nodiscard]] const std::deque<Decision>& all() const noexcept { return decisions_; }

 private:
  std::deque<Decision> decisions_;
};

/// A job's totals at one moment; differences of two tell about the time between.
struct JobSample {
  TimePoint at;
  double closed_seconds = 0.0;                            ///< ops waited, summed over threads
  std::vector<std::pair<std::string, double>> closed_by;  ///< of that, by reason
  double op_seconds = 0.0;                                ///< ops ran while they were metered
  double core_seconds = 0.0;                              ///< on cores, as the kernel says
  double gpu_seconds = 0.0;     ///< of a guaranteed job: that it had work for its GPU
  double waited_seconds = 0.0;  ///< for data
  std::uint64_t steps = 0;
  double share = 1.0;
  GapTotals gaps;           ///< that it left, as its speaker reports
  double hand_overs = 0.0;  ///< gaps of others that its processes entered
  std::optional<double> slowdown;
};

/// Samples of a job, one a second, of the last `kKept`. Not thread safe.
class JobHistory {
 public:
  static constexpr Duration kEvery = std::chrono::seconds(1);
  /// Takes a sample unless one was taken within the last second, a little less.
  void note(JobSample sample);
  /// Takes the last sample of a job that has ended, whenever the one before it was taken.
  void finish(JobSample sample);
  [[nodiscard]] const std::deque<JobSample>& samples() const noexcept { return samples_; }
  /// The newest sample that is at least that old; else the oldest. Null before the first.
  [[nodiscard]] const JobSample* at(TimePoint time) const noexcept;

 private:
  void add(JobSample sample);
  std::deque<JobSample> samples_;
};

/// Seconds by reason between two samples, the largest first; what did not grow is left out.
[[nodiscard]] std::vector<std::pair<std::string, double>> closed_between(const JobSample& from,
                                                                         const JobSample& to);

/// Share of device time that time-slicing can give away at most while the job that uses `busy` of
/// it alone loses `slowdown`: 1 - u / (1 + s), at least 0 (docs/stats.md).
[[nodiscard]] double oracle_share(double busy, double slowdown) noexcept;

}  // namespace commensal::node

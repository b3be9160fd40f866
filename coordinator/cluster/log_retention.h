// SPDX-License-Identifier: Apache-2.0
// When what jobs have printed is deleted: long after they have ended.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "allocator/base/clock.h"
#include "coordinator/cluster/counted_time.h"
#include "coordinator/cluster/job.h"

namespace spdlog {
class logger;
}

namespace commensal::cluster {

/// What became of a job, as far as its output is concerned.
struct JobEnd {
  bool lives = false;             ///< it waits or runs
  std::optional<WallTime> ended;  ///< absent: it lives, or nobody knows of it
  bool operator==(const JobEnd&) const = default;
};

/// What is known of a file of a job's output.
struct LogFacts {
  WallTime written{};  ///< the last time
  JobEnd job;
};

struct LogVerdict {
  bool goes = false;
  std::string reason;
};

/// Decides about one file. Counted is from the end of its job or the last line of the file, the
/// later of both; of a job that nobody knows (the store is an older copy), from the last line. Time
/// counts as `time` has it, so that no clock that is set lets a file go; what is from later than
/// now stays, and so does everything until the clocks have agreed for a day.
/// @param keep  zero: everything stays.
[[nodiscard]] LogVerdict judge_log(const LogFacts& facts, const CountedTime& time,
                                   std::chrono::days keep);

/// Goes through the folder of logs, a few files at a time, and deletes those that `judge_log` lets
/// go; then rests. Other files, links and folders stay. What cannot be deleted or read is logged,
/// and tried again after the rest. Thread safety: none.
class LogRetention {
 public:
  struct Options {
    std::filesystem::path folder;
    std::chrono::days keep{0};              ///< zero: this object does nothing
    std::size_t at_once = 256;              ///< files of a step, so that none takes long
    Duration rest = std::chrono::hours{1};  ///< between the end of a round and the next one
  };
  /// May throw StoreFailed: then the round is over.
  using Ends = std::function<JobEnd(const JobId&)>;
  /// The clocks, and where what they have shown outlives this object.
  struct Time {
    std::function<ClockReading()> read;                 ///< may throw: then the round is over
    CountedTime counted;                                ///< as it was kept
    std::function<void(const std::string& text)> keep;  ///< durably; may throw StoreFailed
  };

  LogRetention(Options options, Ends ends, Time time, std::shared_ptr<spdlog::logger> log);

  /// Does a part if it is due. Never throws for what files, clocks and the store do.
  void step(TimePoint now);
  /// When the next step is due; TimePoint::max(): never.
  [[nodiscard]] TimePoint next_wake() const noexcept { return next_; }

 private:
  void look_at_clocks(bool keep);
  void look_at(const std::filesystem::directory_entry& entry);
  void rest(TimePoint now);

  Options options_;
  Ends ends_;
  Time time_;
  std::shared_ptr<spdlog::logger> log_;
  std::filesystem::directory_iterator place_;  // within a round; at the end: none is under way
  TimePoint next_{};
  std::size_t gone_ = 0;  // in this round
};

}  // namespace commensal::cluster

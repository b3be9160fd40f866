// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/log_retention.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "coordinator/cluster/log_name.h"

namespace commensal::cluster {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr Duration kBetweenSteps = 100ms;
constexpr std::chrono::days kProof{1};  // that the clocks agree, before anything goes

/// When a regular file was last written; nothing for anything else.
std::optional<WallTime> written(const fs::path& file) {
  struct stat found {};
  if (::lstat(file.c_str(), &found) != 0) {
    if (errno == ENOENT) return std::nullopt;  // rotated away meanwhile
    throw std::system_error(errno, std::generic_category(), "cannot look at " + file.native());
  }
  if (!S_ISREG(found.st_mode)) return std::nullopt;
  return WallTime{
      std::chrono::milliseconds{found.st_mtim.tv_sec * 1000 + found.st_mtim.tv_nsec / 1'000'000}};
}

}  // namespace

LogVerdict judge_log(const LogFacts& facts, const CountedTime& time, std::chrono::days keep) {
  if (keep.count() <= 0) return {false, "all is kept"};
  if (facts.job.lives) return {false, "its job has not ended"};
  const WallTime from = std::max(facts.written, facts.job.ended.value_or(facts.written));
  if (from > time.now()) return {false, "it is from later than now"};
  if (time.counted() < kProof) return {false, "the clocks have not agreed for a day yet"};
  const auto age = time.since(from);
  return {age >= keep,
          fmt::format("its job ended {} days ago, kept are {}",
                      std::chrono::floor<std::chrono::days>(age).count(), keep.count())};
}

LogRetention::LogRetention(Options options, Ends ends, Time time,
                           std::shared_ptr<spdlog::logger> log)
    : options_(std::move(options)),
      ends_(std::move(ends)),
      time_(std::move(time)),
      log_(std::move(log)) {
  if (options_.keep == std::chrono::days{0}) next_ = TimePoint::max();
}

void LogRetention::step(TimePoint now) {
  if (now < next_) return;
  const fs::directory_iterator end;
  try {
    look_at_clocks(place_ == end);
    if (place_ == end) place_ = fs::directory_iterator{options_.folder};
    for (std::size_t i = 0; i < options_.at_once && place_ != end; ++i, ++place_) {
      look_at(*place_);
    }
    next_ = now + kBetweenSteps;
    if (place_ == end) rest(now);
  } catch (const std::exception& error) {
    log_->warn("old logs are not deleted: {}", error.what());
    rest(now);
  }
}

/// @param keep  what they show outlives this object; a jump does in any case.
void LogRetention::look_at_clocks(bool keep) {
  const bool jumped = time_.counted.look(time_.read());
  if (!jumped && !keep) return;
  time_.counted.forget_before(options_.keep);
  time_.keep(time_.counted.text());
}

void LogRetention::look_at(const fs::directory_entry& entry) {
  const auto job = job_of_log(entry.path().filename().native());
  if (!job) return;
  const auto time = written(entry.path());
  // Most files are young: the store is asked about the others only.
  if (!time || !judge_log({*time, {}}, time_.counted, options_.keep).goes) return;
  const LogVerdict verdict = judge_log({*time, ends_(*job)}, time_.counted, options_.keep);
  if (!verdict.goes) return;
  fs::remove(entry.path());
  log_->debug("deleted {}: {}", entry.path().native(), verdict.reason);
  ++gone_;
}

void LogRetention::rest(TimePoint now) {
  if (gone_ > 0) {
    log_->info("deleted {} files of output of jobs that ended more than {} days ago", gone_,
               options_.keep.count());
  }
  gone_ = 0;
  place_ = {};
  next_ = now + options_.rest;
}

}  // namespace commensal::cluster

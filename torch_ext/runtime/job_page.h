// SPDX-License-Identifier: Apache-2.0
// This process's own shared-memory page, and the activity that it publishes there.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "allocator/base/mutex.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/pages.h"

namespace commensal {

/// Returns a time as the pages store it: nanoseconds of CLOCK_MONOTONIC.
[[nodiscard]] constexpr std::uint64_t to_page_time(TimePoint time) noexcept {
  return static_cast<std::uint64_t>(time.time_since_epoch().count());
}
/// Reads it back. Nonsense on a page becomes a time so far away that differences still fit.
[[nodiscard]] constexpr TimePoint from_page_time(std::uint64_t nanoseconds) noexcept {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62U;
  return TimePoint{Duration{static_cast<Duration::rep>(std::min(nanoseconds, kMost))}};
}

/// Owns the memfd and the mapping of this process's page. Other processes read it.
class OwnPage {
 public:
  /// @throws std::system_error if the page cannot be made.
  OwnPage(const JobId& job, JobClass job_class, int rank);

  [[nodiscard]] wire::JobPage& page() const noexcept { return *mapping_.as<wire::JobPage>(); }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  wire::UniqueFd fd_;
  wire::MappedPage mapping_;
};

/// Publishes whether the job waits for data, since when, and how long such waits usually are.
///
/// Runs on a guaranteed job's path: no allocation, no system call, a few hundred nanoseconds.
/// Thread safety: any member may be called from any thread.
class ActivityRecorder {
 public:
  ActivityRecorder(wire::JobPage& page, const Clock& clock);
  ActivityRecorder(const ActivityRecorder&) = delete;
  ActivityRecorder& operator=(const ActivityRecorder&) = delete;

  /// The outermost fetch of a batch begins; it ends with the matching `wait_end`.
  void wait_begin() noexcept;
  void wait_end() noexcept;
  /// A request that the job serves has ended: it waits until the next sign of work, which begins
  /// the next one. @return how long the request took; zero if its beginning was not seen.
  Duration request_end() noexcept;
  /// Work was seen at another place than at a wait's border. Begins a request.
  void worked() noexcept;
  /// Cheap sign of work: always recorded during a wait, every 16th time otherwise. Begins a
  /// request.
  void touch() noexcept;

 private:
  static constexpr std::size_t kWindow = 32;
  [[nodiscard]] std::uint64_t typical_wait() noexcept COMMENSAL_REQUIRES(mutex_);
  void begin_waiting(TimePoint now) noexcept COMMENSAL_REQUIRES(mutex_);
  void end_waiting(TimePoint now) noexcept COMMENSAL_REQUIRES(mutex_);
  void request_begin() noexcept;

  wire::JobPage& page_;
  const Clock& clock_;
  Mutex mutex_;
  int depth_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  TimePoint wait_since_ COMMENSAL_GUARDED_BY(mutex_);
  std::atomic<bool> between_requests_{false};
  TimePoint request_began_ COMMENSAL_GUARDED_BY(mutex_);  // zero: not seen
  std::array<std::uint64_t, kWindow> waits_ COMMENSAL_GUARDED_BY(mutex_){};
  std::uint64_t waits_seen_ COMMENSAL_GUARDED_BY(mutex_) = 0;
};

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// This process's own shared-memory page, and the activity that it publishes there.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/clock.h"
#include "allocator/base/ids.h"
#include "allocator/base/mutex.h"
#include "coordinator/wire/gaps.h"
#include "coordinator/wire/handover.h"
#include "coordinator/wire/pages.h"
#include "torch_ext/gate/doorbell.h"
#include "torch_ext/gate/gap_histogram.h"
#include "torch_ext/runtime/fetch_phase.h"
#include "torch_ext/runtime/request_finder.h"

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
  ~OwnPage();
  OwnPage(const OwnPage&) = delete;
  OwnPage& operator=(const OwnPage&) = delete;

  [[nodiscard]] wire::JobPage& page() const noexcept { return *mapping_.as<wire::JobPage>(); }
  /// The memfd, in our own table (own_descriptors.h).
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  wire::UniqueFd fd_;
  wire::MappedPage mapping_;
};

/// The gaps of one phase that a job has left.
struct GapSummary {
  wire::GapPhase phase = wire::GapPhase::kUnknown;
  std::uint64_t waits = 0;
  Duration waited{};
  Duration median{};  ///< of late
  Duration p90{};
  /// Shortest length and decayed number of each bucket that has any, the shortest first.
  std::vector<std::pair<Duration, double>> lengths;
};

/// The queue of a device that works on after the job has begun to wait.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  /// Has the device write `number` to the page's `queue_done` once it has done all that the process
  /// has given it. Takes some microseconds; called by one thread at a time. @return false: it
  /// cannot, now or ever.
  [[nodiscard]] virtual bool mark(std::uint64_t number) noexcept = 0;
};

/// Publishes whether the job waits, for what, since when, and how long such waits usually are.
///
/// Runs on a guaranteed job's path: no allocation, a few hundred nanoseconds. What takes longer
/// than a few stores is done where a wait begins, when there is time; there is also the only system
/// call: it wakes who waits for that (ring), unless such waits are usually too short.
/// Thread safety: any member may be called from any thread.
class ActivityRecorder {
 public:
  /// @param thread_use  asked after pauses while requests are looked for.
  /// @param wake  wakes all that sleep at a word.
  ActivityRecorder(wire::JobPage& page, const Clock& clock,
                   ThreadUse (*thread_use)() noexcept = &read_thread_use,
                   void (*wake)(const wire::Word& word) noexcept = &ring);
  ActivityRecorder(const ActivityRecorder&) = delete;
  ActivityRecorder& operator=(const ActivityRecorder&) = delete;

  /// The outermost fetch of a batch begins; it ends with the matching `wait_end`. Its phase is
  /// found from what was trained since the last one.
  void fetch_begin() noexcept;
  /// The same for a wait whose phase is known: a checkpoint.
  void wait_begin(wire::GapPhase phase = wire::GapPhase::kLoader) noexcept;
  void wait_end() noexcept;
  /// Look-ahead: what the present wait is for has come, and is only unpacked. Shows the job busy
  /// before it needs its device; the wait's end then changes nothing more.
  void wait_ends_soon() noexcept;
  /// The same for a batch, told by another thread than the one that waits: nothing where none is
  /// waited for.
  void batch_handed_over() noexcept;
  /// It was not what the wait is for (another batch came first): the job waits on.
  void wait_goes_on() noexcept;
  /// An optimizer step has ended: until the next sign of work the job may print, sleep or log.
  /// Many in a row (an optimizer in the backward pass) are looked at now and then.
  void boundary_begin() noexcept;
  /// The host has waited for its device, which has nothing to do: until the next sign of work the
  /// host works, or waits for something else. As boundaries, many in a row are looked at now and
  /// then, and those of a job that always goes on at once more and more rarely. While requests are
  /// looked for: nothing.
  void synchronised() noexcept;
  /// Nothing was seen of the job for seconds, and it uses no processor time: it sits at a prompt,
  /// or hangs. A wait until the next sign of work, of which nothing is noted. Nothing where it
  /// waits already, or where its waits show in silence.
  void rest_begin() noexcept;
  /// It uses processor time again, without a sign of work: busy, as far as can be told.
  void rest_end() noexcept;
  /// The job trains: an optimizer stepped, or gradients were set to zero.
  void trained() noexcept;
  /// Gradients were set to zero: a sign of work, but none that ends a boundary, where it is usual.
  void zeroed() noexcept;
  /// A request that the job serves has ended: it waits until the next sign of work, which begins
  /// the next one. @return how long the request took; zero if its beginning was not seen.
  Duration request_end() noexcept;
  /// Work was seen at another place than at a wait's border. Begins a request, ends a boundary.
  void worked() noexcept;
  /// Cheap sign of work: always recorded during a wait and while requests are looked for, every
  /// 16th time otherwise. Begins a request, ends a boundary.
  /// @return the request that had ended before this one, if one was found.
  std::optional<FoundRequest> touch() noexcept;
  /// Looks for requests from now on (`RequestFinder`), until the job turns out to train, to read
  /// batches, or to mark its requests.
  void find_requests() noexcept { finds_requests_.store(true, std::memory_order_relaxed); }

  /// Looks for none any more.
  void stop_finding_requests() noexcept;

  /// From now on a wait counts for readers once the device has done what it was given: while it
  /// cannot be marked, the job looks busy. @param queue  not owned, must live for ever.
  void follow_queue(DeviceQueue& queue) noexcept { queue_.store(&queue); }

  /// What is known of the gaps, by phase; those without any are left out.
  [[nodiscard]] std::vector<GapSummary> gaps() const;

 private:
  static constexpr std::size_t kWindow = 32;
  static constexpr Duration kBetweenPauses = std::chrono::microseconds{500};
  /// The mark of a wait takes microseconds: 0.03 % of the time where it is of no use.
  static constexpr Duration kMostBetween = std::chrono::milliseconds{16};
  /// What ends the present wait.
  enum class EndsBy : std::uint8_t {
    kItsOwner,  ///< or there is none
    kRequest,   ///< the first sign of work, which begins a request
    kWork,      ///< the first sign of work
    kRest       ///< the same, or processor time; its length says nothing of the next one
  };
  struct Phase {
    GapHistogram lengths;
    std::uint64_t published = 0;  // waits that the table was made of
  };
  [[nodiscard]] std::uint64_t typical_wait() noexcept COMMENSAL_REQUIRES(mutex_);
  void begin_wait_of(wire::GapPhase phase, TimePoint now) noexcept COMMENSAL_REQUIRES(mutex_);
  void begin_waiting(wire::GapPhase phase, TimePoint now) noexcept COMMENSAL_REQUIRES(mutex_);
  void pause_begin(wire::GapPhase phase) noexcept;
  void begin_pause(wire::GapPhase phase, TimePoint now) noexcept COMMENSAL_REQUIRES(mutex_);
  void end_soon(TimePoint now) noexcept COMMENSAL_REQUIRES(mutex_);
  /// Tells readers that the job is busy.
  void show_busy(TimePoint now) noexcept COMMENSAL_REQUIRES(mutex_);
  /// The same, then notes how long it waited.
  void end_waiting(TimePoint now) noexcept COMMENSAL_REQUIRES(mutex_);
  void note_wait(TimePoint now) noexcept COMMENSAL_REQUIRES(mutex_);
  void note_length(Duration length) noexcept COMMENSAL_REQUIRES(mutex_);
  void publish_table(wire::GapPhase phase) noexcept COMMENSAL_REQUIRES(mutex_);
  void ended_by_work() noexcept;
  std::optional<FoundRequest> look_for_request() noexcept;
  void stop_finding() noexcept COMMENSAL_REQUIRES(mutex_);

  wire::JobPage& page_;
  wire::GapTable& table_;
  const Clock& clock_;
  ThreadUse (*const thread_use_)() noexcept;
  void (*const wake_)(const wire::Word& word) noexcept;
  std::atomic<bool> finds_requests_{false};
  std::atomic<DeviceQueue*> queue_{nullptr};
  mutable Mutex mutex_;
  int depth_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  bool announced_ COMMENSAL_GUARDED_BY(mutex_) = false;    // the end of the wait at this depth
  bool after_pause_ COMMENSAL_GUARDED_BY(mutex_) = false;  // the present wait began in a pause
  wire::GapPhase phase_ COMMENSAL_GUARDED_BY(mutex_) = wire::GapPhase::kUnknown;
  TimePoint wait_since_ COMMENSAL_GUARDED_BY(mutex_);
  TimePoint pause_began_ COMMENSAL_GUARDED_BY(mutex_);
  Duration between_synchronisations_ COMMENSAL_GUARDED_BY(mutex_) = kBetweenPauses;
  std::atomic<EndsBy> ends_by_{EndsBy::kItsOwner};
  TimePoint request_began_ COMMENSAL_GUARDED_BY(mutex_);  // zero: not seen
  FetchPhase fetches_ COMMENSAL_GUARDED_BY(mutex_);
  RequestFinder requests_ COMMENSAL_GUARDED_BY(mutex_);
  std::array<Phase, wire::kGapPhases> phases_ COMMENSAL_GUARDED_BY(mutex_);
  std::array<std::uint64_t, kWindow> waits_ COMMENSAL_GUARDED_BY(mutex_){};
  std::uint64_t waits_seen_ COMMENSAL_GUARDED_BY(mutex_) = 0;
};

}  // namespace commensal

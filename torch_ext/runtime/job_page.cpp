// SPDX-License-Identifier: Apache-2.0
// Makes the page and writes activity to it.
#include "torch_ext/runtime/job_page.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "allocator/base/relaxed.h"
#include "allocator/host/own_descriptors.h"
#include "torch_ext/gate/pacing_law.h"

namespace commensal {
namespace {

constexpr std::uint64_t kWaitsBeforeTypical = 3;
constexpr std::uint64_t kLowQuantileDivisor = 5;  // 20 %: most waits last at least that long
/// A phase's table is made anew after each of its first waits, then after every so many.
constexpr std::uint64_t kFewWaits = 8;
constexpr std::uint64_t kTableEvery = 4;
constexpr std::uint64_t kWorthRinging = 1'000'000;  // ns, of which half is spent on being sure
constexpr double kLeastCount = 0.05;                // of a bucket that is told of

}  // namespace

OwnPage::OwnPage(const JobId& job, JobClass job_class, int rank)
    : fd_(own_descriptors::run([] { return wire::make_page_memfd(wire::kJobPageName); })),
      mapping_(own_descriptors::run(
          [this] { return wire::MappedPage(fd_.get(), wire::kPageSize, true); })) {
  wire::JobPage& own = page();
  own.header.magic = wire::kJobPageMagic;
  own.header.version = wire::kPageVersion;
  own.header.size = static_cast<std::uint32_t>(wire::kPageSize);
  own.header.owner_pid = static_cast<std::uint64_t>(::getpid());
  const std::size_t length = std::min(job.str().size(), wire::kIdSize - 1);
  std::memcpy(own.job_id, job.str().data(), length);
  own.job_class = static_cast<std::uint32_t>(job_class);
  own.rank = static_cast<std::uint32_t>(rank);
}

OwnPage::~OwnPage() { own_descriptors::close(fd_.release()); }

ActivityRecorder::ActivityRecorder(wire::JobPage& page, const Clock& clock,
                                   ThreadUse (*thread_use)() noexcept,
                                   void (*wake)(const wire::Word& word) noexcept)
    : page_(page),
      table_(wire::gap_table(page)),
      clock_(clock),
      thread_use_(thread_use),
      wake_(wake) {}

void ActivityRecorder::fetch_begin() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  stop_finding();
  if (depth_ != 0) {
    ++depth_;
    return;
  }
  begin_wait_of(fetches_.fetch(), now);
}

void ActivityRecorder::wait_begin(wire::GapPhase phase) noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  if (depth_ != 0) {
    ++depth_;
    return;
  }
  begin_wait_of(phase, now);
}

void ActivityRecorder::begin_wait_of(wire::GapPhase phase, TimePoint now) noexcept {
  depth_ = 1;
  announced_ = false;
  // A boundary that turns out to be this wait ends here, without a moment of work in between.
  after_pause_ = ends_by_.load(kRelaxed) == EndsBy::kWork;
  if (after_pause_) note_wait(now);
  begin_waiting(phase, now);
}

void ActivityRecorder::begin_waiting(wire::GapPhase phase, TimePoint now) noexcept {
  ends_by_.store(EndsBy::kItsOwner, kRelaxed);  // of a wait for data the end is told
  phase_ = phase;
  wait_since_ = now;
  publish_table(phase);
  const std::uint64_t since = to_page_time(now);
  const std::uint64_t usual = table_.expected_ns[static_cast<std::size_t>(phase)][0].load(kRelaxed);
  page_.wait_phase.store(static_cast<std::uint64_t>(phase), kRelaxed);
  page_.wait_expected_end_ns.store(usual == 0 ? 0 : since + usual, kRelaxed);
  page_.activity_since_ns.store(since, kRelaxed);
  if (DeviceQueue* const queue = queue_.load(std::memory_order_acquire); queue != nullptr) {
    const std::uint64_t number = page_.queue_issued.load(kRelaxed) + 1;
    page_.queue_issued.store(number, kRelaxed);  // before the wait is seen
    (void)queue->mark(number);                   // else it is not passed: the job looks busy
  }
  page_.activity.store(static_cast<std::uint64_t>(wire::Activity::kWaiting),
                       std::memory_order_release);
  // Who waits for a gap sleeps at this word. A gap that is likely to be too short is not worth it.
  if (usual == 0 || usual >= kWorthRinging) wake_(page_.activity);
}

void ActivityRecorder::publish_table(wire::GapPhase phase) noexcept {
  Phase& of = phases_[static_cast<std::size_t>(phase)];
  const std::uint64_t waits = of.lengths.waits();
  if (waits == of.published || (waits > kFewWaits && waits - of.published < kTableEvery)) return;
  of.published = waits;
  std::array<std::uint64_t, wire::kGapBuckets> expected;
  of.lengths.expected(expected);
  auto& words = table_.expected_ns[static_cast<std::size_t>(phase)];
  for (std::size_t i = 0; i < wire::kGapBuckets; ++i) words[i].store(expected[i], kRelaxed);
}

void ActivityRecorder::wait_end() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  if (depth_ == 0) return;  // began before the session
  if (--depth_ != 0) return;
  if (after_pause_ && phase_ == wire::GapPhase::kCheckpoint) {
    note_wait(now);  // what follows a checkpoint is not the next step's work yet
    begin_pause(wire::GapPhase::kBoundary, now);
  } else if (announced_) {
    page_.last_touch_ns.store(to_page_time(now), kRelaxed);
  } else {
    end_waiting(now);
  }
}

void ActivityRecorder::wait_ends_soon() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  end_soon(now);
}

void ActivityRecorder::batch_handed_over() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  if (phase_ == wire::GapPhase::kLoader || phase_ == wire::GapPhase::kEvaluation) end_soon(now);
}

void ActivityRecorder::end_soon(TimePoint now) noexcept {
  if (depth_ == 0 || std::exchange(announced_, true)) return;
  end_waiting(now);
}

void ActivityRecorder::wait_goes_on() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  if (depth_ == 0 || !std::exchange(announced_, false)) return;
  begin_waiting(phase_, now);
}

void ActivityRecorder::boundary_begin() noexcept { pause_begin(wire::GapPhase::kBoundary); }

void ActivityRecorder::synchronised() noexcept {
  if (finds_requests_.load(kRelaxed)) return;  // what its pauses are shows in silence
  pause_begin(wire::GapPhase::kSynchronisation);
}

void ActivityRecorder::pause_begin(wire::GapPhase phase) noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  const bool synchronised = phase == wire::GapPhase::kSynchronisation;
  const Duration between = synchronised ? between_synchronisations_ : kBetweenPauses;
  if (depth_ != 0 || now - pause_began_ < between) return;
  if (ends_by_.load(kRelaxed) != EndsBy::kItsOwner) return;  // waits already
  begin_pause(phase, now);
}

void ActivityRecorder::begin_pause(wire::GapPhase phase, TimePoint now) noexcept {
  pause_began_ = now;
  begin_waiting(phase, now);
  ends_by_.store(EndsBy::kWork, kRelaxed);
}

void ActivityRecorder::rest_begin() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  if (depth_ != 0 || ends_by_.load(kRelaxed) != EndsBy::kItsOwner) return;
  if (page_.quiet_ns.load(kRelaxed) != 0) return;
  if (page_.activity.load(kRelaxed) == static_cast<std::uint64_t>(wire::Activity::kPaused)) return;
  begin_waiting(wire::GapPhase::kUnknown, now);
  ends_by_.store(EndsBy::kRest, kRelaxed);
}

void ActivityRecorder::rest_end() noexcept {
  if (ends_by_.load(kRelaxed) == EndsBy::kRest) ended_by_work();
}

void ActivityRecorder::show_busy(TimePoint now) noexcept {
  // Busy first: an opportunistic neighbour must see the burst at once.
  page_.activity.store(static_cast<std::uint64_t>(wire::Activity::kBusy),
                       std::memory_order_release);
  page_.activity_since_ns.store(to_page_time(now), kRelaxed);
  page_.last_touch_ns.store(to_page_time(now), kRelaxed);
  page_.wait_expected_end_ns.store(0, kRelaxed);
}

void ActivityRecorder::end_waiting(TimePoint now) noexcept {
  show_busy(now);
  note_wait(now);
}

void ActivityRecorder::note_wait(TimePoint now) noexcept {
  note_length(std::max(Duration::zero(), now - wait_since_));
}

void ActivityRecorder::note_length(Duration length) noexcept {
  phases_[static_cast<std::size_t>(phase_)].lengths.add(length);
  if (phase_ == wire::GapPhase::kSynchronisation) {
    // Nobody may use a shorter one.
    between_synchronisations_ = length >= kQuietBeforeBoundary
                                    ? kBetweenPauses
                                    : std::min(kMostBetween, 2 * between_synchronisations_);
  }
  // The totals are those of waits for data and requests, as they always were.
  if (phase_ == wire::GapPhase::kBoundary || phase_ == wire::GapPhase::kCheckpoint ||
      phase_ == wire::GapPhase::kSynchronisation) {
    return;
  }
  const auto waited = static_cast<std::uint64_t>(length.count());
  waits_[waits_seen_++ % kWindow] = waited;
  page_.waits_total.store(waits_seen_, kRelaxed);
  page_.wait_ns_total.store(page_.wait_ns_total.load(kRelaxed) + waited, kRelaxed);
  if (waits_seen_ < 8 || waits_seen_ % 4 == 0)
    page_.wait_typical_ns.store(typical_wait(), kRelaxed);
}

Duration ActivityRecorder::request_end() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  stop_finding();
  if (depth_ != 0) return {};  // waits for data already
  const TimePoint began = std::exchange(request_began_, TimePoint{});
  if (ends_by_.load(kRelaxed) != EndsBy::kRequest) {
    if (ends_by_.load(kRelaxed) == EndsBy::kWork) note_wait(now);
    begin_waiting(wire::GapPhase::kRequests, now);
  }
  ends_by_.store(EndsBy::kRequest, kRelaxed);
  return began == TimePoint{} || now < began ? Duration{} : now - began;
}

void ActivityRecorder::ended_by_work() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  const EndsBy ends_by = ends_by_.exchange(EndsBy::kItsOwner, kRelaxed);
  if (ends_by == EndsBy::kItsOwner) return;  // another thread was quicker
  if (ends_by == EndsBy::kRest) return show_busy(now);
  if (ends_by == EndsBy::kRequest) request_began_ = now;
  end_waiting(now);
}

void ActivityRecorder::trained() noexcept {
  const MutexLock lock(mutex_);
  stop_finding();
  fetches_.trained();
}

std::uint64_t ActivityRecorder::typical_wait() noexcept {
  if (waits_seen_ < kWaitsBeforeTypical) return 0;
  std::array<std::uint64_t, kWindow> sorted = waits_;
  const auto count = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(waits_seen_, kWindow));
  const auto low = sorted.begin() + count / static_cast<std::ptrdiff_t>(kLowQuantileDivisor);
  std::nth_element(sorted.begin(), low, sorted.begin() + count);
  return *low;
}

void ActivityRecorder::zeroed() noexcept {
  trained();
  if (ends_by_.load(kRelaxed) != EndsBy::kWork) worked();
}

void ActivityRecorder::worked() noexcept {
  if (ends_by_.load(kRelaxed) != EndsBy::kItsOwner) return ended_by_work();
  const std::uint64_t now = to_page_time(clock_.now());
  page_.last_touch_ns.store(now, kRelaxed);
  if (page_.activity.load(kRelaxed) != static_cast<std::uint64_t>(wire::Activity::kUnknown)) return;
  page_.activity_since_ns.store(now, kRelaxed);
  page_.activity.store(static_cast<std::uint64_t>(wire::Activity::kBusy),
                       std::memory_order_release);
}

void ActivityRecorder::stop_finding_requests() noexcept {
  const MutexLock lock(mutex_);
  stop_finding();
}

void ActivityRecorder::stop_finding() noexcept {
  if (!finds_requests_.exchange(false, kRelaxed)) return;
  page_.quiet_ns.store(0, kRelaxed);
}

std::optional<FoundRequest> ActivityRecorder::look_for_request() noexcept {
  const TimePoint now = clock_.now();
  // Of two threads that come at once one may see the other's time, which is no pause.
  const std::uint64_t last = page_.last_touch_ns.exchange(to_page_time(now), kRelaxed);
  if (last == 0 || now - from_page_time(last) < RequestFinder::kLeastPause) return std::nullopt;
  thread_local constinit char thread = 0;
  const ThreadUse use = thread_use_();
  const MutexLock lock(mutex_);
  if (!finds_requests_.load(kRelaxed) || depth_ != 0) return std::nullopt;
  auto found = requests_.note(from_page_time(last), now, &thread, use);
  if (!found) return std::nullopt;
  phase_ = wire::GapPhase::kRequests;
  note_length(found->waited);
  if (requests_.found() < RequestFinder::kBefore) return std::nullopt;
  publish_table(wire::GapPhase::kRequests);
  page_.wait_phase.store(static_cast<std::uint64_t>(wire::GapPhase::kRequests), kRelaxed);
  page_.activity_since_ns.store(to_page_time(now), kRelaxed);
  page_.activity.store(static_cast<std::uint64_t>(wire::Activity::kBusy), kRelaxed);
  page_.quiet_ns.store(static_cast<std::uint64_t>(requests_.quiet().count()), kRelaxed);
  return found;
}

std::optional<FoundRequest> ActivityRecorder::touch() noexcept {
  if (finds_requests_.load(kRelaxed)) {
    auto found = look_for_request();
    rest_end();
    return found;
  }
  constexpr unsigned int kEvery = 16;
  thread_local constinit unsigned int calls = 0;
  const bool waiting =
      page_.activity.load(kRelaxed) == static_cast<std::uint64_t>(wire::Activity::kWaiting);
  if (!waiting && ++calls % kEvery != 0) return std::nullopt;
  if (ends_by_.load(kRelaxed) != EndsBy::kItsOwner) {
    ended_by_work();
  } else {
    page_.last_touch_ns.store(to_page_time(clock_.now()), kRelaxed);
  }
  return std::nullopt;
}

std::vector<GapSummary> ActivityRecorder::gaps() const {
  const MutexLock lock(mutex_);
  std::vector<GapSummary> all;
  for (std::size_t i = 0; i < wire::kGapPhases; ++i) {
    const GapHistogram& lengths = phases_[i].lengths;
    if (lengths.waits() == 0) continue;
    GapSummary summary{static_cast<wire::GapPhase>(i), lengths.waits(),       lengths.total(),
                       lengths.quantile(0.5),          lengths.quantile(0.9), {}};
    for (std::size_t bucket = 0; bucket < wire::kGapBuckets; ++bucket) {
      if (lengths.count(bucket) < kLeastCount) continue;
      const auto floor = static_cast<Duration::rep>(wire::gap_bucket_floor(bucket));
      summary.lengths.emplace_back(Duration{floor}, lengths.count(bucket));
    }
    all.push_back(std::move(summary));
  }
  return all;
}

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// Makes the page and writes activity to it.
#include "torch_ext/runtime/job_page.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace commensal {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr std::uint64_t kWaitsBeforeTypical = 3;
constexpr std::uint64_t kLowQuantileDivisor = 5;  // 20 %: most waits last at least that long

}  // namespace

OwnPage::OwnPage(const JobId& job, JobClass job_class, int rank)
    : fd_(wire::make_page_memfd(wire::kJobPageName)), mapping_(fd_.get(), wire::kPageSize, true) {
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

ActivityRecorder::ActivityRecorder(wire::JobPage& page, const Clock& clock)
    : page_(page), clock_(clock) {}

void ActivityRecorder::wait_begin() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  if (depth_++ == 0) begin_waiting(now);
}

void ActivityRecorder::begin_waiting(TimePoint now) noexcept {
  between_requests_.store(false, kRelaxed);  // of a wait for data the end is told
  wait_since_ = now;
  const std::uint64_t since = to_page_time(now);
  const std::uint64_t typical = page_.wait_typical_ns.load(kRelaxed);
  page_.wait_expected_end_ns.store(typical == 0 ? 0 : since + typical, kRelaxed);
  page_.activity_since_ns.store(since, kRelaxed);
  page_.activity.store(static_cast<std::uint64_t>(wire::Activity::kWaiting),
                       std::memory_order_release);
}

void ActivityRecorder::wait_end() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  if (depth_ == 0) return;  // began before the session
  if (--depth_ == 0) end_waiting(now);
}

void ActivityRecorder::end_waiting(TimePoint now) noexcept {
  // Busy first: an opportunistic neighbour must see the burst at once.
  page_.activity.store(static_cast<std::uint64_t>(wire::Activity::kBusy),
                       std::memory_order_release);
  page_.activity_since_ns.store(to_page_time(now), kRelaxed);
  page_.last_touch_ns.store(to_page_time(now), kRelaxed);
  page_.wait_expected_end_ns.store(0, kRelaxed);
  const auto waited =
      static_cast<std::uint64_t>(std::max<Duration::rep>(0, (now - wait_since_).count()));
  waits_[waits_seen_++ % kWindow] = waited;
  page_.waits_total.store(waits_seen_, kRelaxed);
  page_.wait_ns_total.store(page_.wait_ns_total.load(kRelaxed) + waited, kRelaxed);
  if (waits_seen_ < 8 || waits_seen_ % 4 == 0)
    page_.wait_typical_ns.store(typical_wait(), kRelaxed);
}

Duration ActivityRecorder::request_end() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  if (depth_ != 0) return {};  // waits for data already
  const TimePoint began = std::exchange(request_began_, TimePoint{});
  if (!between_requests_.load(kRelaxed)) begin_waiting(now);
  between_requests_.store(true, kRelaxed);
  return began == TimePoint{} || now < began ? Duration{} : now - began;
}

void ActivityRecorder::request_begin() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  if (!between_requests_.exchange(false, kRelaxed)) return;  // another thread was quicker
  request_began_ = now;
  end_waiting(now);
}

std::uint64_t ActivityRecorder::typical_wait() noexcept {
  if (waits_seen_ < kWaitsBeforeTypical) return 0;
  std::array<std::uint64_t, kWindow> sorted = waits_;
  const auto count = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(waits_seen_, kWindow));
  const auto low = sorted.begin() + count / static_cast<std::ptrdiff_t>(kLowQuantileDivisor);
  std::nth_element(sorted.begin(), low, sorted.begin() + count);
  return *low;
}

void ActivityRecorder::worked() noexcept {
  if (between_requests_.load(kRelaxed)) return request_begin();
  const std::uint64_t now = to_page_time(clock_.now());
  page_.last_touch_ns.store(now, kRelaxed);
  if (page_.activity.load(kRelaxed) != static_cast<std::uint64_t>(wire::Activity::kUnknown)) return;
  page_.activity_since_ns.store(now, kRelaxed);
  page_.activity.store(static_cast<std::uint64_t>(wire::Activity::kBusy),
                       std::memory_order_release);
}

void ActivityRecorder::touch() noexcept {
  constexpr unsigned int kEvery = 16;
  thread_local constinit unsigned int calls = 0;
  const bool waiting =
      page_.activity.load(kRelaxed) == static_cast<std::uint64_t>(wire::Activity::kWaiting);
  if (!waiting && ++calls % kEvery != 0) return;
  if (between_requests_.load(kRelaxed)) return request_begin();
  page_.last_touch_ns.store(to_page_time(clock_.now()), kRelaxed);
}

}  // namespace commensal

// SPDX-License-Identifier: Apache-2.0
// The thread behind moves between safe points.
#include "allocator/background_mover.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <system_error>
#include <utility>

#include "allocator/host/own_threads.h"

namespace commensal {
namespace {

constexpr Duration kInterrupted = std::chrono::milliseconds{2};  // by a call that moves memory
constexpr Duration kPending = std::chrono::milliseconds{50};     // what is touched may come back
constexpr Duration kQuiet = std::chrono::seconds{1};
constexpr int kNice = 10;

}  // namespace

Duration rest_after(Bytes moved, Duration took, Bytes rate) noexcept {
  if (rate.is_zero()) return Duration::zero();
  const double seconds = static_cast<double>(moved.count()) / static_cast<double>(rate.count());
  const auto due = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  return std::max(Duration::zero(), due - took);
}

Bytes batch_for(Duration step) noexcept {
  constexpr Bytes kLeast = 8_MiB;
  constexpr Bytes kMost = 32_MiB;
  constexpr double kBytesASecond = 1U << 30U;
  const double quarter = std::chrono::duration<double>(step).count() / 4;
  if (quarter * kBytesASecond >= static_cast<double>(kMost.count())) return kMost;
  return std::max(kLeast, Bytes{static_cast<std::uint64_t>(quarter * kBytesASecond)});
}

BackgroundMover::BackgroundMover(ElasticAllocator& allocator, Options options,
                                 std::function<void()> moved, const Clock& clock)
    : allocator_(allocator),
      options_(std::move(options)),
      moved_(std::move(moved)),
      clock_(clock) {}

BackgroundMover::~BackgroundMover() { stop(); }

std::string BackgroundMover::start() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  if (::pthread_sigmask(SIG_SETMASK, &all, &before) != 0) return "signals cannot be blocked";
  std::string why;
  try {
    thread_ = std::make_unique<std::thread>([this] { run(); });
    ::pthread_setname_np(thread_->native_handle(), "commensal-mover");
  } catch (const std::system_error& error) {
    why = std::string("no thread to be had: ") + error.what();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return why;
}

void BackgroundMover::stop() noexcept {
  if (thread_ == nullptr) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_->join();
  thread_.reset();
}

void BackgroundMover::wake() noexcept {
  {
    const MutexLock lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

// Waits. False: the end has come.
bool BackgroundMover::rest(Duration wait, bool heed_wake) noexcept {
  const auto until = std::chrono::steady_clock::now() + wait;
  const MutexLock lock(mutex_);
  while (!stopping_ && !(heed_wake && woken_)) {
    if (changed_.wait_until(mutex_, until) == std::cv_status::timeout) break;
  }
  if (heed_wake) woken_ = false;
  return !stopping_;
}

void BackgroundMover::run() noexcept {
  const OwnThread own;  // a fence need not stop it
  // Whoever computes comes first. Where that is refused, the rate alone must do.
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  Duration wait = kQuiet;
  bool moving = false;  // the rate holds whoever wakes
  while (rest(wait, !moving)) {
    const TimePoint begin = clock_.now();
    AheadReport report;
    moving = false;
    try {
      const Duration step = options_.step ? options_.step() : Duration::zero();
      const Bytes most = options_.batch.is_zero() ? batch_for(step) : options_.batch;
      const auto batch = [&] { report = allocator_.work_ahead(most); };
      options_.around ? options_.around(batch) : batch();
    } catch (const std::exception&) {
      // Without memory for its lists it does nothing now; safe points move all the same.
      wait = kQuiet;
      continue;
    }
    const Bytes moved = report.moved_out + report.moved_in;
    if (!moved.is_zero()) {
      moving = true;
      if (moved_) moved_();
      wait = rest_after(moved, elapsed(begin, clock_.now()), options_.rate);
    } else if (report.more) {
      wait = kInterrupted;
    } else {
      wait = allocator_.work_pending() ? kPending : kQuiet;
    }
  }
}

}  // namespace commensal

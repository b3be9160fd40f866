// SPDX-License-Identifier: Apache-2.0
// A thread that moves memory towards the limit while the job runs, at a bounded rate.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <thread>

#include "allocator/base/bytes.h"
#include "allocator/base/clock.h"
#include "allocator/base/mutex.h"
#include "allocator/elastic_allocator.h"

namespace commensal {

/// Returns how long to rest after `moved` bytes took `took`, so that no more than `rate` bytes move
/// in a second. A rate of zero: no bound.
[[nodiscard]] Duration rest_after(Bytes moved, Duration took, Bytes rate) noexcept;

/// Returns how much to move in one pause in a job with such steps: what is copied within a quarter
/// of a step at 1 GiB/s, 8 to 32 MiB. A pause costs the same for much and for little; but what a
/// step writes while it is copied stays, and a safe point gives up what is on its way.
/// @param step  zero: not known.
[[nodiscard]] Bytes batch_for(Duration step) noexcept;

/// Calls `ElasticAllocator::work_ahead` while there is something to do.
///
/// Its thread, `commensal-mover`, blocks all signals, need not be stopped for a move, and has the
/// scheduling class of the thread that calls `start`. Thread safety: `wake` from any thread;
/// `start` and `stop` from one. In a forked child the thread does not exist: there only `wake` may
/// be called, and does nothing useful.
class BackgroundMover {
 public:
  struct Options {
    Bytes rate = 512_MiB;  ///< most bytes a second; zero: no bound
    /// Returns how long a step takes, on the mover's thread; none: not known.
    std::function<Duration()> step{};
    /// Moved at a time, in one pause, at least one chunk; zero: `batch_for(step())`.
    Bytes batch{};
    /// Runs a batch, on the mover's thread, with what it needs around it, or not at all now. None:
    /// the batch alone.
    std::function<void(const std::function<void()>& batch)> around{};
  };
  /// @param allocator  not owned; must outlive this object.
  /// @param moved  called on the thread after each batch that moved something; throws nothing.
  BackgroundMover(ElasticAllocator& allocator, Options options, std::function<void()> moved,
                  const Clock& clock = SteadyClock::instance());
  ~BackgroundMover();
  BackgroundMover(const BackgroundMover&) = delete;
  BackgroundMover& operator=(const BackgroundMover&) = delete;

  /// Begins. @return why there is no thread; empty: there is one. Whether safe points leave it to
  /// this thread to bring memory back is the caller's to say (`expect_work_ahead`).
  [[nodiscard]] std::string start();
  /// Ends the thread after the batch it is at.
  void stop() noexcept;
  [[nodiscard]] bool running() const noexcept { return thread_ != nullptr; }
  /// Says that a limit changed or a safe point left something to do.
  void wake() noexcept;

 private:
  void run() noexcept;
  [[nodiscard]] bool rest(Duration wait, bool heed_wake) noexcept COMMENSAL_EXCLUDES(mutex_);

  ElasticAllocator& allocator_;
  const Options options_;
  const std::function<void()> moved_;
  const Clock& clock_;
  std::unique_ptr<std::thread> thread_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  bool woken_ COMMENSAL_GUARDED_BY(mutex_) = false;
  bool stopping_ COMMENSAL_GUARDED_BY(mutex_) = false;
};

}  // namespace commensal

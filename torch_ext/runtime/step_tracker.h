// SPDX-License-Identifier: Apache-2.0
// Finds out where a training job's steps end, from ranges and hooks that cost ops nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "allocator/base/clock.h"
#include "allocator/base/mutex.h"

namespace commensal {

/// Where the newest step came from.
enum class StepSource : std::uint8_t { kNone, kRange, kHook, kUser, kFound };
[[nodiscard]] std::string_view to_string(StepSource source) noexcept;

/// What is known about the steps so far.
struct StepState {
  std::uint64_t number = 0;  ///< steps that ended
  Duration last{};           ///< between the ends of the last two; zero before
  Duration median{};         ///< of the last `StepTracker::kWindow` durations
  double confidence = 0.0;   ///< 0..1: enough steps, regular, from a signal that means a step
  StepSource source = StepSource::kNone;
  TimePoint last_end;  ///< zero before the first
};

/// Returns for how long there must have been no safe point before another thread makes one in the
/// middle of whatever the job does: 200 ms, and where steps are known two of them, since memory
/// that moves within a step is touched again by the same step. A job that took no step for eight of
/// its steps (a validation, a prompt) counts as one without steps.
///
/// @param owed  a new limit waits: then for a second at most.
[[nodiscard]] Duration wait_for_safe_point(const StepState& steps, TimePoint now,
                                           bool owed) noexcept;

/// Turns optimizer ranges, optimizer hooks, data loader ranges and user calls into steps.
///
/// - An optimizer step is the outermost `Optimizer.step#...` range of its thread; hooks inside it
///   belong to it, and hooks alone (a compiled step has no range) are an optimizer step too.
/// - While a data loader is in use a step is an iteration: it ended with the last optimizer step
///   before the next fetch (two optimizers, optimizer-in-backward). It is counted when that fetch
///   begins. Where iterations have both, a `zero_grad` alone stands for a step that a gradient
///   scaler skipped.
/// - Without a data loader each optimizer step is a step.
/// - After `user_step` only the user's calls count.
/// - Requests that were found in a job that shows nothing else (`RequestFinder`) count until it
/// does.
///
/// Thread safety: any member may be called from any thread; no allocation, one short lock.
class StepTracker {
 public:
  static constexpr std::size_t kWindow = 32;

  explicit StepTracker(const Clock& clock = SteadyClock::instance());
  StepTracker(const StepTracker&) = delete;
  StepTracker& operator=(const StepTracker&) = delete;

  /// Each returns true if it ended a step: the calling thread is then between two steps.
  bool optimizer_range_begin() noexcept;
  bool optimizer_range_end() noexcept;
  bool hook_begin() noexcept;
  bool hook_end() noexcept;
  bool zero_grad_end() noexcept;
  bool fetch_begin() noexcept;
  bool user_step() noexcept;
  bool request_found(TimePoint ended) noexcept;

  [[nodiscard]] StepState state() const noexcept;
  /// Whether this thread is inside of an optimizer step.
  [[nodiscard]] bool inside_optimizer() const noexcept;
  /// Whether an optimizer has stepped: else the user's steps are requests that the job serves.
  [[nodiscard]] bool trains() const noexcept {
    return optimizer_seen_.load(std::memory_order_relaxed);
  }

 private:
  struct Depth;
  Depth& depth() const noexcept;
  bool optimizer_step_ended(StepSource source) noexcept;
  void end_step(TimePoint when, StepSource source) noexcept COMMENSAL_REQUIRES(mutex_);

  const Clock& clock_;
  const std::uint64_t id_;
  std::atomic<bool> optimizer_seen_{false};
  mutable Mutex mutex_;
  StepState state_ COMMENSAL_GUARDED_BY(mutex_);
  std::array<Duration, kWindow> durations_ COMMENSAL_GUARDED_BY(mutex_){};
  std::uint64_t durations_seen_ COMMENSAL_GUARDED_BY(mutex_) = 0;

  bool user_driven_ COMMENSAL_GUARDED_BY(mutex_) = false;
  bool by_fetch_ COMMENSAL_GUARDED_BY(mutex_) = false;  // a step is an iteration of a loader
  std::uint64_t optimizer_steps_since_fetch_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  std::uint64_t most_steps_an_iteration_ COMMENSAL_GUARDED_BY(mutex_) = 0;
  TimePoint last_optimizer_end_ COMMENSAL_GUARDED_BY(mutex_);
  TimePoint last_zero_grad_ COMMENSAL_GUARDED_BY(mutex_);
  StepSource pending_source_ COMMENSAL_GUARDED_BY(mutex_) = StepSource::kNone;
  bool zero_grad_since_fetch_ COMMENSAL_GUARDED_BY(mutex_) = false;
  bool zero_grad_goes_with_step_ COMMENSAL_GUARDED_BY(mutex_) = false;
};

}  // namespace commensal

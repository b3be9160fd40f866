// SPDX-License-Identifier: Apache-2.0
// The state machine behind the step tracker.
#include "torch_ext/runtime/step_tracker.h"

#include <algorithm>
#include <atomic>

namespace commensal {
namespace {

/// Optimizer steps after a fetch from which on the loader is taken to be out of use: a fixed batch
/// that is trained on for ever. Optimizer-in-backward has one step for each parameter.
constexpr std::uint64_t kStepsWithoutHistory = 256;
constexpr std::uint64_t kFewSteps = 16;

std::uint64_t next_id() noexcept {
  static std::atomic<std::uint64_t> id{0};
  return id.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

std::string_view to_string(StepSource source) noexcept {
  switch (source) {
    case StepSource::kNone: return "none";
    case StepSource::kRange: return "range";
    case StepSource::kHook: return "hook";
    case StepSource::kUser: return "user";
    case StepSource::kFound: return "found";
  }
  return "none";
}

Duration wait_for_safe_point(const StepState& steps, TimePoint now, bool owed) noexcept {
  constexpr Duration kLeast = std::chrono::milliseconds{200};
  constexpr Duration kMostOwed = std::chrono::seconds{1};
  if (steps.number < 2 || now - steps.last_end > 8 * steps.median) return kLeast;
  const Duration two = 2 * steps.median;
  return std::max(kLeast, owed ? std::min(two, kMostOwed) : two);
}

/// How deep this thread is inside of optimizer steps: ranges and hooks pair within a thread.
struct StepTracker::Depth {
  std::uint64_t tracker;
  int range;
  int hook;
};

StepTracker::StepTracker(const Clock& clock) : clock_(clock), id_(next_id()) {}

StepTracker::Depth& StepTracker::depth() const noexcept {
  thread_local constinit Depth depth{0, 0, 0};
  if (depth.tracker != id_) depth = {id_, 0, 0};
  return depth;
}

bool StepTracker::inside_optimizer() const noexcept {
  const Depth& here = depth();
  return here.range != 0 || here.hook != 0;
}

bool StepTracker::optimizer_range_begin() noexcept {
  Depth& here = depth();
  if (here.range++ == 0) here.hook = 0;  // a hook's end is missing after a step that raised
  return false;
}

bool StepTracker::optimizer_range_end() noexcept {
  Depth& here = depth();
  if (here.range == 0) return false;  // began before the tracker watched
  if (--here.range != 0) return false;
  here.hook = 0;
  return optimizer_step_ended(StepSource::kRange);
}

bool StepTracker::hook_begin() noexcept {
  Depth& here = depth();
  if (here.range == 0) ++here.hook;
  return false;
}

bool StepTracker::hook_end() noexcept {
  Depth& here = depth();
  if (here.range != 0 || here.hook == 0) return false;
  if (--here.hook != 0) return false;
  return optimizer_step_ended(StepSource::kHook);
}

bool StepTracker::optimizer_step_ended(StepSource source) noexcept {
  const TimePoint now = clock_.now();
  optimizer_seen_.store(true, std::memory_order_relaxed);
  const MutexLock lock(mutex_);
  if (user_driven_) return false;
  if (by_fetch_) {
    ++optimizer_steps_since_fetch_;
    last_optimizer_end_ = now;
    pending_source_ = source;
    const std::uint64_t patience = most_steps_an_iteration_ == 0
                                       ? kStepsWithoutHistory
                                       : std::max(kFewSteps, 8 * most_steps_an_iteration_);
    if (optimizer_steps_since_fetch_ <= patience) return false;
    by_fetch_ = false;  // the loader is out of use: from here on, each optimizer step counts
    optimizer_steps_since_fetch_ = 0;
  }
  end_step(now, source);
  return true;
}

bool StepTracker::zero_grad_end() noexcept {
  if (depth().range != 0) return false;  // a closure's
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  zero_grad_since_fetch_ = true;
  last_zero_grad_ = now;
  return false;
}

bool StepTracker::fetch_begin() noexcept {
  const Depth& here = depth();
  if (here.range != 0) return false;  // inside of a closure
  depth().hook = 0;
  const MutexLock lock(mutex_);
  if (user_driven_) return false;
  bool ended = false;
  if (!by_fetch_) {
    by_fetch_ = true;  // optimizer steps before it were counted one by one
  } else if (optimizer_steps_since_fetch_ != 0) {
    most_steps_an_iteration_ = std::max(optimizer_steps_since_fetch_,
                                        most_steps_an_iteration_ - most_steps_an_iteration_ / 8);
    end_step(last_optimizer_end_, pending_source_);
    zero_grad_goes_with_step_ = zero_grad_since_fetch_;
    ended = true;
  } else if (zero_grad_since_fetch_ && zero_grad_goes_with_step_) {
    end_step(last_zero_grad_, StepSource::kRange);
    ended = true;
  }
  optimizer_steps_since_fetch_ = 0;
  zero_grad_since_fetch_ = false;
  return ended;
}

bool StepTracker::user_step() noexcept {
  const TimePoint now = clock_.now();
  const MutexLock lock(mutex_);
  if (!user_driven_) {
    user_driven_ = true;
    durations_seen_ = 0;  // a user's step need not be what ranges took for one
    state_.last_end = TimePoint{};
  }
  end_step(now, StepSource::kUser);
  return true;
}

bool StepTracker::request_found(TimePoint ended) noexcept {
  const MutexLock lock(mutex_);
  if (user_driven_ || by_fetch_ || optimizer_seen_.load(std::memory_order_relaxed)) return false;
  end_step(ended, StepSource::kFound);
  return true;
}

void StepTracker::end_step(TimePoint when, StepSource source) noexcept {
  if (state_.source == StepSource::kFound && source != StepSource::kFound) {
    durations_seen_ = 0;  // they were no requests, or are marked now
    state_.last_end = TimePoint{};
  }
  if (state_.last_end != TimePoint{} && when > state_.last_end) {
    state_.last = when - state_.last_end;
    durations_[durations_seen_++ % kWindow] = state_.last;
  }
  state_.last_end = when;
  state_.source = source;
  ++state_.number;
}

StepState StepTracker::state() const noexcept {
  StepState state;
  std::array<Duration, kWindow> sorted;
  std::uint64_t seen = 0;
  bool grouped = false;
  {
    const MutexLock lock(mutex_);
    state = state_;
    sorted = durations_;
    seen = durations_seen_;
    grouped = by_fetch_ || user_driven_;
  }
  const auto count = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(seen, kWindow));
  if (count == 0) return state;
  const auto middle = sorted.begin() + count / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + count);
  state.median = *middle;
  for (auto it = sorted.begin(); it != sorted.begin() + count; ++it) {
    *it = *it > state.median ? *it - state.median : state.median - *it;
  }
  std::nth_element(sorted.begin(), middle, sorted.begin() + count);
  const double spread = state.median.count() == 0 ? 1.0
                                                  : static_cast<double>(middle->count()) /
                                                        static_cast<double>(state.median.count());
  const double enough = static_cast<double>(std::min<std::ptrdiff_t>(count, 8)) / 8.0;
  // Without a loader an iteration may have several, and a found request is a guess.
  const double meaning = state.source == StepSource::kFound ? 0.6 : grouped ? 1.0 : 0.8;
  state.confidence = enough * meaning / (1.0 + spread);
  return state;
}

}  // namespace commensal

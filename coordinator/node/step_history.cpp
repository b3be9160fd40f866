// SPDX-License-Identifier: Apache-2.0
// Medians of step times.
#include "coordinator/node/step_history.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace commensal::node {
namespace {

using namespace std::chrono_literals;

/// How many steps an estimate is made of. A percentile needs more of them than a median.
struct Sizes {
  std::size_t quiet_kept;
  std::size_t shared_kept;
  std::size_t least_quiet;
  std::size_t least_shared;
  std::size_t newest;   ///< quiet steps that can overrule the older ones
  Duration shared_age;  ///< older shared steps go, if enough newer ones stay
};
constexpr Sizes kOfMedian{41, 200, 3, 5, 5, 8s};
constexpr Sizes kOfTail{400, 400, 50, 50, 20, 20s};
constexpr const Sizes& sizes(StepSignal signal) {
  return signal == StepSignal::kTail ? kOfTail : kOfMedian;
}
/// A change of the job itself, where a few steps must do: this far from the steps before, and
/// outside of their range.
constexpr double kJump = 1.25;
constexpr double kOutside = 1.03;
constexpr std::size_t kJumpSteps = 2;
constexpr std::size_t kStepsBeforeJump = 3;
constexpr std::size_t kRecent = 8;
/// A difference that two steps on each side show.
constexpr double kFarApart = 1.10;
constexpr double kTailQuantile = 0.99;
constexpr double kChangedBy = 0.10;  // the newest quiet steps' median, to overrule older ones
constexpr double kLeastStepError = 1e-3;
constexpr std::size_t kWindowsForDrift = 3;
constexpr double kTenthOfNormal = 1.28;  // its tenth lies so many deviations from the middle
constexpr double kDifferenceToDeviation = 1.0483;  // median of |x - y| of a normal distribution
constexpr double kTwiceChance = 2.0;
constexpr double kCertainlyApart = 2.0;  // standard errors

struct Range {
  double least = 0.0;
  double most = 0.0;
};
template <typename Iterator>
Range range_of(Iterator begin, Iterator end) {
  const auto shorter = [](const auto& a, const auto& b) { return a.seconds < b.seconds; };
  const auto [least, most] = std::minmax_element(begin, end, shorter);
  return {least->seconds, most->seconds};
}

template <typename Iterator>
double median_of(Iterator begin, Iterator end) {
  std::vector<double> values;
  for (auto it = begin; it != end; ++it) values.push_back(it->seconds);
  return median(std::move(values));
}

/// The range without the outer tenths, where there are ten steps or more: a few of another kind
/// must not widen it.
template <typename Iterator>
Range most_of(Iterator begin, Iterator end) {
  std::vector<double> sorted;
  for (auto it = begin; it != end; ++it) sorted.push_back(it->seconds);
  std::sort(sorted.begin(), sorted.end());
  const std::size_t tenth = sorted.size() / 10;
  return {sorted[tenth], sorted[sorted.size() - 1 - tenth]};
}

}  // namespace

const char* to_string(StepSignal signal) noexcept {
  switch (signal) {
    case StepSignal::kMedian: return "steps";
    case StepSignal::kTail: return "requests";
    case StepSignal::kCores: return "cores";
  }
  return "steps";
}

void StepHistory::follow(StepSignal signal) {
  if (signal == signal_) return;
  signal_ = signal;
  forget();
}

void StepHistory::forget() {
  quiet_steps_.clear();
  shared_steps_.clear();
  recent_.clear();
  pairs_.forget();
}

void StepHistory::forget_shared() {
  shared_steps_.clear();
  pairs_.forget_shared();
}

void StepHistory::begin_quiet(TimePoint now) {
  if (!quiet_) {
    ++window_;
    pairs_.begin_quiet();
  }
  quiet_ = true;
  quiet_at_begin_ = quiet_total_;
  since_ = now;
}

void StepHistory::begin_shared(TimePoint now) {
  if (quiet_) shared_since_ = now;
  quiet_ = false;
  since_ = now;
}

void StepHistory::add(TimePoint end, Duration duration) {
  if (duration <= Duration::zero()) return;
  const Step step{end, std::chrono::duration<double>(duration).count(), window_};
  if (!quiet_ && end - duration >= shared_since_ + kStepAge) {
    recent_.push_back(step);
    if (recent_.size() > kRecent) recent_.pop_front();
  }
  if (end - duration < since_ + kStepAge) return;  // saw both states, or may have
  if (quiet_) {
    ++quiet_total_;
    quiet_steps_.push_back(step);
    pairs_.add_quiet(step.end, step.seconds);
    if (quiet_steps_.size() > sizes(signal_).quiet_kept) quiet_steps_.pop_front();
    drop_outdated_baseline();
    return;
  }
  shared_steps_.push_back(step);
  pairs_.add_shared(step.end, step.seconds);
  const Sizes& size = sizes(signal_);
  while (shared_steps_.size() > size.shared_kept ||
         (shared_steps_.size() > size.least_shared &&
          shared_steps_.front().end < end - size.shared_age)) {
    shared_steps_.pop_front();
  }
}

void StepHistory::drop_outdated_baseline() {
  const std::size_t count = sizes(signal_).newest;
  const std::size_t now = quiet_total_ - quiet_at_begin_;
  if (confirming_ >= kJumpSteps && now >= confirming_ && quiet_steps_.size() > now) {
    const auto border = quiet_steps_.end() - static_cast<std::ptrdiff_t>(now);
    const Range before = most_of(quiet_steps_.begin(), border);
    const double usual = median_of(quiet_steps_.begin(), border);
    const Range newest = range_of(border, quiet_steps_.end());
    const bool agree = newest.most < newest.least * kJump;
    const bool longer =
        newest.least > before.most * kOutside && newest.least > usual * (1 + kChangedBy);
    const bool shorter =
        newest.most < before.least / kOutside && newest.most < usual / (1 + kChangedBy);
    if (agree && (longer || shorter)) return rebase(now);
  }
  if (quiet_steps_.size() < 2 * count) return;
  const auto border = quiet_steps_.end() - static_cast<std::ptrdiff_t>(count);
  const double before = median_of(quiet_steps_.begin(), border);
  // All of them on the same side: one slow evaluation among them is no change of the job.
  const Range newest = range_of(border, quiet_steps_.end());
  if (newest.least > before * (1 + kChangedBy) || newest.most < before / (1 + kChangedBy)) {
    rebase(count);
  }
}

void StepHistory::rebase(std::size_t newest) {
  quiet_steps_.erase(quiet_steps_.begin(),
                     quiet_steps_.end() - static_cast<std::ptrdiff_t>(newest));
  shared_steps_.clear();
  recent_.clear();
  pairs_.forget();
}

bool StepHistory::change_suspected() const {
  if (signal_ == StepSignal::kTail || recent_.size() < kJumpSteps) return false;
  const auto border = recent_.end() - static_cast<std::ptrdiff_t>(kJumpSteps);
  const Range newest = range_of(border, recent_.end());
  if (quiet_steps_.size() >= kJumpSteps) {
    const Range alone = most_of(quiet_steps_.begin(), quiet_steps_.end());
    if (newest.most * kFarApart < alone.least) return true;
  }
  if (recent_.size() < kJumpSteps + kStepsBeforeJump) return false;
  const Range before = range_of(recent_.begin(), border);
  const double usual = median_of(recent_.begin(), border);
  return (newest.least > usual * kJump && newest.least > before.most * kOutside) ||
         (newest.most < usual / kJump && newest.most < before.least / kOutside);
}

void StepHistory::settle_change() {
  confirming_ = 0;
  while (shared_steps_.size() > kJumpSteps) shared_steps_.pop_front();
  while (recent_.size() > kJumpSteps) recent_.pop_front();
}

MedianEstimate StepHistory::estimate(const std::deque<Step>& steps) const {
  MedianEstimate result;
  result.steps = steps.size();
  if (steps.empty()) return result;
  std::vector<double> values;
  values.reserve(steps.size());
  for (const Step& step : steps) values.push_back(step.seconds);
  if (signal_ == StepSignal::kTail) {
    // The standard error of an order statistic: the ranks that lie one deviation of the binomial
    // distribution to both sides.
    std::sort(values.begin(), values.end());
    const auto n = static_cast<double>(values.size());
    const double rank = kTailQuantile * (n - 1.0);
    const double deviation = std::sqrt(n * kTailQuantile * (1.0 - kTailQuantile));
    const auto at = [&](double position) {
      return values[static_cast<std::size_t>(std::clamp(std::round(position), 0.0, n - 1.0))];
    };
    result.seconds = at(rank);
    result.error = std::max((at(rank + deviation) - at(rank - deviation)) / 2,
                            kLeastStepError * result.seconds);
    return result;
  }
  result.seconds = median(values);
  result.error = error_of_median(values);
  return result;
}

double StepHistory::drift() const {
  std::vector<double> windows;     // mean of each
  std::vector<double> successive;  // differences of two steps of a window
  double sum = 0.0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < quiet_steps_.size(); ++i) {
    const Step& step = quiet_steps_[i];
    sum += step.seconds;
    ++count;
    if (i + 1 < quiet_steps_.size() && quiet_steps_[i + 1].window == step.window) {
      successive.push_back(std::abs(quiet_steps_[i + 1].seconds - step.seconds));
      continue;
    }
    windows.push_back(sum / static_cast<double>(count));
    sum = 0.0;
    count = 0;
  }
  if (windows.size() < kWindowsForDrift || successive.empty()) return 0.0;
  // Half of the range without the outer tenths: a machine that is at times in another state, for
  // seconds, must not look steady because it is so for less than half of the time.
  std::sort(windows.begin(), windows.end());
  const std::size_t tenth = windows.size() / 10;
  const double half = (windows[windows.size() - 1 - tenth] - windows[tenth]) / 2;
  // Of steps that differ by chance alone, means of k differ by a k-th of their variance; of a few
  // windows, now and then by twice that.
  const double steps_a_window =
      static_cast<double>(quiet_steps_.size()) / static_cast<double>(windows.size());
  const double by_chance =
      std::pow(kTenthOfNormal * kDifferenceToDeviation * median(successive), 2) / steps_a_window;
  if (half * half < kTwiceChance * by_chance) return 0.0;
  return std::sqrt(half * half - by_chance);
}

MedianEstimate StepHistory::baseline() const { return estimate(quiet_steps_); }
MedianEstimate StepHistory::shared() const { return estimate(shared_steps_); }

std::optional<SlowdownEstimate> StepHistory::slowdown() const {
  const Sizes& size = sizes(signal_);
  if (quiet_steps_.size() < size.least_quiet || shared_steps_.size() < size.least_shared) {
    if (signal_ == StepSignal::kTail || quiet_steps_.size() < kJumpSteps ||
        shared_steps_.size() < kJumpSteps) {
      return std::nullopt;
    }
    // Too few for an interval, but enough to tell what is far apart.
    const Range alone = range_of(quiet_steps_.begin(), quiet_steps_.end());
    const Range here = range_of(shared_steps_.begin(), shared_steps_.end());
    if (here.least < alone.most * kFarApart) return std::nullopt;
  }
  const MedianEstimate alone = baseline();
  const MedianEstimate here = shared();
  const double ratio = here.seconds / alone.seconds;
  const double changes = signal_ == StepSignal::kTail ? 0.0 : drift();
  const SlowdownEstimate newest{
      ratio - 1.0,
      ratio * std::hypot(here.error / here.seconds, alone.error / alone.seconds,
                         changes / alone.seconds),
      here.steps};
  const auto paired = signal_ == StepSignal::kTail ? std::nullopt : pairs_.slowdown();
  if (!paired || paired->error >= newest.error) return newest;
  // Pairs are of a minute or more: what has certainly changed since is told by the newest steps.
  const double apart = std::abs(newest.value - paired->value);
  return apart > kCertainlyApart * std::hypot(newest.error, paired->error) ? newest : *paired;
}

std::optional<SlowdownEstimate> StepHistory::slowdown_over(Duration alone) const {
  if (shared_steps_.size() < sizes(signal_).least_shared) return std::nullopt;
  const MedianEstimate here = shared();
  const double seconds = std::chrono::duration<double>(alone).count();
  return SlowdownEstimate{here.seconds / seconds - 1.0, here.error / seconds, here.steps};
}

}  // namespace commensal::node

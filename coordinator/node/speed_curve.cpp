// SPDX-License-Identifier: Apache-2.0
// Steps a second, by limit.
#include "coordinator/node/speed_curve.h"

#include <algorithm>
#include <cmath>

namespace commensal::node {

void SpeedCurve::note(TimePoint now, Bytes limit, std::uint64_t steps, bool steady) {
  std::erase_if(points_, [&](const Point& point) { return now - point.at > kKept; });
  const bool goes_on = steady && begun_ && begun_->limit == limit && steps >= begun_->steps;
  if (!goes_on) {
    begun_.reset();
    if (steady) begun_ = Begun{limit, now + kSettle, steps};
    return;
  }
  if (now < begun_->at) {
    begun_->steps = steps;
    return;
  }
  const Duration passed = now - begun_->at;
  const std::uint64_t done = steps - begun_->steps;
  if (passed < kLeast || done < kLeastSteps) return;
  add(now, limit, static_cast<double>(done) / std::chrono::duration<double>(passed).count());
  if (passed >= 8 * kLeast) begun_ = Begun{limit, now, steps};
}

void SpeedCurve::add(TimePoint now, Bytes limit, double steps_per_second) {
  const auto same = std::find_if(points_.begin(), points_.end(),
                                 [&](const Point& p) { return p.speed.limit == limit; });
  if (same == points_.end()) {
    const auto place = std::find_if(points_.begin(), points_.end(),
                                    [&](const Point& p) { return p.speed.limit > limit; });
    points_.insert(place, Point{{limit, steps_per_second}, now});
    return;
  }
  const double before = same->speed.steps_per_second;
  const Point renewed{{limit, steps_per_second}, now};
  if (std::abs(steps_per_second - before) > before / 4) {
    points_ = {renewed};
  } else {
    *same = renewed;
  }
}

void SpeedCurve::clear() noexcept {
  begun_.reset();
  points_.clear();
}

std::vector<policies::SpeedPoint> SpeedCurve::points() const {
  std::vector<policies::SpeedPoint> result;
  result.reserve(points_.size());
  for (const Point& point : points_) result.push_back(point.speed);
  return result;
}

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/page/load_history.h"

namespace commensal::page {

using nlohmann::json;

TimePoint LoadHistory::due() const noexcept {
  return points_.empty() ? TimePoint::min() : points_.back().when + kStep;
}

bool LoadHistory::add(const Load& load, TimePoint now, std::chrono::milliseconds at) {
  if (!is_due(now) || (!points_.empty() && points_.back().load == load)) return false;
  points_.push_back({now, at, load});
  // One from before stays: it is how it was when the time that is kept began.
  while (points_.size() > 1 && now - points_[1].when >= kKept) points_.pop_front();
  return true;
}

json LoadHistory::list() const {
  json list = json::array();
  for (const Point& point : points_) {
    list.push_back({{"at_ms", point.at.count()},
                    {"guaranteed", point.load.guaranteed},
                    {"opportunistic", point.load.opportunistic},
                    {"waiting", point.load.waiting}});
  }
  return list;
}

}  // namespace commensal::page

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/flat_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace commensal::cluster {
namespace {

std::string words(std::chrono::seconds time) {
  using namespace std::chrono_literals;
  if (time % 1h == 0h) return fmt::format("{} h", time / 1h);
  if (time % 1min == 0min) return fmt::format("{} min", time / 1min);
  return fmt::format("{} s", time.count());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Halves {
  std::vector<double> older;
  std::vector<double> newer;
};

Halves halves_of(std::span<const LossPoint> curve, Duration window, TimePoint now) {
  Halves halves;
  for (const LossPoint& point : curve) {
    if (point.at <= now - window || !std::isfinite(point.loss)) continue;
    (point.at <= now - window / 2 ? halves.older : halves.newer).push_back(point.loss);
  }
  return halves;
}

}  // namespace

FlatVerdict judge_flat(std::span<const LossPoint> curve, const FlatRule& rule, TimePoint now) {
  const std::string window = words(rule.window);
  if (curve.empty()) return {false, "it has not told its loss yet"};
  if (curve.front().at > now - rule.window) {
    const auto known = std::chrono::floor<std::chrono::seconds>(now - curve.front().at);
    return {false, fmt::format("its loss is known for {} of {}", words(known), window)};
  }
  const Halves halves = halves_of(curve, rule.window, now);
  const std::size_t least = std::min(halves.older.size(), halves.newer.size());
  if (least < kLeastPoints) {
    return {false, fmt::format("its loss was told as a number {} and {} times in the halves of the "
                               "last {}, {} are needed in each",
                               halves.older.size(), halves.newer.size(), window, kLeastPoints)};
  }
  const double before = median(halves.older);
  const double after = median(halves.newer);
  const double size = std::max(std::abs(before), std::abs(after));
  // Halved, so that the difference of two very large numbers is a number.
  const double change = size > 0 ? 2 * (after / 2 / size - before / 2 / size) : 0;
  const bool flat = std::abs(change) <= rule.change;
  return {flat,
          fmt::format("its loss {} for {}: median {:.4g}, then {:.4g} ({:+.2g} %; flat is {:g} "
                      "%)",
                      flat         ? "has been flat"
                      : change < 0 ? "has fallen"
                                   : "has risen",
                      window, before, after, change * 100, rule.change * 100)};
}

void LossCurve::add(LossPoint point, std::chrono::seconds window) {
  if (!points_.empty() && point.at - points_.back().at < Duration{window} / kPointsOfWindow) return;
  points_.push_back(point);
  // The last point before two windows stays: it says that all of them is known.
  const auto first_inside = std::find_if(points_.begin(), points_.end(), [&](const LossPoint& p) {
    return p.at > point.at - 2 * window;
  });
  if (first_inside - points_.begin() > 1) points_.erase(points_.begin(), first_inside - 1);
}

}  // namespace commensal::cluster

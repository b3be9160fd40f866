// SPDX-License-Identifier: Apache-2.0
// Greedy division by measured speed.
#include "coordinator/node/memory_exchange.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "coordinator/node/percent.h"

namespace commensal::node {
namespace {

using policies::JobView;
using policies::SpeedPoint;

constexpr double kKnownMargin = 0.03;  // speeds are measured to about a percent
constexpr double kTrialMargin = 0.01;

/// The point that was measured with this limit, give or take a quarter of a step.
const SpeedPoint* point_at(const JobView& job, Bytes limit, Bytes step) {
  for (const SpeedPoint& point : job.speeds) {
    const Bytes distance = std::max(point.limit, limit) - std::min(point.limit, limit);
    if (distance.count() <= step.count() / 4) return &point;
  }
  return nullptr;
}

double best_speed(const JobView& job) {
  double best = 0.0;
  for (const SpeedPoint& point : job.speeds) best = std::max(best, point.steps_per_second);
  return best;
}

/// Nearest measured point below or above a limit; null if there is none on that side.
const SpeedPoint* neighbour(const JobView& job, const SpeedPoint& from, bool above) {
  const SpeedPoint* best = nullptr;
  for (const SpeedPoint& point : job.speeds) {
    if (above ? point.limit <= from.limit : point.limit >= from.limit) continue;
    if (best == nullptr || (above ? point.limit < best->limit : point.limit > best->limit)) {
      best = &point;
    }
  }
  return best;
}

/// Slope of normalised speed over `step` bytes, on one side of a point. Never below zero.
std::optional<double> slope(const JobView& job, const SpeedPoint& at, Bytes step, bool above) {
  const SpeedPoint* other = neighbour(job, at, above);
  const double best = best_speed(job);
  if (other == nullptr || best <= 0) return std::nullopt;
  const double rise = (above ? other->steps_per_second - at.steps_per_second
                             : at.steps_per_second - other->steps_per_second) /
                      best;
  const Bytes distance = std::max(at.limit, other->limit) - std::min(at.limit, other->limit);
  return std::max(0.0,
                  rise * static_cast<double>(step.count()) / static_cast<double>(distance.count()));
}

double by_size(Bytes step, Bytes need) {
  return need.is_zero()
             ? 0.0
             : std::min(1.0, static_cast<double>(step.count()) / static_cast<double>(need.count()));
}

/// What changes between two measured limits, as a part of the best speed.
std::optional<double> measured(const JobView& job, Bytes from, Bytes to, Bytes step) {
  const SpeedPoint* a = point_at(job, from, step);
  const SpeedPoint* b = point_at(job, to, step);
  const double best = best_speed(job);
  if (a == nullptr || b == nullptr || a == b || best <= 0) return std::nullopt;
  return (b->steps_per_second - a->steps_per_second) / best;
}

struct Exchange {
  Contender* receiver = nullptr;
  Contender* donor = nullptr;
  double gain = 0.0;
  double loss = 0.0;
  bool trial = false;
  [[nodiscard]] double worth() const { return gain - loss; }
};

/// The exchange that gains most; none if no one is worth it.
std::optional<Exchange> best_exchange(std::vector<Contender>& contenders, Bytes step) {
  std::optional<Exchange> best;
  for (Contender& to : contenders) {
    if (to.target + step > to.need || point_at(*to.job, to.target, step) == nullptr) continue;
    const auto up = measured(*to.job, to.target, to.target + step, step);
    const double gain = up ? *up : estimated_gain(*to.job, to.target, step, to.need);
    for (Contender& from : contenders) {
      if (&from == &to || from.target < from.least + step) continue;
      if (point_at(*from.job, from.target, step) == nullptr) continue;
      const auto down = measured(*from.job, from.target, from.target - step, step);
      const double loss = down ? -*down : estimated_loss(*from.job, from.target, step, from.need);
      const Exchange exchange{&to, &from, gain, loss, !up || !down};
      if (exchange.worth() < (exchange.trial ? kTrialMargin : kKnownMargin)) continue;
      if (!best || exchange.worth() > best->worth()) best = exchange;
    }
  }
  return best;
}

void exchange_one(std::vector<Contender>& contenders, Bytes step) {
  const auto exchange = best_exchange(contenders, step);
  if (!exchange) return;
  exchange->receiver->target += step;
  exchange->donor->target -= step;
  const std::string what = to_string(step) + (exchange->trial ? " as a trial: " : ", measured: ");
  exchange->receiver->reason = "opportunistic: gains most from " + what + percent(exchange->gain) +
                               " of its speed, job " + exchange->donor->job->id.str() + " loses " +
                               percent(exchange->loss);
  exchange->donor->reason = "opportunistic: job " + exchange->receiver->job->id.str() +
                            " gains more from " + what + percent(exchange->gain) +
                            " of its speed, this one loses " + percent(exchange->loss);
}

}  // namespace

double estimated_gain(const JobView& job, Bytes limit, Bytes step, Bytes need) {
  if (const auto known = measured(job, limit, limit + step, step)) return std::max(0.0, *known);
  if (const SpeedPoint* at = point_at(job, limit, step)) {
    if (const auto above = slope(job, *at, step, true)) return *above;
    if (const auto below = slope(job, *at, step, false)) return *below / 2;
  }
  return 2 * by_size(step, need);
}

double estimated_loss(const JobView& job, Bytes limit, Bytes step, Bytes need) {
  if (const auto known = measured(job, limit, saturating_sub(limit, step), step)) {
    return std::max(0.0, -*known);
  }
  if (const SpeedPoint* at = point_at(job, limit, step)) {
    if (const auto below = slope(job, *at, step, false)) return *below;
    if (const auto above = slope(job, *at, step, true)) return *above * 1.5;
  }
  return by_size(step, need);
}

Bytes divide_by_gain(std::vector<Contender>& contenders, Bytes amount, Bytes step,
                     bool may_exchange) {
  Bytes sum;
  for (Contender& c : contenders) {
    c.target = std::clamp(c.job->limit, c.least, c.need);
    sum += c.target;
  }
  // A little more or less is put right below and needs no new measurement.
  const Bytes off = std::max(sum, amount) - std::min(sum, amount);
  const bool settled = off.count() <= step.count() / 4;
  while (sum > amount) {
    Contender* victim = nullptr;
    double least = 0.0;
    for (Contender& c : contenders) {
      if (c.target <= c.least) continue;
      const double loss = estimated_loss(*c.job, c.target, step, c.need);
      if (victim != nullptr && std::tuple{-loss, c.target} <= std::tuple{-least, victim->target}) {
        continue;
      }
      victim = &c;
      least = loss;
    }
    if (victim == nullptr) return sum;
    const Bytes part = std::min({step, victim->target - victim->least, sum - amount});
    victim->target -= part;
    sum -= part;
    victim->reason = "opportunistic: loses least by it, " + percent(least) + " of its speed for " +
                     to_string(step);
  }
  while (sum < amount) {
    Contender* winner = nullptr;
    double most = 0.0;
    for (Contender& c : contenders) {
      if (c.target >= c.need) continue;
      const double gain = estimated_gain(*c.job, c.target, step, c.need);
      if (winner != nullptr && std::tuple{-gain, c.target} >= std::tuple{-most, winner->target}) {
        continue;
      }
      winner = &c;
      most = gain;
    }
    if (winner == nullptr) return sum;
    const Bytes part = std::min({step, winner->need - winner->target, amount - sum});
    winner->target += part;
    sum += part;
    winner->reason = "opportunistic: gains most from it, " + percent(most) + " of its speed for " +
                     to_string(step);
  }
  if (settled && may_exchange) exchange_one(contenders, step);
  return sum;
}

}  // namespace commensal::node

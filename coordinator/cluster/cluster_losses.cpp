// SPDX-License-Identifier: Apache-2.0
// Losses that jobs tell, and the rules by which they end or park themselves.
#include <fmt/format.h>

#include <chrono>
#include <limits>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/job_number.h"
#include "coordinator/cluster/request_field.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr std::size_t kMostAtOnce = 1000;
constexpr std::chrono::milliseconds kOldest = 1h;  // waited to be told for so long

std::vector<LossPoint> points_in(const json& request, TimePoint now) {
  const json list = field<json>(request, "points");
  if (!list.is_array() || list.size() > kMostAtOnce) {
    throw RequestRefused("malformed",
                         fmt::format("field \"points\" is a list of at most {}", kMostAtOnce));
  }
  std::vector<LossPoint> points;
  for (const json& point : list) {
    if (!point.is_object()) throw RequestRefused("malformed", "a point is an object");
    const auto age = std::chrono::milliseconds{field<std::int64_t>(point, "age_ms")};
    if (age < 0ms || age > kOldest) {
      throw RequestRefused("malformed", fmt::format("field \"age_ms\" is from 0 to {}, not {}",
                                                    kOldest.count(), age.count()));
    }
    // JSON has no word for what is no number.
    points.push_back(
        {now - age, field<double>(point, "loss", std::numeric_limits<double>::quiet_NaN())});
  }
  return points;
}

}  // namespace

json ClusterCoordinator::report_loss(const json& request) {
  const JobRecord job = find(request);
  const auto attempt = field<std::uint32_t>(request, "attempt", job.attempt);
  const std::optional<FlatRule>& rule = flat_rule(job.spec);
  if (!rule) {
    throw RequestRefused("refused",
                         fmt::format("job {} has no rule that looks at its loss", job.id.str()));
  }
  if (attempt != job.attempt || !is_placed(job.state)) {
    throw RequestRefused("refused",
                         fmt::format("attempt {} of job {} is over", attempt, job.id.str()));
  }
  LossCurve& curve = losses_[job_number(job.id)];
  for (const LossPoint& point : points_in(request, now_)) {
    curve.add(point, rule->window);
  }
  ++revision_;
  const FlatVerdict verdict = judge_flat(curve.points(), *rule, now_);
  if (verdict.flat && !is_being_ended(job)) {
    const bool parks = job.spec.park_when_flat.has_value();
    happen(job.id, {.kind = parks ? EventKind::kParkByRule : EventKind::kEndByRule,
                    .attempt = attempt,
                    .reason = (parks ? "parked by its own rule: " : "ended by its own rule: ") +
                              verdict.reason});
  }
  return {{"id", job.id.str()}, {"flat", verdict.flat}, {"reason", verdict.reason}};
}

std::string ClusterCoordinator::rule_of(const JobRecord& job) const {
  const auto curve = losses_.find(job_number(job.id));
  return judge_flat(curve == losses_.end() ? std::span<const LossPoint>{} : curve->second.points(),
                    *flat_rule(job.spec), now_)
      .reason;
}

}  // namespace commensal::cluster

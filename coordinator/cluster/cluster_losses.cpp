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

struct ReportedLoss {
  std::int64_t age_ms = 0;
  std::optional<double> loss;  ///< JSON has no word for what is no number
};
void fields(SameAs<ReportedLoss> auto& point, auto& field) {
  field("age_ms", point.age_ms, Between{std::int64_t{0}, std::int64_t{kOldest.count()}});
  field("loss", point.loss);
}

std::vector<LossPoint> points_in(const json& request, TimePoint now) {
  std::vector<LossPoint> points;
  for (const ReportedLoss& each : field<std::vector<ReportedLoss>>(request, "points", std::nullopt,
                                                                   ListSize{0, kMostAtOnce})) {
    points.push_back({now - std::chrono::milliseconds{each.age_ms},
                      each.loss.value_or(std::numeric_limits<double>::quiet_NaN())});
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

// SPDX-License-Identifier: Apache-2.0
// Losses that jobs tell, and the rules by which they end themselves.
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
  if (!job.spec.end_when_flat) {
    throw RequestRefused("refused",
                         fmt::format("job {} has no rule that looks at its loss", job.id.str()));
  }
  if (attempt != job.attempt || !is_placed(job.state)) {
    throw RequestRefused("refused",
                         fmt::format("attempt {} of job {} is over", attempt, job.id.str()));
  }
  LossCurve& curve = losses_[job_number(job.id)];
  for (const LossPoint& point : points_in(request, now_)) {
    curve.add(point, job.spec.end_when_flat->window);
  }
  ++revision_;
  const FlatVerdict verdict = judge_flat(curve.points(), *job.spec.end_when_flat, now_);
  if (verdict.flat && !job.finish_asked && !job.cancel_asked) {
    happen(job.id, {.kind = EventKind::kEndByRule,
                    .attempt = attempt,
                    .reason = "ended by its own rule: " + verdict.reason});
  }
  return {{"id", job.id.str()}, {"flat", verdict.flat}, {"reason", verdict.reason}};
}

std::string ClusterCoordinator::rule_of(const JobRecord& job) const {
  const auto curve = losses_.find(job_number(job.id));
  return judge_flat(curve == losses_.end() ? std::span<const LossPoint>{} : curve->second.points(),
                    *job.spec.end_when_flat, now_)
      .reason;
}

}  // namespace commensal::cluster

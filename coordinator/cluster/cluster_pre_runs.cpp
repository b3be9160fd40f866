// SPDX-License-Identifier: Apache-2.0
// Pre-runs: the first step of a gang, tried on one device before the gang is placed.
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/job_number.h"
#include "coordinator/cluster/request_field.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kShortest = 1s;
constexpr std::chrono::milliseconds kLongest = 24h;

}  // namespace

std::optional<JobSpec> ClusterCoordinator::pre_run_of(const JobSpec& gang, const json& request) {
  const auto asked = field<std::int64_t>(request, "pre_run_ms", 0);
  if (asked == 0) return std::nullopt;
  if (asked < kShortest.count() || asked > kLongest.count() || asked % 1000 != 0) {
    throw RequestRefused("malformed",
                         fmt::format("field 'pre_run_ms' must be whole seconds from {} to {}: {}",
                                     kShortest.count(), kLongest.count(), asked));
  }
  if (gang.gpus < 2) {
    throw RequestRefused("refused",
                         fmt::format("a pre-run is for a gang, and the job asks for {} device{}",
                                     gang.gpus, gang.gpus == 1 ? "" : "s"));
  }
  JobSpec tried = gang;
  tried.name += " (pre-run)";
  tried.asked = policies::AskedClass::kOpportunistic;
  tried.gpus = 1;
  tried.pre_run = std::chrono::seconds{asked / 1000};
  tried.time_limit.reset();
  tried.end_when_flat.reset();
  tried.park_when_flat.reset();
  return tried;
}

void ClusterCoordinator::note_pre_run(const JobRecord& job) {
  const Number number = job_number(job.id);
  const auto began = began_.find(number);
  const bool runs = is_placed(job.state) && !is_being_ended(job) && began != began_.end();
  if (job.spec.pre_run && runs) {
    pre_runs_until_[number] = began->second + *job.spec.pre_run;
  } else {
    pre_runs_until_.erase(number);
  }
}

void ClusterCoordinator::end_pre_runs() {
  std::vector<Number> due;
  for (const auto& [number, until] : pre_runs_until_) {
    if (now_ >= until) due.push_back(number);
  }
  for (const Number number : due) {
    pre_runs_until_.erase(number);
    const JobRecord& job = jobs_.at(number);
    happen(job.id, {.kind = EventKind::kEndByRule,
                    .attempt = job.attempt,
                    .reason = fmt::format("its pre-run went well: nothing failed in {} s",
                                          job.spec.pre_run->count())});
  }
}

json ClusterCoordinator::first_step(const json& request) {
  const JobRecord job = find(request);
  const auto attempt = field<std::uint32_t>(request, "attempt", job.attempt);
  if (!job.spec.pre_run) {
    throw RequestRefused("refused", fmt::format("job {} is no pre-run", job.id.str()));
  }
  if (attempt != job.attempt || !is_placed(job.state)) {
    throw RequestRefused("refused",
                         fmt::format("attempt {} of job {} is over", attempt, job.id.str()));
  }
  if (!is_being_ended(job)) {
    happen(job.id, {.kind = EventKind::kEndByRule,
                    .attempt = attempt,
                    .reason = "its pre-run went well: its first step is done"});
  }
  return {{"id", job.id.str()}};
}

std::string ClusterCoordinator::who_it_follows(const JobRecord& before) {
  const std::string id = before.id.str();
  return before.spec.pre_run ? fmt::format("its pre-run, job {}", id) : fmt::format("job {}", id);
}

}  // namespace commensal::cluster

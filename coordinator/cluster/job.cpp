// SPDX-License-Identifier: Apache-2.0
// What a state and a record say of a job.
#include "coordinator/cluster/job.h"

namespace commensal::cluster {

bool is_end(JobState state) noexcept {
  return state == JobState::kFinished || state == JobState::kFailed ||
         state == JobState::kCancelled || state == JobState::kLost;
}

bool is_placed(JobState state) noexcept {
  return state == JobState::kStarting || state == JobState::kRunning ||
         state == JobState::kUpgrading;
}

bool waits(JobState state) noexcept {
  return state == JobState::kSubmitted || state == JobState::kQueued ||
         state == JobState::kReserved;
}

std::string problem_with(const JobSpec& spec, const std::string& path) {
  if (std::string wrong = wire::problem_with(spec.terms); !wrong.empty()) return wrong;
  if (!spec.end_when_flat || !spec.park_when_flat) return "";
  return "field '" + path + "park_when_flat' must be absent where end_when_flat is given: " +
         std::to_string(std::chrono::milliseconds{spec.park_when_flat->window}.count());
}

const std::optional<FlatRule>& flat_rule(const JobSpec& spec) noexcept {
  return spec.park_when_flat ? spec.park_when_flat : spec.end_when_flat;
}

bool is_being_ended(const JobRecord& job) noexcept {
  return is_placed(job.state) && (job.cancel_asked || job.finish_asked || job.park_asked);
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// Failures within a window, by node.
#include "coordinator/cluster/node_health.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace commensal::cluster {

bool NodeHealth::failed(const std::string& node, const JobId& job, std::uint32_t attempt,
                        TimePoint now) {
  if (rules_.failures == 0) return false;
  Suspect& suspect = suspects_[node];
  if (now < suspect.until) return false;  // of jobs that were there before
  std::erase_if(suspect.failures,
                [&](const Failure& failure) { return failure.at + rules_.window <= now; });
  const bool known = std::any_of(
      suspect.failures.begin(), suspect.failures.end(),
      [&](const Failure& failure) { return failure.job == job && failure.attempt == attempt; });
  if (!known) suspect.failures.push_back({now, job, attempt});
  std::set<JobId> jobs;
  for (const Failure& failure : suspect.failures) jobs.insert(failure.job);
  if (suspect.failures.size() < rules_.failures || jobs.size() < rules_.jobs) return false;
  Duration wait = rules_.first;
  for (std::uint32_t i = 0; i < suspect.times && wait < rules_.longest; ++i) wait *= 2;
  wait = std::min(wait, rules_.longest);
  ++suspect.times;
  suspect.until = now + wait;
  suspect.reason = fmt::format(
      "avoided for {} min: {} failures of {} jobs on it within {} min",
      std::chrono::duration_cast<std::chrono::minutes>(wait).count(), suspect.failures.size(),
      jobs.size(),
      std::chrono::ceil<std::chrono::minutes>(now - suspect.failures.front().at).count());
  suspect.failures.clear();
  return true;
}

std::optional<std::string> NodeHealth::avoided(const std::string& node, TimePoint now) const {
  const auto found = suspects_.find(node);
  if (found == suspects_.end() || now >= found->second.until) return std::nullopt;
  return found->second.reason;
}

TimePoint NodeHealth::next_change(TimePoint now) const noexcept {
  TimePoint next = TimePoint::max();
  for (const auto& [node, suspect] : suspects_) {
    if (suspect.until > now) next = std::min(next, suspect.until);
  }
  return next;
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// Bounded rings of decisions and samples.
#include "coordinator/node/job_history.h"

#include <algorithm>

namespace commensal::node {

void DecisionLog::note(Decision decision) {
  const TimePoint oldest = decision.at - kKept;
  decisions_.push_back(std::move(decision));
  while (decisions_.size() > kMost || decisions_.front().at < oldest) decisions_.pop_front();
}

void JobHistory::note(JobSample sample) {
  constexpr Duration kAlmost = kEvery - kEvery / 10;  // ticks are not exact
  if (!samples_.empty() && sample.at - samples_.back().at < kAlmost) return;
  add(std::move(sample));
}

void JobHistory::finish(JobSample sample) {
  if (!samples_.empty() && sample.at <= samples_.back().at) return;
  add(std::move(sample));
}

void JobHistory::add(JobSample sample) {
  const TimePoint oldest = sample.at - kKept;
  samples_.push_back(std::move(sample));
  while (samples_.front().at < oldest) samples_.pop_front();
}

const JobSample* JobHistory::at(TimePoint time) const noexcept {
  if (samples_.empty()) return nullptr;
  const auto later = std::upper_bound(
      samples_.begin(), samples_.end(), time,
      [](TimePoint wanted, const JobSample& sample) { return wanted < sample.at; });
  return later == samples_.begin() ? &samples_.front() : &*std::prev(later);
}

std::vector<std::pair<std::string, double>> closed_between(const JobSample& from,
                                                           const JobSample& to) {
  std::map<std::string, double> before(from.closed_by.begin(), from.closed_by.end());
  std::vector<std::pair<std::string, double>> grown;
  for (const auto& [reason, total] : to.closed_by) {
    const double seconds = total - before[reason];
    if (seconds > 0.0) grown.emplace_back(reason, seconds);
  }
  std::stable_sort(grown.begin(), grown.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return grown;
}

double oracle_share(double busy, double slowdown) noexcept {
  return std::clamp(1.0 - busy / (1.0 + std::max(0.0, slowdown)), 0.0, 1.0);
}

}  // namespace commensal::node

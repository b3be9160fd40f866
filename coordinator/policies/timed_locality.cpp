// SPDX-License-Identifier: Apache-2.0
// Tries, back-offs and levels of waiting jobs.
#include "coordinator/policies/timed_locality.h"

#include <stdexcept>

namespace commensal::policies {

void TimedLocality::check(const Rules& rules) {
  if (rules.timeout > 0 && rules.back_off > 0 && rules.tries >= 1) return;
  throw std::invalid_argument("timeout and back-off are above zero, and tries at least one");
}

TimedLocality::TimedLocality(const ClusterView& view, const Rules& rules, Notes& notes)
    : view_(view), rules_(rules), notes_(notes) {
  notes.level.resize(view.jobs.size(), 0);
  notes.numbers.resize(view.jobs.size() * kEntries, 0);
  for (const JobIndex job : view.arrived) forget(job);
}

bool TimedLocality::due(JobIndex job) {
  double& until = entry(job, kUntil);
  double& tries = entry(job, kTries);
  double& backs_off = entry(job, kBacksOff);
  const bool first = until == kNotTried;
  if (until == kPaused) until = view_.now + rules_.timeout;
  if (!first && backs_off == 0) return true;
  if (!first && until > view_.now) return false;
  std::uint8_t& level = notes_.level[job];
  if (first) level = 0;
  tries = first ? 0 : tries + 1;
  if (tries >= rules_.tries && level < static_cast<std::uint8_t>(Locality::kAnywhere)) {
    ++level;
    tries = 0;
  }
  while (!possible(*view_.cluster, view_.jobs[job], static_cast<Locality>(level))) ++level;
  backs_off = 0;
  until = view_.now + rules_.timeout;
  return true;
}

bool TimedLocality::failed(JobIndex job) {
  if (view_.now < entry(job, kUntil)) return false;
  entry(job, kBacksOff) = 1;
  entry(job, kUntil) = view_.now + rules_.back_off;
  return true;
}

}  // namespace commensal::policies

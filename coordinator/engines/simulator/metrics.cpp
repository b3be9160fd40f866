// SPDX-License-Identifier: Apache-2.0
// Means and quantiles of what became of the jobs.
#include "coordinator/engines/simulator/metrics.h"

#include <algorithm>
#include <vector>

namespace commensal::simulator {

std::map<std::string, double> metrics_of(const Outcome& outcome) {
  std::vector<double> times;
  double sum = 0;
  double waited = 0;
  double makespan = 0;
  double preemptions = 0;
  double restarts = 0;
  for (const JobOutcome& job : outcome.jobs) {
    times.push_back(job.end - job.submit);
    sum += times.back();
    waited += job.waited;
    makespan = std::max(makespan, job.end);
    preemptions += job.preemptions;
    restarts += job.restarts;
  }
  std::sort(times.begin(), times.end());
  const auto n = static_cast<double>(times.size());
  const auto quantile = [&](double q) { return times[static_cast<std::size_t>(q * n)]; };
  if (times.empty()) return {{"jobs", 0}};
  std::map<std::string, double> metrics{{"jobs", n},
                                        {"avg_jct", sum / n},
                                        {"median_jct", times[times.size() / 2]},
                                        {"p95_jct", quantile(0.95)},
                                        {"p99_jct", quantile(0.99)},
                                        {"makespan", makespan},
                                        {"avg_pending", waited / n},
                                        {"avg_queue", waited / n},
                                        {"preemptions", preemptions},
                                        {"restarts", restarts}};
  if (outcome.jobs.front().waited_for_quota) {
    double for_quota = 0;
    for (const JobOutcome& job : outcome.jobs) for_quota += job.waited_for_quota.value_or(0);
    metrics["avg_queue_fair_share"] = for_quota / n;
    metrics["avg_queue_fragmentation"] = (waited - for_quota) / n;
  }
  return metrics;
}

}  // namespace commensal::simulator

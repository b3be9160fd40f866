// SPDX-License-Identifier: Apache-2.0
// Means over equal intervals, weighted by time.
#include "coordinator/engines/simulator/series.h"

#include <algorithm>

namespace commensal::simulator {
namespace {

void add_means(const std::vector<Sample>& samples, Time begin, double length, std::size_t points,
               Series& series) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < points; ++i) {
    const Time from = begin + static_cast<double>(i) * length;
    const Time to = from + length;
    double waiting = 0;
    double busy = 0;
    while (at + 1 < samples.size() && samples[at + 1].time <= from) ++at;
    for (std::size_t s = at; s < samples.size() && samples[s].time < to; ++s) {
      const Time last = s + 1 < samples.size() ? std::min(to, samples[s + 1].time) : to;
      const double seconds = last - std::max(from, samples[s].time);
      waiting += samples[s].waiting * seconds;
      busy += samples[s].busy * seconds;
    }
    series.time.push_back(from);
    series.waiting.push_back(waiting / length);
    series.busy.push_back(busy / length);
  }
}

}  // namespace

Series series_of(const Outcome& outcome, const std::vector<Sample>& samples, std::size_t points) {
  Series series;
  if (points == 0 || outcome.jobs.empty() || samples.empty()) return series;
  std::vector<double> times;
  Time end = samples.back().time;
  for (const JobOutcome& job : outcome.jobs) {
    times.push_back(job.end - job.submit);
    end = std::max(end, job.end);
  }
  const Time begin = samples.front().time;
  const double length = (end - begin) / static_cast<double>(points);
  if (length > 0) add_means(samples, begin, length, points, series);
  std::sort(times.begin(), times.end());
  for (std::size_t i = 0; i < points; ++i) {
    series.jct.push_back(times[points == 1 ? 0 : i * (times.size() - 1) / (points - 1)]);
  }
  return series;
}

}  // namespace commensal::simulator

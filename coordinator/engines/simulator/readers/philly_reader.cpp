// SPDX-License-Identifier: Apache-2.0
// The condensed Philly trace (AdaptDL): local times as dates, virtual clusters as tenants. Jobs
// have no id: they are named by the number of their row. Seconds count from the earliest of them.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>

#include "coordinator/engines/simulator/readers/formats.h"
#include "coordinator/engines/simulator/readers/read_rows.h"

namespace commensal::simulator {
namespace {

/// Seconds of a date and time such as 2017-10-09 07:01:55, as if it were in UTC.
double seconds_of(const Field& field) {
  std::tm time{};
  const std::string text(field.text());
  const char* const end = strptime(text.c_str(), "%Y-%m-%d %H:%M:%S", &time);
  if (end == nullptr || *end != '\0') field.fail("no date and time such as 2017-10-09 07:01:55");
  return static_cast<double>(timegm(&time));
}

}  // namespace

Trace read_philly(const std::string& file, const ReadOptions& options) {
  std::size_t row_number = 0;
  Trace trace = read_rows<4>(file, options, {"timestamp", "duration", "num_gpus", "cluster"},
                             [&](const Rows<4>& row) {
                               TraceJob job;
                               job.name = fmt::format("row{}", ++row_number);
                               job.submit = seconds_of(row[0]);
                               job.duration = row[1].positive_or_zero();
                               job.gpus = row[2].count(1);
                               job.tenant = row[3].text();
                               return job;
                             });
  if (trace.jobs.empty()) return trace;
  const double first =
      std::min_element(trace.jobs.begin(), trace.jobs.end(), [](const auto& a, const auto& b) {
        return a.submit < b.submit;
      })->submit;
  for (TraceJob& job : trace.jobs) job.submit -= first;
  return trace;
}

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// Rows of comma-separated values; texts are quoted where they need it.
#include "coordinator/engines/simulator/jobs_file.h"

#include <fmt/format.h>

#include <iomanip>
#include <sstream>

#include "coordinator/engines/simulator/whole_file.h"

namespace commensal::simulator {
namespace {

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::ostringstream out;
  out << std::quoted(text, '"', '"');
  return out.str();
}

void write_rows(std::ostream& out, const std::string& policy, const Trace& trace,
                const Outcome& outcome) {
  out << "policy,job,tenant,class,gpus,submit,start,end,jct,waited,preemptions,waited_for_quota\n";
  for (const JobOutcome& job : outcome.jobs) {
    const TraceJob& recorded = trace.jobs[job.row];
    const std::string for_quota =
        job.waited_for_quota ? fmt::format("{}", *job.waited_for_quota) : std::string{};
    out << fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}\n", cell(policy), cell(recorded.name),
                       cell(recorded.tenant), to_string(recorded.asked), job.gpus, job.submit,
                       job.first_start, job.end, job.end - job.submit, job.waited, job.preemptions,
                       for_quota);
  }
}

}  // namespace

void write_jobs(const std::string& file, const std::string& policy, const Trace& trace,
                const Outcome& outcome) {
  write_whole(file, [&](std::ostream& out) { write_rows(out, policy, trace, outcome); });
}

}  // namespace commensal::simulator

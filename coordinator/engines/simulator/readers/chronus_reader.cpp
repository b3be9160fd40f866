// SPDX-License-Identifier: Apache-2.0
// Traces of Chronus: virtual clusters as tenants, jobs with deadlines are guaranteed and
// best-effort ones opportunistic. Some ask
// for no GPU. Its unit of time is not stated; it is kept as if it were seconds.
#include "coordinator/engines/simulator/readers/formats.h"
#include "coordinator/engines/simulator/readers/read_rows.h"

namespace commensal::simulator {
namespace {

TraceJob job_of(const Rows<8>& row) {
  TraceJob job;
  job.name = row[0].text();
  job.tenant = row[1].text();
  job.gpus = row[2].count(0);
  job.submit = row[3].positive_or_zero();
  job.iterations = row[4].positive_or_zero();
  job.model = row[5].text();
  job.duration = row[6].positive_or_zero();
  const std::int32_t best_effort = row[7].count(0);
  if (best_effort > 1) row[7].fail("neither 0 nor 1");
  job.priority = best_effort;
  job.asked =
      best_effort == 1 ? policies::AskedClass::kOpportunistic : policies::AskedClass::kGuaranteed;
  return job;
}

}  // namespace

Trace read_chronus(const std::string& file, const ReadOptions& options) {
  return read_rows<8>(file, options,
                      {"job_id", "user", "num_gpu", "submit_time", "iterations", "model_name",
                       "duration", "best_effort"},
                      job_of);
}

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// Traces of Shockwave: Gavel's columns, and in `extra` how the batch size changes and how long the
// job took alone when the trace was made, as mode|seconds. That time is the job's duration here.
#include <fmt/format.h>

#include "coordinator/engines/simulator/readers/formats.h"
#include "coordinator/engines/simulator/readers/read_rows.h"

namespace commensal::simulator {

Trace read_shockwave(const std::string& file, const ReadOptions& options) {
  std::size_t row_number = 0;
  return read_rows<5>(file, options, {"job_type", "total_steps", "num_gpu", "extra", "arrival_s"},
                      [&](const Rows<5>& row) {
                        const std::string_view extra = row[3].text();
                        const std::size_t bar = extra.find('|');
                        if (bar == std::string_view::npos) row[3].fail("no mode|seconds");
                        TraceJob job;
                        job.name = fmt::format("row{}", ++row_number);
                        job.model = row[0].text();
                        job.iterations = row[1].positive_or_zero();
                        job.gpus = row[2].count(1);
                        job.duration = row.part(3, extra.substr(bar + 1)).positive_or_zero();
                        job.submit = row[4].positive_or_zero();
                        return job;
                      });
}

}  // namespace commensal::simulator

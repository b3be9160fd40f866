// SPDX-License-Identifier: Apache-2.0
// Rows by model, steps and GPUs, with throughputs for each.
// GCC takes libfccp's copy of a file name, which it ends itself, for one that may lack its end.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wstringop-truncation"
#endif

#include "coordinator/engines/simulator/readers/gavel_reader.h"

#include <fmt/format.h>

#include <array>
#include <memory>
#include <string_view>

#include "coordinator/engines/simulator/readers/throughput_reader.h"

namespace commensal::simulator {
namespace {

TraceJob make_job(const Rows<5>& row, const policies::ThroughputTable& table) {
  TraceJob job;
  job.model = row[0].text();
  job.iterations = row[1].count(1);
  job.gpus = row[2].count(1);
  job.weight = row[3].number();
  if (job.weight <= 0) row[3].fail("not above zero");
  job.submit = row[4].positive_or_zero();
  const auto profile = table.find_profile(profile_key(job.model, job.gpus));
  if (!profile) row[0].fail(fmt::format("no throughput of this model on {} GPUs", job.gpus));
  const double rate = table.reference(*profile);
  if (rate <= 0) row[0].fail(fmt::format("runs on no type of GPU, of {} each", job.gpus));
  job.iteration_seconds = 1 / rate;
  job.duration = job.iterations / rate;
  return job;
}

}  // namespace

Trace read_gavel(const std::string& file, const ReadOptions& options) {
  Trace trace{.source = file, .jobs = {}};
  const auto rows = std::make_unique<Rows<5>>(
      file, std::array<std::string_view, 5>{"job_type", "total_steps", "num_gpu", "priority_weight",
                                            "arrival_s"});
  const auto table = std::make_shared<const policies::ThroughputTable>(
      read_throughputs(find_throughputs(file, options.profiles)));
  std::size_t number = 0;
  for (bool more = true; more; ++number) {
    try {
      more = rows->next();
      if (!more) break;
      trace.jobs.push_back(make_job(*rows, *table));
      trace.jobs.back().name = fmt::format("row {}", number);
    } catch (const BadTrace&) {
      if (!options.skip_bad_rows) throw;
      ++trace.skipped_rows;
    }
  }
  trace.throughputs = table;
  return trace;
}

}  // namespace commensal::simulator

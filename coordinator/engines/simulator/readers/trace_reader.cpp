// SPDX-License-Identifier: Apache-2.0
// One function a format: columns to jobs.
#include "coordinator/engines/simulator/readers/trace_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_set>

#include "coordinator/engines/simulator/readers/gavel_reader.h"

namespace commensal::simulator {
namespace {

/// Reads all rows of a file by `make(rows)`, which returns a job.
template <unsigned kColumns, typename Make>
Trace read_rows(const std::string& file, const ReadOptions& options,
                std::array<std::string_view, kColumns> columns, const Make& make) {
  Trace trace{.source = file, .jobs = {}};
  Rows<kColumns> rows(file, columns);
  for (bool more = true; more;) {
    try {
      more = rows.next();
      if (more) trace.jobs.push_back(make(rows));
    } catch (const BadTrace&) {
      if (!options.skip_bad_rows) throw;
      ++trace.skipped_rows;
    }
  }
  return trace;
}

Trace read_itp(const std::string& file, const ReadOptions& options) {
  return read_rows<4>(file, options, {"job_id", "submission_time", "duration", "num_gpu"},
                      [](const Rows<4>& row) {
                        TraceJob job;
                        job.name = row[0].text();
                        job.submit = row[1].positive_or_zero();
                        job.duration = row[2].positive_or_zero();
                        job.gpus = row[3].count(1);
                        return job;
                      });
}

Trace read_tiresias(const std::string& file, const ReadOptions& options) {
  return read_rows<5>(file, options, {"job_id", "submit_time", "duration", "num_gpu", "model_name"},
                      [](const Rows<5>& row) {
                        TraceJob job;
                        job.name = row[0].text();
                        job.model = row[4].text();
                        job.submit = row[1].positive_or_zero();
                        job.duration = row[2].positive_or_zero();
                        job.gpus = row[3].count(1);
                        return job;
                      });
}

/// Milliseconds; priority 0 has its resources guaranteed, 1 is opportunistic.
Trace read_muri(const std::string& file, const ReadOptions& options) {
  return read_rows<11>(
      file, options,
      {"job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "iteration_time",
       "resource_time_0", "resource_time_1", "resource_time_2", "priority"},
      [](const Rows<11>& row) {
        const std::int32_t priority = row[10].count(0);
        if (priority > 1) row[10].fail("neither 0 nor 1");
        TraceJob job;
        job.name = row[0].text();
        job.model = row[4].text();
        job.submit = row[2].positive_or_zero() / 1000;
        job.duration = row[5].positive_or_zero() / 1000;
        job.gpus = row[1].count(1);
        job.asked = priority == 0 ? policies::AskedClass::kGuaranteed
                                  : policies::AskedClass::kOpportunistic;
        job.priority = priority;
        job.iterations = row[3].positive_or_zero();
        job.iteration_seconds = row[6].positive_or_zero() / 1000;
        for (std::size_t i = 0; i < job.stage_seconds.size(); ++i) {
          job.stage_seconds[i] = row[7 + i].positive_or_zero() / 1000;
        }
        return job;
      });
}

struct Format {
  std::string_view name;
  Trace (*read)(const std::string& file, const ReadOptions& options);
};
constexpr std::array<Format, 5> kFormats{{{"gavel", read_gavel},
                                          {"itp", read_itp},
                                          {"muri", read_muri},
                                          {"shockwave", read_gavel},
                                          {"tiresias", read_tiresias}}};

}  // namespace

const std::vector<std::string_view>& all_formats() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Format& format : kFormats) all.push_back(format.name);
    return all;
  }();
  return names;
}

Trace read_trace(const std::string& file, std::string_view format, const ReadOptions& options) {
  const auto* found = std::find_if(kFormats.begin(), kFormats.end(),
                                   [&](const Format& known) { return known.name == format; });
  if (found == kFormats.end()) {
    throw std::invalid_argument(
        fmt::format("no trace format {}; there are {}", format, fmt::join(all_formats(), ", ")));
  }
  Trace trace = found->read(file, options);
  if (trace.jobs.empty()) throw BadTrace(fmt::format("{}: no job in it", file));
  std::unordered_set<std::string_view> names;
  for (const TraceJob& job : trace.jobs) {
    if (!names.insert(job.name).second) {
      throw BadTrace(fmt::format("{}: two jobs with the id {}", file, job.name));
    }
  }
  return trace;
}

}  // namespace commensal::simulator

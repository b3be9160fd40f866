// SPDX-License-Identifier: Apache-2.0
// Mini-batch times of Alibaba's PAI (cluster-trace-gpu-v2020, mini-batch-time): how steps of gangs
// that hold a part of each of their GPUs vary. A step is as long as its slowest worker's.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "coordinator/engines/simulator/readers/formats.h"
#include "coordinator/engines/simulator/readers/read_rows.h"

namespace commensal::simulator {
namespace {

constexpr double kLongestBatch = 1000;  // mini-batch of a job, by which its others are scaled
constexpr std::int32_t kWorkers = 10;
// Of ten values that are normally distributed, the largest lies so many deviations above the mean.
constexpr double kSlowestOfTen = 1.5388;

/// A job of ten workers from the variation of its steps: mean step 1 s.
TraceJob varying_job(const std::string& file, std::uint64_t line, const std::string& row,
                     const std::vector<std::string>& columns) {
  std::istringstream values(row);
  TraceJob job;
  std::getline(values, job.name, ',');
  const Field name(file, line, "job", job.name);
  if (job.name.empty()) name.fail("empty");
  job.gpus = job.min_gpus = job.max_gpus = kWorkers;
  std::size_t column = 1;
  for (std::string text; std::getline(values, text, ','); ++column) {
    if (column >= columns.size()) name.fail("more values than columns");
    const Field value(file, line, columns[column], text);
    if (text.empty()) continue;
    job.duration += 1 + kSlowestOfTen * value.positive_or_zero();
    ++job.iterations;
  }
  if (job.iterations == 0) name.fail("no step of this job");
  job.iteration_seconds = job.duration / job.iterations;
  return job;
}

}  // namespace

Trace read_pai_minibatch(const std::string& file, const ReadOptions& options) {
  Trace trace{.source = file, .jobs = {}};
  Rows<4> rows(file, {"worker", "gpu", "time", "batch_time_norm"});
  std::set<std::int32_t> workers;
  std::map<std::int32_t, double> slowest;  // by step
  TraceJob job;
  job.name = std::filesystem::path(file).stem().string();
  for (bool more = true; more;) {
    try {
      more = rows.next();
      if (!more) break;
      const std::int32_t worker = rows[0].count(0);
      const std::int32_t percent = rows[1].count(1);
      const std::int32_t step = rows[2].count(0);
      const double time = rows[3].positive_or_zero();
      if (percent > 100) rows[1].fail("more than a whole GPU");
      if (time > kLongestBatch) rows[3].fail(fmt::format("more than {:.0f}", kLongestBatch));
      if (!workers.empty() && percent * 10 != job.gpu_milli) rows[1].fail("unlike other workers");
      job.gpu_milli = percent * 10;
      workers.insert(worker);
      slowest[step] = std::max(slowest[step], time);
    } catch (const BadTrace&) {
      if (!options.skip_bad_rows) throw;
      ++trace.skipped_rows;
    }
  }
  if (workers.empty()) return trace;
  job.gpus = job.min_gpus = job.max_gpus = static_cast<std::int32_t>(workers.size());
  for (const auto& [step, time] : slowest) job.duration += time / kLongestBatch;
  job.iterations = static_cast<double>(slowest.size());
  job.iteration_seconds = job.duration / job.iterations;
  trace.jobs.push_back(std::move(job));
  return trace;
}

Trace read_pai_variation(const std::string& file, const ReadOptions& options) {
  Trace trace{.source = file, .jobs = {}};
  try {
    io::LineReader lines(file);
    const char* line = lines.next_line();
    std::vector<std::string> columns;
    std::istringstream heading(line == nullptr ? "" : line);
    for (std::string name; std::getline(heading, name, ',');) columns.push_back(name);
    std::set<std::string> names;
    while ((line = lines.next_line()) != nullptr) {
      if (*line == '\0') continue;
      try {
        TraceJob job = varying_job(file, lines.get_file_line(), line, columns);
        if (!names.insert(job.name).second) {
          Field(file, lines.get_file_line(), "job", job.name).fail("a second job with this id");
        }
        trace.jobs.push_back(std::move(job));
      } catch (const BadTrace&) {
        if (!options.skip_bad_rows) throw;
        ++trace.skipped_rows;
      }
    }
  } catch (const io::error::base& error) {
    throw BadTrace(error.what());
  }
  return trace;
}

}  // namespace commensal::simulator

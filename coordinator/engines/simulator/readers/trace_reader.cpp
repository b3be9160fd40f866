// SPDX-License-Identifier: Apache-2.0
// One function a format: columns to jobs.
#include "coordinator/engines/simulator/readers/trace_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "coordinator/engines/simulator/readers/formats.h"
#include "coordinator/engines/simulator/readers/gavel_reader.h"
#include "coordinator/engines/simulator/readers/openb_reader.h"
#include "coordinator/engines/simulator/readers/profile_reader.h"
#include "coordinator/engines/simulator/readers/read_rows.h"
#include "coordinator/policies/nearest_name.h"

namespace commensal::simulator {
namespace {

/// Models and steps stand in the files with deadlines only; the deadlines are passed over.
Trace read_itp(const std::string& file, const ReadOptions& options) {
  return read_rows<7>(
      file, options,
      {"job_id", "submission_time", "duration", "num_gpu", "model_name", "num_iteration",
       "batch_size"},
      [](const Rows<7>& row) {
        TraceJob job;
        job.name = row[0].text();
        job.submit = row[1].positive_or_zero();
        job.duration = row[2].positive_or_zero();
        job.gpus = row[3].count(1);
        job.model = row[4].text();
        if (!row[5].text().empty()) job.iterations = row[5].positive_or_zero();
        if (!row[6].text().empty()) job.batch_size = row[6].count(0);
        return job;
      },
      4);
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

/// How long a job takes alone follows from the profile of its application.
TraceJob pollux_job(const Rows<5>& row, const TrainingProfiles& profiles) {
  const auto profile = profiles.find(row[2].text());
  if (profile == profiles.end()) row[2].fail("no profile of this application");
  TraceJob job;
  job.name = row[0].text();
  job.submit = row[1].positive_or_zero();
  job.model = row[2].text();
  job.gpus = row[3].count(1);
  job.batch_size = row[4].count(1);
  if (!profile->second.covers(job.batch_size)) row[4].fail("outside of the profile");
  const auto seconds = profile->second.seconds_alone(job.batch_size, job.gpus);
  if (!seconds) row[3].fail("no step time for so many GPUs and this batch in the profile");
  job.duration = *seconds;
  return job;
}

Trace read_pollux(const std::string& file, const ReadOptions& options) {
  const auto profiles = std::make_shared<const TrainingProfiles>(
      read_profiles(find_profiles(file, options.profiles)));
  Trace trace =
      read_rows<5>(file, options, {"name", "time", "application", "num_replicas", "batch_size"},
                   [&](const Rows<5>& row) { return pollux_job(row, *profiles); });
  trace.profiles = profiles;
  return trace;
}

struct Format {
  std::string_view name;
  Trace (*read)(const std::string& file, const ReadOptions& options);
  std::vector<std::string_view> columns;  ///< by which a file is told to be of this format
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all{
      {"chronus",
       read_chronus,
       {"job_id", "user", "num_gpu", "submit_time", "iterations", "model_name", "duration",
        "best_effort"}},
      {"commensal", read_own, {"job", "submit", "duration", "gpus"}},
      {"gavel", read_gavel, {}},  // its columns are those of shockwave
      {"itp", read_itp, {"job_id", "submission_time", "duration", "num_gpu"}},
      {"muri",
       read_muri,
       {"job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration",
        "iteration_time", "resource_time_0", "priority"}},
      {"openb", read_openb, {"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"}},
      {"pai-minibatch", read_pai_minibatch, {"worker", "gpu", "time", "batch_time_norm"}},
      {"pai-variation", read_pai_variation, {"0", "1"}},
      {"pollux", read_pollux, {"name", "time", "application", "num_replicas", "batch_size"}},
      {"philly", read_philly, {"timestamp", "duration", "num_gpus", "cluster"}},
      {"shockwave", read_shockwave, {"job_type", "total_steps", "num_gpu", "extra", "arrival_s"}},
      {"tiresias", read_tiresias, {"job_id", "submit_time", "duration", "num_gpu", "model_name"}},
  };
  return all;
}

/// Names of the columns in the first line of a file.
std::vector<std::string> columns_of(const std::string& file) {
  try {
    io::LineReader reader(file);
    const char* const line = reader.next_line();
    std::vector<std::string> columns;
    std::istringstream in(line == nullptr ? "" : line);
    for (std::string column; std::getline(in, column, ',');) columns.push_back(column);
    return columns;
  } catch (const io::error::base& error) {
    throw BadTrace(error.what());
  }
}

}  // namespace

const std::vector<std::string_view>& all_formats() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Format& format : formats()) all.push_back(format.name);
    return all;
  }();
  return names;
}

std::string guess_format(const std::string& file) {
  const std::vector<std::string> columns = columns_of(file);
  const auto named = [&](std::string_view column) {
    return std::find(columns.begin(), columns.end(), column) != columns.end();
  };
  std::size_t most = 0;
  std::vector<std::string_view> best;
  for (const Format& format : formats()) {
    const std::size_t size = format.columns.size();
    if (size == 0 || size < most) continue;
    if (!std::all_of(format.columns.begin(), format.columns.end(), named)) continue;
    if (size > most) best.clear();
    most = size;
    best.push_back(format.name);
  }
  if (best.size() == 1) return std::string(best.front());
  throw BadTrace(fmt::format(
      "{}: its columns ({}) are of {}; name the format, one of {}", file, fmt::join(columns, ", "),
      best.empty() ? "no format that is known"
                   : fmt::format("several formats: {}", fmt::join(best, ", ")),
      fmt::join(all_formats(), ", ")));
}

Trace read_trace(const std::string& file, std::string_view format, const ReadOptions& options) {
  const auto found = std::find_if(formats().begin(), formats().end(),
                                  [&](const Format& known) { return known.name == format; });
  if (found == formats().end()) {
    throw std::invalid_argument(
        fmt::format("no trace format {}; did you mean {}? There are {}", format,
                    policies::nearest_name(format, {all_formats().begin(), all_formats().end()}),
                    fmt::join(all_formats(), ", ")));
  }
  Trace trace = found->read(file, options);
  if (trace.jobs.empty()) throw BadTrace(fmt::format("{}: no job in it", file));
  return trace;
}

}  // namespace commensal::simulator

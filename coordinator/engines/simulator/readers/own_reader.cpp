// SPDX-License-Identifier: Apache-2.0
// Our own format: a row a job, times in seconds; docs/policies.md describes the columns.
#include <fmt/format.h>

#include <cmath>

#include "coordinator/engines/simulator/readers/formats.h"
#include "coordinator/engines/simulator/readers/read_rows.h"

namespace commensal::simulator {
namespace {

// In this order; all from kTenant on may be missing, and so may a value in them.
enum Column : std::size_t {
  kJob,
  kSubmit,
  kDuration,
  kGpus,
  kTenant,
  kClass,
  kModel,
  kPriority,
  kMilli,
  kTypes,
  kMin,
  kMax,
  kCores,
  kMemory,
  kUser,
  kGroup,
  kTitle,
  kRequest,
  kEntrypoint,
  kWeight,
  kBusy,
  kGpuMemory,
  kIterations,
  kIterationSeconds,
  kBatch
};
constexpr std::size_t kColumns = 25;
constexpr std::array<std::string_view, kColumns> kNames{
    "job",        "submit",     "duration",  "gpus",           "tenant",     "class",
    "model",      "priority",   "gpu_milli", "gpu_types",      "min_gpus",   "max_gpus",
    "cores",      "memory_gib", "user",      "group",          "name",       "request",
    "entrypoint", "weight",     "busy",      "gpu_memory_gib", "iterations", "iteration_seconds",
    "batch_size"};

policies::AskedClass class_of(const Field& field) {
  using policies::AskedClass;
  if (field.text().empty()) return AskedClass::kGuaranteed;
  if (const auto asked = value_of<AskedClass>(field.text())) return *asked;
  field.fail("neither guaranteed, opportunistic nor auto");
}

std::int32_t count_or(const Field& field, std::int32_t least, std::int32_t fallback) {
  return field.text().empty() ? fallback : field.count(least);
}

double number_or(const Field& field, double fallback) {
  return field.text().empty() ? fallback : field.positive_or_zero();
}

/// A number of `unit`s in thousandths, or whatever `parts` of it there are; zero: not counted.
std::int64_t parts_of(const Field& field, double parts) {
  const double value = number_or(field, 0) * parts;
  if (value > 1e15) field.fail("too large");
  return std::llround(value);
}

void read_gpus(const Rows<kColumns>& row, TraceJob& job) {
  job.gpus = row[kGpus].count(1);
  job.gpu_milli = count_or(row[kMilli], 1, policies::kWholeGpu);
  if (job.gpu_milli > policies::kWholeGpu) row[kMilli].fail("more than a whole GPU");
  job.min_gpus = count_or(row[kMin], 1, job.gpus);
  if (job.min_gpus > job.gpus) row[kMin].fail(fmt::format("more than gpus, {}", job.gpus));
  job.max_gpus = count_or(row[kMax], 1, job.gpus);
  if (job.max_gpus < job.gpus) row[kMax].fail(fmt::format("less than gpus, {}", job.gpus));
  job.gpu_types = between_bars(row[kTypes].text());
}

TraceJob own_job(const Rows<kColumns>& row) {
  TraceJob job;
  job.name = row[kJob].text();
  if (job.name.empty()) row[kJob].fail("empty");
  job.submit = row[kSubmit].positive_or_zero();
  job.duration = row[kDuration].positive_or_zero();
  read_gpus(row, job);
  job.tenant = row[kTenant].text();
  job.asked = class_of(row[kClass]);
  job.priority = count_or(row[kPriority], 0, 0);
  job.weight = number_or(row[kWeight], 1);
  if (job.weight <= 0) row[kWeight].fail("not above zero");
  job.cpu_milli = parts_of(row[kCores], 1000);
  job.memory_mib = parts_of(row[kMemory], 1024);
  job.user = row[kUser].text();
  job.group = row[kGroup].text();
  job.title = row[kTitle].text();
  job.request = row[kRequest].text();
  job.entrypoint = row[kEntrypoint].text();
  job.model = row[kModel].text();
  job.busy = number_or(row[kBusy], -1);
  if (job.busy > 1) row[kBusy].fail("more than 1");
  job.gpu_memory_gib = number_or(row[kGpuMemory], 0);
  job.iterations = number_or(row[kIterations], 0);
  job.iteration_seconds = number_or(row[kIterationSeconds], 0);
  job.batch_size = count_or(row[kBatch], 1, 0);
  return job;
}

}  // namespace

Trace read_own(const std::string& file, const ReadOptions& options) {
  return read_rows<kColumns>(file, options, kNames, own_job, kTenant);
}

}  // namespace commensal::simulator

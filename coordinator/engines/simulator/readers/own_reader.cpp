// SPDX-License-Identifier: Apache-2.0
// Our own format: a row a job, times in seconds; docs/policies.md describes the columns.
#include "coordinator/engines/simulator/job_class_name.h"
#include "coordinator/engines/simulator/readers/formats.h"
#include "coordinator/engines/simulator/readers/read_rows.h"

namespace commensal::simulator {
namespace {

constexpr std::size_t kOptional = 4;
constexpr std::array<std::string_view, 11> kColumns{"job",    "submit", "duration", "gpus",
                                                    "tenant", "class",  "model",    "priority",
                                                    "user",   "group",  "name"};

policies::AskedClass class_of(const Field& field) {
  using policies::AskedClass;
  if (field.text().empty()) return AskedClass::kGuaranteed;
  for (const AskedClass asked :
       {AskedClass::kGuaranteed, AskedClass::kOpportunistic, AskedClass::kAuto}) {
    if (field.text() == to_string(asked)) return asked;
  }
  field.fail("neither guaranteed, opportunistic nor auto");
}

TraceJob job_of(const Rows<11>& row) {
  TraceJob job;
  job.name = row[0].text();
  if (job.name.empty()) row[0].fail("empty");
  job.submit = row[1].positive_or_zero();
  job.duration = row[2].positive_or_zero();
  job.gpus = row[3].count(1);
  job.tenant = row[4].text();
  job.asked = class_of(row[5]);
  job.model = row[6].text();
  if (!row[7].text().empty()) job.priority = row[7].count(0);
  job.user = row[8].text();
  job.group = row[9].text();
  job.title = row[10].text();
  return job;
}

}  // namespace

Trace read_own(const std::string& file, const ReadOptions& options) {
  return read_rows<11>(file, options, kColumns, job_of, kOptional);
}

}  // namespace commensal::simulator

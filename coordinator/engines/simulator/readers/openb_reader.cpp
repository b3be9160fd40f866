// SPDX-License-Identifier: Apache-2.0
// Columns of openb pods and nodes to jobs and nodes.
#include "coordinator/engines/simulator/readers/openb_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <unordered_set>

#include "coordinator/engines/simulator/readers/read_rows.h"

namespace commensal::simulator {
namespace {

using policies::AskedClass;
using policies::kWholeGpu;

// Columns of a pod; those from kPodSpec on may be missing.
enum Pod : std::size_t {
  kPodName,
  kPodCpu,
  kPodMemory,
  kPodGpus,
  kPodMilli,
  kPodSpec,
  kPodQos,
  kPodCreated,
  kPodDeleted,
  kPodScheduled
};
constexpr unsigned kPodColumns = 10;

void read_gpus(const Rows<kPodColumns>& row, TraceJob& job) {
  job.gpus = row[kPodGpus].count(0);
  job.gpu_milli = row[kPodMilli].count(0);
  if (job.gpu_milli > kWholeGpu) row[kPodMilli].fail("more than a whole GPU");
  if (job.gpus == 0 && job.gpu_milli > 0) row[kPodMilli].fail("a part of no GPU");
  if (job.gpus > 0 && job.gpu_milli == 0) row[kPodMilli].fail("nothing of a GPU");
  if (job.gpus > 1 && job.gpu_milli < kWholeGpu) row[kPodMilli].fail("parts of several GPUs");
  if (job.gpus > 0) job.gpu_types = between_bars(row[kPodSpec].text());
}

AskedClass class_of_qos(const Field& qos) {
  if (qos.text() == "BE" || qos.text() == "Burstable") return AskedClass::kOpportunistic;
  if (qos.text() == "LS" || qos.text() == "Guaranteed" || qos.text().empty()) {
    return AskedClass::kGuaranteed;
  }
  qos.fail("none of LS, Guaranteed, Burstable, BE");
}

/// A pod that never started waited until it was deleted, and would have run no time.
void read_times(const Rows<kPodColumns>& row, TraceJob& job) {
  if (row[kPodCreated].text().empty()) return;
  job.submit = row[kPodCreated].positive_or_zero();
  const double deleted = row[kPodDeleted].positive_or_zero();
  if (deleted < job.submit) row[kPodDeleted].fail("deleted before it was created");
  const bool started = !row[kPodScheduled].text().empty();
  const double start = started ? row[kPodScheduled].positive_or_zero() : deleted;
  if (start > deleted) row[kPodScheduled].fail("started after it was deleted");
  job.duration = deleted - start;
}

}  // namespace

Trace read_openb(const std::string& file, const ReadOptions& options) {
  return read_rows<kPodColumns>(
      file, options,
      {"name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos",
       "creation_time", "deletion_time", "scheduled_time"},
      [](const Rows<kPodColumns>& row) {
        TraceJob job;
        job.name = row[kPodName].text();
        job.cpu_milli = row[kPodCpu].count(0);
        job.memory_mib = row[kPodMemory].count(0);
        read_gpus(row, job);
        job.asked = class_of_qos(row[kPodQos]);
        read_times(row, job);
        return job;
      },
      kPodSpec);
}

std::vector<policies::NodeSpec> read_openb_nodes(const std::string& file) {
  Rows<5> rows(file, {"sn", "cpu_milli", "memory_mib", "gpu", "model"});
  std::vector<policies::NodeSpec> nodes;
  std::unordered_set<std::string> names;
  std::vector<std::string> models;
  bool any_gpu = false;
  while (rows.next()) {
    policies::NodeSpec node;
    node.name = rows[0].text();
    if (!names.insert(node.name).second) rows[0].fail("a second node of this name");
    node.cpu_milli = rows[1].count(1);
    node.memory_mib = rows[2].count(1);
    node.gpus = rows[3].count(0);
    node.gpu_type = rows[4].text();
    if (node.gpus > 0 && node.gpu_type.empty()) rows[4].fail("GPUs without a model");
    const auto known = std::find(models.begin(), models.end(), node.gpu_type);
    node.rack = static_cast<std::int32_t>(known - models.begin());
    if (known == models.end()) models.push_back(node.gpu_type);
    any_gpu = any_gpu || node.gpus > 0;
    nodes.push_back(std::move(node));
  }
  if (!any_gpu) throw BadTrace(fmt::format("{}: no node with a GPU in it", file));
  return nodes;
}

std::optional<std::string> openb_nodes_beside(const std::string& trace_file) {
  const auto file =
      std::filesystem::path(trace_file).parent_path() / "openb_node_list_gpu_node.csv";
  if (!std::filesystem::exists(file)) return std::nullopt;
  return file.string();
}

}  // namespace commensal::simulator

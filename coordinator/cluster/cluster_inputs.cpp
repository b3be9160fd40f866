// SPDX-License-Identifier: Apache-2.0
// Bad inputs: what jobs and users say of records, and what jobs are given.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "coordinator/cluster/cluster_coordinator.h"
#include "coordinator/cluster/job_number.h"
#include "coordinator/cluster/request_field.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;

constexpr std::size_t kPart = std::size_t{256} << 10U;  // of an answer, in bytes
constexpr double kReportsOfWindow = 60;                 // of a job's loss
constexpr double kSeldomest = 60;                       // seconds
constexpr const char* kDataset = "default";

json shown_input(const BadInput& input) {
  json reports = json::array();
  for (const InputReport& report : input.reports) {
    reports.push_back({{"job", report.attempt.job.str()},
                       {"attempt", report.attempt.number},
                       {"failing", report.failing},
                       {"counted", report.counted}});
  }
  return {{"dataset", input.key.dataset}, {"record", input.key.record},
          {"reason", input.reason},       {"since_ms", input.since.time_since_epoch().count()},
          {"listed", input.listed},       {"reports", std::move(reports)}};
}

InputKey key_in(const json& request, std::string tenant) {
  return {std::move(tenant), field<std::string>(request, "dataset", kDataset),
          field<std::string>(request, "record")};
}

}  // namespace

std::string ClusterCoordinator::tenant_in(const json& request) const {
  auto tenant = field<std::string>(request, "tenant", "default");
  check_tenant(tenant);
  return tenant;
}

void ClusterCoordinator::write(const InputChanges& changes) {
  for (const BadInput& input : changes.put) store_.put(input);
  for (const InputKey& key : changes.removed) store_.remove(key);
  if (!changes.put.empty() || !changes.removed.empty()) wrote();
}

json ClusterCoordinator::report_input(const json& request) {
  const JobRecord job = find(request);
  const auto attempt = field<std::uint32_t>(request, "attempt", job.attempt);
  const bool failing = field<bool>(request, "failing", false);
  if (attempt == 0 || attempt > job.attempt) {
    throw RequestRefused("refused", fmt::format("job {} has no attempt {}: the last is {}",
                                                job.id.str(), attempt, job.attempt));
  }
  if (failing && (attempt != job.attempt || !is_placed(job.state))) {
    throw RequestRefused(
        "refused",
        fmt::format("attempt {} of job {} is over: nothing can fail in it", attempt, job.id.str()));
  }
  InputChanges changes;
  try {
    const BadInput& input = bad_inputs_.report(
        key_in(request, job.spec.tenant), field<std::string>(request, "reason", ""),
        {{job.id, attempt}, failing, false}, wall_(), changes);
    write(changes);
    return {{"dataset", input.key.dataset}, {"record", input.key.record}, {"listed", input.listed}};
  } catch (const std::invalid_argument& error) {
    throw RequestRefused("refused", error.what());
  }
}

json ClusterCoordinator::add_input(const json& request) {
  InputChanges changes;
  try {
    const BadInput& input = bad_inputs_.add(
        key_in(request, tenant_in(request)),
        field<std::string>(request, "reason", "listed by a user"), wall_(), changes);
    write(changes);
    return shown_input(input);
  } catch (const std::invalid_argument& error) {
    throw RequestRefused("refused", error.what());
  }
}

json ClusterCoordinator::remove_input(const json& request) {
  const InputKey key = key_in(request, tenant_in(request));
  InputChanges changes;
  if (!bad_inputs_.remove(key, changes)) {
    throw RequestRefused("refused",
                         fmt::format("no record \"{}\" of data set \"{}\" is known of tenant {}",
                                     key.record, key.dataset, key.tenant));
  }
  write(changes);
  return {{"dataset", key.dataset}, {"record", key.record}};
}

std::string ClusterCoordinator::version_of_inputs(const std::string& tenant) const {
  return fmt::format("{}-{}", inputs_since_.time_since_epoch().count(),
                     bad_inputs_.version(tenant));
}

json ClusterCoordinator::inputs(const json& request) const {
  const std::string tenant = tenant_in(request);
  std::optional<std::string> dataset;
  if (request.contains("dataset")) dataset = field<std::string>(request, "dataset");
  const std::string version = version_of_inputs(tenant);
  json answer{{"tenant", tenant}, {"version", version}};
  if (field<std::string>(request, "known", "") == version) {
    answer["unchanged"] = true;
    return answer;
  }
  std::optional<InputKey> after;
  if (request.contains("after")) {
    const auto at = field<std::vector<std::string>>(request, "after", std::nullopt, ListSize{2, 2});
    after = InputKey{tenant, at[0], at[1]};
  }
  const auto part =
      bad_inputs_.list(tenant, dataset, after, field<bool>(request, "suspects", false), kPart);
  json list = json::array();
  for (const BadInput* input : part.inputs) list.push_back(shown_input(*input));
  answer["unchanged"] = false;
  answer["inputs"] = std::move(list);
  answer["more"] = part.more;
  return answer;
}

void ClusterCoordinator::end_reports(const Attempt& attempt, bool counts) {
  InputChanges changes;
  bad_inputs_.over(attempt, counts, changes);
  for (const BadInput& input : changes.put) {
    if (!input.listed) continue;
    log_->warn("record {} of data set {} (tenant {}) is listed: attempts fail at it",
               input.key.record, input.key.dataset, input.key.tenant);
  }
  write(changes);
}

JobSpec ClusterCoordinator::with_variables(const JobSpec& spec) {
  JobSpec given = spec;
  if (spec.pre_run) given.environment[kPreRunVariable] = "1";
  if (const auto& rule = flat_rule(spec)) {
    given.environment[kLossVariable] = fmt::format(
        "{:g}", std::min(static_cast<double>(rule->window.count()) / kReportsOfWindow, kSeldomest));
  }
  try {
    const auto file = input_files_.file(spec.tenant, bad_inputs_.version(spec.tenant), [&] {
      json datasets = json::object();
      const auto all = bad_inputs_.list(spec.tenant, std::nullopt, std::nullopt, false,
                                        std::numeric_limits<std::size_t>::max());
      for (const BadInput* input : all.inputs) {
        datasets[input->key.dataset].push_back(input->key.record);
      }
      return json{{"tenant", spec.tenant}, {"datasets", std::move(datasets)}};
    });
    if (!file.empty()) given.environment[kInputsVariable] = file.native();
  } catch (const std::runtime_error& error) {
    log_->warn("{}; the job asks for it instead", error.what());
  }
  return given;
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// Numbers for the names of tenants.
#include "coordinator/engines/simulator/tenant_book.h"

#include <fmt/format.h>

#include <stdexcept>
#include <string_view>
#include <utility>

#include "coordinator/policies/nearest_name.h"

namespace commensal::simulator {

TenantBook::TenantBook(const Trace& trace, std::vector<policies::Tenant> given)
    : source_(trace.source), tenants_(std::move(given)) {
  for (policies::TenantIndex index = 0; index < tenants_.size(); ++index) {
    numbers_.emplace(tenants_[index].name, index);
  }
  const bool of_trace = tenants_.empty();
  for (const TraceJob& job : trace.jobs) {
    if (of_trace || job.tenant.empty()) add(job.tenant);
  }
}

void TenantBook::add(const std::string& name) {
  const auto index = static_cast<policies::TenantIndex>(tenants_.size());
  if (numbers_.emplace(name, index).second) tenants_.push_back({.name = name, .quota = {}});
}

policies::TenantIndex TenantBook::of(const TraceJob& job) const {
  const auto found = numbers_.find(job.tenant);
  if (found == numbers_.end()) {
    std::vector<std::string> names;
    names.reserve(tenants_.size());
    for (const policies::Tenant& tenant : tenants_) names.push_back(tenant.name);
    throw std::invalid_argument(fmt::format(
        "{}: job {} is of a tenant that the cluster does not have: {}; did you mean {}?", source_,
        job.name, job.tenant, policies::nearest_name(job.tenant, names)));
  }
  const policies::Tenant& tenant = tenants_[found->second];
  const std::int64_t milli = std::int64_t{job.gpus} * job.gpu_milli;
  if (tenant.quota && job.asked == policies::AskedClass::kGuaranteed &&
      milli > std::int64_t{*tenant.quota} * policies::kWholeGpu) {
    throw std::invalid_argument(fmt::format(
        "{}: job {} asks for more GPUs than the quota of its tenant {}: {} > {}", source_, job.name,
        tenant.name, static_cast<double>(milli) / policies::kWholeGpu, *tenant.quota));
  }
  return found->second;
}

}  // namespace commensal::simulator

// SPDX-License-Identifier: Apache-2.0
// Tenants of a run and their numbers.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "coordinator/engines/simulator/trace.h"
#include "coordinator/policies/cluster_view.h"

namespace commensal::simulator {

/// Knows tenants by name. Thread safety: none needed, it does not change.
class TenantBook {
 public:
  /// Takes the tenants that are given, in their order; if there are none, those of the trace in the
  /// order of its rows, without quotas. Jobs without a tenant are charged to one without a quota.
  TenantBook(const Trace& trace, std::vector<policies::Tenant> given);

  [[nodiscard]] const std::vector<policies::Tenant>& tenants() const noexcept { return tenants_; }

  /// Returns the number of a job's tenant.
  /// @throws std::invalid_argument if it is none of those given, and for a guaranteed job that
  /// asks for more than the quota of its tenant.
  [[nodiscard]] policies::TenantIndex of(const TraceJob& job) const;

 private:
  void add(const std::string& name);

  std::string source_;
  std::vector<policies::Tenant> tenants_;
  std::unordered_map<std::string, policies::TenantIndex> numbers_;
};

}  // namespace commensal::simulator

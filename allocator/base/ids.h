// SPDX-License-Identifier: Apache-2.0
// Names of things that cross process borders: jobs, devices, revisions.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "allocator/base/enum_names.h"

namespace commensal {

/// A string that names one kind of thing; `Tag` keeps kinds apart.
template <typename Tag>
class StringId {
 public:
  StringId() = default;
  explicit StringId(std::string value) : value_(std::move(value)) {}

  [[nodiscard]] const std::string& str() const noexcept { return value_; }
  [[nodiscard]] bool empty() const noexcept { return value_.empty(); }
  auto operator<=>(const StringId&) const = default;

 private:
  std::string value_;
};

using JobId = StringId<struct JobIdTag>;
using DeviceId = StringId<struct DeviceIdTag>;
using TenantId = StringId<struct TenantIdTag>;

/// Orders changes to one job: a larger revision is newer and wins. Zero: no change yet.
using Revision = std::uint64_t;

/// What a job was promised (docs/stats.md, `job.class`).
enum class JobClass : std::uint8_t { kGuaranteed = 0, kOpportunistic = 1 };

constexpr EnumNames<JobClass, 2> names_of(JobClass) noexcept {
  return {{{JobClass::kGuaranteed, "guaranteed"}, {JobClass::kOpportunistic, "opportunistic"}}};
}
[[nodiscard]] constexpr std::string_view to_string(JobClass job_class) noexcept {
  return name_of(job_class);
}

}  // namespace commensal

template <typename Tag>
struct std::hash<commensal::StringId<Tag>> {
  std::size_t operator()(const commensal::StringId<Tag>& id) const noexcept {
    return std::hash<std::string>{}(id.str());
  }
};

// SPDX-License-Identifier: Apache-2.0
// Which record is a suspect, and which is listed.
#include "coordinator/cluster/bad_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "coordinator/cluster/plain_text.h"

namespace commensal::cluster {
namespace {

void check(const InputKey& key, const std::string& reason) {
  check_plain_name("the name of a data set", key.dataset, BadInputs::kMostText);
  check_plain_name("the name of a record", key.record, BadInputs::kMostText);
  check_plain_text("a reason", reason, BadInputs::kMostReason);
}

std::size_t size_of(const BadInput& input) {
  constexpr std::size_t kAround = 160;  // field names, times, numbers
  return input.key.dataset.size() + input.key.record.size() + input.reason.size() + kAround +
         input.reports.size() * kAround / 2;
}

}  // namespace

void BadInputs::restore(BadInput input) {
  ++counts_[input.key.tenant];
  if (input.listed) ++versions_[input.key.tenant];
  for (const InputReport& report : input.reports) {
    if (report.failing && !report.counted) undecided_[report.attempt].insert(input.key);
  }
  InputKey key = input.key;
  inputs_.insert_or_assign(std::move(key), std::move(input));
}

BadInput& BadInputs::at(const InputKey& key, const std::string& reason, WallTime now) {
  check(key, reason);
  if (const auto known = inputs_.find(key); known != inputs_.end()) return known->second;
  std::size_t& count = counts_[key.tenant];
  if (count >= kMostRecords) {
    throw std::invalid_argument(
        fmt::format("tenant {} has {} records already, the most that are kept: remove some, or "
                    "mend the data set",
                    key.tenant, count));
  }
  ++count;
  BadInput input;
  input.key = key;
  input.reason = reason;
  input.since = now;
  return inputs_.emplace(key, std::move(input)).first->second;
}

void BadInputs::judge(BadInput& input) {
  if (input.listed) return;
  const auto failed = std::ranges::count_if(input.reports, &InputReport::counted);
  const bool sure =
      std::ranges::any_of(input.reports, [](const InputReport& report) { return !report.failing; });
  input.listed = sure || failed >= static_cast<std::ptrdiff_t>(std::max(1U, rules_.failures));
  if (input.listed) ++versions_[input.key.tenant];
}

const BadInput& BadInputs::report(const InputKey& key, const std::string& reason,
                                  const InputReport& report, WallTime now, InputChanges& changes) {
  BadInput& input = at(key, reason, now);
  const bool known = std::ranges::any_of(input.reports, [&](const InputReport& before) {
    return before.attempt == report.attempt && before.failing == report.failing;
  });
  if (known || input.reports.size() >= kMostReports) return input;
  input.reports.push_back({report.attempt, report.failing, false});
  if (report.failing) undecided_[report.attempt].insert(key);
  judge(input);
  changes.put.push_back(input);
  return input;
}

const BadInput& BadInputs::add(const InputKey& key, const std::string& reason, WallTime now,
                               InputChanges& changes) {
  BadInput& input = at(key, reason, now);
  if (input.listed) return input;
  input.listed = true;
  ++versions_[key.tenant];
  changes.put.push_back(input);
  return input;
}

bool BadInputs::remove(const InputKey& key, InputChanges& changes) {
  const auto found = inputs_.find(key);
  if (found == inputs_.end()) return false;
  if (found->second.listed) ++versions_[key.tenant];
  for (const InputReport& report : found->second.reports) {
    const auto undecided = undecided_.find(report.attempt);
    if (undecided == undecided_.end()) continue;
    undecided->second.erase(key);
    if (undecided->second.empty()) undecided_.erase(undecided);
  }
  inputs_.erase(found);
  --counts_[key.tenant];
  changes.removed.push_back(key);
  return true;
}

void BadInputs::over(const Attempt& attempt, bool counts, InputChanges& changes) {
  const auto found = undecided_.find(attempt);
  if (found == undecided_.end()) return;
  const std::set<InputKey> keys = std::move(found->second);
  undecided_.erase(found);
  for (const InputKey& key : keys) {
    BadInput& input = inputs_.at(key);
    const auto is_this = [&](const InputReport& report) {
      return report.failing && report.attempt == attempt;
    };
    if (counts) {
      std::ranges::find_if(input.reports, is_this)->counted = true;
      judge(input);
    } else {
      std::erase_if(input.reports, is_this);
      if (input.reports.empty() && !input.listed) {
        remove(key, changes);
        continue;
      }
    }
    changes.put.push_back(input);
  }
}

BadInputs::Part BadInputs::list(const std::string& tenant,
                                const std::optional<std::string>& dataset,
                                const std::optional<InputKey>& after, bool suspects,
                                std::size_t bytes) const {
  Part part;
  const InputKey first{tenant, dataset.value_or(""), ""};
  auto at = after && *after >= first ? inputs_.upper_bound(*after) : inputs_.lower_bound(first);
  std::size_t size = 0;
  for (; at != inputs_.end() && at->first.tenant == tenant; ++at) {
    if (dataset && at->first.dataset != *dataset) break;
    if (!at->second.listed && !suspects) continue;
    size += size_of(at->second);
    if (size > bytes && !part.inputs.empty()) {
      part.more = true;
      break;
    }
    part.inputs.push_back(&at->second);
  }
  return part;
}

std::uint64_t BadInputs::version(const std::string& tenant) const {
  const auto found = versions_.find(tenant);
  return found == versions_.end() ? 0 : found->second;
}

}  // namespace commensal::cluster

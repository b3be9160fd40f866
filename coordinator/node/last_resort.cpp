// SPDX-License-Identifier: Apache-2.0
// The order of the steps, and the words for each.
#include "coordinator/node/last_resort.h"

#include <algorithm>

#include "allocator/base/clock.h"

namespace commensal::node {
namespace {

/// Nothing on the machine takes a process's memory out of it but the process itself.
constexpr const char* kNoOffload = "nothing here offloads it by other means";

std::string owes(const Debtor& debtor) {
  return "'" + debtor.name + "' holds " + to_string(debtor.charged) + ", " +
         to_string(debtor.owed) + " above its limit" + (debtor.stopped ? ", and is stopped" : "");
}

/// The one that owes most and fulfils a condition; of equals the first.
template <typename Condition>
std::optional<std::size_t> largest(const std::vector<Debtor>& debtors, Condition condition) {
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < debtors.size(); ++i) {
    if (!condition(debtors[i])) continue;
    if (!found || debtors[*found].owed < debtors[i].owed) found = i;
  }
  return found;
}

}  // namespace

std::string_view to_string(Resort resort) noexcept {
  switch (resort) {
    case Resort::kNone: return "none";
    case Resort::kWait: return "wait";
    case Resort::kBeyondBudget: return "beyond";
    case Resort::kStop: return "stop";
    case Resort::kEnd: return "end";
  }
  return "none";
}

ResortDecision next_resort(const ResortView& view, const ResortConfig& config) {
  if (view.lacking.is_zero()) return {};
  const std::string lacks = "lacks " + to_string(view.lacking) + " of a guaranteed minimum: ";
  const auto hopeless = [&](const Debtor& debtor) {
    return debtor.settled || debtor.stopped || debtor.owed_for >= config.deadline;
  };
  const auto stuck = largest(view.debtors, hopeless);
  if (!stuck) {
    const auto slow = largest(view.debtors, [](const Debtor&) { return true; });
    if (!slow) return {Resort::kNone, {}, lacks + "no job owes it"};
    return {Resort::kWait, slow, lacks + owes(view.debtors[*slow]) + ", and is giving it back"};
  }
  const std::string why = lacks + owes(view.debtors[*stuck]) + "; " + kNoOffload;
  if (!view.physical.is_zero()) {
    return {Resort::kBeyondBudget, stuck,
            why + "; " + to_string(view.physical) + " are physically free beyond the budget"};
  }
  const std::string none = why + "; no memory is physically free";
  const auto running = largest(view.debtors, [&](const Debtor& debtor) {
    return !debtor.stopped && !debtor.ending && debtor.reachable &&
           debtor.owed_for >= config.stop_after;
  });
  if (running) {
    return {Resort::kStop, running,
            none + "; '" + view.debtors[*running].name + "' is stopped after " +
                seconds_text(config.stop_after)};
  }
  if (!config.may_end) return {Resort::kNone, stuck, none + "; no job is ended for it"};
  const auto late = largest(view.debtors, [&](const Debtor& debtor) {
    return debtor.reachable && debtor.owed_for >= config.end_after;
  });
  if (!late) return {Resort::kNone, stuck, none + "; nobody owes it for long enough to be ended"};
  return {Resort::kEnd, late,
          none + "; '" + view.debtors[*late].name + "' is told to end, and has " +
              seconds_text(config.notice)};
}

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// The choice, and the walk over the threads.
#include "torch_ext/runtime/core_keeper.h"

#include <utility>

namespace commensal {

using wire::CoreSet;

CoreChoice choose_cores(const CoreWish& wish) {
  const auto all = [&](std::string reason) { return CoreChoice{wish.own, std::move(reason)}; };
  if (!wish.opportunistic) return all("");
  if (!wish.wanted) return all("switched off by its user");
  if (!wish.coordinator_alive) {
    if (!wish.guaranteed_present) return all("");
    return {std::nullopt, "no sign of life from the coordinator: as before"};
  }
  if (wish.left.empty()) return all("");
  const CoreSet part = wish.left & wish.own;
  if (part.empty()) {
    return all("guaranteed jobs leave CPUs " + wish.left.to_string() +
               ", of which it may use none");
  }
  if (part == wish.own) return all("");
  return {part, "guaranteed jobs leave CPUs " + wish.left.to_string()};
}

CoreKeeper::CoreKeeper(ThreadCores& cores, CoreSet own, CoreSet now)
    : cores_(cores), own_(own), now_(now) {}

CoreKeeper::Result CoreKeeper::apply(const CoreSet& wanted) {
  Result result;
  if (own_.empty() || wanted.empty() || wanted == now_) return result;
  // Before any moves: later, what has the wanted ones may have inherited them.
  for (const ThreadCores::Thread& thread : cores_.threads()) {
    const auto has = cores_.get(thread.tid);
    const bool ours = !has || *has == now_ || *has == own_ || astray_.contains(thread.tid);
    if (!ours && !thread.own) pinned_.insert(thread.tid);
  }
  std::set<int> seen;
  bool found = true;
  while (found) {  // again for those that appear meanwhile
    found = false;
    for (const ThreadCores::Thread& thread : cores_.threads()) {
      if (!seen.insert(thread.tid).second) continue;
      found = true;
      if (thread.own) continue;
      if (pinned_.contains(thread.tid)) {
        ++result.left_alone;
        continue;
      }
      const auto has = cores_.get(thread.tid);
      if (!has || *has == wanted) continue;
      const std::string problem = cores_.set(thread.tid, wanted);
      if (problem.empty()) {
        astray_.erase(thread.tid);
        ++result.moved;
        continue;
      }
      astray_.insert(thread.tid);
      ++result.failed;
      if (result.reason.empty()) result.reason = problem;
    }
  }
  for (std::set<int>* known : {&pinned_, &astray_}) {
    std::erase_if(*known, [&](int tid) { return !seen.contains(tid); });
  }
  now_ = wanted;
  return result;
}

}  // namespace commensal

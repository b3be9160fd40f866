// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node/cluster_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "coordinator/wire/json_fields.h"

namespace commensal::node {
namespace {

using nlohmann::json;

constexpr std::size_t kRemembered = 4 * wire::kMostOrders;

bool is_open(const std::optional<wire::Outcome>& outcome) {
  return !outcome || *outcome == wire::Outcome::kDeferred;
}

}  // namespace

json ClusterOrders::tell() {
  wire::OrderReport part{beats_.next(), run_, {}};
  for (const auto& [number, order] : known_) {
    if (!order.wanted || !order.outcome || part.results.size() >= wire::kMostOrders) continue;
    part.results.push_back({number, *order.outcome, order.reason});
  }
  return wire::write_fields(part);
}

void ClusterOrders::take(const json& part) {
  if (part.is_null()) return;
  wire::OrderList told;
  wire::read_field(part, "orders", told);
  beats_.check(told.beat);
  beats_.answered(told.beat);
  if (told.run != run_) {
    run_ = told.run;
    known_.clear();
    due_.clear();
    forgotten_ = 0;
  }
  for (auto& [number, order] : known_) order.wanted = false;
  for (const wire::NodeOrder& order : told.list) look_at(order);
  forget_some();
}

void ClusterOrders::look_at(const wire::NodeOrder& order) {
  if (const auto again = known_.find(order.number); again != known_.end()) {
    again->second.wanted = true;
    if (again->second.outcome != wire::Outcome::kDeferred) return;
    again->second.outcome.reset();  // what it waits for stays its reason, until it has an answer
    due_.push_back(order);
    return;
  }
  Known& known = known_.emplace(order.number, Known{order.job}).first->second;
  const auto newer = std::find_if(known_.rbegin(), known_.rend(),
                                  [&](const auto& e) { return e.second.job == order.job; });
  if (order.number <= forgotten_ || newer->first > order.number) {
    known.outcome = wire::Outcome::kRefused;
    known.reason = fmt::format("order {} is older than what was done", order.number);
    return;
  }
  due_.push_back(order);
}

void ClusterOrders::heard(std::uint64_t number, wire::Outcome outcome, const std::string& reason) {
  const auto found = known_.find(number);
  if (found == known_.end() || !is_open(found->second.outcome)) return;
  found->second.outcome = outcome;
  found->second.reason = reason.substr(0, kLongestReason);
}

void ClusterOrders::forget_some() {
  for (auto at = known_.begin(); at != known_.end() && known_.size() > kRemembered;) {
    if (at->second.wanted) {
      ++at;
      continue;
    }
    forgotten_ = std::max(forgotten_, at->first);
    at = known_.erase(at);
  }
}

}  // namespace commensal::node

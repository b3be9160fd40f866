// SPDX-License-Identifier: Apache-2.0
#include "coordinator/node/cluster_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

namespace commensal::node {
namespace {

using nlohmann::json;

constexpr std::size_t kRemembered = 4 * ClusterOrders::kMost;

std::optional<JobClass> class_of(const json& name) {
  for (const JobClass job_class : {JobClass::kGuaranteed, JobClass::kOpportunistic}) {
    if (name == to_string(job_class)) return job_class;
  }
  return std::nullopt;
}

ClusterOrders::Order order_of(const json& entry) {
  if (!entry.is_object()) throw std::invalid_argument("an order is a JSON object");
  const json number = field_of(entry, "number");
  const json job = field_of(entry, "job");
  const auto job_class = class_of(field_of(entry, "class"));
  if (!number.is_number_unsigned() || number == 0) {
    throw std::invalid_argument(fmt::format("an order has a number from 1, not {}", number.dump()));
  }
  const std::size_t bytes = job.is_string() ? job.get_ref<const std::string&>().size() : 0;
  if (bytes == 0 || bytes > ClusterOrders::kLongestJob) {
    throw std::invalid_argument(
        fmt::format("an order names a job by 1 to {} bytes", ClusterOrders::kLongestJob));
  }
  if (!job_class) throw std::invalid_argument("an order says guaranteed or opportunistic");
  return {number.get<std::uint64_t>(), job.get<std::string>(), *job_class};
}

bool is_open(const std::string& outcome) { return outcome.empty() || outcome == "deferred"; }

}  // namespace

json ClusterOrders::tell() {
  json results = json::array();
  for (const auto& [number, order] : known_) {
    if (!order.wanted || order.outcome.empty() || results.size() >= kMost) continue;
    results.push_back({{"number", number}, {"outcome", order.outcome}, {"reason", order.reason}});
  }
  return {{"beat", beats_.next()}, {"run", run_}, {"results", std::move(results)}};
}

void ClusterOrders::take(const json& part) {
  if (part.is_null()) return;
  const AnswerHead head = beats_.read(part, "orders");
  const json list = field_of(part, "list");
  if (!list.is_array() || list.size() > kMost) {
    throw std::invalid_argument(fmt::format("\"orders\" has a list of at most {}", kMost));
  }
  std::vector<Order> orders;
  for (const json& entry : list) orders.push_back(order_of(entry));
  beats_.answered(head.beat);
  if (head.run != run_) {
    run_ = head.run;
    known_.clear();
    due_.clear();
    forgotten_ = 0;
  }
  for (auto& [number, order] : known_) order.wanted = false;
  for (const Order& order : orders) look_at(order);
  forget_some();
}

void ClusterOrders::look_at(const Order& order) {
  if (const auto again = known_.find(order.number); again != known_.end()) {
    again->second.wanted = true;
    if (again->second.outcome != "deferred") return;
    again->second.outcome.clear();  // what it waits for stays its reason, until it has an answer
    due_.push_back(order);
    return;
  }
  Known& known = known_.emplace(order.number, Known{order.job}).first->second;
  const auto newer = std::find_if(known_.rbegin(), known_.rend(),
                                  [&](const auto& e) { return e.second.job == order.job; });
  if (order.number <= forgotten_ || newer->first > order.number) {
    known.outcome = "refused";
    known.reason = fmt::format("order {} is older than what was done", order.number);
    return;
  }
  due_.push_back(order);
}

void ClusterOrders::heard(std::uint64_t number, const std::string& outcome,
                          const std::string& reason) {
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

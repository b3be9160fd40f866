// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/node_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/cluster/node_exchange.h"
#include "coordinator/cluster/node_reports.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 4> kOutcomes{"applied", "stale", "refused", "deferred"};

/// What a node says of one order.
struct Result {
  std::uint64_t number = 0;
  std::string outcome;
  std::string reason;
};

Result result_of(const json& entry) {
  if (!entry.is_object() || !has_number(entry, "number") || !has_text(entry, "outcome", 32) ||
      !has_text(entry, "reason", NodeOrders::kLongestReason)) {
    throw std::invalid_argument(
        fmt::format("what became of an order is an object with its number, an outcome and a reason "
                    "of at most {} bytes",
                    NodeOrders::kLongestReason));
  }
  Result result{entry.at("number").get<std::uint64_t>(), entry.at("outcome").get<std::string>(),
                entry.at("reason").get<std::string>()};
  if (std::ranges::find(kOutcomes, result.outcome) == kOutcomes.end()) {
    throw std::invalid_argument(
        fmt::format("an order is applied, stale, refused or deferred, not \"{}\"", result.outcome));
  }
  return result;
}

/// @return those of a run; all are looked at. @throws std::invalid_argument.
std::vector<Result> results_of(const json& told, const std::string& run) {
  const NodeTold head = read_told(told, "orders");
  const auto list = told.find("results");
  if (list == told.end() || !list->is_array() || list->size() > NodeOrders::kMost) {
    throw std::invalid_argument(
        fmt::format("\"results\" is a list of at most {}", NodeOrders::kMost));
  }
  std::vector<Result> results;
  for (const json& entry : *list) results.push_back(result_of(entry));
  if (head.run != run) results.clear();  // of another start: their numbers mean nothing here
  return results;
}

bool is_over(const std::string& outcome) { return !outcome.empty() && outcome != "deferred"; }

}  // namespace

NodeOrders::NodeOrders(std::string run, const Clock& clock) : run_(std::move(run)), clock_(clock) {}

bool NodeOrders::reaches(const std::string& node, const std::string& job) const {
  return why_not(node, job).empty();
}

std::string NodeOrders::why_not(const std::string& node, const std::string& job) const {
  const MutexLock lock{mutex_};
  return problem_with(node, job);
}

std::string NodeOrders::problem_with(const std::string& node, const std::string& job) const {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return fmt::format("node {} does not report", node);
  const Duration silence = clock_.now() - found->second.heard;
  if (silence >= NodeReports::kSilent) {
    return fmt::format("node {} has been silent for {:.0f} s", node,
                       std::chrono::duration<double>(silence).count());
  }
  if (!found->second.takes_orders) return fmt::format("node {} takes no orders", node);
  if (!found->second.jobs.contains(job)) return fmt::format("node {} reports no job {}", node, job);
  return "";
}

NodeOrders::Order* NodeOrders::order_for(const std::string& node, const std::string& job,
                                         JobClass job_class) {
  auto& orders = nodes_.at(node).orders;
  auto found = orders.find(job);
  if (found == orders.end()) {
    if (orders.size() >= kMost) return nullptr;
    found = orders.emplace(job, Order{}).first;
  }
  Order& order = found->second;
  if (order.number == 0 || order.job_class != job_class) order = {++last_, job_class};
  order.asked = clock_.now();
  return &order;
}

wire::SetReply NodeOrders::ask(const std::string& node, const std::string& job, JobClass job_class,
                               std::chrono::milliseconds patience) {
  const MutexLock lock{mutex_};
  const auto reply = [&job](std::string outcome, std::string reason) {
    return wire::SetReply{
        .job_id = job, .outcome = std::move(outcome), .reason = std::move(reason)};
  };
  if (job.empty() || job.size() > kLongestJob) {
    return reply("refused", fmt::format("a job's id has 1 to {} bytes", kLongestJob));
  }
  const auto known = nodes_.find(node);
  const bool underway = known != nodes_.end() && known->second.orders.contains(job);
  if (std::string problem = problem_with(node, job); !problem.empty() && !underway) {
    return reply("deferred", std::move(problem));
  }
  const Order* const order = order_for(node, job, job_class);
  if (order == nullptr) {
    return reply("deferred", fmt::format("{} other changes wait for node {} already", kMost, node));
  }
  const std::uint64_t number = order->number;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (bool waits = true;;) {
    Order* const now = find(node, job, number);  // others may have changed it while this waited
    if (now == nullptr) {
      return reply("refused", "a newer change of its class was asked for, or its node has left");
    }
    if (is_over(now->outcome)) {
      const Order done = std::move(*now);
      nodes_.at(node).orders.erase(job);
      return reply(done.outcome, done.reason);
    }
    if (!waits || stopped_) {
      if (!now->reason.empty()) return reply("deferred", now->reason);
      std::string problem = problem_with(node, job);
      if (problem.empty()) problem = fmt::format("node {} is told with its heartbeats", node);
      return reply("deferred", std::move(problem));
    }
    waits = told_.wait_until(mutex_, deadline) != std::cv_status::timeout;
  }
}

NodeOrders::Order* NodeOrders::find(const std::string& node, const std::string& job,
                                    std::uint64_t number) {
  const auto at = nodes_.find(node);
  if (at == nodes_.end()) return nullptr;
  const auto order = at->second.orders.find(job);
  const bool same = order != at->second.orders.end() && order->second.number == number;
  return same ? &order->second : nullptr;
}

json NodeOrders::exchange(const std::string& node, const json& report, const json& told) {
  std::vector<Result> results;
  if (!told.is_null()) results = results_of(told, run_);
  std::set<std::string> jobs;
  for (const json& job : report.at("jobs")) {
    if (has_text(job, "id", kLongestJob)) jobs.insert(job.at("id").get<std::string>());
  }
  const MutexLock lock{mutex_};
  Node& known = nodes_[node];
  known.heard = clock_.now();
  known.jobs = std::move(jobs);
  known.takes_orders = !told.is_null();
  bool heard = false;
  for (auto& [job, order] : known.orders) {
    for (Result& result : results) {
      if (result.number != order.number || is_over(order.outcome)) continue;
      order.outcome = result.outcome;
      order.reason = std::move(result.reason);
      heard = true;
    }
  }
  if (heard) told_.notify_all();
  if (told.is_null()) return nullptr;
  json list = json::array();
  for (const auto& [job, order] : known.orders) {
    if (is_over(order.outcome)) continue;
    list.push_back({{"number", order.number}, {"job", job}, {"class", to_string(order.job_class)}});
  }
  return {{"run", run_}, {"beat", told.at("beat")}, {"list", std::move(list)}};
}

void NodeOrders::expire() {
  const MutexLock lock{mutex_};
  const TimePoint now = clock_.now();
  if (now < next_look_) return;
  next_look_ = now + kLook;
  for (auto& [name, node] : nodes_) {
    std::erase_if(node.orders, [&](const auto& e) { return now - e.second.asked >= kKept; });
  }
  const auto gone = std::erase_if(nodes_, [&](const auto& entry) {
    return now - entry.second.heard >= NodeReports::kForgotten;
  });
  if (gone > 0) told_.notify_all();
}

void NodeOrders::stop() {
  {
    const MutexLock lock{mutex_};
    stopped_ = true;
  }
  told_.notify_all();
}

std::size_t NodeOrders::size() const {
  const MutexLock lock{mutex_};
  std::size_t sum = 0;
  for (const auto& [name, node] : nodes_) sum += node.orders.size();
  return sum;
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cluster/node_orders.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/cluster/node_reports.h"
#include "coordinator/wire/json_fields.h"
#include "coordinator/wire/json_text.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;

/// @return results of a run; all are looked at. @throws std::invalid_argument.
wire::OrderReport report_of(const json& told, const std::string& run) {
  wire::OrderReport part;
  wire::read_field(told, "orders", part);
  if (part.run != run) part.results.clear();  // of another start: their numbers mean nothing here
  return part;
}

bool is_over(const std::optional<wire::Outcome>& outcome) {
  return outcome && *outcome != wire::Outcome::kDeferred;
}

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
    if (orders.size() >= wire::kMostOrders) return nullptr;
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
  const auto reply = [&job](wire::Outcome outcome, std::string reason) {
    return wire::SetReply{.job_id = job, .outcome = outcome, .reason = std::move(reason)};
  };
  if (job.empty() || job.size() > wire::kLongestOrderedJob) {
    return reply(wire::Outcome::kRefused,
                 fmt::format("a job's id has 1 to {} bytes", wire::kLongestOrderedJob));
  }
  const auto known = nodes_.find(node);
  const bool underway = known != nodes_.end() && known->second.orders.contains(job);
  if (std::string problem = problem_with(node, job); !problem.empty() && !underway) {
    return reply(wire::Outcome::kDeferred, std::move(problem));
  }
  const Order* const order = order_for(node, job, job_class);
  if (order == nullptr) {
    return reply(wire::Outcome::kDeferred,
                 fmt::format("{} other changes wait for node {} already", wire::kMostOrders, node));
  }
  const std::uint64_t number = order->number;
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (bool waits = true;;) {
    Order* const now = find(node, job, number);  // others may have changed it while this waited
    if (now == nullptr) {
      return reply(wire::Outcome::kRefused,
                   "a newer change of its class was asked for, or its node has left");
    }
    if (is_over(now->outcome)) {
      const Order done = std::move(*now);
      nodes_.at(node).orders.erase(job);
      return reply(*done.outcome, done.reason);
    }
    if (!waits || stopped_) {
      if (!now->reason.empty()) return reply(wire::Outcome::kDeferred, now->reason);
      std::string problem = problem_with(node, job);
      if (problem.empty()) problem = fmt::format("node {} is told with its heartbeats", node);
      return reply(wire::Outcome::kDeferred, std::move(problem));
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
  wire::OrderReport part;
  if (!told.is_null()) part = report_of(told, run_);
  std::set<std::string> jobs;
  for (const json& job : report.at("jobs")) {
    std::string id = wire::text_of(job, "id");
    if (!id.empty() && id.size() <= wire::kLongestOrderedJob) jobs.insert(std::move(id));
  }
  const MutexLock lock{mutex_};
  Node& known = nodes_[node];
  known.heard = clock_.now();
  known.jobs = std::move(jobs);
  known.takes_orders = !told.is_null();
  bool heard = false;
  for (auto& [job, order] : known.orders) {
    for (wire::OrderResult& result : part.results) {
      if (result.number != order.number || is_over(order.outcome)) continue;
      order.outcome = result.outcome;
      order.reason = std::move(result.reason);
      heard = true;
    }
  }
  if (heard) told_.notify_all();
  if (told.is_null()) return nullptr;
  wire::OrderList answer{part.beat, run_, {}};
  for (const auto& [job, order] : known.orders) {
    if (!is_over(order.outcome)) answer.list.push_back({order.number, job, order.job_class});
  }
  return wire::write_fields(answer);
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

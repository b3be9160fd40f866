// SPDX-License-Identifier: Apache-2.0
// One thread that asks, so that nobody waits for a node.
#include "coordinator/cluster/node_classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "coordinator/wire/control_client.h"

namespace commensal::cluster {
namespace {

using nlohmann::json;

bool shows(const wire::Message& answer, const std::string& job) {
  const auto* reply = std::get_if<wire::StatusReply>(&answer);
  if (reply == nullptr || !reply->status.contains("jobs")) return false;
  const json& jobs = reply->status["jobs"];
  return std::any_of(jobs.begin(), jobs.end(), [&](const json& one) {
    return one.value("/job/id"_json_pointer, "") == job && !one.value("ended", false);
  });
}

}  // namespace

wire::Message ask_patiently(const std::function<wire::Message(const wire::Message&)>& request,
                            const wire::Message& message) {
  wire::Message answer = request(message);
  const auto* asked = std::get_if<wire::SetRequest>(&message);
  auto* reply = std::get_if<wire::SetReply>(&answer);
  if (asked == nullptr || reply == nullptr || reply->outcome != wire::Outcome::kRefused)
    return answer;
  wire::StatusRequest look;
  look.job = asked->job;
  if (shows(request(look), asked->job)) return answer;
  reply->outcome = wire::Outcome::kDeferred;
  reply->reason =
      "its node does not know it: it has not imported PyTorch, or runs without commensal";
  return answer;
}

NodeClasses::NodeClasses(Ask ask, std::chrono::milliseconds again, int tries)
    : ask_(std::move(ask)), again_(again), tries_(tries), thread_([this] { work(); }) {}

NodeClasses::~NodeClasses() {
  {
    const MutexLock lock{mutex_};
    leaving_ = true;
  }
  woken_.notify_all();
  thread_.join();
}

void NodeClasses::change(const JobRecord& job, JobClass job_class) {
  Order order{job_class, {}};
  for (const DevicePlace& place : job.placement) order.nodes.insert(place.node);
  if (order.nodes.empty()) order.nodes.insert("");  // somebody has to be asked
  {
    const MutexLock lock{mutex_};
    orders_.try_emplace({job.id, job.attempt}, std::move(order));
  }
  woken_.notify_all();
}

std::vector<ClassChanger::Outcome> NodeClasses::outcomes() {
  const MutexLock lock{mutex_};
  return std::exchange(outcomes_, {});
}

void NodeClasses::work() {
  for (;;) {
    std::map<Attempt, Order> orders;
    {
      const MutexLock lock{mutex_};
      while (!leaving_ && orders_.empty()) woken_.wait(mutex_);
      if (leaving_) return;
      orders = orders_;
    }
    for (auto& [attempt, order] : orders) {
      ++order.tries;
      auto outcome = ask_once(attempt, order);  // no lock: it may take seconds
      const MutexLock lock{mutex_};
      if (leaving_) return;
      if (outcome) {
        outcomes_.push_back(*std::move(outcome));
        orders_.erase(attempt);
      } else {
        orders_[attempt] = order;
      }
    }
    const MutexLock lock{mutex_};
    if (!leaving_ && !orders_.empty()) (void)woken_.wait_for(mutex_, again_);
  }
}

std::optional<ClassChanger::Outcome> NodeClasses::ask_once(const Attempt& attempt,
                                                           Order& order) const {
  Outcome outcome{attempt, true, "", order.job_class};
  while (!order.nodes.empty()) {
    const std::string node = *order.nodes.begin();
    Said said = ask_node(node, attempt, order.job_class);
    if (said.later && order.tries < tries_) return std::nullopt;
    const bool one_of_several = order.nodes.size() + order.done.size() > 1;
    outcome.reason = one_of_several ? fmt::format("node {}: {}", node, said.reason) : said.reason;
    if (!said.changed) {
      outcome.changed = false;
      break;
    }
    order.nodes.erase(node);
    order.done.insert(node);
  }
  // One that cannot stay guaranteed does not become so again on some of its nodes.
  if (outcome.changed || order.job_class == JobClass::kOpportunistic) return outcome;
  for (const std::string& node : order.done) {
    const Said said = ask_node(node, attempt, JobClass::kOpportunistic);
    if (!said.changed) outcome.reason += fmt::format("; node {} stays: {}", node, said.reason);
  }
  return outcome;
}

NodeClasses::Said NodeClasses::ask_node(const std::string& node, const Attempt& attempt,
                                        JobClass job_class) const {
  Said said;
  try {
    wire::SetRequest request;
    request.job = node_job_id(attempt);
    request.job_class = job_class;
    const wire::Message answer = ask_(node, request);
    if (const auto* reply = std::get_if<wire::SetReply>(&answer)) {
      said.changed =
          reply->outcome == wire::Outcome::kApplied || reply->outcome == wire::Outcome::kStale;
      said.later = reply->outcome == wire::Outcome::kDeferred;
      said.reason = reply->reason.empty() ? "its node has changed its class" : reply->reason;
    } else if (const auto* error = std::get_if<wire::Error>(&answer)) {
      said.changed = error->code == "unknown_job";
      said.reason =
          said.changed ? "it runs without commensal: only its charge changes" : error->what;
    } else {
      said.reason = "its node answered with another message";
    }
  } catch (const wire::CoordinatorUnreachable& error) {
    said.later = true;
    said.reason = error.what();
  } catch (const wire::BadMessage& error) {
    said.reason = error.what();
  }
  return said;
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// One thread that asks, so that nobody waits for a node.
#include "coordinator/cluster/node_classes.h"

#include <fmt/format.h>

#include <utility>

#include "coordinator/wire/control_client.h"

namespace commensal::cluster {

std::string node_job_id(const Attempt& attempt) {
  return fmt::format("job-{}.{}", attempt.job.str(), attempt.number);
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
  {
    const MutexLock lock{mutex_};
    orders_.try_emplace({job.id, job.attempt}, Order{job_class});
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
  Outcome outcome{attempt, false, ""};
  try {
    wire::SetRequest request;
    request.job = node_job_id(attempt);
    request.job_class = order.job_class;
    const wire::Message answer = ask_(request);
    if (const auto* reply = std::get_if<wire::SetReply>(&answer)) {
      outcome.changed = reply->outcome == "applied" || reply->outcome == "stale";
      outcome.reason = reply->reason.empty() ? "its node has changed its class" : reply->reason;
      if (reply->outcome == "deferred" && order.tries < tries_) return std::nullopt;
    } else if (const auto* error = std::get_if<wire::Error>(&answer)) {
      outcome.changed = error->code == "unknown_job";
      outcome.reason =
          outcome.changed ? "it runs without commensal: only its charge changes" : error->what;
    } else {
      outcome.reason = "its node answered with another message";
    }
  } catch (const wire::CoordinatorUnreachable& error) {
    if (order.tries < tries_) return std::nullopt;
    outcome.reason = error.what();
  } catch (const wire::BadMessage& error) {
    outcome.reason = error.what();
  }
  return outcome;
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// The window, the pick and the quota.
#include "coordinator/node/turn_scheduler.h"

#include <algorithm>

#include "allocator/base/clock.h"

namespace commensal::node {
namespace {

/// How much a job lacks of what it asked for, 0 to 1.
double need(const TurnClient& client, double used, double window) {
  const double lack = client.request * window - used;
  return lack > 0.0 ? lack / (lack + used) : 0.0;
}

}  // namespace

void TurnScheduler::count_use(TimePoint now) {
  if (updated_ != TimePoint{} && now > updated_ && !busy_.empty()) {
    if (!uses_.empty() && uses_.back().end == updated_ && uses_.back().users == busy_) {
      uses_.back().end = now;
    } else {
      uses_.push_back({updated_, now, busy_});
    }
  }
  updated_ = now;
  while (!uses_.empty() && uses_.front().end <= now - constants_.window) uses_.pop_front();
}

Duration TurnScheduler::used(const JobId& job) const {
  const TimePoint from = updated_ - constants_.window;
  Duration sum{};
  for (const Use& use : uses_) {
    if (std::find(use.users.begin(), use.users.end(), job) == use.users.end()) continue;
    sum += (use.end - std::max(use.begin, from)) / static_cast<Duration::rep>(use.users.size());
  }
  return sum;
}

Duration TurnScheduler::quota_for(const TurnClient& client) {
  const auto most = std::chrono::duration_cast<Duration>(client.limit * constants_.window);
  Duration& quota = quotas_.try_emplace(client.id, constants_.quota).first->second;
  if (client.burst > Duration::zero()) {
    quota = std::chrono::duration_cast<Duration>(constants_.smoothing * client.burst +
                                                 (1.0 - constants_.smoothing) * quota);
    quota = std::max(quota, constants_.least_quota);
  }
  return std::min(quota, most);
}

void TurnScheduler::give(TimePoint now, const std::vector<TurnClient>& clients) {
  const double window = in_seconds(constants_.window);
  const TurnClient* best = nullptr;
  double best_need = 0.0;
  double best_used = 0.0;
  const char* why = "";
  for (const TurnClient& client : clients) {
    if (!client.wants || client.limit <= 0.0) continue;
    const double used_seconds = in_seconds(used(client.id));
    if (used_seconds <= 0.0) {
      best = &client;
      why = "has not had one for a while";
      break;
    }
    if (used_seconds >= client.limit * window) continue;
    const double its_need = need(client, used_seconds, window);
    const bool better = best == nullptr || its_need > best_need ||
                        (its_need == best_need && used_seconds < best_used);
    if (!better) continue;
    best = &client;
    best_need = its_need;
    best_used = used_seconds;
    why = its_need > 0.0 ? "lacks most of its minimum" : "used the device least";
  }
  turn_ = {};
  if (best == nullptr) {
    turn_.reason = "nobody wants the device, or all have used up their maximum";
    return;
  }
  turn_ = {best->id, now + quota_for(*best), why};
}

const Turn& TurnScheduler::update(TimePoint now, const std::vector<TurnClient>& clients) {
  count_use(now);
  const auto wants = [&](const JobId& id) {
    return std::any_of(clients.begin(), clients.end(),
                       [&](const TurnClient& c) { return c.id == id && c.wants; });
  };
  std::erase_if(quotas_, [&](const auto& entry) {
    return std::none_of(clients.begin(), clients.end(),
                        [&](const TurnClient& c) { return c.id == entry.first; });
  });
  if (now >= turn_.until || !wants(turn_.holder)) give(now, clients);
  busy_.clear();
  for (const TurnClient& client : clients) {
    if (client.wants && (!client.asks || client.id == turn_.holder)) busy_.push_back(client.id);
  }
  return turn_;
}

}  // namespace commensal::node

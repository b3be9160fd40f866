// SPDX-License-Identifier: Apache-2.0
// The memory arbiter's decision.
#include "coordinator/node/memory_arbiter.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace commensal::node {
namespace {

using policies::DeviceView;
using policies::JobView;
using policies::MemoryChange;
using policies::Plan;

constexpr std::uint64_t kRound = 1U << 20U;  // water levels are whole MiB

Bytes scaled(Bytes bytes, double factor) {
  return Bytes{static_cast<std::uint64_t>(static_cast<double>(bytes.count()) * factor)};
}

struct Candidate {
  const JobView* job = nullptr;
  Bytes floor;   // guaranteed: its floor; opportunistic: its minimum
  Bytes most;    // its maximum, within the device
  Bytes desire;  // guaranteed: wanted with headroom; opportunistic: its maximum
  Bytes target;
  std::string reason;
};

/// Adds `amount` to the targets, evenly, none above `cap(candidate)`. Returns what is left.
Bytes pour(const std::vector<Candidate*>& into, Bytes amount,
           const std::function<Bytes(const Candidate&)>& cap) {
  std::vector<Candidate*> open;
  Bytes room;
  for (Candidate* c : into) {
    if (cap(*c) <= c->target) continue;
    open.push_back(c);
    room += cap(*c) - c->target;
  }
  if (room <= amount) {
    for (Candidate* c : open) c->target = cap(*c);
    return amount - room;
  }
  // The level is the one at which the targets, each between what it has and its cap, use it up.
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  for (const Candidate* c : open) high = std::max(high, cap(*c).count());
  const auto used_at = [&](std::uint64_t level) {
    Bytes used;
    for (const Candidate* c : open) {
      used += std::clamp(Bytes{level}, c->target, cap(*c)) - c->target;
    }
    return used;
  };
  while (low < high) {
    const std::uint64_t middle = low + (high - low + 1) / 2;
    if (used_at(middle) <= amount) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low > kRound) low -= low % kRound;
  const Bytes used = used_at(low);
  for (Candidate* c : open) c->target = std::clamp(Bytes{low}, c->target, cap(*c));
  return amount - used;
}

std::vector<Candidate*> of_class(std::vector<Candidate>& all, JobClass job_class) {
  std::vector<Candidate*> chosen;
  for (Candidate& c : all) {
    if (c.job->job_class == job_class) chosen.push_back(&c);
  }
  return chosen;
}

/// What a guaranteed job should get if there is enough: unchanged while its headroom is between a
/// half and one and a half of the configured one.
Bytes guaranteed_desire(const JobView& job, Bytes floor, Bytes most, Bytes headroom) {
  const auto clamped = [&](Bytes bytes) { return std::clamp(std::max(bytes, floor), floor, most); };
  const Bytes need = std::max({job.wanted_recent, job.wanted, job.asked});
  const Bytes half = scaled(headroom, 0.5);
  if (job.limit >= clamped(need + half) && job.limit <= clamped(need + headroom + half) &&
      job.asked <= job.limit) {
    return job.limit;
  }
  return clamped(need + headroom);
}

Candidate candidate(const JobView& job, const DeviceView& device, Bytes headroom) {
  Candidate c;
  c.job = &job;
  c.most = std::min(job.memory.max.value_or(device.capacity), device.capacity);
  c.floor = std::min(job.memory.min, c.most);
  c.desire = job.job_class == JobClass::kGuaranteed
                 ? guaranteed_desire(job, c.floor, c.most, headroom)
                 : c.most;
  return c;
}

/// Undoes small moves, for all opportunistic jobs or, if the device cannot hold them, for none.
void keep_small_moves(std::vector<Candidate>& all, Bytes capacity, double hysteresis) {
  std::vector<Bytes> kept;
  Bytes sum;
  for (const Candidate& c : all) {
    const Bytes now = c.job->limit;
    const Bytes larger = std::max(now, c.target);
    const Bytes smaller = std::min(now, c.target);
    const bool small = !now.is_zero() && larger - smaller <= scaled(now, hysteresis);
    const bool allowed =
        now >= c.floor && now <= c.most && c.job->asked <= now &&
        (c.job->job_class == JobClass::kOpportunistic || now >= std::min(c.target, c.desire));
    kept.push_back(small && allowed ? now : c.target);
    sum += kept.back();
  }
  if (sum > capacity) return;
  for (std::size_t i = 0; i < all.size(); ++i) all[i].target = kept[i];
}

std::string reason_for(const Candidate& c, Bytes headroom, bool contended) {
  const JobView& job = *c.job;
  if (job.job_class == JobClass::kGuaranteed) {
    if (c.target < c.desire) return "guaranteed; the device is full: wants " + to_string(c.desire);
    if (c.target == c.floor && c.target == c.most) return "guaranteed: its floor and maximum";
    if (c.target == c.floor) return "guaranteed: its floor";
    if (c.target == c.most) return "guaranteed: its maximum";
    if (c.target > c.desire) return "guaranteed: nobody else can use it";
    return "guaranteed: wants " + to_string(std::max({job.wanted_recent, job.wanted, job.asked})) +
           ", headroom " + to_string(headroom);
  }
  if (c.target == c.most) return "opportunistic: its maximum fits";
  if (c.target < c.floor) return "opportunistic: below its minimum, a guaranteed floor needs it";
  if (c.target == c.floor) return "opportunistic: its minimum, the device is full";
  return contended ? "opportunistic: what guaranteed jobs leave" : "opportunistic: an even part";
}

}  // namespace

Plan decide_memory(const DeviceView& device, const ArbiterConfig& config) {
  const Bytes headroom = scaled(device.capacity, config.headroom);
  std::vector<Candidate> all;
  for (const JobView& job : device.jobs) all.push_back(candidate(job, device, headroom));
  const auto guaranteed = of_class(all, JobClass::kGuaranteed);
  const auto opportunistic = of_class(all, JobClass::kOpportunistic);

  const auto floor = [](const Candidate& c) { return c.floor; };
  const auto desire = [](const Candidate& c) { return c.desire; };
  const auto most = [](const Candidate& c) { return c.most; };
  Bytes left = pour(guaranteed, device.capacity, floor);
  left = pour(opportunistic, left, floor);
  left = pour(guaranteed, left, desire);
  left = pour(opportunistic, left, most);
  pour(guaranteed, left, most);
  keep_small_moves(all, device.capacity, config.hysteresis);

  Plan plan;
  for (const bool shrink : {true, false}) {
    for (const Candidate& c : all) {
      if (c.target == c.job->limit || (c.target < c.job->limit) != shrink) continue;
      plan.memory.push_back(MemoryChange{c.job->id, device.id, c.target,
                                         reason_for(c, headroom, !guaranteed.empty())});
    }
  }
  return plan;
}

}  // namespace commensal::node

// SPDX-License-Identifier: Apache-2.0
// The memory arbiter's decision.
#include "coordinator/node/memory_arbiter.h"

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "allocator/base/clock.h"
#include "coordinator/node/memory_exchange.h"

namespace commensal::node {
namespace {

using policies::DeviceView;
using policies::JobView;
using policies::MemoryChange;
using policies::Plan;
using policies::Stage;
using policies::StageChange;

constexpr std::uint64_t kRound = 1U << 20U;  // water levels are whole MiB

Bytes scaled(Bytes bytes, double factor) {
  return Bytes{static_cast<std::uint64_t>(static_cast<double>(bytes.count()) * factor)};
}

struct Candidate {
  const JobView* job = nullptr;
  Bytes floor;   // guaranteed: its floor; opportunistic: its minimum
  Bytes most;    // its maximum, within the device
  Bytes need;    // what it uses or asks for, with its lease; not known: its maximum
  Bytes desire;  // guaranteed: the need with headroom
  Bytes target;
  Stage stage = Stage::kNone;
  std::string stage_reason;
  std::string reason;
  bool by_speed = false;  // divided by measured speeds

  [[nodiscard]] bool guaranteed() const { return job->job_class == JobClass::kGuaranteed; }
  [[nodiscard]] bool parked() const { return stage != Stage::kNone; }
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

/// What a job has wanted, by its lease, wants, or asks for.
Bytes need_of(const JobView& job, TimePoint now) {
  const Bytes leased = now < job.lease.ends ? job.lease.bytes : Bytes{};
  return std::max({leased, job.wanted, job.asked});
}

/// What a guaranteed job should get if there is enough: unchanged while its headroom is between a
/// half and one and a half of the configured one.
Bytes guaranteed_desire(const JobView& job, Bytes need, Bytes floor, Bytes most, Bytes headroom) {
  const auto clamped = [&](Bytes bytes) { return std::clamp(std::max(bytes, floor), floor, most); };
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
  const Bytes need = need_of(job, device.now);
  if (c.guaranteed()) {
    c.desire = guaranteed_desire(job, need, c.floor, c.most, headroom);
    c.need = c.desire;
  } else {
    // One that has told nothing yet may want anything.
    c.need = need.is_zero() ? c.most : std::clamp(need, c.floor, c.most);
  }
  return c;
}

// --- parking and moving -------------------------------------------------------------------------

/// What the floors of guaranteed jobs and what is no managed memory leave.
Bytes left_for_minima(const std::vector<Candidate>& all, Bytes capacity, Bytes reserved) {
  for (const Candidate& c : all) {
    if (c.guaranteed()) capacity = saturating_sub(capacity, c.floor);
  }
  return saturating_sub(capacity, reserved);
}

/// Parks jobs whose minimum does not fit: those that are parked already, then those that are
/// paused, then the largest, then the newest.
void park_for_minima(std::vector<Candidate>& all, Bytes left) {
  std::vector<Candidate*> running;
  Bytes minima;
  for (Candidate& c : all) {
    if (c.guaranteed() || c.floor.is_zero()) continue;
    running.push_back(&c);
    minima += c.floor;
  }
  const auto goes_first = [](const Candidate* a, const Candidate* b) {
    const auto rank = [](const Candidate* c) {
      return std::tuple{c->job->stage != Stage::kNone, c->job->paused, c->floor};
    };
    return rank(a) > rank(b);
  };
  std::reverse(running.begin(), running.end());
  std::stable_sort(running.begin(), running.end(), goes_first);
  for (Candidate* c : running) {
    if (minima <= left) return;
    minima -= c->floor;
    c->stage = Stage::kPark;
    c->stage_reason = "parked: its minimum of " + to_string(c->floor) +
                      " does not fit beside the floors of guaranteed jobs";
  }
}

/// Whether a guaranteed job has not got yet what was decided for it.
bool somebody_waits(const std::vector<Candidate>& all) {
  return std::any_of(all.begin(), all.end(), [](const Candidate& c) {
    Bytes granted;
    for (const policies::RankView& rank : c.job->ranks) granted += rank.limit;
    return c.guaranteed() && granted + Bytes{kRound} < std::max(c.job->limit, c.job->asked);
  });
}

/// Climbs from shrinking to parking to moving as time passes, and down when the cause is gone.
void decide_stages(std::vector<Candidate>& all, const DeviceView& device,
                   const ArbiterConfig& config, Bytes reserved) {
  park_for_minima(all, left_for_minima(all, device.capacity, reserved));
  const bool waits = somebody_waits(all);
  for (Candidate& c : all) {
    if (c.guaranteed()) {
      c.stage_reason = "runs again: it gets its floor as a guaranteed job";  // if it was parked
      continue;
    }
    const JobView& job = *c.job;
    const bool owes = !job.owed.is_zero() && waits;
    const bool was_parked = job.stage != Stage::kNone;
    if (!c.parked() && owes && (was_parked || device.now - job.owed_since >= config.park_after)) {
      c.stage = Stage::kPark;
      c.stage_reason = "parked: did not give back " + to_string(job.owed) + " within " +
                       seconds_text(config.park_after) + ", a guaranteed job waits for it";
    }
    if (!was_parked) continue;
    const Duration parked_for = device.now - job.stage_since;
    if (c.parked() && (job.stage == Stage::kMove || parked_for >= config.move_after)) {
      c.stage = Stage::kMove;
      c.stage_reason += "; the engine is asked to start it elsewhere";
    } else if (!c.parked() && parked_for < config.park_least) {
      c.stage = job.stage;  // a little longer, so that it is not parked and woken in turns
    } else if (!c.parked()) {
      c.stage_reason = "runs again: its memory fits";
    }
  }
}

// --- what opportunistic jobs use ----------------------------------------------------------------

std::vector<Candidate*> choose(std::vector<Candidate>& all,
                               const std::function<bool(const Candidate&)>& wanted) {
  std::vector<Candidate*> chosen;
  for (Candidate& c : all) {
    if (wanted(c)) chosen.push_back(&c);
  }
  return chosen;
}

/// Gives opportunistic jobs what they use. Returns what is left. If that is too little: an even
/// part to each, and those whose speeds are known divide theirs by them.
Bytes give_needs(const std::vector<Candidate*>& active, Bytes left, Bytes step, bool may_exchange) {
  Bytes missing;
  for (const Candidate* c : active) missing += saturating_sub(c->need, c->target);
  const bool contended = missing > left;
  std::vector<Bytes> minima;
  minima.reserve(active.size());
  for (const Candidate* c : active) minima.push_back(c->target);
  left = pour(active, left, [](const Candidate& c) { return c.need; });
  if (!contended) return left;
  std::vector<Contender> contenders;
  Bytes amount = left;
  for (std::size_t i = 0; i < active.size(); ++i) {
    const Candidate& c = *active[i];
    if (c.need < c.most && c.target < c.need && c.target > c.floor) {
      active[i]->reason = "opportunistic: an even part, more is used than there is";
    }
    if (c.job->speeds.empty()) continue;
    contenders.push_back(Contender{c.job, minima[i], c.need, Bytes{}, ""});
    amount += c.target;
  }
  if (contenders.size() < 2) return left;
  left = amount - divide_by_gain(contenders, amount, step, may_exchange);
  for (const Contender& contender : contenders) {
    Candidate& c = **std::find_if(active.begin(), active.end(), [&](const Candidate* other) {
      return other->job == contender.job;
    });
    c.target = contender.target;
    c.reason = contender.reason;
    c.by_speed = true;
  }
  return left;
}

/// Undoes small moves, for all jobs or, if the device cannot hold them, for none.
void keep_small_moves(std::vector<Candidate>& all, Bytes capacity, double hysteresis) {
  std::vector<Bytes> kept;
  Bytes sum;
  Bytes planned;
  for (const Candidate& c : all) {
    const Bytes now = c.job->limit;
    const Bytes larger = std::max(now, c.target);
    const Bytes smaller = std::min(now, c.target);
    const bool small = !now.is_zero() && larger - smaller <= scaled(now, hysteresis);
    const bool allowed = !c.parked() && now >= c.floor && now <= c.most && c.job->asked <= now &&
                         (!c.guaranteed() || now >= std::min(c.target, c.desire));
    // What was decided by measured speed is meant, however small.
    kept.push_back(small && allowed && !c.by_speed ? now : c.target);
    sum += kept.back();
    planned += c.target;
  }
  if (sum > std::max(capacity, planned)) return;
  for (std::size_t i = 0; i < all.size(); ++i) all[i].target = kept[i];
}

std::string reason_for(const Candidate& c, const DeviceView& device, Bytes headroom,
                       bool contended) {
  const JobView& job = *c.job;
  if (c.guaranteed()) {
    if (c.target < c.desire) return "guaranteed; the device is full: wants " + to_string(c.desire);
    if (c.target == c.floor && c.target == c.most) return "guaranteed: its floor and maximum";
    if (c.target == c.floor) return "guaranteed: its floor";
    if (c.target == c.most) return "guaranteed: its maximum";
    if (c.target > c.desire) return "guaranteed: nobody else can use it";
    const Bytes now = std::max(job.wanted, job.asked);
    const Bytes need = need_of(job, device.now);
    const std::string lease =
        need > now ? " within " + seconds_text(job.lease.term) + ", its lease" : "";
    return "guaranteed: " + std::string{need > now ? "wanted " : "wants "} + to_string(need) +
           lease + ", headroom " + to_string(headroom);
  }
  if (c.parked()) return c.stage_reason.empty() ? "parked" : c.stage_reason;
  if (c.target == c.most) return "opportunistic: its maximum fits";
  if (c.job->paused && c.target < c.need) {
    return "opportunistic: paused, others use its memory meanwhile";
  }
  if (!c.reason.empty()) return c.reason;
  if (c.target == c.floor) return "opportunistic: its minimum, the device is full";
  if (!device.claimed.is_zero()) {
    return "opportunistic: what a guaranteed job that is to come leaves";
  }
  return contended ? "opportunistic: what guaranteed jobs leave" : "opportunistic: an even part";
}

}  // namespace

Plan decide_memory(const DeviceView& device, const ArbiterConfig& config) {
  const Bytes headroom = scaled(device.capacity, config.headroom);
  Bytes reserved = device.outside;
  std::vector<Candidate> all;
  for (const JobView& job : device.jobs) {
    all.push_back(candidate(job, device, headroom));
    reserved += job.unmanaged;
  }
  decide_stages(all, device, config, reserved);
  const auto guaranteed = choose(all, [](const Candidate& c) { return c.guaranteed(); });
  const auto running =
      choose(all, [](const Candidate& c) { return !c.guaranteed() && !c.parked(); });
  const auto active = choose(
      all, [](const Candidate& c) { return !c.guaranteed() && !c.parked() && !c.job->paused; });
  const auto paused = choose(
      all, [](const Candidate& c) { return !c.guaranteed() && !c.parked() && c.job->paused; });

  const auto floor = [](const Candidate& c) { return c.floor; };
  const auto desire = [](const Candidate& c) { return c.desire; };
  const auto most = [](const Candidate& c) { return c.most; };
  const auto need = [](const Candidate& c) { return c.need; };
  Bytes left = saturating_sub(pour(guaranteed, device.capacity, floor), reserved);
  left = pour(running, left, floor);
  left = pour(guaranteed, left, desire);
  const Bytes step = std::max(
      Bytes{kRound}, Bytes{scaled(device.capacity, config.exchange).count() / kRound * kRound});
  // For who is to come opportunistic jobs shrink to their minima; nobody is parked for it.
  left = saturating_sub(left, device.claimed);
  left = give_needs(active, left, step, guaranteed.empty() && config.exchange > 0);
  left = pour(paused, left, need);
  left = pour(running, left, most);
  pour(guaranteed, left, most);
  keep_small_moves(all, saturating_sub(device.capacity, reserved + device.claimed),
                   config.hysteresis);

  Plan plan;
  for (const bool shrink : {true, false}) {
    for (const Candidate& c : all) {
      if (c.target == c.job->limit || (c.target < c.job->limit) != shrink) continue;
      plan.memory.push_back(MemoryChange{c.job->id, device.id, c.target,
                                         reason_for(c, device, headroom, !guaranteed.empty())});
    }
  }
  for (const Candidate& c : all) {
    if (c.stage != c.job->stage) {
      plan.stages.push_back(StageChange{c.job->id, device.id, c.stage, c.stage_reason});
    }
  }
  return plan;
}

}  // namespace commensal::node

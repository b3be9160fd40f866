// SPDX-License-Identifier: Apache-2.0
// Topology from /sys, need from thread clocks, and the decision.
#include "coordinator/node/core_share.h"

#include <algorithm>
#include <cmath>

#include "allocator/base/clock.h"
#include "coordinator/node/kernel_files.h"
#include "coordinator/node/percent.h"

namespace commensal::node {
namespace {

using wire::CoreSet;

std::optional<CoreSet> allowed_of(const std::string& process, const HostRoots& roots) {
  const auto list =
      value_of(read_file(roots.proc / process / "status").value_or(""), "Cpus_allowed_list:");
  return list ? CoreSet::parse(*list) : std::nullopt;
}

/// The physical cores that are left when each guaranteed job has what it needs: those who may use
/// few choose first, from the lowest number on.
CoreTopology cores_left(const CoreShareInput& input, const CoreTopology& machine) {
  std::vector<const CoreShareInput::Guaranteed*> order;
  order.reserve(input.guaranteed.size());
  for (const auto& job : input.guaranteed) order.push_back(&job);
  const auto choices = [](const auto* job) {
    return job->allowed.empty() ? CoreSet::kMost : job->allowed.count();
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto* a, const auto* b) { return choices(a) < choices(b); });
  CoreTopology left = machine;
  for (const auto* job : order) {
    unsigned need = job->need->most;
    std::erase_if(left, [&](const CoreSet& core) {
      const bool fits = job->allowed.empty() || !(core & job->allowed).empty();
      if (need == 0 || !fits) return false;
      --need;
      return true;
    });
  }
  return left;
}

CoreSet all_of(const CoreTopology& cores) {
  CoreSet all;
  for (const CoreSet& core : cores) all = all | core;
  return all;
}

/// Of the guaranteed jobs that suffer beyond doubt the one that suffers most; null: none does.
const CoreShareInput::Guaranteed* sufferer(const CoreShareInput& input) {
  const CoreShareInput::Guaranteed* worst = nullptr;
  for (const auto& job : input.guaranteed) {
    if (!job.slowdown || job.slowdown->certain() <= job.slo) continue;
    if (worst == nullptr || job.slowdown->value > worst->slowdown->value) worst = &job;
  }
  return worst;
}

/// Why cores cannot be divided at all; empty: they can.
std::string obstacle(const CoreShareInput& input, const CoreTopology& machine) {
  if (input.guaranteed.empty()) return "no guaranteed job on the device";
  if (!input.opportunistic) return "no opportunistic job on the device";
  const auto cpus = static_cast<double>(all_of(machine).count());
  if (machine.empty()) return "the machine's CPUs are not known, or more than a page can name";
  if (machine.size() < 2) return "one core: there is nothing to divide";
  if (input.cores < cpus - 0.01) return "a CPU quota, not CPUs, bounds the device";
  for (const auto& job : input.guaranteed) {
    if (!job.need) return "the clocks of " + job.name + "'s threads are not known yet";
  }
  return "";
}

}  // namespace

std::optional<CoreSet> read_allowed(std::int64_t pid, const HostRoots& roots) {
  return allowed_of(std::to_string(pid), roots);
}

CoreTopology read_topology(const HostRoots& roots) {
  const CoreSet usable = allowed_of("self", roots).value_or(CoreSet{});
  CoreTopology cores;
  CoreSet placed;
  for (const std::size_t cpu : usable.cpus()) {
    if (placed.has(cpu)) continue;
    const auto siblings =
        CoreSet::parse(read_file(roots.sys / "devices/system/cpu" / ("cpu" + std::to_string(cpu)) /
                                 "topology/thread_siblings_list")
                           .value_or(""));
    CoreSet core = siblings.value_or(CoreSet{}) & usable;
    if (!core.has(cpu) || !(core & placed).empty()) {
      core = CoreSet{};
      core.add(cpu);
    }
    placed = placed | core;
    cores.push_back(core);
  }
  return cores;
}

void CoreNeed::note(TimePoint now, const ThreadTimes& threads) {
  if (last_ != TimePoint{} && now - last_ < kShortestLook) return;
  if (last_ != TimePoint{}) {
    const double length = in_seconds(now - last_);
    unsigned running = 0;
    double rest = 0.0;
    for (const auto& [tid, time] : threads) {
      const auto known = before_.find(tid);
      Duration from = known == before_.end() ? Duration{} : known->second.run;
      if (time.run < from) from = {};  // its id was used again
      const double part = std::min(1.0, in_seconds(time.run - from) / length);
      if (part >= kRuns) ++running;
      if (part < kRuns) rest += part;
    }
    looks_.push_back({now, running + static_cast<unsigned>(rest)});
    while (looks_.front().at < now - kWindow) looks_.pop_front();
  } else {
    began_ = now;
  }
  before_ = threads;
  last_ = now;
}

std::optional<CoreNeed::Seen> CoreNeed::seen() const {
  if (looks_.empty()) return std::nullopt;
  Seen seen{looks_.back().cores, 0, last_ - began_ >= kWindow};
  for (const Look& look : looks_) seen.most = std::max(seen.most, look.cores);
  return seen;
}

CoreShareDecision decide_cores(const CoreShareInput& input, const CoreShareState& state,
                               const CoreTopology& machine) {
  CoreShareDecision decision{state, ""};
  CoreShareState& next = decision.state;
  const auto release = [&](std::string reason) {
    next.cores = CoreSet{};
    decision.reason = "all cores: " + std::move(reason);
    return decision;
  };
  if (std::string why = obstacle(input, machine); !why.empty()) {
    next.in_way = TimePoint{};
    return release(std::move(why));
  }
  const auto* suffers = sufferer(input);
  const CoreTopology left = cores_left(input, machine);
  const std::string of = std::to_string(machine.size()) + " cores";
  if (left.empty()) return release("guaranteed jobs may be on each of " + of + " at once");
  const auto keep_to_what_is_left = [&] {
    next.cores = all_of(left);
    decision.reason = "CPUs " + next.cores.to_string() + ": guaranteed jobs leave " +
                      std::to_string(left.size()) + " of " + of;
  };
  if (!state.cores.empty()) {
    const bool tried = input.now - state.since >= kTrial && suffers != nullptr &&
                       suffers->by_waiting == state.by_waiting;
    if (tried && suffers->slowdown->value > kHelped * state.suffered) {
      next.not_before = input.now + kGivenUp;
      return release("keeping to fewer did not help " + suffers->name + " (" +
                     percent(state.suffered) + " before, " + percent(suffers->slowdown->value) +
                     " now)");
    }
    keep_to_what_is_left();
    return decision;
  }
  if (suffers != nullptr) {
    next.in_way = input.now;
    next.who = suffers->name;
    next.suffered = suffers->slowdown->value;
    next.by_waiting = suffers->by_waiting;
  }
  for (const auto& job : input.guaranteed) {
    if (!job.need->whole) return release(job.name + " was not watched for 10 s yet");
  }
  if (input.now < state.not_before) return release("keeping to fewer did not help a while ago");
  if (next.in_way == TimePoint{} || input.now - next.in_way > kStillInWay) {
    return release("no guaranteed job suffers");
  }
  next.since = input.now;
  keep_to_what_is_left();
  decision.reason +=
      next.by_waiting
          ? ", and " + next.who + " lost " + percent(next.suffered) + " to waiting for them"
          : ", and " + next.who + " was " + percent(next.suffered) + " over its baseline";
  return decision;
}

}  // namespace commensal::node

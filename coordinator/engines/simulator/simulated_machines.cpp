// SPDX-License-Identifier: Apache-2.0
// Work that is left, speeds, ends.
#include "coordinator/engines/simulator/simulated_machines.h"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace commensal::simulator {

using cluster::Attempt;
using cluster::EngineEvent;
using cluster::EngineNode;

namespace {

constexpr int kTerminated = 128 + 15;
constexpr int kKilled = 128 + 9;

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

/// Rounded up, so that at that time the work is done; what no clock can tell is never.
TimePoint after(TimePoint from, double wait) {
  const double left = seconds(TimePoint::max() - from);
  if (!(wait < left)) return TimePoint::max();
  return from + Duration{static_cast<Duration::rep>(std::ceil(wait * 1e9))};
}

TimePoint after(TimePoint from, Duration wait) {
  return wait > TimePoint::max() - from ? TimePoint::max() : from + wait;
}

}  // namespace

SimulatedRun declared_run(const Attempt& /*attempt*/, const cluster::JobSpec& spec) {
  SimulatedRun run;
  if (spec.time_limit) run.work = *spec.time_limit;
  return run;
}

SimulatedMachines::SimulatedMachines(const Clock& clock, Options options)
    : clock_(clock),
      options_(std::move(options)),
      at_(clock.now()),
      news_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!news_) throw std::system_error(errno, std::generic_category(), "eventfd");
  std::set<std::string> names;
  for (const EngineNode& node : options_.nodes) {
    if (names.insert(node.name).second) continue;
    throw std::invalid_argument(fmt::format("two simulated nodes are named \"{}\"", node.name));
  }
  if (options_.sharing.sharing == Sharing::kPairs) {
    throw std::invalid_argument("simulated machines do not know models in pairs");
  }
}

void SimulatedMachines::tell() {
  // It can fail only when 2^64 - 2 events were not taken.
  (void)::eventfd_write(news_.get(), 1);
}

void SimulatedMachines::told() {
  eventfd_t ignored = 0;
  (void)::eventfd_read(news_.get(), &ignored);  // there may be none
}

SimulatedMachines::Known* SimulatedMachines::find(const Attempt& attempt) {
  const auto found = attempts_.find(attempt);
  return found == attempts_.end() ? nullptr : &found->second;
}

const EngineNode* SimulatedMachines::node(const std::string& name) const {
  const auto found = std::find_if(options_.nodes.begin(), options_.nodes.end(),
                                  [&](const EngineNode& node) { return node.name == name; });
  return found == options_.nodes.end() ? nullptr : &*found;
}

EngineNode& SimulatedMachines::node_named(const std::string& name) {
  for (EngineNode& node : options_.nodes) {
    if (node.name == name) return node;
  }
  throw std::invalid_argument(fmt::format("no simulated node is named \"{}\"", name));
}

int SimulatedMachines::starts(const Attempt& attempt) const {
  const auto found = starts_.find(attempt);
  return found == starts_.end() ? 0 : found->second;
}

void SimulatedMachines::add(const Attempt& attempt, const cluster::JobSpec& spec) {
  Known known;
  known.spec = spec;
  known.run = options_.run_of(attempt, spec);
  if (known.run.work) known.left = std::max(0.0, seconds(*known.run.work));
  attempts_.try_emplace(attempt, std::move(known));
}

void SimulatedMachines::begin(const Attempt& attempt) {
  pass();
  Known& known = attempts_.at(attempt);
  known.released = true;
  for (const cluster::DevicePlace& place : known.placement) {
    const EngineNode* on = node(place.node);
    if (on != nullptr && on->up) continue;
    end(attempt, known, Kind::kVanished, std::nullopt,
        fmt::format("node {} is down: {}", place.node, on == nullptr ? "it is gone" : on->reason));
    return;
  }
  known.began = EngineEvent{attempt, Kind::kBegan, std::nullopt, "it runs in simulated time"};
  known.began_as = ++events_;
  ++starts_[attempt];
  set_speeds();
  tell();
}

void SimulatedMachines::ask_to_end(const Attempt& attempt, Duration grace) {
  pass();
  Known& known = attempts_.at(attempt);
  if (!known.runs()) return;
  const auto& wish = known.run.after_sigterm;
  const bool killed = !wish || *wish > grace;
  const TimePoint at = after(at_, killed ? grace : *wish);
  if (at >= known.killed) return;  // an earlier word leaves less time
  known.killed = at;
  known.killed_code = killed ? kKilled : kTerminated;
  pass();
}

void SimulatedMachines::lose(const Attempt& attempt) {
  pass();
  Known& known = attempts_.at(attempt);
  if (!known.runs()) return;
  end(attempt, known, Kind::kVanished, std::nullopt, "nobody knows what became of it");
  set_speeds();
}

void SimulatedMachines::take_down(const std::string& name, const std::string& reason) {
  pass();
  EngineNode& down = node_named(name);
  down.up = false;
  down.reason = reason;
  for (auto& [attempt, known] : attempts_) {
    const bool there = std::any_of(known.placement.begin(), known.placement.end(),
                                   [&](const auto& place) { return place.node == name; });
    if (!there || !known.runs()) continue;
    end(attempt, known, Kind::kVanished, std::nullopt,
        fmt::format("its node {} went down: {}", name, reason));
  }
  set_speeds();
}

void SimulatedMachines::bring_up(const std::string& name) {
  pass();
  EngineNode& up = node_named(name);
  up.up = true;
  up.reason.clear();
}

bool SimulatedMachines::set_class(const Attempt& attempt, JobClass job_class) {
  pass();
  Known* known = find(attempt);
  if (known == nullptr || !known->runs()) return false;
  known->job_class = job_class;
  set_speeds();
  return true;
}

void SimulatedMachines::end(const Attempt& attempt, Known& known, Kind kind,
                            std::optional<int> exit_code, std::string reason) {
  known.ended = EngineEvent{attempt, kind, exit_code, std::move(reason)};
  known.ended_as = ++events_;
  tell();
}

TimePoint SimulatedMachines::next_due() const {
  TimePoint next = TimePoint::max();
  for (const auto& [attempt, known] : attempts_) {
    if (known.runs()) next = std::min({next, known.ends, known.killed});
  }
  return next;
}

TimePoint SimulatedMachines::next_change() {
  pass();
  return next_due();
}

void SimulatedMachines::pass() {
  const TimePoint now = clock_.now();
  for (TimePoint due = next_due(); due <= now && due < TimePoint::max(); due = next_due()) {
    run_until(due);
    for (auto& [attempt, known] : attempts_) {
      if (!known.runs()) continue;
      if (known.ends <= due) {
        const int code = known.run.exit_code;
        end(attempt, known, Kind::kExited, code, fmt::format("its ranks ended with {}", code));
      } else if (known.killed <= due) {
        end(attempt, known, Kind::kTakenBack, known.killed_code,
            known.killed_code == kKilled ? "taken back: killed" : "taken back");
      }
    }
    set_speeds();
  }
  run_until(now);
}

void SimulatedMachines::run_until(TimePoint now) {
  const double passed = seconds(elapsed(at_, now));
  at_ = std::max(at_, now);
  for (auto& [attempt, known] : attempts_) {
    if (known.runs()) known.left = std::max(0.0, known.left - passed * known.speed);
  }
}

/// Called where who runs has changed, at `at_`.
void SimulatedMachines::set_speeds() {
  struct Users {
    double guaranteed_busy = 0;
    std::vector<double> others;
  };
  const double busy = options_.sharing.busy;
  std::map<std::pair<std::string, std::int32_t>, Users> devices;
  for (const auto& [attempt, known] : attempts_) {
    if (!known.runs()) continue;
    for (const cluster::DevicePlace& place : known.placement) {
      if (place.device < 0) continue;
      Users& users = devices[{place.node, place.device}];
      if (known.job_class == JobClass::kGuaranteed) {
        users.guaranteed_busy += busy;
      } else {
        users.others.push_back(busy);
      }
    }
  }
  for (auto& [attempt, known] : attempts_) {
    if (!known.runs()) continue;
    double speed = 1;
    for (const cluster::DevicePlace& place : known.placement) {
      if (place.device < 0) continue;
      const Users& users = devices[{place.node, place.device}];
      const SharingSpeeds speeds =
          speeds_on_gpu(options_.sharing, users.guaranteed_busy, users.others);
      speed = std::min(speed, known.job_class == JobClass::kGuaranteed ? speeds.guaranteed
                                                                       : speeds.opportunistic);
    }
    if (!known.run.work) continue;
    const bool same = known.ends != TimePoint::max() && known.speed == speed;
    known.speed = speed;
    // An end is not counted anew without need: it would drift by the roundings.
    if (!same) known.ends = speed > 0 ? after(at_, known.left / speed) : TimePoint::max();
  }
}

void SimulatedClasses::change(const cluster::JobRecord& job, JobClass job_class) {
  Outcome outcome{
      {job.id, job.attempt}, machines_.set_class({job.id, job.attempt}, job_class), "", job_class};
  outcome.reason = outcome.changed ? "its simulated node has changed its class"
                                   : "it does not run on a simulated node";
  machines_.tell();
  outcomes_.push_back(std::move(outcome));
}

std::vector<cluster::ClassChanger::Outcome> SimulatedClasses::outcomes() {
  return std::exchange(outcomes_, {});
}

}  // namespace commensal::simulator

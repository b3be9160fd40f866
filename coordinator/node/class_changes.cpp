// SPDX-License-Identifier: Apache-2.0
// The steps of a change: memory, the class on all devices, the answers of all processes.
#include "coordinator/node/class_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace commensal::node {
namespace {

using Devices = std::vector<DeviceCoordinator*>;

JobClass class_of(const JobId& job, const Devices& devices) {
  return devices.front()->table().find(job)->job_class;
}

/// What an upgrade waits for; empty: it has its floor everywhere.
std::string lacking(const JobId& job, const Devices& devices) {
  std::string text;
  for (const DeviceCoordinator* const device : devices) {
    const Bytes lacks = device->floor_lacks(job);
    if (lacks.is_zero()) continue;
    const Bytes floor = std::as_const(*device).table().find(job)->memory_bounds().min;
    text += (text.empty() ? "" : "; ") + std::string{"waits for "} + to_string(lacks) +
            " of its floor of " + to_string(floor) + " on " + device->device().id +
            ", which other jobs give back first";
  }
  return text;
}

/// What the new class means beside a guaranteed job that is there already.
std::string beside_others(const JobId& job, const Devices& devices) {
  for (const DeviceCoordinator* const device : devices) {
    for (const Job& other : std::as_const(*device).table().jobs()) {
      if (other.id == job || other.job_class != JobClass::kGuaranteed) continue;
      return "; beside another guaranteed job, '" + other.name +
             "': these two do not yield to each other";
    }
  }
  return "";
}

}  // namespace

void ClassChanges::reply(const JobId& job, Underway& change, const Devices& devices,
                         wire::Outcome outcome, const std::string& reason) {
  Revision revision = 0;
  for (const DeviceCoordinator* const device : devices) {
    revision = std::max(revision, std::as_const(*device).table().find(job)->revision);
  }
  for (const PeerId& peer : std::exchange(change.asked, {})) {
    outgoing_.push_back({peer, wire::SetReply{job.str(), revision, outcome, reason}});
  }
}

// Nothing of the older change is left: a floor that was kept is free, the class is changed anew.
void ClassChanges::withdraw(const JobId& job, const Devices& devices, TimePoint now) {
  const auto older = underway_.find(job);
  if (older == underway_.end()) return;
  for (DeviceCoordinator* const device : devices) device->cancel_upgrade(job, now);
  reply(job, older->second, devices, wire::Outcome::kRefused,
        "a newer change of its class was asked for");
  underway_.erase(older);
}

// The same change again: who asks hears what the first one hears.
bool ClassChanges::join(const PeerId& peer, const JobId& job, const wire::SetRequest& message,
                        const Devices& devices, TimePoint now) {
  const auto same = underway_.find(job);
  if (same == underway_.end()) return false;
  Underway& change = same->second;
  if (change.message.job_class != message.job_class) return false;
  const bool has_terms = !wire::is_empty(wire::class_terms(message.terms));
  if (change.stage == Stage::kMemory && has_terms) {
    for (DeviceCoordinator* const device : devices) device->begin_upgrade(job, message, now);
    change.message = message;
  }
  if (change.asked.empty()) change.since = now;
  change.asked.push_back(peer);
  if (advance(job, change, devices, now)) underway_.erase(same);
  return true;
}

void ClassChanges::ask(const PeerId& peer, const JobId& job, const wire::SetRequest& message,
                       const DevicesOf& devices_of, TimePoint now) {
  const Devices devices = devices_of(job);
  if (join(peer, job, message, devices, now)) return;
  withdraw(job, devices, now);
  Underway change{message, Stage::kMemory, {peer}, now, "", ""};
  if (class_of(job, devices) == *message.job_class) {
    reply(job, change, devices, wire::Outcome::kApplied,
          "it is " + std::string{to_string(*message.job_class)});
    return;
  }
  if (message.job_class == JobClass::kGuaranteed) {
    for (DeviceCoordinator* const device : devices) device->begin_upgrade(job, message, now);
  } else {
    begin_telling(job, change, devices, now);
  }
  if (!advance(job, change, devices, now)) underway_.emplace(job, std::move(change));
}

void ClassChanges::begin_telling(const JobId& job, Underway& change, const Devices& devices,
                                 TimePoint now) {
  change.stage = Stage::kTelling;
  change.done.clear();
  for (DeviceCoordinator* const device : devices) {
    std::string done = device->set_class(job, change.message, now);
    if (devices.size() > 1) done = fmt::format("{}: {}", device->device().id, done);
    if (!change.done.empty()) change.done += "; ";
    change.done += done;
  }
  if (change.message.job_class == JobClass::kGuaranteed) {
    change.done += beside_others(job, devices);
  }
}

void ClassChanges::defer(const JobId& job, Underway& change, const Devices& devices,
                         TimePoint now) {
  if (now - change.since >= kPatience)
    reply(job, change, devices, wire::Outcome::kDeferred, change.reason);
}

bool ClassChanges::advance(const JobId& job, Underway& change, const Devices& devices,
                           TimePoint now) {
  if (change.stage == Stage::kMemory) {
    change.reason = lacking(job, devices);
    if (!change.reason.empty()) {
      defer(job, change, devices, now);
      return false;
    }
    begin_telling(job, change, devices, now);
  }
  return hear_answers(job, change, devices, now);
}

bool ClassChanges::hear_answers(const JobId& job, Underway& change, const Devices& devices,
                                TimePoint now) {
  std::string problem;
  std::string open;
  for (DeviceCoordinator* const device : devices) {
    device->retell_class(job, now);
    const DeviceCoordinator::ClassAnswers answers = device->class_answers(job);
    if (problem.empty()) problem = answers.problem;
    for (const std::int64_t pid : answers.open) {
      open += (open.empty() ? "" : ", ") + std::to_string(pid);
    }
  }
  if (change.stage == Stage::kTelling && !problem.empty()) {
    for (DeviceCoordinator* const device : devices) {
      device->undo_class(job, "taken back: " + problem, now);
    }
    reply(job, change, devices, wire::Outcome::kRefused, problem);
    change.stage = Stage::kUndoing;
    change.message.job_class = class_of(job, devices);
    change.done = "it is " + std::string{to_string(*change.message.job_class)};
    change.reason = "takes it back: " + problem;
    return false;  // all have just been told
  }
  if (!open.empty()) {
    if (change.stage == Stage::kTelling) change.reason = "waits for an answer of process " + open;
    defer(job, change, devices, now);
    return false;
  }
  for (DeviceCoordinator* const device : devices) device->settle_class(job, now);
  reply(job, change, devices, wire::Outcome::kApplied, change.done);
  return true;
}

void ClassChanges::update(const DevicesOf& devices_of, TimePoint now) {
  for (auto at = underway_.begin(); at != underway_.end();) {
    const Devices devices = devices_of(at->first);
    bool over = devices.empty();
    if (over) {
      reply(at->first, at->second, devices, wire::Outcome::kRefused, "the job has ended");
    } else {
      over = advance(at->first, at->second, devices, now);
    }
    at = over ? underway_.erase(at) : std::next(at);
  }
}

std::vector<Outgoing> ClassChanges::take_outgoing() { return std::exchange(outgoing_, {}); }

nlohmann::json ClassChanges::status(const JobId& job) const {
  const auto found = underway_.find(job);
  if (found == underway_.end()) return nullptr;
  const Underway& change = found->second;
  const char* const waits_for = change.stage == Stage::kMemory ? "memory" : "processes";
  return {{"wanted", to_string(*change.message.job_class)},
          {"waits_for", waits_for},
          {"reason", change.reason}};
}

}  // namespace commensal::node

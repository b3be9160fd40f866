// SPDX-License-Identifier: Apache-2.0
// Calls of the coordinator to simulated machines.
#include "coordinator/engines/simulator/simulator_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "coordinator/cluster/job_number.h"

namespace commensal::simulator {

using cluster::Attempt;
using cluster::DevicePlace;
using cluster::EngineEvent;
using cluster::EngineFailed;
using cluster::EngineNode;

namespace {

std::string words_for(const Attempt& attempt) {
  return fmt::format("attempt {} of job {}", attempt.number, attempt.job.str());
}

}  // namespace

std::vector<EngineNode> SimulatorEngine::nodes() { return machines_.nodes(); }

void SimulatorEngine::hold(const Attempt& attempt, const cluster::JobSpec& spec) {
  if (spec.command.empty()) {
    throw std::invalid_argument(fmt::format("{} has no command", words_for(attempt)));
  }
  if (!spec.directory.starts_with('/')) {
    throw std::invalid_argument(
        fmt::format("the folder of {} is not absolute: '{}'", words_for(attempt), spec.directory));
  }
  if (machines_.find(attempt) == nullptr) machines_.add(attempt, spec);
}

void SimulatorEngine::place(const Attempt& attempt, const std::vector<DevicePlace>& placement,
                            JobClass job_class) {
  SimulatedMachines::Known* held = machines_.find(attempt);
  if (held == nullptr) throw EngineFailed(words_for(attempt) + " is not held");
  if (placement.empty()) throw EngineFailed(words_for(attempt) + " was given no device");
  for (const DevicePlace& place : placement) {
    const EngineNode* node = machines_.node(place.node);
    if (node == nullptr) {
      throw EngineFailed(fmt::format("there is no simulated node \"{}\"", place.node));
    }
    if (place.device < -1 || place.device >= static_cast<std::int32_t>(node->devices.size())) {
      throw EngineFailed(fmt::format("node {} has {} devices and no number {}", node->name,
                                     node->devices.size(), place.device));
    }
  }
  if (held->released) return;
  held->placement = placement;
  held->job_class = job_class;
}

void SimulatorEngine::release(const Attempt& attempt) {
  const SimulatedMachines::Known* placed = machines_.find(attempt);
  if (placed == nullptr || placed->placement.empty()) {
    throw EngineFailed(words_for(attempt) + " is not placed");
  }
  if (!placed->released) machines_.begin(attempt);
}

void SimulatorEngine::take_back(const Attempt& attempt, std::chrono::milliseconds grace) {
  const SimulatedMachines::Known* found = machines_.find(attempt);
  if (found == nullptr) return;
  if (!found->released) {
    machines_.forget(attempt);
  } else {
    machines_.ask_to_end(attempt, grace);
  }
}

std::vector<EngineEvent> SimulatorEngine::watch() {
  machines_.pass();
  machines_.told();
  std::vector<std::pair<std::uint64_t, EngineEvent>> news;
  for (const auto& [attempt, known] : machines_.attempts()) {
    if (known.began && began_.insert(attempt).second) {
      news.emplace_back(known.began_as, *known.began);
    }
    if (known.ended && ended_.insert(attempt).second) {
      news.emplace_back(known.ended_as, *known.ended);
    }
  }
  std::sort(news.begin(), news.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<EngineEvent> events;
  events.reserve(news.size());
  for (auto& [number, event] : news) events.push_back(std::move(event));
  return events;
}

std::vector<cluster::Engine::Found> SimulatorEngine::adopt() {
  machines_.pass();
  std::vector<Found> all;
  for (const auto& [attempt, known] : machines_.attempts()) {
    if (known.ended) continue;
    all.push_back({attempt, known.runs(), known.placement, known.job_class});
  }
  return all;
}

std::vector<Attempt> SimulatorEngine::attempts() {
  std::vector<Attempt> all;
  for (const auto& entry : machines_.attempts()) all.push_back(entry.first);
  return all;
}

std::uint64_t SimulatorEngine::highest_job() {
  std::uint64_t highest = 0;
  for (const auto& [attempt, known] : machines_.attempts()) {
    highest = std::max(highest, cluster::job_number(attempt.job));
  }
  return highest;
}

void SimulatorEngine::forget(const Attempt& attempt) {
  const SimulatedMachines::Known* found = machines_.find(attempt);
  if (found == nullptr || !found->ended) return;
  machines_.forget(attempt);
  began_.erase(attempt);
  ended_.erase(attempt);
}

}  // namespace commensal::simulator

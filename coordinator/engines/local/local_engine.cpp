// SPDX-License-Identifier: Apache-2.0
// Calls of the coordinator to notes in folders, and back.
#include "coordinator/engines/local/local_engine.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "coordinator/engines/local/job_check.h"
#include "coordinator/engines/local/keeper_start.h"
#include "coordinator/engines/local/limit_groups.h"
#include "coordinator/engines/local/rank_environment.h"
#include "coordinator/node/host_device.h"
#include "coordinator/wire/paths.h"

namespace commensal::cluster {
namespace {

namespace fs = std::filesystem;
using local::AttemptFolder;
using local::BadNote;
using local::FolderLock;
using local::Outcome;
using Kind = EngineEvent::Kind;
using std::chrono::milliseconds;

std::string words_for(const Attempt& attempt) {
  return "job " + attempt.job.str() + ", attempt " + std::to_string(attempt.number);
}

/// Calls `work`; what goes wrong with files and processes becomes EngineFailed.
template <typename Work>
auto guarded(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::system_error& error) {
    throw EngineFailed(error.what());
  } catch (const BadNote& error) {
    throw EngineFailed(error.what());
  }
}

std::string host_name() {
  std::string name(256, '\0');
  if (::gethostname(name.data(), name.size() - 1) != 0) {
    throw EngineFailed("cannot read the name of this machine: " +
                       std::generic_category().message(errno));
  }
  name.resize(name.find('\0'));
  return name;
}

void make_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    throw std::system_error(errno, std::generic_category(),
                            "cannot make the folder " + path.native());
  }
}

Outcome outcome_of(const AttemptFolder& folder) {
  try {
    return folder.outcome().value_or(Outcome{Kind::kVanished, std::nullopt, "no outcome was left"});
  } catch (const BadNote& error) {
    return {Kind::kVanished, std::nullopt, error.what()};
  }
}

/// Ends an attempt whose ranks were never started. @return false if a keeper has it.
bool end_unstarted(const AttemptFolder& folder, const Outcome& outcome) {
  const auto lock = FolderLock::try_take(folder);
  if (!lock) return false;
  if (!folder.has_begun() && !folder.has_ended()) folder.set(outcome);
  return true;
}

/// Makes the keeper look for the note that its attempt was taken back. One that has not left its
/// name yet looks for it after that.
void tell_keeper(const AttemptFolder& folder) {
  const auto keeper = folder.keeper();
  if (!keeper) return;
  const wire::UniqueFd pidfd = local::open_process(keeper->process);
  if (pidfd) (void)local::send_signal(pidfd.get(), SIGTERM);
}

std::vector<fs::path> groups_of(const local::KeeperNote& keeper) {
  return {keeper.groups.begin(), keeper.groups.end()};
}

/// Removes what a keeper left that was killed; those it killed then are gone by now.
void remove_left_groups(const AttemptFolder& folder) {
  try {
    const auto keeper = folder.keeper();
    if (keeper) local::remove_groups(node::kernel_group_files(), groups_of(*keeper));
  } catch (const BadNote&) {
    return;  // nobody knows which; they are empty and do nothing
  }
}

bool end_taken_back(const AttemptFolder& folder) {
  return end_unstarted(folder, {Kind::kTakenBack, std::nullopt, "taken back before it began"});
}

}  // namespace

EngineNode this_machine(std::vector<std::string> devices, std::string device_type) {
  EngineNode node;
  node.name = host_name();
  node.devices = std::move(devices);
  if (node.devices.empty()) node.devices.emplace_back("host");
  node.device_type = std::move(device_type);
  try {
    const node::HostFacts facts = node::read_host_facts();
    node.cpu_milli = static_cast<std::int64_t>(facts.cores * 1000);
    node.memory_mib = static_cast<std::int64_t>(facts.total.count() >> 20U);
  } catch (const std::runtime_error& error) {
    throw EngineFailed(error.what());
  }
  return node;
}

LocalEngine::LocalEngine(Options options) try : options_(std::move(options)) {
  options_.state = fs::absolute(options_.state);
  options_.keeper = fs::absolute(options_.keeper);
  wire::prepare_private_dir(options_.state, "state folder");
  make_folder(options_.state / "jobs");
  make_folder(options_.state / "logs");
  if (!options_.nodes) options_.nodes = [] { return std::vector{this_machine()}; };
  (void)adopt();  // so that `watch` tells of what there is
} catch (const wire::BadPath& error) {
  throw EngineFailed(error.what());
} catch (const std::system_error& error) {
  throw EngineFailed(error.what());
}

std::vector<EngineNode> LocalEngine::nodes() { return options_.nodes(); }

AttemptFolder LocalEngine::folder_of(const Attempt& attempt) const {
  return AttemptFolder{options_.state, attempt};
}

void LocalEngine::hold(const Attempt& attempt, const JobSpec& spec) {
  local::check_job(attempt, spec);
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    if (folder.is_held()) return;
    folder.make();
    folder.set(local::HeldJob{spec, options_.failure_grace, options_.logs});
  });
}

void LocalEngine::place(const Attempt& attempt, const std::vector<DevicePlace>& placement,
                        JobClass job_class) {
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    const auto held = folder.held();
    if (!held) throw EngineFailed(words_for(attempt) + " is not held");
    if (folder.is_released()) return;
    local::Placed placed{placement, uuids_of(placement), job_class, {}, {}};
    if (options_.prefix) placed.command = options_.prefix(attempt, job_class, held->job);
    placed.command.insert(placed.command.end(), held->job.command.begin(), held->job.command.end());
    for (const DevicePlace& place : placement) {
      if (options_.node_environment) {
        placed.node_environment[place.node] = options_.node_environment(place.node);
      }
    }
    folder.set(placed);
  });
}

std::vector<std::string> LocalEngine::uuids_of(const std::vector<DevicePlace>& placement) {
  if (placement.empty()) throw EngineFailed("a placement must have a device");
  const auto known = nodes();
  std::vector<std::string> uuids;
  for (const DevicePlace& place : placement) {
    const auto node = std::find_if(known.begin(), known.end(),
                                   [&](const EngineNode& one) { return one.name == place.node; });
    if (node == known.end()) throw EngineFailed("no such node: '" + place.node + "'");
    if (place.device < 0 || static_cast<std::size_t>(place.device) >= node->devices.size()) {
      throw EngineFailed("node '" + place.node + "' has no device " + std::to_string(place.device) +
                         ", only " + std::to_string(node->devices.size()));
    }
    uuids.push_back(node->devices[static_cast<std::size_t>(place.device)]);
  }
  return uuids;
}

void LocalEngine::release(const Attempt& attempt) {
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    if (!folder.is_held() || !folder.is_placed()) {
      throw EngineFailed(words_for(attempt) + " is not placed");
    }
    if (!folder.has_begun() && !folder.has_ended() && !watch_.has_keeper(attempt)) {
      start_keeper(folder);
    }
    track(folder);
  });
}

void LocalEngine::start_keeper(const AttemptFolder& folder) {
  const bool first = !folder.is_released();
  folder.set_released();
  try {
    const pid_t pid = local::start_keeper(options_.keeper, options_.state, folder);
    tracked_[folder.attempt()].started = true;
    watch_.add_keeper(folder.attempt(), wire::open_pidfd(pid), true);
  } catch (const local::NotStarted& error) {
    if (first) folder.unset_released();
    throw EngineFailed(error.what());
  }
}

void LocalEngine::take_back(const Attempt& attempt, milliseconds grace) {
  if (!local::obstacle_to_folder(attempt.job).empty()) return;
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    if (!folder.is_held() || folder.has_ended()) return;
    if (!folder.is_released()) {
      folder.remove();
      return;
    }
    folder.set_take_back(grace);
    track(folder);
    if (!end_taken_back(folder)) tell_keeper(folder);
  });
}

void LocalEngine::track(const AttemptFolder& folder) {
  tracked_.try_emplace(folder.attempt());
  watch_.add(folder);
  if (!folder.has_ended()) follow_keeper(folder);
}

void LocalEngine::follow_keeper(const AttemptFolder& folder) {
  if (watch_.has_keeper(folder.attempt())) return;
  const auto keeper = folder.keeper();
  if (!keeper) return;
  wire::UniqueFd pidfd = local::open_process(keeper->process);
  if (pidfd) watch_.add_keeper(folder.attempt(), std::move(pidfd), false);
}

std::vector<EngineEvent> LocalEngine::watch() {
  std::vector<EngineEvent> events;
  std::string problem;
  for (const Attempt& attempt : guarded([&] { return watch_.changed(); })) {
    if (!tracked_.contains(attempt)) continue;
    try {
      guarded([&] { examine(folder_of(attempt), events); });
    } catch (const EngineFailed& error) {
      problem = error.what();
      watch_.mark(attempt);
    }
  }
  if (events.empty() && !problem.empty()) throw EngineFailed(problem);
  return events;
}

void LocalEngine::examine(const AttemptFolder& folder, std::vector<EngineEvent>& events) {
  const Attempt& attempt = folder.attempt();
  Told& told = tracked_.at(attempt);
  if (!folder.has_ended()) {
    follow_keeper(folder);
    const bool due = folder.has_begun() || (told.started && !watch_.has_keeper(attempt));
    // The lock is the last thing that a keeper gives back: without it, it is gone.
    if (due && !FolderLock::is_taken(folder)) settle_lost(folder);
  }
  if (folder.has_begun() && !told.began) {
    told.began = true;
    events.push_back({attempt, Kind::kBegan, std::nullopt, "its ranks were started"});
  }
  if (folder.has_ended() && !told.ended) {
    told.ended = true;
    const Outcome outcome = outcome_of(folder);
    events.push_back({attempt, outcome.kind, outcome.exit_code, outcome.reason});
  }
}

void LocalEngine::settle_lost(const AttemptFolder& folder) {
  const auto lock = FolderLock::try_take(folder);
  if (!lock || folder.has_ended()) return;
  std::string reason = "its keeper ended before it could start it";
  if (const auto keeper = folder.keeper(); keeper && folder.has_begun()) {
    reason = "its keeper, process " + std::to_string(keeper->process.pid) +
             ", is gone and left no outcome";
    if (keeper->process.boot != local::own_identity().boot) {
      reason = "this machine was started again while it ran";
    } else {
      // Ranks die with their keeper; what they had started does not.
      (void)local::kill_marked(local::keeper_mark(local::to_string(keeper->process)));
    }
    local::kill_in_groups(node::kernel_group_files(), groups_of(*keeper));
  }
  folder.set(Outcome{Kind::kVanished, std::nullopt, reason});
}

std::vector<Engine::Found> LocalEngine::adopt() {
  return guarded([&] {
    std::vector<Found> all;
    for (const Attempt& attempt : local::attempts_in(options_.state)) {
      const AttemptFolder folder = folder_of(attempt);
      if (auto found = look_at(folder)) all.push_back(std::move(*found));
    }
    return all;
  });
}

std::optional<Engine::Found> LocalEngine::look_at(const AttemptFolder& folder) {
  std::optional<local::Placed> placed;
  try {
    (void)folder.held();
    placed = folder.placed();
  } catch (const BadNote& error) {
    if (end_unstarted(folder, {Kind::kVanished, std::nullopt, error.what()})) folder.set_released();
  }
  const bool released = folder.is_released();
  if (released && !folder.has_begun() && folder.take_back()) (void)end_taken_back(folder);
  if (released) track(folder);
  if (folder.has_ended()) return std::nullopt;
  const bool begun = folder.has_begun();
  if (begun && !FolderLock::is_taken(folder)) return std::nullopt;  // `watch` tells of it
  Found found{folder.attempt(), begun, {}, JobClass::kOpportunistic};
  if (placed) {
    found.placement = placed->devices;
    found.job_class = placed->job_class;
  }
  return found;
}

void LocalEngine::forget(const Attempt& attempt) {
  if (!local::obstacle_to_folder(attempt.job).empty()) return;
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    if (!folder.has_ended()) return;
    watch_.remove(attempt);
    tracked_.erase(attempt);
    remove_left_groups(folder);
    folder.remove();
  });
}

std::vector<std::string> LocalEngine::logs(const Attempt& attempt) {
  std::vector<std::string> files;
  if (!local::obstacle_to_folder(attempt.job).empty()) return files;
  const AttemptFolder folder = folder_of(attempt);
  std::error_code ignored;  // one that cannot be looked at is not there
  while (fs::exists(folder.log(files.size()), ignored)) {
    files.push_back(folder.log(files.size()).native());
  }
  return files;
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// Calls of the coordinator to notes in folders, and back.
#include "coordinator/engines/local/local_engine.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "coordinator/engines/local/folder_calls.h"
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
using local::end_taken_back;
using local::FolderLock;
using local::guarded;
using local::Outcome;
using local::words_for;
using Kind = EngineEvent::Kind;
using std::chrono::milliseconds;

std::string host_name() {
  std::string name(256, '\0');
  if (::gethostname(name.data(), name.size() - 1) != 0) {
    throw EngineFailed("cannot read the name of this machine: " +
                       std::generic_category().message(errno));
  }
  name.resize(name.find('\0'));
  return name;
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
    node.memory_mib = in_mib(facts.total);
  } catch (const std::runtime_error& error) {
    throw EngineFailed(error.what());
  }
  return node;
}

LocalEngine::LocalEngine(Options options) try : options_(std::move(options)) {
  options_.state = fs::absolute(options_.state);
  options_.keeper = fs::absolute(options_.keeper);
  local::prepare_state(options_.state);
  left_groups_.emplace(group_files(), options_.state / "left_groups.json");
  if (!options_.nodes) options_.nodes = [] { return std::vector{this_machine()}; };
  (void)adopt();  // so that `watch` tells of what there is
} catch (const std::system_error& error) {
  throw EngineFailed(error.what());
}

std::vector<EngineNode> LocalEngine::nodes() {
  left_groups_->sweep();
  return options_.nodes();
}

node::GroupFiles& LocalEngine::group_files() const {
  return options_.groups == nullptr ? node::kernel_group_files() : *options_.groups;
}

AttemptFolder LocalEngine::folder_of(const Attempt& attempt) const {
  return AttemptFolder{options_.state, attempt};
}

void LocalEngine::hold(const Attempt& attempt, const JobSpec& spec) {
  local::check_job(attempt, spec);
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    local::hold_in(folder, {spec, options_.failure_grace, options_.logs});
  });
}

void LocalEngine::place(const Attempt& attempt, const std::vector<DevicePlace>& placement,
                        JobClass job_class) {
  guarded([&] {
    const AttemptFolder folder = folder_of(attempt);
    const auto held = folder.held();
    if (!held) throw EngineFailed(words_for(attempt) + " is not held");
    if (folder.is_released()) return;
    local::Placed placed;
    placed.devices = placement;
    placed.uuids = local::uuids_of(nodes(), placement);
    placed.job_class = job_class;
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
    // But a rank that was just forked has it, too, until it is executed or dies with its keeper.
    const bool taken = due && FolderLock::is_taken(folder);
    if (due && !taken) settle_lost(folder);
    if (taken && !watch_.has_keeper(attempt)) watch_.mark_for_later(attempt);
  }
  if (folder.has_begun() && !told.began) {
    told.began = true;
    events.push_back({attempt, Kind::kBegan, std::nullopt, "its ranks were started"});
  }
  if (folder.has_ended() && !told.ended) {
    told.ended = true;
    const Outcome outcome = local::outcome_of(folder);
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
    local::kill_in_groups(group_files(), groups_of(*keeper));
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

std::vector<Attempt> LocalEngine::attempts() {
  return guarded([&] { return local::attempts_in(options_.state); });
}

std::string LocalEngine::store_stamp() { return local::store_stamp_in(options_.state); }

void LocalEngine::set_store_stamp(const std::string& stamp) {
  guarded([&] { local::set_store_stamp_in(options_.state, stamp); });
}

std::uint64_t LocalEngine::highest_job() {
  return guarded([&] { return local::highest_job_in(options_.state); });
}

std::optional<Engine::Found> LocalEngine::look_at(const AttemptFolder& folder) {
  const auto placed = local::readable_placement(folder);
  const bool released = folder.is_released();
  if (released && !folder.has_begun() && folder.take_back()) (void)end_taken_back(folder);
  if (released) track(folder);
  if (folder.has_ended()) return std::nullopt;
  const bool begun = folder.has_begun();
  if (begun && !FolderLock::is_taken(folder)) return std::nullopt;  // `watch` tells of it
  return local::found_in(folder, placed);
}

/// What a keeper left that was killed, or that could not remove it; those that were killed then are
/// gone by now, or will be.
void LocalEngine::remove_left_groups(const AttemptFolder& folder) {
  try {
    if (const auto keeper = folder.keeper()) left_groups_->remove(groups_of(*keeper));
  } catch (const BadNote&) {
    return;  // nobody knows which; they are empty and do nothing
  }
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
  if (!local::obstacle_to_folder(attempt.job).empty()) return {};
  return local::logs_of(folder_of(attempt));
}

}  // namespace commensal::cluster

// SPDX-License-Identifier: Apache-2.0
// Calls of engines to notes in folders, and back.
#include "coordinator/engines/local/folder_calls.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "coordinator/engines/local/durable_file.h"
#include "coordinator/node/kernel_files.h"
#include "coordinator/wire/paths.h"

namespace commensal::cluster::local {
namespace {

namespace fs = std::filesystem;
using Kind = EngineEvent::Kind;

void make_if_absent(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    throw std::system_error(errno, std::generic_category(),
                            "cannot make the folder " + path.native());
  }
}

}  // namespace

std::string words_for(const Attempt& attempt) {
  return "job " + attempt.job.str() + ", attempt " + std::to_string(attempt.number);
}

void prepare_state(const fs::path& state) {
  try {
    guarded([&] {
      wire::prepare_private_dir(state, "state folder");
      make_if_absent(state / "jobs");
      make_if_absent(state / "logs");
    });
  } catch (const wire::BadPath& error) {
    throw EngineFailed(error.what());
  }
}

std::string store_stamp_in(const fs::path& state) {
  return node::read_file(state / "store-stamp").value_or("");
}

void set_store_stamp_in(const fs::path& state, const std::string& stamp) {
  write_whole(state / "store-stamp", stamp);
}

void hold_in(const AttemptFolder& folder, const HeldJob& job) {
  if (folder.is_held()) return;
  folder.make();
  folder.set(job);
}

std::vector<std::string> uuids_of(const std::vector<EngineNode>& nodes,
                                  const std::vector<DevicePlace>& placement) {
  if (placement.empty()) throw EngineFailed("a placement must have a device");
  std::vector<std::string> uuids;
  for (const DevicePlace& place : placement) {
    const auto node = std::find_if(nodes.begin(), nodes.end(),
                                   [&](const EngineNode& one) { return one.name == place.node; });
    if (node == nodes.end()) throw EngineFailed("no such node: '" + place.node + "'");
    if (place.device < 0 || static_cast<std::size_t>(place.device) >= node->devices.size()) {
      throw EngineFailed("node '" + place.node + "' has no device " + std::to_string(place.device) +
                         ", only " + std::to_string(node->devices.size()));
    }
    uuids.push_back(node->devices[static_cast<std::size_t>(place.device)]);
  }
  return uuids;
}

Outcome outcome_of(const AttemptFolder& folder) {
  try {
    return folder.outcome().value_or(Outcome{Kind::kVanished, std::nullopt, "no outcome was left"});
  } catch (const BadNote& error) {
    return {Kind::kVanished, std::nullopt, error.what()};
  }
}

bool end_unstarted(const AttemptFolder& folder, const Outcome& outcome) {
  const auto lock = FolderLock::try_take(folder);
  if (!lock) return false;
  if (!folder.has_begun() && !folder.has_ended()) folder.set(outcome);
  return true;
}

bool end_taken_back(const AttemptFolder& folder) {
  return end_unstarted(folder, {Kind::kTakenBack, std::nullopt, "taken back before it began"});
}

std::optional<Placed> readable_placement(const AttemptFolder& folder) {
  try {
    (void)folder.held();
    return folder.placed();
  } catch (const BadNote& error) {
    if (end_unstarted(folder, {Kind::kVanished, std::nullopt, error.what()})) folder.set_released();
    return std::nullopt;
  }
}

Engine::Found found_in(const AttemptFolder& folder, const std::optional<Placed>& placed) {
  Engine::Found found{folder.attempt(), folder.has_begun(), {}, JobClass::kOpportunistic};
  if (placed) {
    found.placement = placed->devices;
    found.job_class = placed->job_class;
  }
  return found;
}

std::vector<std::string> logs_of(const AttemptFolder& folder) {
  std::vector<std::string> files;
  std::error_code ignored;  // one that cannot be looked at is not there
  while (fs::exists(folder.log(files.size()), ignored)) {
    files.push_back(folder.log(files.size()).native());
  }
  return files;
}

}  // namespace commensal::cluster::local

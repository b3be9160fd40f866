// SPDX-License-Identifier: Apache-2.0
// An attempt from its lock to its outcome.
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <system_error>
#include <thread>

#include "coordinator/engines/local/gang_head.h"
#include "coordinator/engines/local/given_devices.h"
#include "coordinator/engines/local/keeper.h"

namespace commensal::cluster::local {
namespace {

using namespace std::chrono_literals;
using Kind = EngineEvent::Kind;

/// Writes the outcome, however long the disk is full: nobody else knows it.
void leave(const AttemptFolder& folder, const Outcome& outcome) {
  spdlog::info("{}", outcome.reason);
  for (auto wait = 50ms;; wait = std::min<std::chrono::milliseconds>(2 * wait, 5s)) {
    try {
      folder.set(outcome);
      return;
    } catch (const std::system_error& error) {
      if (!folder.is_held()) return;  // the folder is gone, and with it who would read this
      spdlog::error("cannot leave the outcome, tries again: {}", error.what());
    }
    std::this_thread::sleep_for(wait);
  }
}

Outcome run(const AttemptFolder& folder, const HeldJob& held, const Placed& placed) {
  Keeper keeper{folder, held, placed};
  KeeperNote note{own_identity(), {}};
  for (const auto& group : keeper.groups()) note.groups.push_back(group.native());
  folder.set(note);
  // From here on who takes the attempt back sends a signal; before, only this note.
  if (folder.take_back()) {
    return {Kind::kTakenBack, std::nullopt, "taken back before it began"};
  }
  if (!folder.set_begun()) return {Kind::kVanished, std::nullopt, "it had begun before"};
  return keeper.run();
}

Outcome run_gang(const AttemptFolder& folder, const HeldJob& held, const Placed& placed) {
  GangHead head{folder, held, placed, {}};
  folder.set(KeeperNote{own_identity(), {}});
  if (folder.take_back()) {
    return {Kind::kTakenBack, std::nullopt, "taken back before it began"};
  }
  return head.run();
}

Outcome run_or_say_why_not(const AttemptFolder& folder) {
  try {
    const auto held = folder.held();
    const auto placed = folder.placed();
    if (!held || !placed || placed->devices.empty()) {
      return {Kind::kVanished, std::nullopt, "its keeper does not know where it is to run"};
    }
    if (needs_head(*placed)) return run_gang(folder, *held, *placed);
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
    return run(folder, *held, with_given_devices(*placed, visible == nullptr ? "" : visible));
  } catch (const std::exception& error) {
    return {Kind::kVanished, std::nullopt, std::string{"its keeper failed: "} + error.what()};
  }
}

}  // namespace

int keep(const AttemptFolder& folder) {
  try {
    const FolderLock lock = FolderLock::take(folder);
    const bool wanted = folder.is_held() && folder.is_released();
    if (!wanted || folder.has_ended() || folder.has_begun()) return 0;
    leave(folder, run_or_say_why_not(folder));
    return 0;
  } catch (const std::exception& error) {
    spdlog::error("{}", error.what());
    return 1;
  }
}

}  // namespace commensal::cluster::local

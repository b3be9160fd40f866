// SPDX-License-Identifier: Apache-2.0
// What engines do with folders of attempts, whatever starts their keepers.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/engines/local/attempt_folder.h"

namespace commensal::cluster::local {

/// "job 7, attempt 1".
[[nodiscard]] std::string words_for(const Attempt& attempt);

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

/// Makes the state folder and those in it. @throws EngineFailed if they cannot be this user's
/// alone.
void prepare_state(const std::filesystem::path& state);

/// Read and write STATE/store-stamp (Engine::store_stamp).
[[nodiscard]] std::string store_stamp_in(const std::filesystem::path& state);
void set_store_stamp_in(const std::filesystem::path& state, const std::string& stamp);

/// Makes an attempt's folder with what is asked of it, unless it is there already.
void hold_in(const AttemptFolder& folder, const HeldJob& job);

/// Looks up the devices of a placement. @throws EngineFailed naming what is not there.
[[nodiscard]] std::vector<std::string> uuids_of(const std::vector<EngineNode>& nodes,
                                                const std::vector<DevicePlace>& placement);

/// How an attempt has ended, also if the note cannot be read.
[[nodiscard]] Outcome outcome_of(const AttemptFolder& folder);

/// Ends an attempt whose ranks were never started. @return false if a keeper has it.
bool end_unstarted(const AttemptFolder& folder, const Outcome& outcome);
bool end_taken_back(const AttemptFolder& folder);

/// Ends an attempt whose notes cannot be read, so that it is told as vanished.
/// @return what the notes say of its placement.
[[nodiscard]] std::optional<Placed> readable_placement(const AttemptFolder& folder);

/// What `adopt` says of an attempt that has not ended.
[[nodiscard]] Engine::Found found_in(const AttemptFolder& folder,
                                     const std::optional<Placed>& placed);

/// Files of an attempt's output, one a rank.
[[nodiscard]] std::vector<std::string> logs_of(const AttemptFolder& folder);

}  // namespace commensal::cluster::local

// SPDX-License-Identifier: Apache-2.0
// Whether a store may decide about the attempts that an engine keeps: one that was lost, emptied or
// exchanged would end them all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/cluster/engine.h"
#include "coordinator/cluster/store.h"

namespace commensal::cluster {

/// What store and engine say of each other. A stamp is a random text that a store and its copies
/// have for good; the engine keeps it beside its attempts.
struct StoreOwner {
  std::string store_stamp;   ///< empty: the store is new, or was written before there were stamps
  std::string engine_stamp;  ///< empty: none was left beside the attempts yet
  std::vector<Attempt> attempts;  ///< of which the engine keeps anything
  std::size_t known = 0;          ///< of these, whose job the store has
};

/// Asks both. Changes nothing. @throws StoreFailed, EngineFailed.
[[nodiscard]] StoreOwner read_owner(Store& store, Engine& engine);

/// Tells whether the attempts are the store's: it has the stamp that was left beside them, or,
/// where one of the two has none yet, it knows one of them. Without attempts nothing can be lost.
[[nodiscard]] bool owns_attempts(const StoreOwner& owner);

/// Makes the stamps equal, durably; where they are it writes nothing.
/// @throws StoreFailed, EngineFailed.
void stamp_both(const StoreOwner& owner, Store& store, Engine& engine);

/// Returns what to throw where the store does not own the attempts: what it is ("is missing"), what
/// to do.
[[nodiscard]] StoreFailed foreign_store(const std::filesystem::path& file, const std::string& is);
/// The same with what is known.
[[nodiscard]] StoreFailed foreign_store(const std::filesystem::path& file, const StoreOwner& owner);

/// Refuses to make a file in the place of one that is missing or empty while `attempts`, the folder
/// of an engine's attempts, has any: a coordinator that is refused leaves no new file where a copy
/// is to be put. Nothing is opened or changed. @throws StoreFailed (kForeign).
void check_not_lost(const std::filesystem::path& file, const std::filesystem::path& attempts);

}  // namespace commensal::cluster
